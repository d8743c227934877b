"""How far a provider's forecasts are off, learnt from what came; by this they count.

A forecast is pooled with what is expected without it, each by the inverse of its variance:

    m = w f + (1 - w) o,   w = s_o^2 / (s_o^2 + s_f^2),   s = sqrt(w) s_f

with the forecast f, the own expectation o, and their standard deviations s_f and s_o. A forecast
with errors as large as the grid's own changes, taken for the truth, is worse than none: its
cleanest hours are mostly errors, and they are waited for in vain.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np

from ecorl.carbon.forecasts.forecast import Forecast
from ecorl.carbon.series import Series
from ecorl.controllers.horizon.levels import DAY_H
from ecorl.controllers.problem.table import FloatArray

_DAYS = 7
"""Errors are told apart by the day of the forecast in which they lie; the last stands for all that
come later."""

_PRESUMED = 0.125
"""Standard deviation of an error as a share of the forecast's mean before any error is known: a
mean absolute error of 10 %, which lies between what providers promise and what archives show."""

_PRESUMED_H = 24.0
"""Number of errors that this presumption counts for. Invented: a day's."""

_TO_DEVIATION = 1.0 / (2.0 * 1.6449)
"""Standard deviation over the width of an interval that holds 90 %, of a normal distribution."""


@dataclass(slots=True)
class _Issue:
    """A forecast that is being compared with what comes: its hours, and how many have come."""

    begin_s: float
    values: list[float]
    n_compared: int = 0


class ForecastErrors:
    """Compares forecasts, one a day, with what came.

    Args:
        hour_s: length of an hour of the grid, s.
    """

    def __init__(self, hour_s: float) -> None:
        self._hour_s = hour_s
        self._counts, self._squares = [0.0] * _DAYS, [0.0] * _DAYS
        self._issues: list[_Issue] = []

    def learn(self, past: Series, ahead: FloatArray) -> None:
        """Take in what has come since, and a new forecast.

        Calling it again with the same changes nothing.

        Args:
            past: what was told, g/kWh.
            ahead: ``[hours] float64``, the forecast of the hours after `past`, g/kWh; empty without
                one.
        """
        for issue in self._issues:
            self._compare(issue, past)
        self._issues = [one for one in self._issues if one.n_compared < len(one.values)]
        newest_s = max((one.begin_s for one in self._issues), default=-math.inf)
        if ahead.size and past.end_s - newest_s >= (DAY_H - 0.5) * self._hour_s:
            values = ahead[: _DAYS * DAY_H].tolist()
            self._issues = [*self._issues[1 - _DAYS :], _Issue(past.end_s, values)]

    def deviations(self, ahead: FloatArray) -> FloatArray:
        """Standard deviation of the errors of a forecast's hours.

        Args:
            ahead: ``[hours] float64``, the forecast, g/kWh.

        Returns:
            ``[hours] float64``, g/kWh.
        """
        presumed = (_PRESUMED * float(ahead.mean())) ** 2 * _PRESUMED_H
        counts, squares = np.array(self._counts), np.array(self._squares)
        # What is not known of a day is as of the one before it.
        for day in range(1, _DAYS):
            if not counts[day]:
                counts[day], squares[day] = counts[day - 1], squares[day - 1]
        by_day = np.sqrt((presumed + squares) / (_PRESUMED_H + counts))
        middles = DAY_H * (np.arange(_DAYS) + 0.5)
        return np.interp(np.arange(len(ahead)), middles, by_day)

    def memory(self) -> Mapping[str, object]:
        """What it has learnt, in values that JSON can hold."""
        issues = [[one.begin_s, one.n_compared, one.values] for one in self._issues]
        return {"counts": self._counts, "squares": self._squares, "issues": issues}

    def recall(self, memory: Mapping[str, object]) -> None:
        """Go on from a memory.

        Args:
            memory: of such errors.
        """
        self._counts = [float(n) for n in cast(list[float], memory["counts"])]
        self._squares = [float(n) for n in cast(list[float], memory["squares"])]
        kept = cast(list[tuple[float, int, list[float]]], memory["issues"])
        self._issues = [_Issue(begin_s, list(values), n) for begin_s, n, values in kept]

    def _compare(self, issue: _Issue, past: Series) -> None:
        """Count the errors of the hours that have come."""
        come = math.floor((past.end_s - issue.begin_s) / self._hour_s + 1e-6)
        per_hour = max(1, round(self._hour_s / past.step_s))
        for number in range(issue.n_compared, min(come, len(issue.values))):
            t_s = issue.begin_s + number * self._hour_s
            first = math.floor((t_s - past.start_s) / past.step_s + 1e-6)
            told = past.values[max(0, first) : max(0, first + per_hour)]
            told = told[np.isfinite(told)]
            if told.size:
                day = min(number // DAY_H, _DAYS - 1)
                self._counts[day] += 1.0
                self._squares[day] += (issue.values[number] - float(told.mean())) ** 2
            issue.n_compared = number + 1


def hours_ahead(forecast: Forecast | None, end_s: float, hour_s: float) -> FloatArray:
    """The middle of a forecast in the hours after an end, up to its first hole.

    Args:
        forecast: the forecast; None without one.
        end_s: end of what is known, s since 1970.
        hour_s: length of an hour of the grid, s.

    Returns:
        ``[hours] float64``, g/kWh; empty where there is nothing.
    """
    return np.zeros(0) if forecast is None else _sampled(forecast, forecast.middle, end_s, hour_s)


def stated_deviations(forecast: Forecast, end_s: float, hour_s: float, n: int) -> FloatArray | None:
    """Standard deviations that a forecast states itself, by its intervals.

    Args:
        forecast: the forecast.
        end_s: end of what is known, s since 1970.
        hour_s: length of an hour of the grid, s.
        n: number of hours.

    Returns:
        ``[n] float64``, g/kWh; None where it gives no intervals for all of them.
    """
    if forecast.low is None or forecast.high is None:
        return None
    widths = _sampled(forecast, forecast.high - forecast.low, end_s, hour_s)[:n]
    return np.maximum(widths, 0.0) * _TO_DEVIATION if len(widths) == n else None


def pooled(
    ahead: FloatArray, off: FloatArray, own: FloatArray, own_off: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Pool a forecast with an own expectation by the inverse of their variances.

    Args:
        ahead: ``[n] float64``, the forecast, g/kWh.
        off: ``[n] float64``, standard deviation of its errors, g/kWh.
        own: ``[n] float64``, the own expectation, g/kWh.
        own_off: ``[n] float64``, standard deviation about it, g/kWh.

    Returns:
        The middle and its standard deviation, ``[n] float64`` each, g/kWh.
    """
    variances = own_off**2 + off**2
    share = np.divide(own_off**2, variances, out=np.ones(len(ahead)), where=variances > 0.0)
    share = np.where(off > 0.0, share, 1.0)
    return share * ahead + (1.0 - share) * own, np.sqrt(share) * off


def _sampled(forecast: Forecast, values: FloatArray, end_s: float, hour_s: float) -> FloatArray:
    """Values of a forecast in the middles of the hours after an end, up to the first hole."""
    n = int((forecast.start_s + forecast.step_s * len(values) - end_s) / hour_s + 1e-6)
    if n < 1:
        return np.zeros(0)
    times_s = end_s + hour_s * (np.arange(n) + 0.5)
    places = np.floor((times_s - forecast.start_s) / forecast.step_s).astype(np.int64)
    is_there = (places >= 0) & (places < len(values))
    found = np.where(is_there, values[np.clip(places, 0, len(values) - 1)], np.nan)
    holes = np.flatnonzero(~np.isfinite(found))
    return found[: holes[0]] if holes.size else found
