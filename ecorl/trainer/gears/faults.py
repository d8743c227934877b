"""What the record is told when a gear fails: the same words whatever framework trains."""

from __future__ import annotations

import math

from ecorl.control import Gear
from ecorl.records import FaultEvent, FaultKind, Stage

WHERE = str(Stage.ACTOR_TRAIN)
"""The stage that faults of gears befall."""


def told_mismatch(mismatch: float | None) -> float | None:
    """Make of a measured mismatch what a record holds: a number, or None where it is none.

    Args:
        mismatch: mean ratio of token probabilities; infinite where one of them is not a number;
            None: unknown.
    """
    return mismatch if mismatch is not None and math.isfinite(mismatch) else None


def redone(iteration: int, label: str, safe: Gear, n: int = 1, n_steps: int = 1) -> FaultEvent:
    """Tell that optimizer steps gave no finite gradient and were computed anew.

    Args:
        iteration: in which they were made.
        label: name of their gear in the record.
        safe: gear in which they were computed anew.
        n: how many they were.
        n_steps: optimizer steps of the iteration.
    """
    became = f"{_which(n, n_steps)} computed anew in {safe}"
    detail = f"{label} gave no finite gradient: {became}"
    return FaultEvent(iteration, FaultKind.GEAR_OVERFLOW, WHERE, detail)


def skipped(iteration: int, label: str, n: int = 1, n_steps: int = 1) -> FaultEvent:
    """Tell that optimizer steps gave no finite gradient, and that the optimizer has not taken them.

    Args:
        iteration: in which they were made.
        label: name of their gear in the record.
        n: how many they were.
        n_steps: optimizer steps of the iteration.
    """
    detail = f"{label} gave no finite gradient: {_which(n, n_steps)} skipped, not computed anew"
    return FaultEvent(iteration, FaultKind.GEAR_SKIPPED, WHERE, detail)


def retired(iteration: int, label: str, n_in_a_row: int) -> FaultEvent:
    """Tell that a gear is not chosen any more.

    Args:
        iteration: in which it was retired.
        label: its name in the record.
        n_in_a_row: steps in a row without a finite gradient that retire a gear.
    """
    steps = "1 step" if n_in_a_row == 1 else f"{n_in_a_row} steps in a row"
    detail = f"{label} is not chosen any more: {steps} gave no finite gradient"
    return FaultEvent(iteration, FaultKind.GEAR_RETIRED, WHERE, detail)


def barred(iteration: int, label: str, mismatch: float, limit: float) -> FaultEvent:
    """Tell that a gear may not be chosen until it is nearer to the rollout.

    Args:
        iteration: in which it was measured.
        label: its name in the record.
        mismatch: mean ratio of token probabilities between rollout and trainer; infinite where one
            of the trainer's is not a number.
        limit: what it is over.
    """
    detail = f"token probabilities of {label} are not numbers"
    if math.isfinite(mismatch):
        detail = (
            f"token probabilities of {label} are off from the rollout's by {mismatch:.3f} on "
            f"average, more than gears.mismatch_limit = {limit:g}"
        )
    return FaultEvent(iteration, FaultKind.GEAR_BARRED, WHERE, detail)


def _which(n: int, n_steps: int) -> str:
    if n_steps == 1:
        return "the step was"
    return f"{n} of {n_steps} optimizer steps {'was' if n == 1 else 'were'}"
