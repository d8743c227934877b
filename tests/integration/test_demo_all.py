"""One run with everything: what its record holds, and that its numbers are those of a plain run.

Plain: on this machine alone, without Ray, grid, controller and learned policy, following the gears,
widths and placements of the record.
"""

from __future__ import annotations

import contextlib
import os

import pytest

from ecorl.config import config_toml, load_config, validate_config
from ecorl.control import Command
from ecorl.ledger import LedgerReader
from ecorl.records import Action, EventKind, GuardRefusal, Stage
from tests import forks
from tests.conftest import demand
from tests.integration.given_decisions import (
    FOLLOWS,
    MODULE,
    NOTES,
    PLAYED,
    PLAYS,
    STEADY,
    Decisions,
    noted_rows,
)
from tests.toy_runs import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

N_STEPS = 40
DAY = [500.0] * 15 + [15.0, 20.0, 30.0, 45.0, 60.0, 80.0, 100.0, 130.0, 160.0]
"""Intensities of the hours of a day, g/kWh; an hour is two seconds of a played time, which goes on
with the steps. The dirty ones leave half a minute for the steps that are timed, so that a pause
comes, and the others as much again for the steps behind it: the deadline comes before the next
clean hours, for which the run would otherwise wait."""
DEADLINE_S = 75.0
FAR_S = 600.0
"""A time that no machine on which these tests end comes near, s."""
SPEED = 1800.0
NUMBERS = ("loss", "reward", "kl", "grad_norm", "entropy", "completion_length")
"""What the trainer logs of each step."""
LEARNED = ("the learned policy's choice: ", "kept on the host: ", "as usual on the host: ")
"""How the learned policy's reasons begin: the network's choice, or why no other way is open."""


def trained(config, folder, *, rows=None, follows=None, steady=False):
    """Run a config by the command; the folder of its record.

    If it is steady, what it decides is the same on any machine.
    """
    path = folder / f"{config.name}.toml"
    path.write_text(config_toml(config), encoding="utf-8")
    env = {k: v for k, v in os.environ.items() if k not in (FOLLOWS, NOTES, PLAYED, STEADY)}
    env |= {NOTES: str(rows)} if rows else {}
    env |= {FOLLOWS: str(follows)} if follows else {}
    if steady:
        path_of = f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"
        env |= {STEADY: "1", PLAYED: str(folder / f"{config.name}.time"), "PYTHONPATH": path_of}
        env |= PLAYS
    done = forks.run("-m", MODULE, "run", "--config", str(path), env=env, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return config.run_dir


def everything(folder, **changes):
    """The demo's config with some tables changed."""
    told = load_config("demo-all").model_dump(mode="json")
    for table, own in changes.items():
        told[table] = own if "type" in own else told[table] | own
    return validate_config(told | {"run_dir": str(folder / "all"), "name": "all"})


def plain(config, folder, name, widths):
    """The same training without all that decides: one machine, no grid, everything at home."""
    told = config.model_dump(mode="json")
    for table in ("runtime", "carbon"):
        del told[table]
    told["placement"] |= {"policy": {"type": "threshold"}, "profile_both_paths": False}
    told["trainer"] |= {"widths": widths}
    return validate_config(told | {"run_dir": str(folder / name), "name": name})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    demand("ray")
    demand("onnxruntime")
    return tmp_path_factory.mktemp("everything")


def grid(folder, now=DAY):
    """A recording of a grid whose days are alike; those from the run's first on may be others."""
    lines = [
        f"2026-01-{day:02}T{hour:02}:00Z,{g:g}"
        for day in range(5, 31)
        for hour, g in enumerate(DAY if day < 16 else now)
    ]
    path = folder / "grid.csv"
    path.write_text("\n".join(["time,g_per_kwh", *lines]) + "\n")
    return path


@pytest.fixture(scope="module")
def config(tiny, folder):
    """The demo, with models of a test, fewer and shorter steps, and hours that are shorter too."""
    task = {
        "type": "files", "policy": str(tiny.policy), "reward": str(tiny.reward),
        "prompts": str(tiny.prompts), "eval_prompts": str(tiny.eval_prompts),
        "pairs": str(tiny.pairs),
    }  # fmt: skip
    demo = load_config("demo-all")
    control = {"width_change_s": 0.0, "deadline_in_s": DEADLINE_S}
    feed = {"path": str(grid(folder)), "speed": SPEED, "starts_at": "2026-01-16T00:00:00Z"}
    return everything(
        folder,
        task=task,
        trainer={
            "steps": N_STEPS, "per_device_batch_size": 16, "num_generations": 4,
            "max_completion_length": 6, "learning_rate": 1e-3, "save_every": 6,
        },
        gears={"measure_every": 6, "mismatch_limit": 2.0},
        # No answer is late: that would be a fault, and rows computed in another way.
        placement={"n_profiling": N_STEPS // 2, "deadline_s": FAR_S},
        telemetry={"stale_after_s": FAR_S},
        carbon={
            "recheck_s": 0.5,
            "control": demo.carbon.control.model_dump(mode="json") | control,
            "feeds": [demo.carbon.feeds[0].model_dump(mode="json") | feed],
        },
    )  # fmt: skip


@pytest.fixture(scope="module")
def run_dir(config, folder):
    """The run with everything, which has noted the completions of its steps."""
    (folder / "rows").mkdir()
    return trained(config, folder, rows=folder / "rows", steady=True)


@pytest.fixture(scope="module")
def decisions(run_dir):
    return Decisions.of(run_dir)


def numbers(run_dir):
    """What the trainer logged, by step and name."""
    with contextlib.closing(LedgerReader(run_dir)) as reader:
        rows = [m for m in reader.metrics() if m.name in NUMBERS]
    assert not any(row.superseded for row in rows)
    found = {(row.iteration, row.name): row.value for row in rows}
    assert len(found) == len(rows)
    return found


def assert_every_kind_was_decided(run_dir, config):
    n_steps = config.trainer.steps
    with contextlib.closing(LedgerReader(run_dir)) as reader:
        placements = [row.placement for row in reader.placements()]
        choices = [row.choice for row in reader.choices()]
        events = {event.kind for event in reader.events()}
        nodes, faults = reader.nodes(), reader.faults()
        devices = {d.device_id for d in reader.devices()}
        executions = [row.result for row in reader.executions()]
    assert EventKind.FINISH in events
    assert EventKind.WIDTH in events
    assert EventKind.LEDGER_ROWS_DROPPED not in events
    assert faults == []
    assert len(nodes) >= 1
    for stage in (Stage.REWARD, Stage.REFERENCE):
        own = [p for p in placements if p.stage is stage]
        assert len(own) == n_steps
        assert {Action.GPU, Action.CONCURRENT} <= {p.action for p in own}
    assert {p.policy for p in placements} == {"learned"}
    # Behind the phase that takes both ways in turn, each place is that policy's own proposal.
    proposed = [
        p for p in placements if p.stage in (Stage.REWARD, Stage.REFERENCE)
        and p.iteration > config.placement.n_profiling
    ]  # fmt: skip
    assert len(proposed) == 2 * (n_steps - config.placement.n_profiling) > 0
    assert all(p.reason.startswith(LEARNED) for p in proposed), {p.reason for p in proposed}
    assert GuardRefusal.COST_UNKNOWN not in {p.refusal for p in proposed}
    assert {c.command for c in choices} >= {Command.RUN, Command.PAUSE}
    assert {c.width for c in choices if c.width} == {1, 2}
    assert {str(c.gear) for c in choices if c.gear} == {"BF16", "FP8"}
    assert all(p.reason for p in placements)
    assert all(c.reason for c in choices)
    trained = [r for r in executions if r.stage is Stage.ACTOR_TRAIN and r.n_output_tokens]
    assert {r.width for r in trained} == {1, 2}
    assert {r.gear for r in trained} == {"BF16", "FP8 simulated"}
    assert {"fpga0", "fpga1"} <= {device_id.rpartition("/")[2] for device_id in devices}


def test_the_record_holds_decisions_of_each_kind_with_their_reasons(config, run_dir):
    assert_every_kind_was_decided(run_dir, config)


def test_its_numbers_are_those_of_a_plain_run_that_changes_its_processes_at_the_same_steps(
    config, run_dir, decisions, folder
):
    followed = decisions.write(folder / "followed.json")
    other = trained(plain(config, folder, "plain", [1, 2]), folder, follows=followed)
    again = Decisions.of(other)
    assert (again.gears, again.widths) == (decisions.gears, decisions.widths)
    assert again.places == decisions.places
    mine, theirs = numbers(run_dir), numbers(other)
    assert mine.keys() == theirs.keys()
    assert {name for _, name in mine} >= {"loss", "reward", "kl", "grad_norm"}
    # To the last bit: neither Ray nor a pause, nor who decided, changes a number.
    assert mine == theirs


@pytest.mark.deep
def test_its_numbers_are_those_of_one_plain_process(config, run_dir, decisions, folder):
    last = decisions.first_change
    sampled = {step: rows for step, rows in noted_rows(folder / "rows").items() if step > last}
    assert set(sampled) == set(range(last + 1, N_STEPS + 1))
    given = Decisions(decisions.gears, {}, decisions.places, sampled)
    followed = given.write(folder / "alone.json")
    other = trained(plain(config, folder, "alone", [1]), folder, follows=followed)
    assert set(Decisions.of(other).widths.values()) == {1}
    mine, theirs = numbers(run_dir), numbers(other)
    assert mine.keys() == theirs.keys()
    before = {key: value for key, value in mine.items() if key[0] <= last}
    assert len(before) >= 6 * 4
    assert before == {key: theirs[key] for key in before}
    # Several processes draw other random numbers, and add gradients up in another order. From the
    # same completions the step behind the change is the same but for rounding; from there on that
    # of BF16 goes through the optimizer into all that follows.
    for (step, name), value in mine.items():
        rel, limit = (1e-3, 1e-5) if step == last + 1 else (0.1, 0.01)
        assert theirs[step, name] == pytest.approx(value, rel=rel, abs=limit), (step, name)
    # The rewards hang on the completions alone; their float32 mean is added up in another order.
    rewards = {key: value for key, value in mine.items() if key[1] == "reward"}
    assert rewards == pytest.approx({key: theirs[key] for key in rewards}, rel=5e-7)


@pytest.mark.deep
@pytest.mark.timeout(1800)
def test_the_demo_as_it_is_has_the_numbers_of_a_plain_run(tmp_path):
    demand("ray")
    demand("onnxruntime")
    config = everything(tmp_path)
    run_dir = trained(config, tmp_path)
    assert_every_kind_was_decided(run_dir, config)
    decisions = Decisions.of(run_dir)
    followed = decisions.write(tmp_path / "followed.json")
    other = trained(plain(config, tmp_path, "plain", [1, 2]), tmp_path, follows=followed)
    assert vars(Decisions.of(other)) == vars(decisions)
    assert numbers(run_dir) == numbers(other)
