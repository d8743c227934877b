"""One TRL training in two processes, started by torchrun on the loopback device."""

from __future__ import annotations

import contextlib

import pytest

from benchmarks.studies.frameworks.samples import count_samples
from ecorl.control import Why
from ecorl.ledger import LedgerReader
from ecorl.records import Action, EventKind, FaultKind, Stage
from tests.fakes.recordings import SILENT, blinking
from tests.integration.checks import BOTH, MODELLED, assert_same_bits
from tests.integration.two_processes import (
    N_ROWS,
    N_STEPS,
    assert_close,
    outcomes,
    run_trainings,
    training,
)

pytestmark = pytest.mark.timeout(900)  # several processes that train share two slow cores

EXACT = {"offload": {"type": "torch"}}
LOW = {
    "allowed": ["FP8", "BF16"], "simulate_fp8": True, "measure_every": 2, "mismatch_limit": 2.0,
}  # fmt: skip
BROKEN = {"rank": 1, "step": 1}
CHANGE = {"rank": 1, "step": 1}
KILLED = {
    "trainer": {"save_strategy": "steps", "save_steps": 1},
    "kill": {"rank": 1, "step": 2},
}


def attached(*args, more=None, **settings):
    """A training with ecorl."""
    return training(*args, more={"telemetry": MODELLED, **(more or {})}, **settings)


@pytest.fixture(scope="module")
def folder(tiny, tmp_path_factory):
    """Trainings in folders by name: the processes start once for all of them.

    In the last one a process is killed.
    """
    root = tmp_path_factory.mktemp("trainings")
    ((code, _),) = run_trainings(
        training(tiny, root / "plain"),
        attached(tiny, root / "attached", {"type": "static"}),
        attached(tiny, root / "attached", {"type": "static"}, refused=True),
        attached(tiny, root / "paused", {"type": "static"}, more={"carbon": blinking(root)}),
        attached(
            tiny, root / "own-gear", {"type": "static"}, more={"gears": {"allowed": ["FP32"]}}
        ),
        attached(tiny, root / "geared", {"type": "static"}, more={"gears": LOW}, broken=BROKEN),
        attached(tiny, root / "offloaded", BOTH, EXACT),
        training(tiny, root / "plain-again", again=3),
        attached(tiny, root / "again", {"type": "static"}, again=3),
        training(tiny, root / "changed", change=CHANGE),
        attached(tiny, root / "changed-offloaded", BOTH, EXACT, change=CHANGE),
        attached(tiny, root / "killed", {"type": "static"}, **KILLED),
        torchrun=True,
        check=False,
    )
    assert code != 0
    return root


def reader_of(folder, name):
    return LedgerReader(folder / name / "run")


def test_on_the_gpu_path_the_numbers_are_those_of_plain_trl(folder):
    both = outcomes(folder / "plain"), outcomes(folder / "attached")
    for one, other in zip(*both, strict=True):
        assert_same_bits(one, other)
    with reader_of(folder, "attached") as reader:
        rows = [row.result for row in reader.executions()]
        assert reader.faults() == []
        assert EventKind.FINISH in {event.kind for event in reader.events()}
        assert reader.run().meta["n_processes"] == "2"
    # One execution a stage and step, of both processes together.
    for stage in (Stage.GENERATION, Stage.REWARD, Stage.REFERENCE):
        own = [r for r in rows if r.stage is stage]
        assert [r.n_sequences for r in own] == [2 * N_ROWS] * N_STEPS, stage
        assert all(r.energy is not None and r.energy.energy_j > 0 for r in own)
    trained = [r for r in rows if r.stage is Stage.ACTOR_TRAIN and r.n_output_tokens]
    assert sum(r.n_sequences for r in trained) == 2 * N_ROWS * N_STEPS


def test_further_trainings_of_both_processes_are_runs_and_free_what_they_take(folder):
    for one, other in zip(
        outcomes(folder / "plain-again"), outcomes(folder / "again"), strict=True
    ):
        assert_same_bits(one, other)
        assert other["n_files"][-1] <= other["n_files"][0]
    for name in ("run", "run-2", "run-3", "run-4"):
        with contextlib.closing(LedgerReader(folder / "again" / name)) as reader:
            steps = {row.result.iteration for row in reader.executions()}
            assert steps == set(range(1, N_STEPS + 1))


def test_a_run_that_is_there_is_refused_on_both_processes(folder):
    told = [(folder / "attached" / f"refused-{rank}.txt").read_text("utf-8") for rank in (0, 1)]
    assert told[0] == told[1]
    assert f"holds a run already, finished after step {N_STEPS}: " in told[0]


def test_both_processes_stand_still_together_and_the_numbers_stay(folder):
    both = outcomes(folder / "plain"), outcomes(folder / "paused")
    for one, other in zip(*both, strict=True):
        assert_same_bits(one, other)
    with reader_of(folder, "paused") as reader:
        assert Why.DIRTY in {row.choice.why for row in reader.choices()}
        assert {row.kind for row in reader.faults()} <= SILENT


def test_the_own_gear_of_both_processes_changes_no_bit(folder):
    for one, other in zip(outcomes(folder / "plain"), outcomes(folder / "own-gear"), strict=True):
        assert_same_bits(one, other)
    with reader_of(folder, "own-gear") as reader:
        rows = [row.result for row in reader.executions()]
    trained = [r for r in rows if r.stage is Stage.ACTOR_TRAIN and r.n_output_tokens]
    assert {(r.gear, r.width) for r in trained} == {("FP32", 2)}


def test_a_step_that_overflows_in_one_process_is_computed_anew_in_both(folder):
    one, other = outcomes(folder / "geared")
    for name, weight in one["weights"].items():
        assert weight.isfinite().all()
        assert weight.equal(other["weights"][name]), name
    with reader_of(folder, "geared") as reader:
        faults = [(row.iteration, row.kind) for row in reader.faults()]
        rows = [row.result for row in reader.executions()]
        measured = [m.iteration for m in reader.metrics() if m.name == "gradient_noise_ratio_FP8"]
    assert faults == [(BROKEN["step"] + 1, FaultKind.GEAR_OVERFLOW)]
    gears = {
        r.iteration: r.gear for r in rows if r.stage is Stage.ACTOR_TRAIN and r.n_output_tokens
    }
    assert gears == {1: "FP8 simulated", 2: "BF16", 3: "FP8 simulated"}
    assert measured == [1, 3]


def test_one_engine_answers_the_rows_of_both_processes(folder):
    assert_close(outcomes(folder / "plain"), outcomes(folder / "offloaded"))
    with reader_of(folder, "offloaded") as reader:
        rows = [row.result for row in reader.executions()]
        placements = [row.placement for row in reader.placements()]
        assert reader.faults() == []
    for stage in (Stage.REWARD, Stage.REFERENCE):
        own = [r for r in rows if r.stage is stage]
        assert [(r.action, r.n_sequences, r.n_rows_fallback) for r in own] == [
            (Action.CONCURRENT, 2 * N_ROWS, 0)
        ] * N_STEPS
        assert len([p for p in placements if p.stage is stage]) == N_STEPS


def test_after_the_kill_of_a_process_training_and_record_go_on_together(tiny, folder):
    run_trainings(attached(tiny, folder / "killed", {"type": "static"}, resume=True, **KILLED))
    for one, other in zip(outcomes(folder / "plain"), outcomes(folder / "killed"), strict=True):
        assert_same_bits(one, other)
    with reader_of(folder, "killed") as reader:
        (first, second) = reader.attempts()
        assert second.from_step == 2
        rows = reader.executions()
        losses = [(m.iteration, m.attempt) for m in reader.metrics("loss") if not m.superseded]
        stages = (Stage.GENERATION, Stage.REWARD, Stage.REFERENCE)
        steps = range(1, N_STEPS + 1)
        expected = {(n, str(stage)): 2 * N_ROWS for n in steps for stage in stages}
        assert count_samples(reader, expected) == (0, 0)
        assert EventKind.FINISH in {event.kind for event in reader.events()}
    assert losses == [(1, first.attempt), (2, first.attempt), (3, second.attempt)]
    # What the first attempt did beyond its newest checkpoint was thrown away.
    assert all(row.superseded == (row.result.iteration > 2) for row in rows if row.attempt == 1)
    assert not any(row.superseded for row in rows if row.attempt == 2)


def test_a_model_that_one_process_changes_leaves_its_engine_on_all(folder):
    assert_close(outcomes(folder / "changed"), outcomes(folder / "changed-offloaded"))
    with reader_of(folder, "changed-offloaded") as reader:
        rows = [row.result for row in reader.executions()]
        faults = [(f.kind, f.where) for f in reader.faults()]
        expected = {
            (n, str(stage)): 2 * N_ROWS
            for n in range(1, N_STEPS + 1)
            for stage in (Stage.REWARD, Stage.REFERENCE)
        }
        assert count_samples(reader, expected) == (0, 0)
    assert faults == [(FaultKind.ENGINE_RETIRED, "reward")]
    actions = {r.iteration: r.action for r in rows if r.stage is Stage.REWARD}
    assert actions == {1: Action.CONCURRENT, 2: Action.GPU, 3: Action.GPU}
    assert {r.action for r in rows if r.stage is Stage.REFERENCE} == {Action.CONCURRENT}
