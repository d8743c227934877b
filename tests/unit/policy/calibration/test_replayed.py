"""Ledgers as scenarios that go through the run's own batches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ecorl.errors import RunError
from ecorl.ledger import LedgerReader
from ecorl.policy.calibration.calibrate import calibrate
from ecorl.policy.calibration.costs import RecordedJob
from ecorl.policy.calibration.readings import read_run
from ecorl.policy.calibration.replayed import replay_of, replayed
from ecorl.records import INFERENCE_STAGES, Action, Provenance, Stage
from ecorl.scheduler.tables import COLUMN
from ecorl.sim.factors import CARD_PLACE, CARD_POWER, GPU_PLACE
from ecorl.sim.simulation import Simulation, play
from ecorl.sim.trace import draw_trace
from tests.fakes.hidden_runs import PLAIN, REWARD_GPU, edited, wrote

N = 80


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    return wrote(tmp_path_factory.mktemp("hidden"), replace(PLAIN, n_iterations=N), seed=1)


@pytest.fixture(scope="module")
def scenario(ledger):
    return replayed(ledger)


def times(folder, stage, on_gpu):
    """Time of a stage in each batch, NaN where it ran elsewhere or beside others, s."""
    found = np.full(N, np.nan)
    with LedgerReader(folder) as reader:
        for row in reader.executions():
            r = row.result
            if r.stage is stage and (r.action is Action.GPU) is on_gpu:
                found[r.iteration - 1] = r.time_s
    return found


def test_a_run_that_took_what_the_table_says_has_factors_of_one(tmp_path):
    folder = wrote(tmp_path, replace(PLAIN, n_iterations=N), noise=0.0)
    job = RecordedJob.of(read_run(folder))
    made = replay_of(job, replace(calibrate(folder), table=PLAIN.table))
    for factors in (*made.time, *made.power):
        assert np.isfinite(factors).any()
        # Lengths are counted in whole tokens.
        assert factors[np.isfinite(factors)] == pytest.approx(1.0, abs=2e-3)
    assert made.n_left_out == 0


def test_factors_are_the_ledgers_times_over_the_fitted_table(ledger, scenario):
    replay, table = scenario.replay, scenario.table
    row = table.at(replay.length)
    for stage in INFERENCE_STAGES:
        measured = times(ledger, stage, on_gpu=True)
        assert replay.time[GPU_PLACE[stage]] == pytest.approx(
            measured / row[:, COLUMN[f"{stage}_s"]], nan_ok=True
        )
        measured = times(ledger, stage, on_gpu=False)
        assert replay.time[CARD_PLACE[stage]] == pytest.approx(
            measured / row[:, COLUMN[f"{stage}_card_s"]], nan_ok=True
        )
        # Each batch is on one side.
        seen = np.isfinite(replay.time[[GPU_PLACE[stage], CARD_PLACE[stage]]])
        assert (seen.sum(axis=0) == 1).all()
    assert np.nanmedian(replay.power[CARD_POWER]) == pytest.approx(1.0, abs=0.02)


def test_an_episode_goes_through_the_runs_own_lengths_and_times(ledger, scenario):
    n = N + 20
    trace = draw_trace([replace(scenario, n_iterations=n)] * 2, np.random.default_rng(3))
    length = scenario.replay.length
    for column in range(2):
        start = int(np.flatnonzero(length == trace.length[0, column])[0])
        at = (start + np.arange(n)) % N
        assert np.array_equal(trace.length[:, column], length[at])
        measured = times(ledger, Stage.REWARD, on_gpu=True)[at]
        ran = np.isfinite(measured)
        assert trace.actual.gpu_s[0][ran, column] == pytest.approx(measured[ran], rel=1e-9)
        generation = times(ledger, Stage.GENERATION, on_gpu=True)[at]
        ran = np.isfinite(generation) & np.isfinite(
            scenario.replay.time[GPU_PLACE[Stage.GENERATION]][at]
        )
        assert trace.actual.generation_s[ran, column] == pytest.approx(generation[ran], rel=1e-9)
    made = play(Simulation(trace), lambda simulation: np.full(2, 2))
    assert np.isfinite(made.score).all()


def test_the_scenario_is_the_calibrations_with_the_runs_name(ledger, scenario):
    fitted = calibrate(ledger).scenario()
    assert (scenario.name, scenario.replay.run_id) == (ledger.name, "hidden-3")
    assert np.array_equal(scenario.table.values, fitted.table.values)
    assert (scenario.load, scenario.abilities) == (fitted.load, fitted.abilities)
    assert scenario.replay.readings is Provenance.MODELLED
    assert scenario.replay.origin()["provenance"] == "replayed"


def test_an_outlier_is_no_reading_of_the_stage(ledger, scenario, tmp_path):
    row = f"id = (SELECT min(id) FROM execution WHERE {REWARD_GPU})"
    longer = f"UPDATE execution SET time_s = 40 * time_s, energy_j = 40 * energy_j WHERE {row}"
    found = replayed(edited(ledger, tmp_path, longer)).replay
    assert (scenario.replay.n_left_out, found.n_left_out) == (0, 1)
    before, after = (r.time[GPU_PLACE[Stage.REWARD]] for r in (scenario.replay, found))
    assert np.isfinite(before).sum() - np.isfinite(after).sum() == 1


def test_batches_of_which_the_longest_is_not_known_have_the_usual_one(ledger, tmp_path):
    sql = "DELETE FROM metric WHERE name = 'longest_completion'"
    replay = replayed(edited(ledger, tmp_path, sql)).replay
    assert (replay.longest >= replay.length).all()
    assert (replay.tail[0] == 1.0).all()


def test_what_cannot_be_calibrated_is_refused_alike(ledger, tmp_path):
    with pytest.raises(RunError, match="no ledger"):
        replayed(tmp_path / "none")
    with pytest.raises(RunError, match="reward on the GPUs"):
        replayed(edited(ledger, tmp_path, f"DELETE FROM execution WHERE {REWARD_GPU}"))
