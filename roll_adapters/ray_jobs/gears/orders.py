"""What the process that chooses the gears and those that train tell each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from ecorl.control import Gear


@dataclass(frozen=True, slots=True)
class GearOrder:
    """What a process that trains is asked to make ready.

    Attributes:
        gears: that may be chosen, in the order of the config.
        simulate_fp8: whether FP8 may be simulated where the device has no units for it.
    """

    gears: tuple[Gear, ...]
    simulate_fp8: bool


@dataclass(frozen=True, slots=True)
class GearRefusal:
    """A mistake of the config that only a process that trains can see.

    Attributes:
        key: of the setting.
        value: that it has.
        allowed: what it may be.
    """

    key: str
    value: object
    allowed: str


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a process that trains answers to an order.

    Attributes:
        simulated: gears of the order that the device only simulates.
        why_not: why its training stage cannot be shifted; None: it can.
        optimizer: class that steps the weights.
        n_steps: optimizer steps of the whole training; None: it does not know.
    """

    simulated: tuple[Gear, ...] = ()
    why_not: str | None = None
    optimizer: str = ""
    n_steps: int | None = None


class StepEnd(StrEnum):
    """What became of one optimizer step."""

    WELL = "well"  # its gradient was finite
    REDONE = "redone"  # it was not, and the step was computed anew in the safe gear
    SKIPPED = "skipped"  # it was not, and could not be: the optimizer has not taken it


@dataclass(slots=True)
class StepReport:
    """What became of a step of the job in a process that trains: of its training stage.

    Attributes:
        ends: what became of each optimizer step of the stage, in order; empty in the framework's
            own precision, in which they are not looked at.
        mismatch: mean ratio of token probabilities between rollout and trainer, by gear measured;
            None: unknown.
        measured_s: what measuring took, s.
    """

    ends: list[StepEnd] = field(default_factory=list)
    mismatch: dict[Gear, float | None] = field(default_factory=dict)
    measured_s: float = 0.0
