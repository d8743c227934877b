"""What packing made of a step's rows, from engines and processes into the record."""

from __future__ import annotations

import numpy as np

from ecorl.engines.packing import PackedTokens
from ecorl.engines.protocol import ScoreBatch
from ecorl.runtime.handles import Landed
from ecorl.runtime.packed_tokens import PackingTally
from ecorl.runtime.processes.head import joined, parted


class Record:
    """Keeps the metrics that are written."""

    def __init__(self):
        self.rows = []

    def metric(self, iteration, name, value):
        self.rows.append((iteration, name, value))


class Gathered:
    """Another process beside this one, whose sums are known."""

    def __init__(self, other, is_head=True):
        self.other, self.is_head = other, is_head

    def gather(self, value):
        return [value, self.other] if self.is_head else None


def test_a_step_s_sums_are_recorded_once_and_the_next_step_begins_at_nothing():
    tally, record = PackingTally(), Record()
    tally.note("reward", PackedTokens(2, 50, 60, 90))
    tally.note("reward", PackedTokens(1, 5, 5, 10, 2e-7))
    tally.note_difference("reward", 1e-7)
    tally.note("actor_train", PackedTokens(3, 70, 80, 90))
    tally.end_step(record, 4, None)
    assert record.rows == [
        (4, "micro_batches/actor_train", 3),
        (4, "tokens/actor_train", 70),
        (4, "computed_tokens/actor_train", 80),
        (4, "unpacked_tokens/actor_train", 90),
        (4, "micro_batches/reward", 3),
        (4, "tokens/reward", 55),
        (4, "computed_tokens/reward", 65),
        (4, "unpacked_tokens/reward", 100),
        (4, "packing_difference/reward", 2e-7),
    ]
    tally.end_step(record, 5, None)
    assert len(record.rows) == 9


def test_sums_are_those_of_all_processes_and_the_first_one_records_them():
    other = {"reward": PackedTokens(1, 10, 10, 10, 5e-7), "reference": PackedTokens(1, 1, 1, 1)}
    tally, record = PackingTally(), Record()
    tally.note("reward", PackedTokens(2, 50, 60, 90, 1e-7))
    tally.end_step(record, 1, Gathered(other))
    found = {name: value for _, name, value in record.rows}
    assert found["computed_tokens/reward"] == 70
    assert found["packing_difference/reward"] == 5e-7
    assert found["unpacked_tokens/reference"] == 1
    tally.note("reward", PackedTokens(2, 50, 60, 90))
    tally.end_step(record, 2, Gathered(other, is_head=False))
    assert {step for step, _, _ in record.rows} == {1}


def batch(name, budget):
    rows = (np.arange(3), np.arange(5))
    return ScoreBatch((f"{name}0", f"{name}1"), rows, (1, 1), token_budget=budget)


def test_rows_of_several_processes_are_packed_together_and_told_of_once():
    assert joined([batch("a", 10), batch("b", 14)]).token_budget == 14
    assert joined([batch("a", None), batch("b", None)]).token_budget is None
    packed = PackedTokens(2, 16, 18, 20)
    whole = Landed({0: np.float32(0), 1: np.float32(1), 3: np.float32(3)}, (2,), packed)
    first, second = parted(whole, [2, 2])
    assert (first.packing, second.packing) == (packed, None)
    assert (first.bad_rows, second.bad_rows) == ((), (0,))
