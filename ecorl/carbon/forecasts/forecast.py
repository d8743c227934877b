"""A forecast: middle and interval for each of the coming intervals, and windows of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ecorl.carbon.series import FloatArray

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
    middle: FloatArray
    low: FloatArray | None = None
    high: FloatArray | None = None


def next_clean_window(forecast: Forecast, threshold_g_per_kwh: float) -> tuple[float, float] | None:
    """The first time that the middle of a forecast stays at or below a threshold.

    Args:
        forecast: of an intensity, g/kWh; an interval without a value is not clean.
        threshold_g_per_kwh: at or below it the grid counts as clean, g/kWh.

    Returns:
        Begin and end of the window, s since 1970, or None where no interval is clean. The window
        begins before now where the interval under way is clean, and ends with the forecast where
        its last interval is.
    """
    # A comparison with NaN is false.
    is_clean = forecast.middle <= threshold_g_per_kwh
    if not is_clean.any():
        return None
    first = int(np.argmax(is_clean))
    rest = ~is_clean[first:]
    last = first + (int(np.argmax(rest)) if rest.any() else len(rest))
    return _span(forecast, first, last)


def lowest_window(forecast: Forecast, length_s: float) -> tuple[float, float] | None:
    """The window of a length over which the mean of a forecast's middle is lowest.

    Args:
        forecast: of an intensity, g/kWh; windows with an interval that has no value do not count.
        length_s: length, s; rounded to whole intervals.

    Returns:
        Begin and end of the first such window, s since 1970, or None where there is none.
    """
    n = max(1, round(length_s / forecast.step_s))
    if n > len(forecast.middle):
        return None
    means = np.lib.stride_tricks.sliding_window_view(forecast.middle, n).mean(axis=1)
    if np.isnan(means).all():
        return None
    first = int(np.nanargmin(means))
    return _span(forecast, first, first + n)


def mean_between(forecast: Forecast, start_s: float, end_s: float) -> float | None:
    """Mean of a forecast's middle over the intervals that begin in a span of time.

    Args:
        forecast: of any signal.
        start_s: begin of the span, s since 1970.
        end_s: its end; an interval that begins there is not in it.

    Returns:
        The mean of what is not missing, in the signal's unit, or None where all of it is.
    """
    starts_s = forecast.start_s + forecast.step_s * np.arange(len(forecast.middle))
    # Begins of intervals are rounded; half an interval tells them apart with certainty.
    half_s = forecast.step_s / 2
    values = forecast.middle[(starts_s + half_s >= start_s) & (starts_s + half_s < end_s)]
    values = values[np.isfinite(values)]
    return float(values.mean()) if len(values) else None


def _span(forecast: Forecast, first: int, last: int) -> tuple[float, float]:
    start_s, step_s = forecast.start_s, forecast.step_s
    return start_s + first * step_s, start_s + last * step_s
