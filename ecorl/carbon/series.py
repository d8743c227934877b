"""A series over equal intervals of time, as forecasts and traces have them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """Values over equal intervals; value i holds in [start_s + i step_s, start_s + (i + 1) step_s).

    Attributes:
        start_s: begin of the first interval, s since 1970.
        step_s: length of an interval, s.
        values: ``[n] float64``, NaN where a value is missing.
    """

    start_s: float
    step_s: float
    values: FloatArray

    @property
    def end_s(self) -> float:
        """End of the last interval, s since 1970."""
        return self.start_s + self.step_s * len(self.values)

    def index(self, t_s: float) -> int | None:
        """Number of the interval that a time is in; None outside of the series.

        Args:
            t_s: time, s since 1970.
        """
        number = math.floor((t_s - self.start_s) / self.step_s)
        return number if 0 <= number < len(self.values) else None

    def at(self, t_s: float) -> float | None:
        """The value at a time, or None where it is missing.

        Args:
            t_s: time, s since 1970.
        """
        number = self.index(t_s)
        if number is None or math.isnan(self.values[number]):
            return None
        return float(self.values[number])

    def until(self, t_s: float) -> Series:
        """The part of the intervals that have ended at a time: what could be known then.

        Args:
            t_s: time, s since 1970.
        """
        n = math.floor((t_s - self.start_s) / self.step_s)
        return Series(self.start_s, self.step_s, self.values[: max(0, n)])
