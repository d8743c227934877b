"""Finds what the machines draw in a gear and width, from readings taken while steps are under way.

What a step ran in is told after it, at the next decision: until then its readings are kept.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from ecorl.runtime.control.step_record import NEWEST, Ran

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
