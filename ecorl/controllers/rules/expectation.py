"""What the intensity is expected to be in each hour until the deadline: forecast, then mean day."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ecorl.carbon.series import Series
from ecorl.controllers.problem.table import FloatArray
from ecorl.controllers.protocol import Seen

DAY_H = 24


class HourlyExpectation:
    """Continues a forecast by the mean day of the past.

    CarbonScaler takes a forecast until the deadline as given, while providers give one for some
    days at most. What lies behind its end, and in its holes, is expected here to be as the same
    hour of the day was on average lately; without a forecast that is all. The interval under way
    counts as what is told of it.

    Args:
        origin_s: time from which hours are counted, s since 1970.
        day_s: length of a day of the grid, s.
        profile_days: over how many days the mean day is.
    """

    def __init__(self, origin_s: float, day_s: float, profile_days: int) -> None:
        self._origin_s, self._hour_s = origin_s, day_s / DAY_H
        self._profile_days = profile_days

    def next_s(self, t_s: float) -> float:
        """Begin of the hour after the one that a time is in, s since 1970.

        Args:
            t_s: time, s since 1970.
        """
        return self._origin_s + self._hour_s * (self._hour(t_s) + 1)

    def until(self, end_s: float, now_s: float, seen: Seen) -> tuple[FloatArray, FloatArray] | None:
        """Intensities and lengths of the hours that are left.

        Args:
            end_s: end of the last one, s since 1970.
            now_s: time, s since 1970; the hour under way has its rest only.
            seen: what is known.

        Returns:
            ``[hours] float64`` each, g/kWh and s; None where there is no forecast, and less than a
            day of the past is known.
        """
        first = self._hour(now_s)
        n = max(1, math.ceil((end_s - self._origin_s) / self._hour_s - 1e-9) - first)
        expected = np.full(n, np.nan)
        profile = None if seen.past is None else self._mean_day(seen.past)
        if profile is not None:
            expected = profile[(first + np.arange(n)) % DAY_H]
        forecast = seen.forecast
        if forecast is not None:
            ahead = Series(forecast.start_s, forecast.step_s, forecast.middle)
            hours, values = self._hours(ahead)
            is_ahead = (hours >= first) & (hours < first + n)
            told = _means(hours[is_ahead] - first, values[is_ahead], n)
            expected = np.where(np.isfinite(told), told, expected)
        if np.isnan(expected).all():
            return None
        now = seen.intensity
        if now is not None and now.start_s <= now_s < now.end_s:
            expected[0] = now.g_per_kwh
        expected[np.isnan(expected)] = np.nanmean(expected)
        edges_s = self._origin_s + self._hour_s * (first + np.arange(n + 1))
        edges_s[0], edges_s[-1] = now_s, end_s
        return expected, np.diff(edges_s)

    def _hour(self, t_s: float) -> int:
        """Number of the hour that a time is in."""
        return math.floor((t_s - self._origin_s) / self._hour_s + 1e-9)

    def _mean_day(self, past: Series) -> FloatArray | None:
        """``[24]``, mean of each hour of the day; None where less than a day is known."""
        day_s = DAY_H * self._hour_s
        n = min(len(past.values), round(self._profile_days * day_s / past.step_s))
        begin_s = past.end_s - n * past.step_s
        recent = Series(begin_s, past.step_s, past.values[len(past.values) - n :])
        if np.count_nonzero(np.isfinite(recent.values)) * past.step_s < day_s * (1 - 1e-9):
            return None
        hours, values = self._hours(recent)
        profile = _means(hours % DAY_H, values, DAY_H)
        profile[np.isnan(profile)] = np.nanmean(profile)
        return profile

    def _hours(self, series: Series) -> tuple[NDArray[np.int64], FloatArray]:
        """Number of the hour and value of each known interval; of longer ones, of each hour."""
        parts = max(1, round(series.step_s / self._hour_s))
        values = np.repeat(series.values, parts)
        centres = (np.arange(len(values)) + 0.5) * series.step_s / parts
        hours = np.floor((series.start_s - self._origin_s + centres) / self._hour_s)
        is_known = np.isfinite(values)
        return hours[is_known].astype(np.int64), values[is_known]


def _means(places: NDArray[np.int64], values: FloatArray, n: int) -> FloatArray:
    """``[n]``, mean of the values at each place, NaN where there is none."""
    counts = np.bincount(places, minlength=n)
    sums = np.bincount(places, weights=values, minlength=n)
    means: FloatArray = np.divide(sums, counts, out=np.full(n, np.nan), where=counts > 0)
    return means
