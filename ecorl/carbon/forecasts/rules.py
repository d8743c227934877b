"""Simple rules that forecast a series from its past, for many origins and lead times at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from ecorl.carbon.forecasts.history import History, IntArray
from ecorl.carbon.series import FloatArray

YEAR_DAYS = 364
"""A year in whole weeks, days, so that a Monday is compared with a Monday."""

YEAR_LEVEL_DAYS = 14
"""Over how many days the level of now is compared with that of a year ago. Invented: two weeks are
long enough to even out the weather and short enough to follow the season."""

_APART_DAYS = 14
"""From how long a profile on weekends are kept apart from other days. Invented: two weekends."""

_OLDEST_NEWEST_H = 6.0
"""How old the newest value may be to say something about the next one, h. Invented: a quarter of a
day, after which the hour of the day matters more."""

_FILL_DAYS = 14
"""Length of the profile that stands in for a rule without values of its own, days. Invented."""


class Cycle(Enum):
    """What a rule repeats."""

    NEWEST = "the newest value"
    DAY = "the same time on the last days"
    WEEK = "the same time in the last weeks"
    YEAR = "the same time a year ago"


@dataclass(frozen=True, slots=True)
class Rule:
    """A mean over cycles, which may be moved toward what was seen last.

    Attributes:
        cycle: what is repeated.
        count: over how many days or weeks the mean is; of no meaning for the other cycles.
        apart: whether days of the week's end and others are kept apart, where `count` days hold
            enough of both.
        residual_h: after which time the newest value's distance from the mean has fallen to 1/e of
            itself, h; None to leave it out.
        level_days: number of days whose mean the forecast is moved to; None to leave it in place.
    """

    cycle: Cycle
    count: int = 1
    apart: bool = False
    residual_h: float | None = None
    level_days: int | None = None


def predict(
    history: History, rules: Sequence[Rule], origins: IntArray, leads: IntArray
) -> FloatArray:
    """What each rule says at each origin about each lead time.

    Where a rule finds no value, the profile of the last days stands in for it, and for that the
    mean of all that was known.

    Args:
        history: the past.
        rules: the rules.
        origins: ``[O] int64``, first unknown intervals; before each there is a value.
        leads: ``[L] int64``, lead times, intervals.

    Returns:
        ``[rules, O, L] float64`` in the series' unit, without missing values.
    """
    column, row = origins[:, None], leads[None, :]
    bases: dict[tuple[Cycle, int, bool], FloatArray] = {}
    residuals: dict[tuple[Cycle, int, bool], FloatArray] = {}
    answers = np.empty((len(rules), len(origins), len(leads)))
    for answer, rule in zip(answers, rules, strict=True):
        key = (rule.cycle, rule.count, rule.apart)
        if key not in bases:
            bases[key] = _cyclic(history, rule, column, row)
        answer[:] = bases[key]
        if rule.level_days is not None:
            answer += _level_shift(history, rule, origins)[:, None]
        if rule.residual_h is not None:
            decay = np.exp(-leads / history.steps(rule.residual_h))
            if key not in residuals:
                residuals[key] = newest_residual(history, rule, origins)[:, None]
            answer += residuals[key] * decay
    missing = np.isnan(answers)
    if missing.any():
        stand_in = np.broadcast_to(_stand_in(history, column, row), answers.shape)
        answers[missing] = stand_in[missing]
    return answers


def newest_residual(history: History, rule: Rule, origins: IntArray) -> FloatArray:
    """How far the newest value lay above what the rule's mean had said about it.

    Args:
        history: the past.
        rule: the rule; only its mean is used.
        origins: ``[O] int64``, first unknown intervals.

    Returns:
        ``[O] float64`` in the series' unit; 0 where the newest value is too old or nothing was
        said about it.
    """
    newest = history.newest(origins)
    fresh = (newest >= 0) & (origins - newest <= max(1, history.steps(_OLDEST_NEWEST_H)))
    newest = np.maximum(newest, 0)
    said = _cyclic(history, rule, newest[:, None], np.ones((1, 1), dtype=np.int64))[:, 0]
    residual = history.at(newest) - said
    return np.where(fresh & ~np.isnan(residual), residual, 0.0)


def memory_days(rule: Rule) -> int:
    """How far back from its origin a rule looks, and what stands in for it, days.

    Args:
        rule: the rule.
    """
    if rule.cycle is Cycle.YEAR:
        return YEAR_DAYS + YEAR_LEVEL_DAYS
    days = rule.count * (7 if rule.cycle is Cycle.WEEK else 1)
    return 1 + max(days, rule.level_days or 0, _FILL_DAYS)


def has_year(history: History) -> bool:
    """Whether the past reaches back far enough for a comparison with a year ago.

    Args:
        history: the past.
    """
    end = np.array([len(history)], dtype=np.int64)
    return not bool(np.isnan(_year_shift(history, end)[0]))


def _cyclic(history: History, rule: Rule, origins: IntArray, leads: IntArray) -> FloatArray:
    if rule.cycle is Cycle.NEWEST:
        return history.at(history.newest(origins)) + 0.0 * leads
    if rule.cycle is Cycle.WEEK:
        return history.cyclic_mean(origins, leads, 7 * history.day, rule.count)
    if rule.cycle is Cycle.YEAR:
        ago = history.at(origins + leads - 1 - YEAR_DAYS * history.day)
        return ago + _year_shift(history, origins)
    apart = rule.apart and rule.count >= _APART_DAYS
    found = history.cyclic_mean(origins, leads, history.day, rule.count, apart)
    if not apart or not np.isnan(found).any():
        return found
    both = history.cyclic_mean(origins, leads, history.day, rule.count)
    return np.where(np.isnan(found), both, found)


def _year_shift(history: History, origins: IntArray) -> FloatArray:
    """How far the level of the last days lies above that of the same days a year ago."""
    span, year = YEAR_LEVEL_DAYS * history.day, YEAR_DAYS * history.day
    return history.trailing_mean(origins, span) - history.trailing_mean(origins - year, span)


def _level_shift(history: History, rule: Rule, origins: IntArray) -> FloatArray:
    days = rule.count * (7 if rule.cycle is Cycle.WEEK else 1)
    level = history.trailing_mean(origins, (rule.level_days or 1) * history.day)
    shift = level - history.trailing_mean(origins, days * history.day)
    return np.where(np.isnan(shift), 0.0, shift)


def _stand_in(history: History, origins: IntArray, leads: IntArray) -> FloatArray:
    profile = history.cyclic_mean(origins, leads, history.day, _FILL_DAYS)
    level = history.window_mean(np.zeros_like(origins), origins)
    return np.where(np.isnan(profile), level, profile)
