"""Lost and doubled rows are counted from the record, whoever answered them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.studies.frameworks.samples import answered_rows, count_samples
from ecorl.ledger import LEDGER_FILE, Ledger, LedgerReader, NodeRecord
from ecorl.records import (
    Action,
    BarrierWait,
    FaultEvent,
    FaultKind,
    Provenance,
    Stage,
    StageResult,
)


def execution(n_rows, *, iteration=1, action=Action.CONCURRENT, fallback=0, t_s=0.0):
    return StageResult(
        iteration=iteration,
        stage=Stage.REWARD,
        action=action,
        device_ids=("d",),
        device="d",
        t_start_s=t_s,
        t_end_s=t_s + 1.0,
        time_s=1.0,
        time_provenance=Provenance.MEASURED,
        host_time_s=1.0,
        wait_s=0.0,
        n_sequences=n_rows,
        n_tokens=n_rows,
        n_output_tokens=n_rows,
        energy=None,
        n_rows_fallback=fallback,
    )


@pytest.fixture
def record(tmp_path):
    with Ledger.create(tmp_path / LEDGER_FILE, run_id="t", config_toml="", meta={}) as ledger:
        yield ledger


def counts(ledger, expected):
    ledger.flush()
    with LedgerReader(ledger.path) as reader:
        return count_samples(reader, expected)


def test_rows_of_engines_and_of_the_exact_path_add_up(record):
    record.result(execution(8, fallback=3))
    record.result(execution(3, action=Action.GPU))
    assert counts(record, {(1, "reward"): 8}) == (0, 0)
    assert counts(record, {(1, "reward"): 8, (2, "reward"): 5}) == (5, 0)
    record.result(execution(3, action=Action.GPU))
    assert counts(record, {(1, "reward"): 8}) == (0, 3)
    assert counts(record, {(2, "reward"): 8}) == (8, 11)
    # Of other roles nothing is counted.
    assert counts(record, {(1, "reference"): 8}) == (8, 0)


BATCHES = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=4)


@settings(deadline=None, max_examples=20)
@given(BATCHES)
def test_no_split_of_a_batch_loses_or_doubles_rows(tmp_path_factory, batches):
    folder = tmp_path_factory.mktemp("run")
    with Ledger.create(folder / LEDGER_FILE, run_id="t", config_toml="", meta={}) as ledger:
        for number, (n_rows, most) in enumerate(batches, 1):
            bad = min(most, n_rows)
            ledger.result(execution(n_rows, iteration=number, fallback=bad))
            if bad:
                ledger.result(execution(bad, iteration=number, action=Action.GPU))
        expected = {(i, "reward"): n for i, (n, _) in enumerate(batches, 1)}
        assert counts(ledger, expected) == (0, 0)


def test_what_a_resume_threw_away_does_not_count(tmp_path):
    path = tmp_path / LEDGER_FILE
    with Ledger.create(path, run_id="t", config_toml="", meta={}) as ledger:
        ledger.result(execution(4))
        ledger.result(execution(4, iteration=2))
    with Ledger.open_for_resume(path, from_step=1) as ledger:
        ledger.result(execution(4, iteration=2))
        assert counts(ledger, {(1, "reward"): 4, (2, "reward"): 4}) == (0, 0)


def test_where_a_machines_record_is_lost_the_waits_tell_what_arrived(record):
    def wait(iteration):
        record.barrier(BarrierWait(iteration, Stage.REWARD, 0.1, 8, 0, 0))

    wait(1)
    wait(2)
    record.fault(FaultEvent(2, FaultKind.INVALID_RESULT, "reward", "two rows", 2))
    record.fault(FaultEvent(2, FaultKind.SCHEDULER_LOST, "reward", "another batch", 8))
    record.result(execution(2, iteration=2, action=Action.GPU))
    expected = {(1, "reward"): 8, (2, "reward"): 8}
    assert counts(record, expected) == (14, 0)
    record.node(NodeRecord("cards", "nodes/cards-1.sqlite", lost="it is gone"))
    assert counts(record, expected) == (0, 0)
    record.flush()
    with LedgerReader(record.path) as reader:
        assert answered_rows(reader) == expected
