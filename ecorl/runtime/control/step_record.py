"""How long the steps of a run took, and what they drew, by the gear and width they ran in."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from ecorl.control import Gear, TrainingStage

NEWEST = 32
"""Steps over which a time or a power is estimated, invented: enough for a median, few enough to
follow a change of the batch."""


class Ran(NamedTuple):
    """What a step ran in.

    Attributes:
        gear: numeric format; None: as the framework has it.
        width: number of workers; None: nobody counts them.
    """

    gear: Gear | None = None
    width: int | None = None

    @classmethod
    def of(cls, stage: TrainingStage) -> Ran:
        """What the last step of a training stage ran in.

        Args:
            stage: as the adapter tells it.
        """
        return cls(stage.gear, stage.width)


class StepRecord:
    """Times and powers of the newest steps of a run; not thread-safe."""

    def __init__(self) -> None:
        self._newest_s: deque[float] = deque(maxlen=NEWEST)
        self._times_s: dict[Ran, deque[float]] = {}
        self._powers_w: dict[Ran, deque[float]] = {}

    @property
    def n(self) -> int:
        """Number of the newest steps whose time is known."""
        return len(self._newest_s)

    @property
    def step_s(self) -> float | None:
        """Median time of the newest steps, whatever they ran in, s; None before the first."""
        return statistics.median(self._newest_s) if self._newest_s else None

    def note_time(self, ran: Ran | None, time_s: float) -> None:
        """Take over how long a step took.

        Args:
            ran: what it ran in; None: in more than one gear, so that it tells of none.
            time_s: of the step, s; a time of 0 tells nothing.
        """
        if not time_s > 0.0:
            return
        self._newest_s.append(time_s)
        if ran is not None:
            self._times_s.setdefault(ran, deque(maxlen=NEWEST)).append(time_s)

    def note_power(self, ran: Ran, power_w: float) -> None:
        """Take over what the machines drew while steps ran.

        Args:
            ran: what they ran in.
            power_w: mean power of all metered devices, W; 0 is no reading: steps draw something.
        """
        if not power_w > 0.0:
            return
        self._powers_w.setdefault(ran, deque(maxlen=NEWEST)).append(power_w)

    def count(self, ran: Ran) -> int:
        """Number of timed steps in a gear and width.

        Args:
            ran: gear and width.
        """
        return len(self._times_s.get(ran, ()))

    def time_s(self, ran: Ran) -> float | None:
        """Median time of the newest steps in a gear and width, s; None without one.

        Args:
            ran: gear and width.
        """
        return _median(self._times_s.get(ran))

    def power_w(self, ran: Ran) -> float | None:
        """Median power in a gear and width, W; None without one.

        Args:
            ran: gear and width.
        """
        return _median(self._powers_w.get(ran))

    def ran(self) -> list[Ran]:
        """Gears and widths of which a time is known."""
        return list(self._times_s)

    # ------------------------------------------------------------ across a resume

    def memory(self) -> list[dict[str, Any]]:
        """Times and powers by gear and width, in values that JSON can hold."""
        return [
            {
                "gear": None if ran.gear is None else str(ran.gear),
                "width": ran.width,
                "step_s": self.time_s(ran),
                "n": self.count(ran),
                "power_w": self.power_w(ran),
            }
            for ran in self._times_s
        ]

    def recall(self, memory: object) -> None:
        """Take over what an earlier attempt has timed; what cannot be read of it is left out.

        Args:
            memory: from `memory`.
        """
        for own in memory if isinstance(memory, list) else ():
            if not isinstance(own, Mapping):
                continue
            gear, width = own.get("gear"), own.get("width")
            if gear is not None and gear not in list(Gear):
                continue
            ran = Ran(None if gear is None else Gear(gear), width if type(width) is int else None)
            time_s, power_w = (
                positive_figure(own.get("step_s")),
                positive_figure(own.get("power_w")),
            )
            n = own.get("n")
            if time_s is not None and type(n) is int:
                # Each of them stands for what was seen so often: newer steps outvote it in time.
                self._times_s[ran] = deque([time_s] * min(n, NEWEST), maxlen=NEWEST)
            if power_w is not None:
                self._powers_w[ran] = deque([power_w], maxlen=NEWEST)


def _median(values: deque[float] | None) -> float | None:
    return statistics.median(values) if values else None


def positive_figure(value: object) -> float | None:
    """Read a number above 0 out of a memory.

    Args:
        value: whatever stands there.

    Returns:
        The number; None for anything else.
    """
    if isinstance(value, int | float) and math.isfinite(value) and value > 0:
        return float(value)
    return None
