"""Courses that the grid may take from now on: the expected one, and some drawn around it.

Both follow from `LevelFan`. Its own spread of an hour is tuned for decisions and narrower than that
of the past; courses are drawn with the past's. Along EIA-930's hours of 2022 in California, New
York, PJM and Bonneville, what the default controller then really saved of static FP8's emissions
lay in the 90 % interval of such courses at 61 of 64 starts (half of them of 5 days, half of 30),
and what it emitted at 54.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ecorl.carbon.forecasts.forecast import Forecast
from ecorl.carbon.series import Series
from ecorl.controllers.horizon.fan import NODES, FanShape, LevelFan
from ecorl.controllers.horizon.levels import DAY_H
from ecorl.controllers.planning.history import GridPast
from ecorl.controllers.problem.table import FloatArray

SEED = 0
"""Of the courses that are drawn, so that two plans of the same hour agree."""

_POOL = 256
"""Number of courses of which a few are taken. Invented."""

_LOWEST = 0.1
"""Share of the mean below which no intensity is drawn, as `LevelFan` expects none. Invented."""


class OneForecast:
    """The same forecast at all times, as for a plan that is made once.

    Args:
        forecast: the provider's; None without one.
    """

    def __init__(self, forecast: Forecast | None) -> None:
        self._forecast = forecast

    def after(self, n_known: int) -> Forecast | None:
        """See `ecorl.controllers.replay.knowledge.Foresight`.

        Args:
            n_known: how many intervals are known.
        """
        return self._forecast


@dataclass(frozen=True, slots=True, eq=False)
class GridAhead:
    """What the grid may do from a time on.

    Attributes:
        past: what is known.
        start_s: begin of the first hour, s since 1970: an hour's begin, as `GridPast.begin_s` says.
        middle: ``[hours] float64``, the expected course, g/kWh.
    """

    past: GridPast
    start_s: float
    middle: FloatArray

    def course(self, values: FloatArray | None = None) -> Series:
        """The past with a course after it, in hours.

        Args:
            values: ``[hours] float64``, g/kWh; None: the expected course.
        """
        hours, hour_s = self.past.hours, self.past.hour_s
        gap = round((self.start_s - hours.end_s) / hour_s)
        later = self.middle if values is None else values
        joined = np.concatenate((hours.values, np.full(gap, np.nan), later))
        return Series(self.start_s - (gap + len(hours.values)) * hour_s, hour_s, joined)

    def drawn(self, n: int, seed: int = SEED) -> FloatArray:
        """Courses drawn around the expected one.

        The level and the hour's distance from it err as autoregressions of the first order, with
        the memories of `FanShape`. A provider's forecast, which says nothing of its errors, counts
        as the middle alone: the spread is what it would be without it.

        Args:
            n: number of courses.
            seed: the same courses for the same seed.

        Returns:
            ``[n, hours] float64``, g/kWh.
        """
        shape, rng = FanShape(), np.random.default_rng(seed)
        errors = np.zeros((n, len(self.middle)))
        for part, memory_h in (
            (replace(shape, hourly=1.0, drift=0.0), shape.newest_h),
            (replace(shape, hourly=0.0), DAY_H * shape.level_days),
        ):
            spread = self._spread(part)
            errors += spread * _autoregressions(rng, n, len(spread), memory_h)
        return np.maximum(self.middle + errors, _LOWEST * float(self.middle.mean()))

    def apart(self, n: int, n_busy: int, n_hours: int) -> FloatArray:
        """A few of many drawn courses, evenly apart in what there is to save on them.

        That is told by the mean of the lowest hours over that of the first ones. A few courses at
        random would say little of how far a saving may vary.

        Args:
            n: number of courses.
            n_busy: hours that a training takes at full speed.
            n_hours: hours until its deadline.

        Returns:
            ``[n, hours] float64``, g/kWh, those with least to save first.
        """
        courses = self.drawn(_POOL)
        lowest = np.sort(courses[:, :n_hours], axis=1)[:, :n_busy].mean(axis=1)
        # A grid that emits nothing directly leaves nothing to save.
        lowest = np.maximum(lowest, np.finfo(np.float64).tiny)
        order = np.argsort(courses[:, :n_busy].mean(axis=1) / lowest)
        return courses[order[((np.arange(n) + 0.5) / n * _POOL).astype(np.int64)]]

    def _spread(self, shape: FanShape) -> FloatArray:
        """``[hours]``, standard deviation of one part of the fan, g/kWh."""
        end_s = self.start_s + len(self.middle) * self.past.hour_s
        fan = LevelFan(shape, DAY_H * self.past.hour_s)
        values = fan.values(self.past.hours, self.start_s, end_s)
        assert values is not None
        return np.asarray((values[:, -1] - values[:, len(NODES) // 2]) / NODES[-1])


def grid_ahead(past: GridPast, start_s: float, n_hours: int) -> GridAhead:
    """What a grid may do.

    Args:
        past: what is known, of `NEEDED_DAYS` at least.
        start_s: begin of the first hour, as `GridPast.begin_s` gives it.
        n_hours: how far ahead.
    """
    end_s = start_s + n_hours * past.hour_s
    fan = LevelFan(FanShape(), DAY_H * past.hour_s)
    values = fan.values(past.hours, start_s, end_s, past.forecast)
    assert values is not None
    return GridAhead(past, start_s, values[:, len(NODES) // 2])


def _autoregressions(rng: np.random.Generator, n: int, hours: int, memory_h: float) -> FloatArray:
    """``[n, hours]``: each begins at 0 an hour before the first, and is scaled to unit variance."""
    stay = float(np.exp(-1.0 / memory_h))
    draws = rng.standard_normal((n, hours)) * np.sqrt(1.0 - stay * stay)
    found = np.empty((n, hours))
    state = np.zeros(n)
    for hour in range(hours):
        state = stay * state + draws[:, hour]
        found[:, hour] = state
    found /= np.sqrt(1.0 - stay ** (2.0 * np.arange(1, hours + 1)))
    return found
