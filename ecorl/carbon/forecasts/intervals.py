"""Intervals around a forecast, learnt from the errors that the same rule made before.

The ends of an interval are quantiles of past errors, group of lead times by group, newer errors
counting more. They are widened where few errors that have nothing to do with each other are known,
and their level follows what was missed lately (adaptive conformal inference, Gibbs and Candes 2021,
arXiv 2106.00170, Eq. 2).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ecorl.carbon.forecasts.forecast import NOMINAL_COVERAGE
from ecorl.carbon.forecasts.hindcast import Hindcast, LeadGroups
from ecorl.carbon.forecasts.history import FloatArray, History, IntArray
from ecorl.carbon.series import Series

TAIL = (1.0 - NOMINAL_COVERAGE) / 2.0
"""Share of the values that is to lie below an interval, and above it."""

ADAPTION = 0.1
"""How far a week's misses move the level of the quantiles. Tuned on real grids: more makes the
intervals of long lead times, whose misses come in long rows, swing."""

_TAIL_RANGE = (0.01, 0.12)
"""Between which levels the adaption stays. Invented: outside of it, intervals of a few months of
errors would hold everything, or too little to be of use."""

FEW = 20
"""Errors that a group of lead times must have, so that its quantiles are taken. Invented: with
fewer, the outermost one in twenty is not among them."""

_STUDENT = 1.43
"""Widening for n independent errors is 1 + 1.43 / n: the first terms of Student's t over the normal
distribution at the 95 % quantile, (1.645^2 + 1) / (4 n), and of the mean's own error, 1 / (2 n)."""

_PRIOR = 0.5
"""Half-width of the intervals where no error is known yet, as a share of the forecast's size.
Invented: wide enough that nobody takes it for knowledge."""

PATTERN_DAYS = 28
"""Over how many days errors by hour of the day are looked at. Invented: four weeks."""

_PATTERN_RANGE = (0.5, 2.0)
"""Limits of that pattern. Invented: a noisy pattern must not undo an interval."""


class DayPattern:
    """At which hours of the day a series is hard to forecast, and at which easy.

    It is the root of the mean change from one day to the next at that time, over the mean of all
    times. The root is invented: it goes half of the way from intervals that are equally wide at
    all hours to such that follow the pattern in full, and served better than either on real grids.

    Args:
        history: the past.
    """

    def __init__(self, history: History) -> None:
        change = np.full(len(history), np.nan)
        change[history.day :] = np.abs(
            history.values[history.day :] - history.values[: -history.day]
        )
        self._changes: History | None = None
        if not np.isnan(change).all():
            self._changes = History(Series(history.start_s, history.step_s, change))

    def at(self, origins: IntArray, leads: IntArray) -> FloatArray:
        """The pattern as it was known at some origins: about 1, more at hard hours.

        Args:
            origins: ``[O] int64``, first unknown intervals.
            leads: ``[L] int64``, lead times, intervals.

        Returns:
            ``[O, L] float64``, without unit.
        """
        if self._changes is None:
            return np.ones((len(origins), len(leads)))
        day = self._changes.day
        column = origins[:, None]
        hourly = self._changes.cyclic_mean(column, leads[None, :], day, PATTERN_DAYS)
        overall = self._changes.trailing_mean(column, PATTERN_DAYS * day)
        known = (overall > 0.0) & ~np.isnan(hourly)
        ratio = np.divide(hourly, overall, out=np.ones_like(hourly), where=known)
        clipped: FloatArray = np.clip(np.sqrt(ratio), *_PATTERN_RANGE)
        return clipped


@dataclass(frozen=True, slots=True, eq=False)
class Spread:
    """How far values lie from the forecast, by group of lead times.

    Attributes:
        groups: the groups.
        below, above: ``[G] float64``, the ends of the intervals less the forecast, in the series'
            unit, for an hour of the day that is neither hard nor easy; None where no errors were
            known at all.
    """

    groups: LeadGroups
    below: FloatArray | None
    above: FloatArray | None

    def around(
        self, middle: FloatArray, leads: IntArray, pattern: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """The ends of the intervals around a forecast.

        Args:
            middle: ``[n] float64``, the forecast.
            leads: ``[n] int64``, lead times, intervals.
            pattern: ``[n] float64``, `DayPattern.at` these lead times.

        Returns:
            ``[n] float64`` each, the lower and the upper ends; neither is beyond the forecast.
        """
        if self.below is None or self.above is None:
            half = _PRIOR * np.abs(middle)
            return middle - half, middle + half
        below = self.groups.spread_over(leads, self.below) * pattern
        above = self.groups.spread_over(leads, self.above) * pattern
        return middle + np.minimum(below, 0.0), middle + np.maximum(above, 0.0)


def learn_spread(errors: FloatArray, tried: Hindcast, adaption: float = ADAPTION) -> Spread:
    """Intervals that would have held the share of past values that they are to hold.

    Args:
        errors: ``[O, L] float64``, truth less forecast over `DayPattern`; NaN where unknown.
        tried: where they were made.
        adaption: how far a week's misses move the level of the quantiles; 0 to leave it.
    """
    centres = tried.groups.centres
    ends = np.full((len(centres), 2), np.nan)
    for group, centre in enumerate(centres):
        found = _learn_group(errors, tried, group, adaption)
        if found is not None:
            ends[group] = found
        elif group and not np.isnan(ends[group - 1, 0]):
            # As the steps of a random walk add up: too wide for what swings around a mean.
            ends[group] = ends[group - 1] * np.sqrt(centre / centres[group - 1])
    if np.isnan(ends).any():
        return Spread(tried.groups, None, None)
    return Spread(tried.groups, ends[:, 0], ends[:, 1])


def _learn_group(
    errors: FloatArray, tried: Hindcast, group: int, adaption: float
) -> tuple[float, float] | None:
    columns = tried.columns(group)
    values, known_at = errors[:, columns].ravel(), tried.known_at[:, columns].ravel()
    usable = (known_at >= 0) & ~np.isnan(values)
    if int(usable.sum()) < FEW:
        return None
    order = np.argsort(values[usable], kind="stable")
    values, known_at = values[usable][order], known_at[usable][order]
    weight = tried.weight[:, columns].ravel()[usable][order]
    checkpoints = np.arange(tried.checkpoints if adaption > 0.0 else 1)
    known = known_at >= checkpoints[:, None]
    places = _places(weight * known)
    counts = known.sum(axis=1)
    # What became known in the week after each checkpoint: its ends are tried on that.
    new = np.cumsum(known_at == checkpoints[:, None] - 1, axis=1)
    tails = (TAIL, TAIL)
    for checkpoint in range(len(checkpoints) - 1, 0, -1):
        if counts[checkpoint] < FEW or new[checkpoint, -1] == 0:
            continue
        ends = _ends(values, places[checkpoint], tails, tried.independent[checkpoint, group])
        below, upto = np.searchsorted(values, ends[0]), np.searchsorted(values, ends[1], "right")
        total = int(new[checkpoint, -1])
        missed_low = int(new[checkpoint, below - 1]) / total if below else 0.0
        missed_high = (total - int(new[checkpoint, upto - 1])) / total if upto else 1.0
        tails = (
            _adapted(tails[0], missed_low, adaption),
            _adapted(tails[1], missed_high, adaption),
        )
    return _ends(values, places[0], tails, tried.independent[0, group])


def _adapted(tail: float, missed: float, adaption: float) -> float:
    return min(max(tail + adaption * (TAIL - missed), _TAIL_RANGE[0]), _TAIL_RANGE[1])


def _places(weights: FloatArray) -> FloatArray:
    """Which quantile each of some sorted errors is, for each row of their weights."""
    total = np.cumsum(weights, axis=-1)
    last = total[..., -1:]
    return (total - 0.5 * weights) / np.where(last > 0.0, last, 1.0)


def _ends(
    values: FloatArray, places: FloatArray, tails: tuple[float, float], independent: float
) -> tuple[float, float]:
    """Quantiles of sorted errors, widened about their median for want of errors."""
    low, median, high = np.interp((tails[0], 0.5, 1.0 - tails[1]), places, values).tolist()
    widening = 1.0 + _STUDENT / max(float(independent), 1.0)
    return median + (low - median) * widening, median + (high - median) * widening
