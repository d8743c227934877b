"""A pool of simple rules, weighted by how well each did lately at each lead time.

`continuation` goes on from the interval under way: what is told of it already, then the forecast.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from ecorl.carbon.forecasts import intervals
from ecorl.carbon.forecasts.forecast import Forecast
from ecorl.carbon.forecasts.hindcast import WINDOW_H, hindcast
from ecorl.carbon.forecasts.history import DAY_S, History, IntArray
from ecorl.carbon.forecasts.rules import (
    Cycle,
    Rule,
    has_year,
    memory_days,
    newest_residual,
    predict,
)
from ecorl.carbon.series import FloatArray, Series
from ecorl.errors import FeedSilent

Bounds = tuple[float, float]
"""What a signal cannot be below and above, in its unit: (0, 1) for a share."""


def days_to_forecast(*rules: Rule) -> int:
    """How much of the past goes into a forecast by rules that have learnt, days.

    Args:
        rules: the rules.
    """
    return max(intervals.PATTERN_DAYS + 1, *(memory_days(rule) for rule in rules))


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
    """The origin at the end of the past, and the lead times from it on.

    Args:
        past: the past.
        n: number of intervals.
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


_DAY, _WEEK = Cycle.DAY, Cycle.WEEK

RULES: tuple[Rule, ...] = (
    Rule(_DAY, 1),
    Rule(_DAY, 7),
    Rule(_DAY, 14, apart=True),
    Rule(_DAY, 28, apart=True),
    Rule(_WEEK, 4),
    Rule(_DAY, 1, residual_h=6.0),
    Rule(_DAY, 1, residual_h=24.0),
    Rule(_DAY, 14, apart=True, residual_h=6.0),
    Rule(_DAY, 14, apart=True, residual_h=24.0),
    Rule(_DAY, 28, apart=True, residual_h=12.0),
    Rule(_DAY, 14, apart=True, level_days=1),
    Rule(_DAY, 28, apart=True, level_days=3),
)
"""The rules of the pool: short and long memories, of which real grids need different ones. Chosen
on real grids; half a dozen other choices of 10 to 16 rules came within 1 %."""

LAST_YEAR = Rule(Cycle.YEAR)
"""Joins the pool where the past holds a year."""

_MEAN = Rule(_DAY, 14, apart=True)
"""From what the newest value's distance is taken."""

_SHORT_DAYS = 7.0
"""Below which length of the past everything is learnt anew from all of it, days. Invented: a longer
past may lose the part of a day at either end."""

_REMEMBERED = 8
"""Number of pasts whose lessons are kept. Invented: a few signals of a few regions."""


@dataclass(frozen=True, slots=True, eq=False)
class _Lesson:
    """What was learnt from a past: weights ``[M, G]``, pull ``[G]``, and intervals.

    Last year's season is among the rules where `year` is true.
    """

    year: bool
    weights: FloatArray
    pull: FloatArray
    spread: intervals.Spread


class RecencyAdaptivePool:
    """Simple rules together, each weighted by how well it did lately at each lead time.

    The rules repeat the last day, the last days or weeks, as they were or moved to the level of the
    last days or toward the newest value; see `RULES`. Their weights, the pull of the newest value
    and the intervals are learnt from the past up to its last midnight (UTC), and are kept until the
    next one, so that a forecast of later hours of that day takes a fraction of the time. What is
    kept never changes a forecast, it only saves work: it is used where the past that it was learnt
    from is the same, value by value.

    Constants that are called tuned were tuned on EIA-930's hours of 2022: the first half of the
    year for California, PJM and New York, all of it for Bonneville. In the last of these the level
    drifts for months, and no rule knows the season from less than a year: weeks ahead, its
    intervals hold fewer values than they are to.

    Args:
        bounds: what the signal cannot be below and above, in its unit; None where nothing is known.
    """

    name = "recency-adaptive pool"

    def __init__(self, bounds: Bounds | None = None) -> None:
        self._bounds = bounds
        self._lessons: OrderedDict[tuple[float, float, bytes], _Lesson] = OrderedDict()

    def forecast(self, past: Series, n: int) -> Forecast:
        """What the next intervals will bring; see `Forecaster.forecast`.

        Args:
            past: what is known; only its last 16 months are looked at.
            n: number of intervals.

        Raises:
            FeedSilent: when the past holds no value at all.
            ValueError: when `n` is below 1.
        """
        known = newest_days(past, days_to_learn(LAST_YEAR))
        _, leads = next_intervals(known, n)
        lesson = self._lesson(known)
        near = newest_days(known, days_to_forecast(*RULES))
        history = History(near)
        now = np.array([len(history)], dtype=np.int64)
        said = predict(history, RULES, now, leads)[:, 0]
        if lesson.year:
            end = np.array([len(known.values)], dtype=np.int64)
            said = np.concatenate((said, predict(History(known), (LAST_YEAR,), end, leads)[:, 0]))
        weights = lesson.spread.groups.spread_over(leads, lesson.weights)
        pull = lesson.spread.groups.spread_over(leads, lesson.pull)
        middle = np.sum(weights * said, axis=0) + pull * newest_residual(history, _MEAN, now)
        pattern = intervals.DayPattern(history).at(now, leads)[0]
        low, high = lesson.spread.around(middle, leads, pattern)
        return clipped(self.name, past, (middle, low, high), self._bounds)

    def _lesson(self, past: Series) -> _Lesson:
        known = _whole_days(past)
        key = (known.start_s, known.step_s, known.values.tobytes())
        lesson = self._lessons.get(key)
        if lesson is None:
            lesson = _learn(known)
            self._lessons[key] = lesson
            while len(self._lessons) > _REMEMBERED:
                self._lessons.popitem(last=False)
        return lesson


def _whole_days(past: Series) -> Series:
    """The part of the past from its first midnight to its last, where it is long enough."""
    if past.end_s - past.start_s < _SHORT_DAYS * DAY_S:
        return past
    first_s = math.ceil(past.start_s / DAY_S) * DAY_S
    last_s = math.floor(past.end_s / DAY_S) * DAY_S
    first = math.ceil((first_s - past.start_s) / past.step_s)
    last = math.floor((last_s - past.start_s) / past.step_s)
    values = past.values[first:last]
    if not np.isfinite(values).any():
        return past
    return Series(past.start_s + first * past.step_s, past.step_s, values)


def _learn(known: Series) -> _Lesson:
    near = newest_days(known, days_to_learn(*RULES))
    history = History(near)
    tried = hindcast(history)
    groups = tried.groups
    said = predict(history, RULES, tried.origins, groups.probes)
    whole = History(known)
    year = has_year(whole)
    if year:
        origins = tried.origins + (len(whole) - len(history))
        said = np.concatenate((said, predict(whole, (LAST_YEAR,), origins, groups.probes)))
    weights = intervals.learn_weights(said, tried, history.step_s)
    middle = _weighted(said, groups.spread_over(groups.probes, weights), tried.learnt_at)
    residuals = newest_residual(history, _MEAN, tried.origins)
    pull = intervals.learn_pull(tried.truth - middle, residuals, tried)
    middle += groups.spread_over(groups.probes, pull)[tried.learnt_at] * residuals[:, None]
    pattern = intervals.DayPattern(history).at(tried.origins, groups.probes)
    spread = intervals.learn_spread((tried.truth - middle) / pattern, tried)
    return _Lesson(year, weights[0], pull[0], spread)


def _weighted(said: FloatArray, weights: FloatArray, learnt_at: IntArray) -> FloatArray:
    """What the pool would have said at each origin with the weights ``[C, M, L]`` known then."""
    middle = np.zeros(said.shape[1:])
    for checkpoint in np.unique(learnt_at):
        rows = learnt_at == checkpoint
        middle[rows] = np.einsum("mol,ml->ol", said[:, rows], weights[checkpoint])
    return middle


HORIZON_S = 96 * 3600.0
"""How far a continuation reaches from the interval under way, s."""

NEEDED_S = 20 * 3600.0
"""For how long values must be known, s. Invented: a day, as the shortest rules need it, less the
hours by which a provider of the last 24 hours may be late."""

LONGEST_STEP_S = 3600.0
"""Longest intervals that the forecasters here are made for, s."""


def continuation(past: Series, first: int, bounds: Bounds = (0.0, np.inf)) -> Forecast:
    """Go on with a past by the recency-adaptive pool.

    Args:
        past: what is known now; values may be missing (NaN).
        first: number of the interval that is under way, counted from the begin of the past. The
            past may hold it already, or end before it.
        bounds: what the signal cannot be below and above, in its unit.

    Returns:
        A forecast from interval `first` on, over `HORIZON_S`, in the time of the past. What is
        known of its first intervals is told as it is, its low and high being the same. None of its
        numbers is missing. As the time of its making stands the end of what is known, which may lie
        ahead of the clock: whoever knows the clock puts it right.

    Raises:
        FeedSilent: when the intervals are longer than `LONGEST_STEP_S`, or values are known for
            less than `NEEDED_S`.
    """
    step_s, values = past.step_s, past.values
    if step_s > LONGEST_STEP_S:
        raise FeedSilent(
            f"a forecast takes intervals of at most {LONGEST_STEP_S / 3600:g} h, and they are of"
            f" {step_s / 3600:g} h"
        )
    known = np.isfinite(values)
    known_s = float(np.count_nonzero(known)) * step_s
    if known_s < NEEDED_S:
        raise FeedSilent(
            f"a forecast takes values of {NEEDED_S / 3600:g} h, and those of {known_s / 3600:.3g} h"
            " are known"
        )
    end = int(np.flatnonzero(known)[-1]) + 1
    # After a hole in what is told of the time ahead the forecast has to take over.
    holes = np.flatnonzero(~known[first:end])
    if holes.size:
        end = first + int(holes[0])
    told = values[:end]
    n = round(HORIZON_S / step_s)
    pool = RecencyAdaptivePool(bounds)
    made = pool.forecast(Series(past.start_s, step_s, told), max(1, first + n - end))
    assert made.low is not None
    assert made.high is not None
    middle, low, high = (
        np.concatenate((told, line))[first : first + n]
        for line in (made.middle, made.low, made.high)
    )
    start_s = past.start_s + first * step_s
    return Forecast(pool.name, made.issued_s, start_s, step_s, middle, low, high)
