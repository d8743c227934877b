"""Weights of a pool's rules and intervals around its forecast, learnt from earlier errors.

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
from ecorl.carbon.forecasts.history import HOUR_S, History, IntArray
from ecorl.carbon.series import FloatArray, Series

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
        return np.asarray(np.clip(np.sqrt(ratio), *_PATTERN_RANGE))


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


def learn_spread(errors: FloatArray, tried: Hindcast) -> Spread:
    """Intervals that would have held the share of past values that they are to hold.

    Args:
        errors: ``[O, L] float64``, truth less forecast over `DayPattern`; NaN where unknown.
        tried: where they were made.
    """
    centres = tried.groups.centres
    ends = np.full((len(centres), 2), np.nan)
    for group, centre in enumerate(centres):
        found = _learn_group(errors, tried, group)
        if found is not None:
            ends[group] = found
        elif group and not np.isnan(ends[group - 1, 0]):
            # As the steps of a random walk add up: too wide for what swings around a mean.
            ends[group] = ends[group - 1] * np.sqrt(centre / centres[group - 1])
    if np.isnan(ends).any():
        return Spread(tried.groups, None, None)
    return Spread(tried.groups, ends[:, 0], ends[:, 1])


def _learn_group(errors: FloatArray, tried: Hindcast, group: int) -> tuple[float, float] | None:
    columns = tried.columns(group)
    values, known_at = errors[:, columns].ravel(), tried.known_at[:, columns].ravel()
    usable = (known_at >= 0) & ~np.isnan(values)
    if int(usable.sum()) < FEW:
        return None
    order = np.argsort(values[usable], kind="stable")
    values, known_at = values[usable][order], known_at[usable][order]
    weight = tried.weight[:, columns].ravel()[usable][order]
    checkpoints = np.arange(tried.checkpoints)
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
        tails = (_adapted(tails[0], missed_low), _adapted(tails[1], missed_high))
    return _ends(values, places[0], tails, tried.independent[0, group])


def _adapted(tail: float, missed: float) -> float:
    return min(max(tail + ADAPTION * (TAIL - missed), _TAIL_RANGE[0]), _TAIL_RANGE[1])


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


STEPS = 20
"""Steps of the descent toward the best weights. Few on purpose: the descent starts from weights by
each rule's own error, and the farther it goes, the more it believes chance."""

STEP_SIZE = 0.4
"""Size of such a step. Tuned on real grids together with `STEPS`."""

CAUTION_H = 72.0
"""Lead time beyond which the descent goes less far, h: by this time over the lead time, to the
power of 1.5. Long lead times bring few independent errors to learn from. Tuned on real grids; the
power is invented."""

_RIDGE = 0.1
"""What is added to each rule's own squared error, as a share of it. Invented: keeps two rules that
say the same from being played off against each other."""

_SMALLEST = 0.01
"""Errors are taken relative to the signal's size at their time, but to no less than this share of
its mean size. Invented: keeps hours at which a signal is zero from counting alone."""

_NEWEST_CAUTION = 10.0
"""Independent errors at which the pull of the newest value is believed by half. Invented: about ten
are needed to tell a slope of one half from none."""


def learn_weights(predicted: FloatArray, tried: Hindcast, step_s: float) -> FloatArray:
    """Weights with which the rules together would have made the least squared relative error.

    They come from exponentiated gradient descent on the discounted covariance of the rules' errors
    (Kivinen and Warmuth 1997), so that they are positive and sum to one.

    Args:
        predicted: ``[M, O, L] float64``, what each rule said.
        tried: where it said so, and what came.
        step_s: length of an interval, s.

    Returns:
        ``[C, M, G] float64``, the weights as they were known at each checkpoint; all equal where
        no error was known.
    """
    rules, checkpoints, groups = len(predicted), *tried.independent.shape
    if predicted.size == 0:
        return np.full((checkpoints, rules, groups), 1.0 / rules)
    size = _sizes(predicted, tried.truth)
    covariance = _covariances((predicted - tried.truth) / size[:, None], tried)
    own = np.einsum("cgii->cgi", covariance).copy()
    known = own.sum(axis=-1) > 0.0
    scale = np.where(known, own.mean(axis=-1), 1.0)[..., None]
    covariance, own = covariance / scale[..., None], own / scale
    own = np.where(known[..., None], np.maximum(own, 1e-6), 1.0)
    covariance[~known] = np.eye(rules)
    np.einsum("cgii->cgi", covariance)[...] += _RIDGE * own
    lead_h = tried.groups.centres * step_s / HOUR_S
    step = STEP_SIZE * np.minimum(1.0, CAUTION_H / lead_h) ** 1.5
    weights = 1.0 / own
    weights /= weights.sum(axis=-1, keepdims=True)
    for _ in range(STEPS):
        slope = np.matmul(covariance, weights[..., None])[..., 0]
        loss = np.sum(weights * slope, axis=-1, keepdims=True)
        weights *= np.exp(-step[:, None] * slope / loss)
        weights /= weights.sum(axis=-1, keepdims=True)
    return np.ascontiguousarray(weights.transpose(0, 2, 1))


def learn_pull(errors: FloatArray, residuals: FloatArray, tried: Hindcast) -> FloatArray:
    """How much of the newest value's distance from the day's mean is still there later.

    This is the impulse response of an autoregression on that distance, estimated for each group of
    lead times by itself, and held back where few errors are known.

    Args:
        errors: ``[O, L] float64``, truth less the pool's forecast; NaN where unknown.
        residuals: ``[O] float64``, the newest value's distance at each origin.
        tried: where the errors were made.

    Returns:
        ``[C, G] float64``, as known at each checkpoint, without unit.
    """
    used = np.where(np.isnan(errors), 0.0, errors)
    product = tried.weight * used * residuals[:, None]
    square = tried.weight * residuals[:, None] ** 2
    pull = np.zeros_like(tried.independent)
    if errors.size == 0:
        return pull
    for group in range(pull.shape[1]):
        columns = tried.columns(group)
        known_at = tried.known_at[:, columns].ravel() + 1
        above, below = (
            np.bincount(known_at, part[:, columns].ravel(), minlength=tried.checkpoints + 1)
            for part in (product, square)
        )
        above, below = (
            np.cumsum(part[1 : tried.checkpoints + 1][::-1])[::-1] for part in (above, below)
        )
        pull[:, group] = np.divide(above, below, out=np.zeros_like(above), where=below > 0.0)
    return pull * tried.independent / (tried.independent + _NEWEST_CAUTION)


def _sizes(predicted: FloatArray, truth: FloatArray) -> FloatArray:
    """How large the signal was taken to be at each origin, ``[O] float64``, never 0."""
    came = np.abs(truth[~np.isnan(truth)])
    usual = float(np.abs(predicted).mean()) + (float(came.mean()) if came.size else 0.0)
    if usual == 0.0:
        return np.ones(predicted.shape[1])
    return np.asarray(np.maximum(np.mean(np.abs(predicted), axis=(0, 2)), _SMALLEST * usual))


def _covariances(errors: FloatArray, tried: Hindcast) -> FloatArray:
    """Sums of products of the rules' errors, ``[C, G, M, M]``, as known at each checkpoint."""
    rules, groups = len(errors), len(tried.groups.centres)
    found = np.zeros((tried.checkpoints, groups, rules, rules))
    for group in range(groups):
        columns = tried.columns(group)
        known_at = tried.known_at[:, columns].ravel()
        order = np.argsort(known_at, kind="stable")
        order = order[known_at[order] >= 0]
        weighted = np.sqrt(tried.weight[:, columns].ravel()[order])
        table = errors[:, :, columns].reshape(rules, -1)[:, order] * weighted
        edges = np.searchsorted(known_at[order], np.arange(tried.checkpoints + 1))
        for checkpoint in range(tried.checkpoints):
            part = table[:, edges[checkpoint] : edges[checkpoint + 1]]
            found[checkpoint, group] = part @ part.T
    return np.cumsum(found[::-1], axis=0)[::-1].copy()
