"""The words in which the record tells that a gear failed."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("torch")

from ecorl.control import Gear
from ecorl.records import FaultKind
from ecorl.trainer.gears import faults


def test_redone_and_skipped_steps_are_told_apart(snapshot):
    details = []
    for n, n_steps in ((1, 1), (1, 4), (3, 4)):
        redone = faults.redone(7, "FP8", Gear.BF16, n, n_steps)
        assert (redone.iteration, redone.kind, redone.where) == (
            7, FaultKind.GEAR_OVERFLOW, "actor_train",
        )  # fmt: skip
        skipped = faults.skipped(7, "FP16", n, n_steps)
        assert skipped.kind == FaultKind.GEAR_SKIPPED
        details += [redone.detail, skipped.detail]
    snapshot("\n".join(details))


def test_a_retired_gear_is_told_with_the_steps_that_retire_it(snapshot):
    snapshot("\n".join(faults.retired(2, "FP8", n).detail for n in (3, 1)))


def test_a_mismatch_that_is_no_number_is_neither_recorded_nor_told_as_one(snapshot):
    assert faults.told_mismatch(1.25) == 1.25
    assert faults.told_mismatch(None) is None
    assert faults.told_mismatch(math.inf) is None
    assert faults.told_mismatch(math.nan) is None
    snapshot("\n".join(faults.barred(3, "FP8", off_by, 1.05).detail for off_by in (math.inf, 1.3)))
