"""Equal intervals without end, so that feeds agree to the last bit on which one holds a time."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Intervals:
    """Interval i begins at first_s + i step_s, and ends where the next one begins.

    Attributes:
        first_s: begin of interval 0, s since 1970.
        step_s: length of an interval, s.
    """

    first_s: float
    step_s: float

    def start_s(self, number: int) -> float:
        """Begin of an interval, s since 1970.

        Args:
            number: of the interval; may be negative.
        """
        return self.first_s + number * self.step_s

    def number(self, t_s: float) -> int:
        """The interval that holds a time.

        Args:
            t_s: time, s since 1970.
        """
        number = math.floor((t_s - self.first_s) / self.step_s)
        # The division rounds: an interval's own begin might else count as in the one before it.
        while self.start_s(number) > t_s:
            number -= 1
        while self.start_s(number + 1) <= t_s:
            number += 1
        return number

    def within(self, start_s: float, end_s: float) -> range:
        """The intervals that lie in a span of time as a whole.

        Args:
            start_s: begin of the span, s since 1970.
            end_s: its end.
        """
        first = self.number(start_s)
        return range(first if self.start_s(first) == start_s else first + 1, self.number(end_s))
