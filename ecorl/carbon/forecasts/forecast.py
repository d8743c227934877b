"""A forecast: middle and interval for each of the coming intervals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NOMINAL_COVERAGE = 0.9
"""Share of the values that the intervals of all forecasts are to hold."""


@dataclass(frozen=True, slots=True, eq=False)
class Forecast:
    """What a signal will be in the next intervals, as it was known at one time.

    Attributes:
        model: who forecasts.
        issued_s: when it was made, s since 1970; nothing later went into it.
        start_s: begin of its first interval, s since 1970.
        step_s: length of an interval, s.
        middle: ``[n] float64``, the median, in the signal's unit.
        low, high: ``[n] float64``, the ends of the interval that is to hold `NOMINAL_COVERAGE` of
            the values; None where the forecaster gives no interval.
    """

    model: str
    issued_s: float
    start_s: float
    step_s: float
    middle: NDArray[np.float64]
    low: NDArray[np.float64] | None = None
    high: NDArray[np.float64] | None = None
