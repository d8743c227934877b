"""Records of the control path: what the training stage is to do next, and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Command(StrEnum):
    """What a trainer is asked to do at the boundary of two steps."""

    RUN = "run"  # go on
    PAUSE = "pause"  # stand still, and ask again
    STOP = "stop"  # save, and end the training


class Gear(StrEnum):
    """Numeric formats in which the training stage computes."""

    FP32 = "FP32"
    FP16 = "FP16"
    BF16 = "BF16"
    FP8 = "FP8"

    @property
    def is_low(self) -> bool:
        """Whether a cap on the share of tokens in low precision counts it."""
        return self is Gear.FP8


SIMULATED = " simulated"
"""Ends the name of a gear that was computed with the rounding of its format, on units of another
one: it costs at least as much as the format it was computed in, and is priced as no gear."""


def gear_label(gear: Gear, *, is_simulated: bool) -> str:
    """The name of a gear in a run's record.

    Args:
        gear: in which the training stage computed.
        is_simulated: whether the device has no units of its format.
    """
    return f"{gear}{SIMULATED}" if is_simulated else str(gear)


@dataclass(frozen=True, slots=True)
class TrainingStage:
    """What the training stage did in the last step, and what it can be told to do in the next.

    An adapter tells it at the boundary of two steps. Where nothing of it can be changed, nothing is
    told.

    Attributes:
        gear: in which the last step was computed; None: as the framework has it.
        gears: into which it can be shifted now, the first being the one to begin with; empty: it
            stays as it is.
        simulated: those of them of which the device has no units: they save nothing here.
        low_steps_left: how many of the steps that are left may be in low precision; None: no limit.
        width: number of its workers; None: nobody counts them.
        widths: to which that can be changed, rising; empty: it stays as it is.
        is_redone: whether the last step, or a part of it, overflowed in one gear and was computed
            anew in another: what it took tells of neither.
    """

    gear: Gear | None = None
    gears: tuple[Gear, ...] = ()
    simulated: tuple[Gear, ...] = ()
    low_steps_left: float | None = None
    width: int | None = None
    widths: tuple[int, ...] = ()
    is_redone: bool = False


AS_IT_IS = TrainingStage()
"""A training stage of which nothing can be changed."""


class Why(StrEnum):
    """What a choice goes by."""

    UNGOVERNED = "ungoverned"  # nothing is waited for in this run
    ASKING = "asking"  # the feeds have been asked, and none has answered yet
    CLEAN = "clean"  # the intensity is at or below the threshold
    DIRTY = "dirty"  # it is above, and there is time to wait
    UNKNOWN = "unknown"  # nobody knows the intensity: nothing is waited for
    WAITED = "waited"  # as long as may be was waited
    DEADLINE = "deadline"  # what is left to do needs the time until the deadline
    BEGUN = "begun"  # training has begun, and may not be paused any more
    BUDGET = "budget"  # the emissions that the run may have are used up
    STOPPING = "stopping"  # the training was asked to stop: a pause ends
    TIMING = "timing"  # the first steps are timed before anything is planned
    STATIC = "static"  # always the same, whatever the grid does
    PRICED = "priced"  # what a token is worth now pays for it, or does not
    SHIELDED = "shielded"  # the token budget can only be met before the deadline at full speed
    ENDING = "ending"  # it runs, and what is left takes no longer than a decision holds
    CAPPED = "capped"  # as many tokens as may be are in low precision already
    KEPT = "kept"  # the controller does not answer: its last choice holds, but for a pause
    DONE = "done"  # the token budget is met


@dataclass(frozen=True, slots=True)
class GearChoice:
    """One decision about the training stage.

    Attributes:
        decided_s: when, s since 1970.
        command: run or pause.
        why: what it goes by.
        controller: name of who decided.
        reason: one sentence for the report.
        look_again_s: when to decide again at the latest, s since 1970.
        g_per_kwh: the intensity that it goes by; None: unknown.
        feed: who told the intensity; None without one.
        threshold_g_per_kwh: what it was compared with; None where it was not.
        width: workers of the training stage; 0 in a pause, None: as they are.
        gear: its numeric format; None: as it is.
        price_g_per_token: what one more token is worth: the grams that one token less would save;
            None where the controller has no price.
        price_g_per_step: the same of one more optimizer step.
        clock_share: the clock that is asked for as a share of the highest, 0 to 1; None: as it is.
            It is recorded; nothing sets clocks yet.
    """

    decided_s: float
    command: Command
    why: Why
    controller: str
    reason: str
    look_again_s: float
    g_per_kwh: float | None = None
    feed: str | None = None
    threshold_g_per_kwh: float | None = None
    width: int | None = None
    gear: Gear | None = None
    price_g_per_token: float | None = None
    price_g_per_step: float | None = None
    clock_share: float | None = None

    def gear_at(self, width: int | None) -> Gear | None:
        """The gear to shift to in a step of some width; None: it stays as it is.

        Gear and width are chosen together. Until the width is there, which takes a while, the gear
        stays, but where all speed is wanted at once.

        Args:
            width: of the step; None: nobody can change it.
        """
        is_there = width is None or self.width in (None, width) or self.why is Why.SHIELDED
        return self.gear if is_there else None
