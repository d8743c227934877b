from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.studies.hidden_runs import hidden_scenario
from ecorl.errors import ConfigError, RunError
from ecorl.policy.adaptation import adapt as adapting
from ecorl.policy.adaptation import versions
from ecorl.policy.adaptation.adapt import (
    adapt,
    adapt_command,
    adapted_scenario,
    judge,
    rollback,
    rollback_command,
    score,
    tuning_pool,
    unsure,
)
from ecorl.policy.adaptation.shift import WORKLOAD, Level, read_workload, shifted
from ecorl.policy.adaptation.versions import CURRENT, HISTORY, Versions
from ecorl.policy.training.export import network_from_onnx, save_onnx
from ecorl.policy.training.network import PolicyNetwork
from ecorl.policy.training.train import Made, TrainingPlan
from ecorl.records import Abilities, Algorithm
from ecorl.scheduler.features import N_FEATURES
from ecorl.scheduler.policy_file import PolicyFile, shipped_path
from ecorl.sim.scenario import Limits
from tests.fakes.hidden_runs import PLAIN, ROWS, edited, wrote

HIDDEN = hidden_scenario(
    5,
    replace(
        PLAIN, algorithm=Algorithm.GRPO, calibration="paper", fitted=None, length_scale=0.8,
        abilities=Abilities(early_forward=True), limits=Limits(l_max=8192.0), load=0.15,
        burst_s=0.5, calm=0.8, drift_std=0.05, drift_memory=0.5,
    ),
    n_iterations=150,
)  # fmt: skip
LONG, BUSY = replace(HIDDEN, length_scale=1.6), replace(HIDDEN, load=0.6)
TINY = TrainingPlan(
    family="fitted", n_scenarios=2, n_iterations=20, n_rounds=2, n_epochs=20, ppo_steps=0
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    scenarios = {"usual": HIDDEN, "again": HIDDEN, "long": LONG, "busy": BUSY}
    return {n: wrote(folder / n, s, seed=i) for i, (n, s) in enumerate(scenarios.items())}


@pytest.fixture(scope="module")
def made_for(runs):
    """Record of a policy that was made for the usual workload."""
    return {WORKLOAD: read_workload(runs["usual"]).record()}


@pytest.fixture(scope="module")
def blocking(tmp_path_factory, made_for):
    """A policy that always offloads and waits: bad where batches are long or the cards busy."""
    torch.manual_seed(0)
    network = PolicyNetwork()
    with torch.no_grad():
        network.head.bias.copy_(torch.tensor([-50.0, 50.0, -50.0]))
    path = tmp_path_factory.mktemp("policy") / "blocking.onnx"
    save_onnx(network, made_for, path)
    return path


def tuned_as(monkeypatch, change=lambda network: network):
    """A tuning that only does what `change` does."""

    def train(plan, folder, *, start, **rest):
        del plan, folder, rest
        return Made(change(start), {"curves": {}})

    monkeypatch.setattr(adapting, "train", train)


def toward_gpu(network):
    with torch.no_grad():
        network.head.bias.copy_(torch.tensor([500.0, 0.0, 0.0]))
    return network


def toward_overlap(network):
    with torch.no_grad():
        network.head.bias.copy_(torch.tensor([0.0, 0.0, 500.0]))
    return network


def history_of(folder):
    return json.loads((folder / HISTORY).read_text("utf-8"))["entries"]


def adapted(run, folder, policy=None, force=True, **kwargs):
    lines = []
    found = adapt_command(run, folder, policy, force, lines.append, plan=TINY, seeds=8, **kwargs)
    return found, lines


# ---------------------------------------------------------------- weights


def test_the_weights_of_a_file_give_its_logits(tmp_path):
    rng = np.random.default_rng(0)
    states = rng.normal(0.3, 1.5, (200, N_FEATURES)).astype(np.float32)
    torch.manual_seed(1)
    network = PolicyNetwork()
    network.trunk.normalise_by(states[:50])
    save_onnx(network, {}, tmp_path / "p.onnx")
    for path in (tmp_path / "p.onnx", shipped_path()):
        found = network_from_onnx(path)
        wanted = PolicyFile(path).batch(states)
        with torch.no_grad():
            logits = found(torch.from_numpy(states)).numpy()
        assert np.abs(wanted).max() > 0.1
        assert np.abs(logits - wanted).max() <= 1e-5 * max(1.0, float(np.abs(wanted).max()))


def test_a_file_of_another_form_is_refused(tmp_path, monkeypatch):
    save_onnx(PolicyNetwork(), {}, tmp_path / "p.onnx")
    monkeypatch.setattr("ecorl.policy.training.export.HIDDEN", (256, 128, 65))
    with pytest.raises(ConfigError, match=r"w2.*\[128, 64\]"):
        network_from_onnx(tmp_path / "p.onnx")
    with pytest.raises(ConfigError):
        network_from_onnx(tmp_path / "absent.onnx")


# ---------------------------------------------------------------- shift


def test_the_same_workload_is_no_shift(runs, made_for):
    found = shifted(read_workload(runs["again"]), made_for)
    assert not found
    assert {c.name for c in found.changes} == {"row_length", "other_load", "card_time"}
    assert "hidden-5" in found.against


def test_longer_rows_are_seen(runs, made_for):
    change = next(
        c for c in shifted(read_workload(runs["long"]), made_for).found if c.name == "row_length"
    )
    assert 0.6 < change.amount < 1.0  # completions double, prompts do not
    assert change.recent > change.before


def test_a_greater_load_is_seen(runs, made_for):
    (change,) = shifted(read_workload(runs["busy"]), made_for).found
    assert change.name == "other_load"
    assert change.recent > 2.0 * change.before


def test_slower_cards_are_seen(runs, made_for, tmp_path):
    slower = "UPDATE execution SET time_s = time_s * 1.5 WHERE action <> 'gpu' AND device = 'u55c'"
    found = shifted(read_workload(edited(runs["again"], tmp_path, slower)), made_for).found
    (change,) = [c for c in found if c.name == "card_time"]
    assert change.amount == pytest.approx(0.5, abs=0.05)


def test_without_a_record_the_earlier_batches_count(runs, tmp_path):
    later = "stage = 'generation' AND iteration > 100"
    run = edited(
        runs["usual"], tmp_path,
        "UPDATE execution SET n_tokens = n_tokens + n_output_tokens, "
        f"n_output_tokens = 2 * n_output_tokens WHERE {later}",
    )  # fmt: skip
    workload = read_workload(run)
    found = shifted(workload, {})
    assert "earlier batches" in found.against
    assert "row_length" in {c.name for c in found.found}
    moved = adapted_scenario(workload, found, 20)
    whole = workload.calibration.scenario()
    assert moved.length_scale > 1.2 * whole.length_scale
    assert not shifted(read_workload(runs["usual"]), {})


def test_neighbours_that_are_alike_count_less():
    rng = np.random.default_rng(0)
    apart = rng.normal(size=100)
    assert Level.of(apart).error == pytest.approx(0.1, rel=0.3)
    assert Level.of(np.repeat(apart[:10], 10)).error > 2.0 * Level.of(apart).error


# ---------------------------------------------------------------- adapting


@pytest.mark.parametrize(("name", "truth"), [("long", LONG), ("busy", BUSY)])
def test_a_bad_policy_is_improved_and_swapped(runs, blocking, tmp_path, name, truth):
    out = tmp_path / "new.onnx"
    found = adapt(runs[name], blocking, out, plan=TINY, seeds=10)
    assert found.swapped
    assert found.shift
    assert found.new > found.old
    assert found.difference.p_value < 0.05
    truth = replace(truth, n_iterations=30)
    old, new = (score(network_from_onnx(p), truth, 16, seed=7) for p in (blocking, out))
    assert judge(old, new).significant
    assert new.mean() > old.mean()
    record = PolicyFile(out).record
    assert record[WORKLOAD]["run"] == record["adapted"]["run"] == "hidden-5"
    assert not shifted(read_workload(runs[name]), record)


def test_the_shipped_policy_does_not_get_worse(runs, tmp_path):
    out = tmp_path / "new.onnx"
    found = adapt(runs["long"], None, out, plan=replace(TINY, n_rounds=1), seeds=8, force=True)
    better = found.difference.significant and found.difference.mean > adapting.LEAST_GAIN
    assert (found.swapped, out.exists()) == (better, better)
    assert found.decision.startswith("swapped" if better else "kept")
    in_use = out if found.swapped else shipped_path()
    truth = replace(LONG, n_iterations=30)
    old, new = (score(network_from_onnx(p), truth, 16, seed=7) for p in (shipped_path(), in_use))
    difference = judge(old, new)
    assert difference.mean >= 0.0 or not difference.significant
    assert new.mean() > 0.0  # better than always-GPU


def test_what_is_better_is_always_swapped_in(runs, tmp_path, monkeypatch):
    never, out = tmp_path / "never.onnx", tmp_path / "new.onnx"
    save_onnx(toward_gpu(network_from_onnx(shipped_path())), {}, never)
    shipped = network_from_onnx(shipped_path())
    tuned_as(monkeypatch, lambda network: shipped)
    found = adapt(runs["usual"], never, out, plan=TINY, seeds=8, force=True)
    assert found.old == pytest.approx(0.0, abs=1e-9)  # it never leaves the GPUs
    assert found.swapped
    assert found.difference.mean == pytest.approx(found.new - found.old)
    assert found.difference.low > 0.0
    truth = replace(HIDDEN, n_iterations=30)
    old, new = (score(network_from_onnx(p), truth, 16, seed=7) for p in (never, out))
    assert judge(old, new).significant
    assert new.mean() > old.mean()


@pytest.mark.parametrize("change", [lambda network: network, toward_gpu])
def test_what_is_no_better_is_not_written(runs, tmp_path, monkeypatch, change):
    tuned_as(monkeypatch, change)
    out = tmp_path / "new.onnx"
    found = adapt(runs["usual"], None, out, plan=TINY, seeds=6, force=True)
    assert not found.swapped
    assert found.new <= found.old
    assert "kept" in found.decision
    assert not out.exists()


def test_a_gain_within_the_noise_is_none():
    rng = np.random.default_rng(3)
    old = rng.normal(size=20)
    assert not judge(old, old + rng.normal(0.0, 0.1, 20)).significant
    # Episodes differ by 1, policies by a hundredth: paired, it shows.
    better = judge(old, old + 0.01 + rng.normal(0.0, 0.01, 20))
    assert better.significant
    assert better.mean > 0


def test_without_a_shift_nothing_is_tuned(runs, blocking, tmp_path, monkeypatch, snapshot):
    monkeypatch.setattr(adapting, "train", None)
    found = adapt(runs["again"], blocking, tmp_path / "new.onnx", plan=TINY)
    assert not found.shift
    snapshot(found.decision)
    assert (found.old, found.new, found.difference) == (None, None, None)
    with pytest.raises(TypeError):
        adapt(runs["again"], blocking, tmp_path / "new.onnx", plan=TINY, force=True)


def test_a_sure_network_chooses_alike_and_can_learn(blocking):
    old = network_from_onnx(blocking)
    scenario = replace(HIDDEN, n_iterations=10)
    new = unsure(old, [scenario], seed=0)
    states = torch.rand(100, N_FEATURES)
    with torch.no_grad():
        before, after = old(states), new(states)
    assert torch.equal(before.argmax(dim=1), after.argmax(dim=1))
    assert float((before.max(dim=1)[0] - before.min(dim=1)[0]).min()) > 90.0
    assert float((after.max(dim=1)[0] - after.min(dim=1)[0]).max()) < 8.0


def test_the_pool_begins_with_the_scenario_and_differs():
    pool = tuning_pool(HIDDEN, 6, seed=0)
    assert pool[0] is HIDDEN
    assert len({s.length_scale for s in pool}) == 6
    assert all(0 <= s.load <= 0.9 and 0.5 <= s.calm <= 1 for s in pool)
    assert [s.load for s in tuning_pool(HIDDEN, 6, seed=0)] == [s.load for s in pool]


# ---------------------------------------------------------------- the folder


def test_a_swap_and_back(runs, blocking, tmp_path, monkeypatch, snapshot):
    tuned_as(monkeypatch, toward_overlap)
    folder = tmp_path / "policy"
    found, lines = adapted(runs["long"], folder, blocking, force=False)
    assert found.swapped
    assert (folder / "0001.onnx").read_bytes() == blocking.read_bytes()
    assert (folder / CURRENT).read_bytes() == (folder / "0002.onnx").read_bytes()
    assert (folder / CURRENT).read_bytes() != blocking.read_bytes()
    begun, swap = history_of(folder)
    assert begun["decision"] == "begun"
    assert (swap["run"], swap["version"], swap["before"]) == ("hidden-5", 2, 1)
    assert swap["new_score"] > swap["old_score"]
    assert swap["p_value"] < 0.05
    assert swap["when"].endswith(" UTC")
    snapshot("\n".join(lines[-2:]))

    said = []
    assert rollback_command(folder, said.append) == 1
    snapshot("\n".join(said), "back")
    assert (folder / CURRENT).read_bytes() == blocking.read_bytes()
    assert history_of(folder)[-1]["decision"] == "rolled back"
    with pytest.raises(RunError) as caught:
        rollback(folder)
    snapshot(str(caught.value), "back again")
    assert (folder / CURRENT).read_bytes() == blocking.read_bytes()


def test_what_is_kept_stands_in_the_history(runs, blocking, tmp_path):
    found, lines = adapted(runs["again"], tmp_path, blocking, force=False)
    assert not found.swapped
    assert Versions(tmp_path).number == 1
    assert history_of(tmp_path)[-1]["decision"] == found.decision
    assert found.decision in lines
    with pytest.raises(RunError, match="no policy"):
        rollback(tmp_path)


def test_several_versions_go_back_one_by_one(tmp_path):
    store = Versions(tmp_path)
    for content in (b"one", b"two", b"three"):
        store.take(content, {})
    assert rollback(tmp_path) == 2
    assert Versions(tmp_path).take(b"four", {}) == 4
    assert [rollback(tmp_path), rollback(tmp_path)] == [2, 1]
    assert (tmp_path / CURRENT).read_bytes() == b"one"


@pytest.mark.parametrize(("fails", "after"), [("0002.onnx", 1), (HISTORY, 1), (CURRENT, 2)])
def test_cut_off_in_between_the_old_policy_is_in_place(tmp_path, monkeypatch, fails, after):
    Versions(tmp_path).take(b"old", {})
    write = versions.write_file

    def cut_off(path, content):
        if path.name == fails:
            raise KeyboardInterrupt
        write(path, content)

    monkeypatch.setattr(versions, "write_file", cut_off)
    with pytest.raises(KeyboardInterrupt):
        Versions(tmp_path).take(b"new", {})
    assert (tmp_path / CURRENT).read_bytes() == b"old"
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]
    monkeypatch.undo()
    again = Versions(tmp_path)
    again.settle()
    assert again.number == after
    assert (tmp_path / CURRENT).read_bytes() == (b"old" if after == 1 else b"new")
    assert again.take(b"newer", {}) == after + 1
    assert rollback(tmp_path) == after


def test_a_write_that_dies_leaves_the_file_whole(tmp_path, monkeypatch):
    (tmp_path / "f").write_bytes(b"old")

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ecorl.files.os.fsync", full)
    with pytest.raises(RunError, match="No space"):
        versions.write_file(tmp_path / "f", b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["f"]
    assert (tmp_path / "f").read_bytes() == b"old"


def test_a_file_put_in_place_by_hand_becomes_a_version(tmp_path):
    Versions(tmp_path).take(b"ours", {})
    (tmp_path / CURRENT).write_bytes(b"theirs")
    assert rollback(tmp_path) == 1
    assert (tmp_path / CURRENT).read_bytes() == b"ours"
    assert (tmp_path / "0002.onnx").read_bytes() == b"theirs"


def test_a_version_that_was_changed_is_not_put_back(tmp_path):
    for content in (b"one", b"two"):
        Versions(tmp_path).take(content, {})
    (tmp_path / "0001.onnx").write_bytes(b"other")
    with pytest.raises(RunError, match=r"0001\.onnx"):
        rollback(tmp_path)
    assert (tmp_path / CURRENT).read_bytes() == b"two"


def test_another_policy_than_the_folders_is_refused(runs, blocking, tmp_path):
    Versions(tmp_path).take(shipped_path().read_bytes(), {})
    with pytest.raises(RunError, match=r"blocking\.onnx"):
        adapted(runs["again"], tmp_path, blocking)


def test_two_commands_at_once(tmp_path):
    Versions(tmp_path).take(b"one", {})
    with Versions(tmp_path).locked(), pytest.raises(RunError, match="another command"):
        rollback(tmp_path)


@pytest.mark.parametrize("content", ["no json", "[]", '{"format": "other", "current": 1}'])
def test_a_history_that_is_none(tmp_path, content):
    (tmp_path / HISTORY).write_text(content, "utf-8")
    with pytest.raises(RunError, match=HISTORY):
        rollback(tmp_path)


def test_a_ledger_without_the_stages_changes_nothing(runs, blocking, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    edited(runs["usual"], run, f"DELETE {ROWS} stage = 'reference'")
    folder = tmp_path / "policy"
    with pytest.raises(RunError, match="reference on the GPUs") as caught:
        adapted(run, folder, blocking)
    assert "\n" not in str(caught.value)
    assert not (folder / CURRENT).exists()
    with pytest.raises(RunError, match="below"):
        versions.make_folder(blocking / "below")  # a file stands where the folder would be
    with pytest.raises(RunError, match="absent"):
        rollback(tmp_path / "absent")
