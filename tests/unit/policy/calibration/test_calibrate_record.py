from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.studies.hidden_runs import write_ledger
from ecorl.errors import ConfigError
from ecorl.ledger import LedgerReader
from ecorl.policy.calibration.calibrate import calibrate
from ecorl.records import Action, Provenance, Stage
from tests.fakes.hidden_runs import PLAIN, wrote


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    return wrote(tmp_path_factory.mktemp("hidden"), seed=1)


def test_every_action_of_every_stage_is_explored(ledger):
    counts = {}
    with LedgerReader(ledger) as reader:
        for row in reader.executions():
            key = (row.result.stage, row.result.action)
            counts[key] = counts.get(key, 0) + 1
        assert {row.result.time_provenance for row in reader.executions()} == {Provenance.MODELLED}
    inference = (Stage.REWARD, Stage.REFERENCE, Stage.CRITIC)
    wanted = {(stage, action) for stage in inference for action in Action}
    others = (Stage.GENERATION, Stage.ACTOR_TRAIN, Stage.CRITIC_TRAIN)
    wanted |= {(stage, a) for stage in others for a in (Action.GPU, Action.CONCURRENT)}
    assert set(counts) == wanted
    assert min(counts.values()) >= 30


def test_the_record_adds_up_to_the_iterations(tmp_path):
    """Stages and waits, read without error, leave no gap between two iterations."""
    folder = wrote(tmp_path, replace(PLAIN, n_iterations=40), noise=0.0)
    with LedgerReader(folder) as reader:
        results = [row.result for row in reader.executions()]
        barriers = reader.barriers()
    rows = [r for r in results if r.device == "h100_sxm"]
    cards = [r for r in results if r.device == "u55c"]
    starts = {r.iteration: r.t_start_s for r in rows if r.stage is Stage.GENERATION}
    for k in range(1, 40):
        of_k = [r for r in rows if r.iteration == k]
        # The wait for an a3 is within the execution of a forward pass that ran early.
        early = [r for r in of_k if (r.stage, r.action) == (Stage.ACTOR_TRAIN, Action.CONCURRENT)]
        joined = {r.stage for r in cards if r.iteration == k and r.action is Action.CONCURRENT}
        outside = sum(
            b.wait_s for b in barriers if b.iteration == k and not (early and b.stage in joined)
        )
        total = sum(r.time_s for r in of_k) + outside
        assert total == pytest.approx(starts[k + 1] - starts[k], rel=1e-9)


def test_an_off_policy_scenario_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"scenario\.off_policy"):
        write_ledger(replace(PLAIN, off_policy=True), tmp_path)


def test_what_failing_cards_lose_is_answered_and_no_reading(tmp_path):
    scenario = replace(PLAIN, failure_rate=0.15, n_iterations=150)
    folder = wrote(tmp_path, scenario)
    with LedgerReader(folder) as reader:
        results = [row.result for row in reader.executions()]
    lost = {(r.iteration, r.stage): r for r in results if r.fault is not None}
    assert len(lost) > 20
    assert all(0 < r.n_rows_fallback <= r.n_sequences for r in lost.values())
    answered = {(r.iteration, r.stage) for r in results if r.device == "h100_sxm"}
    assert set(lost) <= answered
    found = calibrate(folder)
    unsound = len({iteration for iteration, _ in lost})
    assert found.notes[0].startswith(f"{unsound} ")
    assert found.table.early_share == pytest.approx(PLAIN.table.early_share, abs=0.06)
