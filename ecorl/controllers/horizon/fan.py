"""What the intensity may be until the deadline: a fan of values for each hour to come.

    c(t + l) = m + s(hour) + (L - m) e^(-l / a) + (c(t) - p(t)) e^(-l / b)  +-  spread(l)

with the day profile p = L + s of the last days, discounted; its level L, which drifts and returns
to the long mean m; and the newest hour's distance from the profile, an AR(1). What weeks ahead
brings is decided by the level, and nobody knows it: the fan is as wide as the level has been seen
to move.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from ecorl.carbon.forecasts.forecast import Forecast
from ecorl.carbon.series import Series
from ecorl.controllers.problem.table import FloatArray

DAY_H = 24

_QUANTILES = np.array([-1.4652, -0.7916, -0.3661, 0.0, 0.3661, 0.7916, 1.4652])
"""Middles of seven equally likely parts of the standard normal distribution."""

NODES = _QUANTILES / np.sqrt(np.mean(_QUANTILES**2))
"""The same, of unit variance."""

_WARM_UP_DAYS = 15
"""Days after which the discounted profile has forgotten its begin. Invented."""

_LONGEST_H = 45 * DAY_H
"""How far ahead hours are told apart; what comes later is taken to be as the last of them.
Invented: by then the level has returned to its mean."""

_KEPT = 4


@dataclass(frozen=True, slots=True)
class FanShape:
    """How the intensity moves.

    Chosen on EIA-930's hours of 2022: all starts in California, PJM and New York from January to
    June, and in Bonneville's whole year; the regret moves by less than a twentieth when one of them
    is halved or doubled.

    Attributes:
        profile_days: over how many days the profile forgets to 1/e.
        newest_h: after how many hours the newest hour's distance has fallen to 1/e.
        level_days: after how many days the level has returned to the long mean to 1/e.
        hourly: spread of an hour about the profile, as a share of that of the past.
        drift: spread of the level's daily steps, as a multiple of that of the profile's.
        profile_memory_days: how much of the past the profile is of.
        spread_days: how much of the past the spread of an hour is of.
    """

    profile_days: float = 12.0
    newest_h: float = 72.0
    level_days: float = 40.0
    hourly: float = 0.3
    drift: float = 4.0
    profile_memory_days: int = 60
    spread_days: int = 60


@dataclass(frozen=True, slots=True)
class _Learnt:
    """What whole days of the past tell: long mean, lowest value, and spreads, g/kWh."""

    mean: float
    lowest: float
    hour_sd: float
    level_sd: float


class LevelFan:
    """Makes fans from the past; what is remembered never changes a fan, it only saves work.

    Args:
        shape: how the intensity moves.
        day_s: length of a day of the grid, s: a recording may be played faster.
    """

    def __init__(self, shape: FanShape | None = None, day_s: float = 86400.0) -> None:
        self.shape = shape or FanShape()
        self._hour_s = day_s / DAY_H
        s = self.shape
        lead = np.arange(_LONGEST_H, dtype=np.float64)
        self._to_level = np.exp(-lead / (DAY_H * s.level_days))
        self._to_newest = np.exp(-lead / s.newest_h)
        self._hour_variance = 1.0 - self._to_newest**2
        stay = np.exp(-1.0 / (DAY_H * s.level_days))
        self._level_variance = (1.0 - stay ** (2 * lead)) / (1.0 - stay**2) / DAY_H
        weights = np.exp(-np.arange(s.profile_memory_days)[::-1] / s.profile_days)
        self._weights = weights
        self._learnt: OrderedDict[bytes, _Learnt] = OrderedDict()

    def values(
        self, past: Series, now_s: float, end_s: float, forecast: Forecast | None = None
    ) -> FloatArray | None:
        """Equally likely intensities of each hour from now to an end.

        Args:
            past: what was told, g/kWh; it may end with the interval under way or before.
            now_s: time, s since 1970.
            end_s: until when, s since 1970.
            forecast: of the next hours; its middle counts as known.

        Returns:
            ``[hours, 7] float64``, g/kWh, the first being the hour under way; None where too little
            is known to say anything: less than two days.
        """
        told = self._hours(past)
        if told is None or len(told) < 2 * DAY_H:
            return None
        known = len(told)
        ahead = _ahead(forecast, past.end_s, self._hour_s)
        hours = np.concatenate((told, ahead)) if ahead.size else told
        # Lead 0 is the last known hour; hour number `late` of the fan is the one under way.
        late = max(0, int(np.ceil((now_s - past.end_s) / self._hour_s + 1e-9)))
        n = max(1, int(np.ceil((end_s - now_s) / self._hour_s - 1e-9)))
        first = known - 1 + late
        fan = self._fan(hours, known, min(n, _LONGEST_H) + late + ahead.size)
        taken = fan[first - (known - 1) :][: min(n, _LONGEST_H)]
        return _lengthened(taken, n)

    def _fan(self, hours: FloatArray, known: int, n: int) -> FloatArray:
        """``[n, 7]`` from the last told hour on; what was forecast follows it as it is."""
        s, end = self.shape, len(hours)
        learnt = self._lesson(hours[:known])
        days = min(s.profile_memory_days, end // DAY_H)
        rows = hours[end - days * DAY_H :].reshape(days, DAY_H)
        weights = self._weights[-days:]
        profile = weights @ rows / weights.sum()
        level = float(profile.mean())
        # The last row ends with the newest hour: one step on comes the first hour of the profile.
        m = min(max(1, n - (end - known)), _LONGEST_H)
        shape = np.resize(np.roll(profile, 1), m) - level
        middle = learnt.mean + shape + (level - learnt.mean) * self._to_level[:m]
        middle += (hours[-1] - profile[-1]) * self._to_newest[:m]
        drift_sd = s.drift * learnt.level_sd / s.profile_days
        spread = np.sqrt(
            (s.hourly * learnt.hour_sd) ** 2 * self._hour_variance[:m]
            + drift_sd**2 * self._level_variance[:m]
        )
        fan: FloatArray = middle[:, None] + spread[:, None] * NODES[None, :]
        fan = np.maximum(fan, max(learnt.lowest, 0.1 * learnt.mean))
        fan[0] = hours[-1]
        if end == known:
            return fan
        return np.concatenate(
            (np.repeat(hours[known - 1 : end - 1, None], len(NODES), axis=1), fan)
        )

    def _lesson(self, hours: FloatArray) -> _Learnt:
        """What the whole days of the past tell."""
        n_days = len(hours) // DAY_H
        key = hours[: n_days * DAY_H].tobytes()
        found = self._learnt.get(key)
        if found is None:
            found = self._learnt[key] = self._learn(hours[: n_days * DAY_H].reshape(-1, DAY_H))
            while len(self._learnt) > _KEPT:
                self._learnt.popitem(last=False)
        return found

    def _learn(self, days: FloatArray) -> _Learnt:
        s = self.shape
        profile = days[:5].mean(axis=0)
        residuals = np.empty_like(days)
        for number, row in enumerate(days):
            residuals[number] = row - profile
            profile = profile + residuals[number] / s.profile_days
        warm = min(_WARM_UP_DAYS, len(days) - 1)
        of_hours = residuals[max(warm, len(days) - s.spread_days) :]
        return _Learnt(
            mean=float(days.mean()),
            lowest=float(days.min()),
            hour_sd=float(np.sqrt(np.mean(of_hours**2))),
            level_sd=float(np.std(residuals[warm:].mean(axis=1))),
        )

    def _hours(self, past: Series) -> FloatArray | None:
        """The past in hours up to its end, holes filled with what stood before them."""
        values = past.values
        per_hour = self._hour_s / past.step_s
        if per_hour > 1.5:
            block = round(per_hour)
            part = values[len(values) % block :].reshape(-1, block)
            known = np.isfinite(part)
            counts = known.sum(axis=1)
            sums = np.where(known, part, 0.0).sum(axis=1)
            values = np.divide(sums, counts, out=np.full(len(part), np.nan), where=counts > 0)
        is_missing = ~np.isfinite(values)
        if not is_missing.any():
            return values
        if is_missing.all():
            return None
        numbers = np.where(is_missing, 0, np.arange(len(values)))
        np.maximum.accumulate(numbers, out=numbers)
        filled = values[numbers]
        return filled[np.isfinite(filled)]


def _ahead(forecast: Forecast | None, end_s: float, hour_s: float) -> FloatArray:
    """The middle of a forecast in the hours after an end, up to its first hole."""
    if forecast is None:
        return np.zeros(0)
    n = int((forecast.start_s + forecast.step_s * len(forecast.middle) - end_s) / hour_s + 1e-6)
    if n < 1:
        return np.zeros(0)
    times_s = end_s + hour_s * (np.arange(n) + 0.5)
    places = np.floor((times_s - forecast.start_s) / forecast.step_s).astype(np.int64)
    is_there = (places >= 0) & (places < len(forecast.middle))
    values = np.where(
        is_there, forecast.middle[np.clip(places, 0, len(forecast.middle) - 1)], np.nan
    )
    holes = np.flatnonzero(~np.isfinite(values))
    return values[: holes[0]] if holes.size else values


def _lengthened(fan: FloatArray, n: int) -> FloatArray:
    """A fan of `n` hours: what comes after its end is as its last fortnight."""
    if len(fan) >= n:
        return fan[:n]
    tail = fan[-14 * DAY_H :]
    return np.concatenate((fan, np.resize(tail, (n - len(fan), tail.shape[1]))))
