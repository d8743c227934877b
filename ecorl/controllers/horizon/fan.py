"""What the intensity may be until the deadline: a fan of values for each hour to come.

    c(t + l) = m + s(hour) + (L - m) e^(-l / a) + (c(t) - p(t)) e^(-l / b)  +-  spread(l)

with the day profile p = L + s of the last days, discounted; its level L, which drifts and returns
to the long mean m; the newest hour's distance from the profile, an AR(1); and a share of the level
on weekends. What weeks ahead brings is decided by the level, and nobody knows it: the fan is as
wide as the level has been seen to move.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from ecorl.carbon.forecasts.forecast import Forecast
from ecorl.carbon.series import Series
from ecorl.controllers.horizon import foretold, levels
from ecorl.controllers.problem.table import FloatArray

_PARTS = 7

_QUANTILES = np.array([NormalDist().inv_cdf((part + 0.5) / _PARTS) for part in range(_PARTS)])

NODES = _QUANTILES / np.sqrt(np.mean(_QUANTILES**2))
"""Middles of equally likely parts of the standard normal distribution, of unit variance."""

_LONGEST_H = 45 * levels.DAY_H
"""How far ahead hours are told apart; what comes later is taken to be as the last fortnight of
them. Invented: by then the level is on its way back to its mean."""

_LOWEST = 0.1
"""Share of the mean below which no intensity is expected. Invented."""

_KEPT = 4
"""Number of pasts whose lessons are kept. Invented: a few feeds."""


@dataclass(frozen=True, slots=True)
class FanShape:
    """How the intensity moves.

    Chosen on EIA-930's hours of 2022: starts in California, PJM and New York from January to June,
    and in Bonneville's whole year. Of what was tried around the choice (memories of 7 to 300 days,
    36 to 120 h for the newest hour, 25 to 200 days for the level, drifts of 4 to 6.5, hourly
    spreads of 0.15 to 0.6) the mean regret moved by a twentieth; one memory in place of several
    costs Bonneville a tenth, and without the longest of them it is 6 % more there.

    Attributes:
        memories_days: after how many days profiles forget to 1/e; see `levels`.
        newest_h: after how many hours the newest hour's distance has fallen to 1/e.
        foretold_h: the same of the last hour of a forecast, which is less certain.
        level_days: after how many days the level has returned to the long mean to 1/e.
        hourly: spread of an hour about the profile, as a share of that of the past.
        drift: spread of the level's daily steps, as a multiple of that of the profile's.
        past_days: how many days the profile is of.
        spread_days: how many of the last days the spread of an hour is of.
    """

    memories_days: tuple[float, ...] = (10.0, 14.0, 28.0, 300.0)
    newest_h: float = 48.0
    foretold_h: float = 24.0
    level_days: float = 120.0
    hourly: float = 0.4
    drift: float = 5.5
    past_days: int = 365
    spread_days: int = 120


@dataclass(frozen=True, slots=True, eq=False)
class Fan:
    """Equally likely intensities of each hour to come.

    Attributes:
        values: ``[rows, 7] float64``, g/kWh, the first row being the hour under way.
        hours: how many hours it is of. Those beyond the last row are as the last fortnight of rows,
            again and again.
    """

    values: FloatArray
    hours: int

    @property
    def fortnight(self) -> FloatArray:
        """What comes after the last row, again and again: ``[rows of it, 7] float64``, g/kWh."""
        return self.values[-14 * levels.DAY_H :]

    @property
    def times(self) -> float:
        """How many times the fortnight comes after the last row; 0 where no hour is beyond it."""
        return (self.hours - len(self.values)) / len(self.fortnight)

    @property
    def middle(self) -> FloatArray:
        """Means of the rows: ``[rows] float64``, g/kWh."""
        return np.asarray(self.values.mean(axis=1), dtype=np.float64)

    @property
    def mean(self) -> float:
        """Mean of all hours, g/kWh."""
        sums = float(self.values.mean()) * len(self.values)
        return (sums + self.times * float(self.fortnight.sum()) / len(NODES)) / self.hours

    def first(self, n: int) -> Fan:
        """The fan of the first hours.

        Args:
            n: how many; at most all.
        """
        return Fan(self.values[:n], n)

    def whole(self) -> FloatArray:
        """A row for each hour: ``[hours, 7] float64``, g/kWh."""
        beyond = self.hours - len(self.values)
        if not beyond:
            return self.values
        tail = self.fortnight
        return np.concatenate((self.values, np.resize(tail, (beyond, tail.shape[1]))))


class LevelFan:
    """Makes fans from the past; what is remembered never changes a fan, it only saves work.

    Args:
        shape: how the intensity moves.
        day_s: length of a day of the grid, s: a recording may be played faster.
    """

    def __init__(self, shape: FanShape | None = None, day_s: float = levels.DAY_S) -> None:
        self.shape = s = shape or FanShape()
        self._hour_s = day_s / levels.DAY_H
        # Where time is played faster, the calendar of the clock says nothing of the grid's.
        self._has_calendar = day_s == levels.DAY_S
        lead = np.arange(_LONGEST_H, dtype=np.float64)
        # The last row of a profile's days ends with the newest hour: its first hour comes next.
        self._hour_of_profile = (np.arange(_LONGEST_H) - 1) % levels.DAY_H
        self._to_level = np.exp(-lead / (levels.DAY_H * s.level_days))
        self._to_newest = {hours: np.exp(-lead / hours) for hours in (s.newest_h, s.foretold_h)}
        stay = np.exp(-1.0 / (levels.DAY_H * s.level_days))
        self._level_variance = (1.0 - stay ** (2 * lead)) / (1.0 - stay**2) / levels.DAY_H
        self._learnt: OrderedDict[bytes, levels.Learnt] = OrderedDict()

    def values(
        self, past: Series, now_s: float, end_s: float, forecast: Forecast | None = None
    ) -> FloatArray | None:
        """Equally likely intensities of each hour from now to an end, as `fan` has them.

        Args:
            past: what was told, g/kWh.
            now_s: time, s since 1970.
            end_s: until when, s since 1970.
            forecast: of the next hours.

        Returns:
            ``[hours, 7] float64``, g/kWh; None where too little is known.
        """
        found = self.fan(past, now_s, end_s, forecast)
        return None if found is None else found.whole()

    def fan(
        self,
        past: Series,
        now_s: float,
        end_s: float,
        forecast: Forecast | None = None,
        errors: foretold.ForecastErrors | None = None,
    ) -> Fan | None:
        """The fan from now to an end.

        Args:
            past: what was told, g/kWh; it may end with the interval under way or before.
            now_s: time, s since 1970.
            end_s: until when, s since 1970.
            forecast: of the next hours. It counts by its errors: those that it states by its
                intervals, else those that were learnt.
            errors: what was learnt of earlier forecasts; None: nothing.

        Returns:
            The fan; None where too little is known to say anything: less than two days.
        """
        told = levels.hourly(past, levels.DAY_H * self._hour_s)
        if len(told) < 2 * levels.DAY_H:
            return None
        ahead = foretold.hours_ahead(forecast, past.end_s, self._hour_s)[: _LONGEST_H - 1]
        # Row 0 is the newest hour that was told, and `late` rows on comes the one under way.
        late = max(0, int(np.ceil((now_s - past.end_s) / self._hour_s + 1e-9)))
        n = max(1, int(np.ceil((end_s - now_s) / self._hour_s - 1e-9)))
        rows = min(n, _LONGEST_H) + late
        if forecast is None or not ahead.size:
            return Fan(self._fan(told, ahead, past.end_s, rows)[late:rows], n)
        off = foretold.stated_deviations(forecast, past.end_s, self._hour_s, len(ahead))
        if off is None:
            off = (errors or foretold.ForecastErrors(self._hour_s)).deviations(ahead)
        middle, off = foretold.pooled(ahead, off, *self._own(told, past.end_s, len(ahead)))
        fan = self._fan(told, middle, past.end_s, rows)
        known = fan[1 : 1 + len(middle)]
        known += off[: len(known), None] * NODES
        np.maximum(known, _LOWEST * float(middle.mean()), out=known)
        return Fan(fan[late:rows], n)

    def _own(self, told: FloatArray, end_s: float, n: int) -> tuple[FloatArray, FloatArray]:
        """What is expected of the next hours without a forecast, and how far off it is."""
        s, learnt = self.shape, self._lesson(told, end_s)
        middle = self._fan(told, np.zeros(0), end_s, n + 1)[1:].mean(axis=1)
        # Here the spread is that of the past: the narrower one of a fan was chosen for decisions.
        away = 1.0 - np.exp(-2.0 * np.arange(1, n + 1) / s.newest_h)
        level = (s.drift * learnt.step_sd) ** 2 * self._level_variance[1 : n + 1]
        return middle, np.sqrt(learnt.hour_sd**2 * away + level)

    def _fan(self, told: FloatArray, ahead: FloatArray, told_end_s: float, n: int) -> FloatArray:
        """``[n, 7]`` from the newest told hour on; what is ahead follows it as it is."""
        s, learnt = self.shape, self._lesson(told, told_end_s)
        hours = np.concatenate((told, ahead)) if ahead.size else told
        n_days = min(s.past_days, len(hours) // levels.DAY_H)
        profile = learnt.profile(
            hours[len(hours) - n_days * levels.DAY_H :].reshape(n_days, levels.DAY_H)
        )
        level = float(profile.mean())
        m = min(max(1, n - ahead.size), _LONGEST_H)
        end_s = told_end_s + ahead.size * self._hour_s
        weekends = np.zeros(m)
        if learnt.weekend:
            times_s: FloatArray = end_s + self._hour_s * (np.arange(m, dtype=np.float64) - 0.5)
            weekends = learnt.weekend * level * (levels.is_weekend(times_s) - 2.0 / 7.0)
        to_newest = self._to_newest[s.foretold_h if ahead.size else s.newest_h][:m]
        middle = learnt.mean + profile[self._hour_of_profile[:m]] - level + weekends
        middle += (level - learnt.mean) * self._to_level[:m]
        middle += (hours[-1] - profile[-1] - weekends[0]) * to_newest
        spread = np.sqrt(
            (s.hourly * learnt.hour_sd) ** 2 * (1.0 - to_newest**2)
            + (s.drift * learnt.step_sd) ** 2 * self._level_variance[:m]
        )
        fan: FloatArray = middle[:, None] + spread[:, None] * NODES[None, :]
        fan = np.maximum(fan, max(learnt.lowest, _LOWEST * learnt.mean))
        fan[0] = hours[-1]
        if not ahead.size:
            return fan
        known = hours[len(told) - 1 : -1, None]
        return np.concatenate((np.repeat(known, len(NODES), axis=1), fan))

    def _lesson(self, told: FloatArray, end_s: float) -> levels.Learnt:
        """What the whole days of the past tell."""
        n_days = len(told) // levels.DAY_H
        days = told[: n_days * levels.DAY_H]
        begin_s = end_s - len(told) * self._hour_s
        first = int(levels.weekday(begin_s + levels.DAY_S / 2)) if self._has_calendar else None
        key = days.tobytes() + bytes([7 if first is None else first])
        found = self._learnt.get(key)
        if found is None:
            s = self.shape
            found = levels.learn(
                days.reshape(-1, levels.DAY_H), s.memories_days, s.spread_days, first
            )
            self._learnt[key] = found
            while len(self._learnt) > _KEPT:
                self._learnt.popitem(last=False)
        return found
