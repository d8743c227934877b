"""How long the steps of a run took, and what they drew, by the gear and width they ran in.

What a step ran in is told after it, at the next decision: until then `PowerReadings` keeps what was
read of its power.
"""

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
            time_s, power_w = (positive_figure(own.get(key)) for key in ("step_s", "power_w"))
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


_OTHERS = 0.05
"""Largest share of the time between two readings that may be of something else than the steps whose
power it gives, invented: a step is read at its end, a moment before the next decision."""


class _Reading(NamedTuple):
    at_s: float
    drawn_j: float


class _Span(NamedTuple):
    """The time between two decisions; ``ran`` is None where its power is no gear's."""

    start_s: float
    end_s: float
    ran: Ran | None


class PowerReadings:
    """Turns readings of energy into powers of what the steps between them ran in; not thread-safe.

    Time between two readings in which steps of two gears or widths ran, or in which there was a
    pause, gives no power.
    """

    def __init__(self) -> None:
        # Where nobody decides for long, only the newest readings can be told apart.
        self._readings: deque[_Reading] = deque(maxlen=NEWEST + 1)
        self._spans: deque[_Span] = deque(maxlen=NEWEST)

    def read(self, at_s: float, drawn_j: float | None) -> None:
        """Take over a reading.

        Args:
            at_s: monotonic time, s.
            drawn_j: by all metered devices since the run began, J; None where readings are missing.
        """
        if drawn_j is None:
            self._readings.clear()
        elif not self._readings or at_s > self._readings[-1].at_s:
            self._readings.append(_Reading(at_s, drawn_j))

    def ended(self, start_s: float, end_s: float, ran: Ran | None) -> list[float]:
        """Take over what ran between two decisions.

        Args:
            start_s: monotonic time of the earlier one, s.
            end_s: of the later one, s; no reading is later.
            ran: what the steps in between ran in; None: they count for nothing, or there were none.

        Returns:
            Mean powers in that gear and width that are known now and were not before, W.
        """
        last = self._spans[-1] if self._spans else None
        if last is not None and (last.ran, last.end_s) == (ran, start_s):
            self._spans[-1] = _Span(last.start_s, end_s, ran)
        else:
            self._spans.append(_Span(start_s, end_s, ran))
        powers = []
        while len(self._readings) > 1:
            before, after = self._readings.popleft(), self._readings[0]
            if ran is not None and self._is_alone(ran, before.at_s, after.at_s):
                powers.append((after.drawn_j - before.drawn_j) / (after.at_s - before.at_s))
        # The newest reading begins what the next one ends; older time is of no use any more.
        begins_s = self._readings[0].at_s if self._readings else end_s
        while self._spans and self._spans[0].end_s <= begins_s:
            self._spans.popleft()
        return powers

    def _is_alone(self, ran: Ran, start_s: float, end_s: float) -> bool:
        """Whether nearly all of a time is of steps in one gear and width."""
        own_s = sum(
            max(0.0, min(end_s, span.end_s) - max(start_s, span.start_s))
            for span in self._spans
            if span.ran == ran
        )
        return own_s >= (1.0 - _OTHERS) * (end_s - start_s)
