"""The words in which the record tells that a gear failed."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("torch")

from ecorl.control import Gear
from ecorl.records import FaultKind
from ecorl.trainer.gears import faults


@pytest.mark.parametrize(
    ("n", "n_steps", "told"),
    [
        (1, 1, "the step was"),
        (1, 4, "1 of 4 optimizer steps was"),
        (3, 4, "3 of 4 optimizer steps were"),
    ],
)
def test_redone_and_skipped_steps_are_told_apart(n, n_steps, told):
    redone = faults.redone(7, "FP8", Gear.BF16, n, n_steps)
    assert (redone.iteration, redone.kind, redone.where) == (
        7, FaultKind.GEAR_OVERFLOW, "actor_train",
    )  # fmt: skip
    assert redone.detail == f"FP8 gave no finite gradient: {told} computed anew in BF16"
    skipped = faults.skipped(7, "FP16", n, n_steps)
    assert skipped.kind == FaultKind.GEAR_SKIPPED
    assert skipped.detail == f"FP16 gave no finite gradient: {told} skipped, not computed anew"


def test_a_retired_gear_is_told_with_the_steps_that_retire_it():
    assert faults.retired(2, "FP8", 3).detail == (
        "FP8 is not chosen any more: 3 steps in a row gave no finite gradient"
    )
    assert "any more: 1 step gave no" in faults.retired(2, "FP8", 1).detail


def test_a_mismatch_that_is_no_number_is_neither_recorded_nor_told_as_one():
    assert faults.told_mismatch(1.25) == 1.25
    assert faults.told_mismatch(None) is None
    assert faults.told_mismatch(math.inf) is None
    assert faults.told_mismatch(math.nan) is None
    assert faults.barred(3, "FP8", math.inf, 1.05).detail == (
        "token probabilities of FP8 are not numbers"
    )
    assert faults.barred(3, "FP8", 1.3, 1.05).detail == (
        "token probabilities of FP8 are off from the rollout's by 1.300 on average, more than "
        "gears.mismatch_limit = 1.05"
    )
