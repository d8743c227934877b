"""Results as JSON, and joined: never those of two devices, drivers or configs."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ecorl.bench.machine import Machine
from ecorl.bench.tokens_per_joule.plan import BenchPlan, default_config, users_config
from ecorl.bench.tokens_per_joule.result import joined, read_result, result_json
from ecorl.bench.tokens_per_joule.running.folder import BenchFolder
from ecorl.errors import ConfigError, DataError, RunError
from tests.unit.bench.tokens_per_joule.conftest import STAND, figures, result_of


def test_a_result_reads_back_equal(whole, tmp_path):
    path = tmp_path / "a.json"
    path.write_text(result_json(whole))
    assert read_result(path) == whole
    data = json.loads(path.read_text())
    assert data["stand"]["driver"] == "Linux 6.1"
    assert data["stand"]["machine"]["cpu"] == "Intel Xeon"
    assert (data["stand"]["digest"], data["commits"]) == ("0123456789ab", ["c0ffee"])
    first = data["runs"][0]
    assert first["derived"]["tokens_per_j"] == pytest.approx(1000 / 101)
    assert first["derived"]["tokens_per_j_with_card"] is None


def test_missing_figures_are_null_and_not_nought(tmp_path):
    result = result_of([figures("gpu_only", 1, machine=None), figures("gpu_only", 2, missing="x")])
    data = json.loads(result_json(result))
    assert data["runs"][0]["machine"] is None
    assert data["runs"][0]["derived"]["tokens_per_j"] is None
    assert data["known_truth"]["true"] == 2.001


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"machine": Machine("x", "AMD EPYC", 2, 8 * 2**30, None)}, "another device"),
        ({"unit": "ffff0000"}, "another device"),
        ({"driver": "Linux 6.2"}, "another driver"),
        ({"digest": "ba9876543210"}, "another config"),
    ],
)
def test_results_of_two_devices_drivers_or_configs_are_refused(changes, words):
    one = result_of([figures("gpu_only", 1)])
    other = result_of([figures("gpu_only", 2)], stand=replace(STAND, **changes))
    with pytest.raises(DataError, match=words) as error:
        joined([one, other], ["a.json", "b.json"])
    assert "\n" not in str(error.value)
    assert "b.json" in str(error.value)


def test_results_of_one_stand_are_joined():
    one = result_of([figures("gpu_only", 1), figures("learned", 1)])
    stand = replace(STAND, commit="dead")
    other = result_of([figures("gpu_only", 2)], stand=stand, commits=("dead",))
    both = joined([one, other], ["a", "b"])
    assert [(run.arm, run.seed) for run in both.runs] == [
        ("gpu_only", 1),
        ("learned", 1),
        ("gpu_only", 2),
    ]
    assert both.commits == ("c0ffee", "dead")
    assert both.seeds == (1, 2)
    # The target is the worst run's of all, found anew.
    assert both.target("reward").value == pytest.approx(1.001)


def test_the_same_run_twice_is_refused():
    one, other = (result_of([figures("gpu_only", 1)]) for _ in range(2))
    with pytest.raises(DataError, match=r"b\.json: .*gpu_only.*a\.json"):
        joined([one, other], ["a.json", "b.json"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not JSON"),
        ("[]", "no result of ecorl bench"),
        ('{"benchmark": "demo"}', "no result of ecorl bench"),
        ('{"benchmark": "ecorl tokens-per-joule", "format": 99}', "format 99"),
        ('{"benchmark": "ecorl tokens-per-joule", "format": 1}', "damaged"),
    ],
)
def test_what_is_no_result_is_refused_in_one_line(tmp_path, text, words):
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(DataError, match=words) as error:
        read_result(path)
    assert "\n" not in str(error.value)


# ---------------------------------------------------------------- plans


def plan(*settings, **changes):
    fields = {"base": default_config(10, 2, settings), "placements": ("gpu_only",), "warm_up": 2}
    return BenchPlan(**fields | changes)


def test_a_plan_is_told_by_all_that_a_run_depends_on_and_nothing_else():
    one = plan()
    same = [
        plan("seed=7"),
        plan("run_dir=elsewhere"),
        plan("name=other"),
        plan(seeds=(1, 2)),
        plan(placements=("learned",)),
        plan(idle_s=0.0),
    ]
    assert {p.digest() for p in same} == {one.digest()}
    others = [
        plan("trainer.learning_rate=1e-5"),
        plan("trainer.steps=11"),
        plan("devices.accelerator=v80"),
        plan(warm_up=3),
    ]
    assert len({p.digest() for p in [one, *others]}) == 1 + len(others)


def test_other_prompts_are_another_config(tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "a"}\n')
    task = f'task={{type="files",policy="p",reward="r",prompts="{prompts}"}}'
    before = plan(task).digest()
    prompts.write_text('{"prompt": "b"}\n')
    assert plan(task).digest() != before


@pytest.mark.parametrize(
    "changes", [{"warm_up": 10}, {"warm_up": -1}, {"seeds": ()}, {"seeds": (1, 1)}]
)
def test_a_plan_that_cannot_be_run_is_refused(changes):
    with pytest.raises(ConfigError):
        plan(**changes)


def test_a_config_of_the_user_s_is_evaluated_along_training_unless_it_says_otherwise(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("[trainer]\nsteps = 100\n")
    assert users_config(str(path), [], None).trainer.evaluate_every == 25
    assert users_config(str(path), [], 8).trainer.evaluate_every == 2
    path.write_text("[trainer]\nsteps = 100\nevaluate_every = 0\n")
    assert users_config(str(path), [], None).trainer.evaluate_every == 0


def test_a_folder_keeps_its_plan_and_refuses_another_device(tmp_path, snapshot):
    folder, made = BenchFolder(tmp_path / "b"), plan("trainer.beta=0.1", reward=0.7)
    folder.begin(made, STAND)
    assert BenchFolder(tmp_path / "b").plan() == (made, STAND)
    with pytest.raises(RunError, match="another device"):
        BenchFolder(tmp_path / "b").begin(made, replace(STAND, unit="ffff0000"))
    BenchFolder(tmp_path / "b").begin(made, STAND)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "mine.txt").write_text("x")
    with pytest.raises(RunError) as full, BenchFolder(tmp_path / "c").held():
        pass
    assert [one.name for one in (tmp_path / "c").iterdir()] == ["mine.txt"]
    with pytest.raises(RunError) as a_file, BenchFolder(tmp_path / "c" / "mine.txt").held():
        pass
    snapshot("\n".join([str(full.value), str(a_file.value)]))


def test_what_never_ran_leaves_nothing_behind(tmp_path):
    folder = BenchFolder(tmp_path / "b")
    with folder.held():
        folder.begin(plan(), STAND)
        folder.withdraw()
    assert not (tmp_path / "b").exists()
    folder = BenchFolder(tmp_path / "b")
    with folder.held():
        folder.begin(plan(), STAND)
        folder.run_dir("gpu_only", 1).mkdir()
        folder.withdraw()
    assert folder.is_begun


def test_a_run_that_was_cut_off_is_put_aside(tmp_path):
    folder = BenchFolder(tmp_path / "b")
    folder.begin(plan(), STAND)
    for _ in range(2):
        folder.run_dir("gpu_only", 1).mkdir()
        folder.fail("gpu_only", 1, "it died")
        assert folder.failure("gpu_only", 1) == "it died"
        folder.clear("gpu_only", 1)
        assert folder.failure("gpu_only", 1) == ""
    assert not folder.run_dir("gpu_only", 1).exists()
    assert len(list((tmp_path / "b" / "unfinished").iterdir())) == 2


def test_two_stands_of_one_kind_differ_by_the_unit_alone():
    assert STAND.differences(replace(STAND, commit="other", versions={})) == []
    assert STAND.differences(replace(STAND, unit="ffff0000")) != []


def test_a_second_call_with_fewer_arms_keeps_those_of_the_first(tmp_path):
    folder = BenchFolder(tmp_path / "b")
    folder.begin(plan(placements=("gpu_only", "learned"), seeds=(1, 2)), STAND)
    again = BenchFolder(tmp_path / "b")
    again.begin(plan(placements=("concurrent", "gpu_only"), seeds=(2, 3), reward=0.5), STAND)
    kept, _ = folder.plan()
    assert kept.placements == ("gpu_only", "learned", "concurrent")
    assert (kept.seeds, kept.reward) == ((1, 2, 3), 0.5)


def test_a_benchmark_goes_on_where_the_framework_computes_as_it_did(tmp_path):
    folder = BenchFolder(tmp_path / "b")
    folder.begin(plan(), STAND)
    folder.place("cuda", ["GPU-1"])
    BenchFolder(tmp_path / "b").begin(plan(), STAND)  # which GPU is used is not known yet
    folder.place("cuda", ["GPU-1"])
    for device, uuids in (("cuda", ["GPU-2"]), ("cuda", ["GPU-1", "GPU-2"]), ("cpu", [])):
        with pytest.raises(RunError, match="another device"):
            folder.place(device, uuids)
    assert folder.plan()[1] == STAND.computing_on("cuda", ["GPU-1"])


def test_another_version_of_the_framework_is_another_result(snapshot):
    (difference,) = STAND.differences(replace(STAND, versions={**STAND.versions, "torch": "0.1"}))
    snapshot(difference)


def test_a_model_that_changed_is_another_config(tmp_path):
    (tmp_path / "p").mkdir()
    weights = tmp_path / "p" / "model.safetensors"
    weights.write_bytes(bytes(3 * 2**20))
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("{}")
    task = f'task={{type="files",policy="{tmp_path}/p",reward="{tmp_path}/p",prompts="{prompts}"}}'
    before = plan(task).digest()
    weights.write_bytes(bytes(3 * 2**20 - 1) + b"x")
    assert plan(task).digest() != before


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("--seeds", {"seeds": (2**32,)}),
        ("--reward", {"reward": float("nan")}),
        ("--reward", {"reward": float("inf")}),
        ("--correct", {"correct": float("nan")}),
    ],
)
def test_what_cannot_be_asked_for_is_refused_before_anything_runs(key, changes):
    with pytest.raises(ConfigError, match=key):
        plan(**changes)


def test_one_file_given_twice_is_refused():
    one = result_of([figures("gpu_only", 1)])
    with pytest.raises(DataError, match=r"a\.json: .*gpu_only.*a\.json"):
        joined([one, one], ["a.json", "a.json"])


def test_a_run_that_one_session_did_not_make_is_taken_from_the_other():
    lacks = figures("gpu_only", 2, missing="it was not run")
    one, other = result_of([figures("gpu_only", 1), lacks]), result_of([figures("gpu_only", 2)])
    for results in ([one, other], [other, one]):
        both = joined(results, ["a", "b"])
        assert sorted((run.seed, run.missing) for run in both.runs) == [(1, ""), (2, "")]


def test_a_machine_that_cannot_be_told_from_another_is_not_joined(snapshot):
    stand = replace(STAND, unit=None)
    one, other = (result_of([figures("gpu_only", seed)], stand=stand) for seed in (1, 2))
    with pytest.raises(DataError) as caught:
        joined([one, other], ["a.json", "b.json"])
    snapshot(str(caught.value))
