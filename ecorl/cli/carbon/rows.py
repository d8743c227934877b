"""A forecast in rows of an hour, for people."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ecorl.carbon.forecasts.forecast import Forecast, mean_between

HOUR_S = 3600.0

_SHORT_S = 12 * HOUR_S
"""A forecast of a fast replay, which is shorter, has shorter rows."""
_SHORT_ROWS = 24


@dataclass(frozen=True, slots=True)
class ForecastRow:
    """Means over one span of a forecast; None is missing.

    Attributes:
        start_s: begin of the span, s since 1970.
        end_s: its end.
        middle_g_per_kwh: mean of the middle.
        low_g_per_kwh: mean of the low ends of the intervals.
        high_g_per_kwh: mean of their high ends.
        renewable_share: mean of the renewable share, 0 to 1.
        is_clean: whether the middle is at or below the threshold; None without one of them.
    """

    start_s: float
    end_s: float
    middle_g_per_kwh: float | None
    low_g_per_kwh: float | None
    high_g_per_kwh: float | None
    renewable_share: float | None
    is_clean: bool | None


def rows_of_hours(
    forecast: Forecast, share: Forecast | None, threshold_g_per_kwh: float | None, n: int
) -> list[ForecastRow]:
    """The first rows of a forecast, each of an hour of the clock.

    A forecast of less than half a day, as a fast replay has it, gets shorter rows. Where intervals
    begin at odd seconds, hours are counted from the first.

    Args:
        forecast: of the intensity.
        share: of the renewable share.
        threshold_g_per_kwh: what is clean.
        n: number of rows at most.
    """
    row_s = _row_s(forecast)
    is_on_clock = row_s == HOUR_S and forecast.start_s % 60.0 == 0.0
    first_s = math.floor(forecast.start_s / row_s) * row_s if is_on_clock else forecast.start_s
    ends_s = forecast.start_s + len(forecast.middle) * forecast.step_s
    n = min(n, math.ceil((ends_s - first_s) / row_s - 1e-6))
    found = []
    for number in range(n):
        start_s, end_s = first_s + number * row_s, first_s + (number + 1) * row_s
        span_s = max(start_s, forecast.start_s), min(end_s, ends_s)
        found.append(_row(forecast, share, threshold_g_per_kwh, span_s))
    return found


def rows_of_intervals(
    forecast: Forecast, share: Forecast | None, threshold_g_per_kwh: float | None
) -> list[ForecastRow]:
    """One row for each interval of a forecast.

    Args:
        forecast: of the intensity.
        share: of the renewable share.
        threshold_g_per_kwh: what is clean.
    """
    starts_s = [forecast.start_s + i * forecast.step_s for i in range(len(forecast.middle))]
    return [
        _row(forecast, share, threshold_g_per_kwh, (start_s, start_s + forecast.step_s))
        for start_s in starts_s
    ]


def _row_s(forecast: Forecast) -> float:
    whole_s = len(forecast.middle) * forecast.step_s
    if whole_s >= _SHORT_S:
        return max(HOUR_S, forecast.step_s)
    return forecast.step_s * math.ceil(len(forecast.middle) / _SHORT_ROWS)


def _row(
    forecast: Forecast, share: Forecast | None, limit: float | None, span_s: tuple[float, float]
) -> ForecastRow:
    middle = mean_between(forecast, *span_s)
    low, high = (
        None if line is None else mean_between(replace(forecast, middle=line), *span_s)
        for line in (forecast.low, forecast.high)
    )
    return ForecastRow(
        start_s=span_s[0],
        end_s=span_s[1],
        middle_g_per_kwh=middle,
        low_g_per_kwh=low,
        high_g_per_kwh=high,
        renewable_share=None if share is None else mean_between(share, *span_s),
        is_clean=None if limit is None or middle is None else middle <= limit,
    )
