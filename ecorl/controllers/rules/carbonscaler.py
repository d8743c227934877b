"""CarbonScaler's greedy allocation (Hanafy et al. 2023): elastic width, one gear."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ecorl.carbon.series import Series
from ecorl.control import Gear, GearChoice, Why
from ecorl.controllers.horizon.frontier import Frontier, frontier
from ecorl.controllers.problem.table import PAUSE, FloatArray, TrainingAction
from ecorl.controllers.problem.training import Progress, TrainingProblem
from ecorl.controllers.protocol import Seen
from ecorl.controllers.rules.reactive import full_width, high_gear
from ecorl.controllers.step import choice
from ecorl.units import JOULES_PER_KWH

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
    """

    def __init__(self, origin_s: float, day_s: float) -> None:
        self._origin_s, self._hour_s = origin_s, day_s / DAY_H

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
        n = min(len(past.values), round(PROFILE_DAYS * day_s / past.step_s))
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
    return np.asarray(np.divide(sums, counts, out=np.full(n, np.nan), where=counts > 0))


CARBONSCALER, CARBONSCALER_FP8 = "carbonscaler", "carbonscaler-fp8"

PROFILE_DAYS = 7
"""Days of the mean day by which a forecast is continued. Of 3, 7 and 14 days, 7 saved most in PJM's
hours of 2022, and nearly as much as the best of them in California's and New York's (a week at
slack 1.5, in FP8)."""


@dataclass(frozen=True, slots=True)
class _Planned:
    """What the plan has for the hour under way.

    Attributes:
        until_s: end of the hour, s since 1970.
        gear: for which the plan was made.
        width: number of workers, 0 for a pause.
        price_g_per_token: emissions of the dearest token of the plan.
    """

    until_s: float
    gear: Gear
    width: int
    price_g_per_token: float


class CarbonScaler:
    """Gives tokens to the hours and workers that train most of them per gram.

    At the begin of each hour all pairs of an hour until the deadline and a step of the width are
    ranked by the throughput that the step adds per gram it emits, and the best of them are taken
    until they train the rest of the budget (Hanafy et al., "CarbonScaler", Proceedings of the ACM
    on Measurement and Analysis of Computing Systems 7(3), 2023). The width of the hour under way is
    kept for the hour.

    Beyond the paper:

    - It takes marginal throughputs that fall with the width. Here the steps are those of the lower
      hull of power over throughput, so that no step is taken before the one below it whatever the
      table; and a step's power is what it draws above idle machines that are kept.
    - It takes a forecast as given; `HourlyExpectation` says what is expected here. Where nothing is
      known that one could expect something by, training runs at full width.
    - Where a cap on low precision is used up, the gear becomes the fastest other one; the plan
      counts with that one's throughput from the begin on.

    As in the paper, changes cost nothing in the plan, and it knows of no soft deadline.

    Args:
        problem: what has to be met.
        gear: the one gear; None: the fastest one that is not of low precision.
        day_s: length of a day of the grid, s.
        name: under which its choices are recorded.

    Raises:
        ConfigError: for a gear that the table does not have.
    """

    def __init__(
        self,
        problem: TrainingProblem,
        gear: Gear | None = None,
        *,
        day_s: float = 86400.0,
        name: str = CARBONSCALER,
    ) -> None:
        self.name = name
        self._problem = problem
        self._gear, self._high_gear = gear or high_gear(problem), high_gear(problem)
        self._hulls = {
            one: frontier(problem, [a for a in problem.table.actions() if a.gear is one])
            for one in (self._gear, self._high_gear)
        }
        self._expectation = HourlyExpectation(problem.start_s, day_s)
        self._planned: _Planned | None = None

    def decide(self, now_s: float, seen: Seen) -> GearChoice:
        """See `Controller.decide`."""
        progress = seen.progress
        assert progress is not None
        p = self._problem
        is_used_up = self._gear.is_low and progress.low_tokens_left <= 0.0
        gear = self._high_gear if is_used_up else self._gear
        planned = self._planned
        if planned is None or planned.gear is not gear or now_s >= planned.until_s - 1e-3:
            planned = self._planned = self._plan(gear, now_s, seen, progress)
        if planned is None:
            told = "too little is known of the grid to plan"
            widest = full_width(p, gear)
            return choice(self.name, now_s, p, seen, widest, Why.UNKNOWN, told)
        action = TrainingAction(planned.width, gear) if planned.width else PAUSE
        told = f"the plan takes steps of up to {1e6 * planned.price_g_per_token:.3g} g a million"
        price = planned.price_g_per_token
        return choice(self.name, now_s, p, seen, action, Why.PRICED, told, price)

    def _plan(self, gear: Gear, now_s: float, seen: Seen, progress: Progress) -> _Planned | None:
        """Rank all pairs of an hour and a step, and take the best that train the rest."""
        p, hull = self._problem, self._hulls[gear]
        found = self._expectation.until(p.deadline_s, now_s, seen)
        if found is None:
            return None
        g_per_kwh, seconds = found
        n_steps = len(hull.j_per_token)
        g_per_j = np.maximum(g_per_kwh, 0.0) * p.pue / JOULES_PER_KWH
        prices = (g_per_j[:, None] * hull.j_per_token).ravel()
        tokens = (seconds[:, None] * np.diff(hull.tokens_per_s)).ravel()
        # Of equal steps the earlier ones come first, and in each hour the lower ones.
        best = np.argsort(prices, kind="stable")
        wanted = self._tokens(gear, hull, progress)
        n = int(np.searchsorted(np.cumsum(tokens[best]), wanted)) + 1
        taken = best[:n]
        n_now = int(np.count_nonzero(taken < n_steps))
        width = hull.actions[n_now].width
        until_s = self._expectation.next_s(now_s)
        return _Planned(until_s, gear, width, float(prices[taken[-1]]))

    def _tokens(self, gear: Gear, hull: Frontier, progress: Progress) -> float:
        """The rest of the budget, in tokens at the throughput of the gear."""
        left = progress.tokens_left
        if not gear.is_low or progress.low_tokens_left >= left:
            return left
        high_rate = self._hulls[self._high_gear].tokens_per_s[-1]
        slower = float(hull.tokens_per_s[-1] / high_rate)
        return progress.low_tokens_left + (left - progress.low_tokens_left) * slower

    # ------------------------------------------------------------ memory

    def memory(self) -> Mapping[str, object]:
        """The plan of the hour under way."""
        return {} if self._planned is None else asdict(self._planned)

    def recall(self, memory: Mapping[str, object]) -> None:
        """Go on with a plan.

        Args:
            memory: the plan of the hour under way, or nothing.
        """
        values = dict(cast("Mapping[str, Any]", memory))
        self._planned = _Planned(**values | {"gear": Gear(values["gear"])}) if values else None
