"""What forecasts by rules share: how much of the past they take, their intervals and limits."""

from __future__ import annotations

import math

import numpy as np

from ecorl.carbon.forecasts.forecast import Forecast
from ecorl.carbon.forecasts.hindcast import WINDOW_H
from ecorl.carbon.forecasts.history import DAY_S, FloatArray, IntArray
from ecorl.carbon.forecasts.intervals import PATTERN_DAYS
from ecorl.carbon.forecasts.rules import Rule, memory_days
from ecorl.carbon.series import Series

Bounds = tuple[float, float]
"""What a signal cannot be below and above, in its unit: (0, 1) for a share."""


def days_to_forecast(*rules: Rule) -> int:
    """How much of the past goes into a forecast by rules that have learnt, days.

    Args:
        rules: the rules.
    """
    return max(PATTERN_DAYS + 1, *(memory_days(rule) for rule in rules))


def days_to_learn(*rules: Rule) -> int:
    """How much of the past goes into what is learnt about rules, days.

    Args:
        rules: the rules.
    """
    return math.ceil(WINDOW_H / 24.0) + days_to_forecast(*rules)


def newest_days(past: Series, days: int) -> Series:
    """The end of a past; all of it where that end holds no value.

    Args:
        past: what is known.
        days: length of the end, days.
    """
    surplus = len(past.values) - math.ceil(days * DAY_S / past.step_s)
    if surplus <= 0 or not np.isfinite(past.values[surplus:]).any():
        return past
    return Series(past.start_s + surplus * past.step_s, past.step_s, past.values[surplus:])


def next_intervals(past: Series, n: int) -> tuple[IntArray, IntArray]:
    """The origin and the lead times of a forecast.

    Args:
        past: what is known.
        n: number of intervals.

    Returns:
        ``[1] int64``, the first unknown interval, and ``[n] int64``, 1 to n.

    Raises:
        ValueError: when `n` is below 1.
    """
    if n < 1:
        raise ValueError(f"a forecast has at least one interval, not {n}")
    return np.array([len(past.values)], dtype=np.int64), np.arange(1, n + 1, dtype=np.int64)


def clipped(
    name: str,
    past: Series,
    lines: tuple[FloatArray, FloatArray, FloatArray],
    bounds: Bounds | None,
) -> Forecast:
    """A forecast that starts where the past ends.

    Args:
        name: who forecasts.
        past: what was known.
        lines: ``[n] float64`` each: middle, low and high.
        bounds: to where they are clipped; None for no limits.
    """
    low_limit, high_limit = bounds if bounds is not None else (-np.inf, np.inf)
    middle, low, high = (np.clip(line, low_limit, high_limit) for line in lines)
    return Forecast(name, past.end_s, past.end_s, past.step_s, middle, low, high)
