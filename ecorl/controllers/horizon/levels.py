"""What the past tells of a grid's level: how long to remember, the weekend, and how far it moves.

A day's profile is a mean of the days before it, discounted. How quickly it should forget differs
between grids and seasons, so that several memories are kept, and each counts by how well its level
foretold the mean of the ten days that came: recency-adaptive, as the pool of forecasts is.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ecorl.carbon.series import Series
from ecorl.controllers.problem.table import FloatArray

DAY_H = 24
DAY_S = 86400.0

_EPOCH_WEEKDAY = 3
"""1 January 1970 was a Thursday: day 3 of a week that begins on Monday."""

_FRIDAY = 4

_WARM_UP_DAYS = 15
"""Days after which a discounted profile has forgotten its begin. Invented."""

_FORETOLD_DAYS = 10
"""Days whose mean a memory's level should foretell. Invented: about where levels matter."""

_RECENT_DAYS = 90.0
"""After how many days an error of a level counts 1/e. Invented: a season."""

_SHARPNESS = 8.0
"""Power of the inverse squared error by which memories count. Chosen with `FanShape`: the best of
them counts most."""

_WEEKENDS = 11
"""How many weekends their difference from other days is learnt from. Invented: a season."""


@dataclass(frozen=True, slots=True, eq=False)
class Learnt:
    """What whole days of a past tell.

    Attributes:
        memories_days: after how many days each profile has forgotten to 1/e.
        weights: ``[memories]``, how much each counts, together 1.
        mean: of all hours, g/kWh.
        lowest: of all hours, g/kWh.
        hour_sd: standard deviation of an hour about the profile of the day before, g/kWh.
        step_sd: standard deviation of the daily steps of the profile's level, g/kWh.
        weekend: how far a weekend's level lies above that of other days, as a share of it.
    """

    memories_days: tuple[float, ...]
    weights: FloatArray
    mean: float
    lowest: float
    hour_sd: float
    step_sd: float
    weekend: float

    def profile(self, days: FloatArray) -> FloatArray:
        """The discounted profile of some days.

        Args:
            days: ``[D, 24] float64``, rows of a day each, the newest last, g/kWh.

        Returns:
            ``[24] float64``, g/kWh.
        """
        return np.asarray(self.weights @ _discounts(self.memories_days, len(days)) @ days)


def learn(
    days: FloatArray, memories_days: tuple[float, ...], spread_days: int, first_weekday: int | None
) -> Learnt:
    """Learn from whole days.

    Args:
        days: ``[D, 24] float64``, g/kWh, without missing values, at least one day.
        memories_days: after how many days profiles forget to 1/e.
        spread_days: how many of the last days the spread of an hour is learnt from.
        first_weekday: of the first day, 0 for a Monday; None where the calendar means nothing.
    """
    levels, residuals = _walked(days, memories_days)
    warm = min(_WARM_UP_DAYS, len(days) - 1)
    means = days.mean(axis=1)
    weights = _weights(levels, means, warm)
    mixed = np.tensordot(weights, residuals, 1)
    steps = mixed[warm:].mean(axis=1) / float(weights @ np.array(memories_days))
    return Learnt(
        memories_days=memories_days,
        weights=weights,
        mean=float(means.mean()),
        lowest=float(days.min()),
        hour_sd=float(np.sqrt(np.mean(mixed[max(warm, len(days) - spread_days) :] ** 2))),
        step_sd=float(np.std(steps)),
        weekend=0.0 if first_weekday is None else _weekend(means, first_weekday, warm),
    )


def weekday(t_s: FloatArray | float) -> FloatArray:
    """Day of the week by UTC, 0 for a Monday.

    Args:
        t_s: times, s since 1970.
    """
    return np.asarray((np.floor(np.asarray(t_s) / DAY_S) + _EPOCH_WEEKDAY) % 7, dtype=np.float64)


def is_weekend(t_s: FloatArray) -> FloatArray:
    """1 for times on a Saturday or Sunday by UTC, 0 for others.

    Args:
        t_s: times, s since 1970.
    """
    return (weekday(t_s) > _FRIDAY).astype(np.float64)


@lru_cache(maxsize=8)
def _discounts(memories_days: tuple[float, ...], n: int) -> FloatArray:
    """How much each of some days counts to each memory, ``[M, n]``, together 1; the newest last."""
    age = np.arange(n)[::-1]
    counts = np.exp(-age / np.array(memories_days)[:, None])
    return np.asarray(counts / counts.sum(axis=1, keepdims=True))


def _walked(days: FloatArray, memories_days: tuple[float, ...]) -> tuple[FloatArray, FloatArray]:
    """Level ``[M, D]`` of each profile before each day, and the day beyond it, ``[M, D, 24]``."""
    rates = 1.0 / np.array(memories_days)[:, None]
    profiles = np.repeat(days[:5].mean(axis=0)[None, :], len(rates), axis=0)
    before = np.empty((len(days), *profiles.shape))
    for number, row in enumerate(days):
        before[number] = profiles
        profiles += rates * (row - profiles)
    before = before.transpose(1, 0, 2)
    return before.mean(axis=2), days - before


def _weights(levels: FloatArray, means: FloatArray, warm: int) -> FloatArray:
    """How much each memory counts, by how well its level foretold."""
    origins = np.arange(warm, len(means) - _FORETOLD_DAYS + 1)
    if len(levels) == 1 or not len(origins):
        return np.full(len(levels), 1.0 / len(levels))
    sums = np.concatenate(([0.0], np.cumsum(means)))
    came = (sums[origins + _FORETOLD_DAYS] - sums[origins]) / _FORETOLD_DAYS
    recent = np.exp(-(len(means) - origins) / _RECENT_DAYS)
    errors = ((levels[:, origins] - came) ** 2 @ recent) / recent.sum()
    least = float(errors.min())
    if least <= 0.0:
        return np.asarray(errors <= 0.0, dtype=np.float64) / np.count_nonzero(errors <= 0.0)
    weights = (errors / least) ** -_SHARPNESS
    return np.asarray(weights / weights.sum(), dtype=np.float64)


def _weekend(means: FloatArray, first_weekday: int, warm: int) -> float:
    """A weekend's level beyond that of the Friday before and the Monday after, as a share.

    It is held back by its own standard error (James and Stein): of a few weekends that differ from
    each other nothing is concluded.
    """
    begin = max(warm, len(means) - 7 * _WEEKENDS)
    fridays = [n for n in range(begin, len(means) - 3) if (n + first_weekday) % 7 == _FRIDAY]
    if len(fridays) < 3:
        return 0.0
    blocks = means[np.array(fridays)[:, None] + np.arange(4)]
    found = (blocks[:, 1:3].mean(axis=1) - blocks[:, ::3].mean(axis=1)) / blocks.mean(axis=1)
    mean, error = float(found.mean()), float(found.var(ddof=1)) / len(found)
    return mean * max(0.0, 1.0 - error / mean**2) if mean else 0.0


def hourly(past: Series, day_s: float = DAY_S) -> FloatArray:
    """The past in whole hours up to its end, holes filled with what stood before them.

    Args:
        past: what was told, g/kWh.
        day_s: length of a day of the grid, s.

    Returns:
        ``[hours] float64``.
    """
    per_hour = day_s / DAY_H / past.step_s
    values = past.values
    if per_hour < 1.0:
        values = np.repeat(values, round(1.0 / per_hour))
    elif per_hour > 1.0:
        block = round(per_hour)
        values = row_means(values[len(values) % block :].reshape(-1, block))
    is_there = np.isfinite(values)
    if is_there.all():
        return values
    numbers = np.where(is_there, np.arange(len(values)), -1)
    np.maximum.accumulate(numbers, out=numbers)
    return np.asarray(values[numbers[numbers >= 0]])


def row_means(rows: FloatArray) -> FloatArray:
    """Mean of the known values of each row; NaN where there is none.

    Args:
        rows: ``[n, m]``.
    """
    is_known = np.isfinite(rows)
    counts = is_known.sum(axis=1)
    sums = np.where(is_known, rows, 0.0).sum(axis=1)
    return np.asarray(np.divide(sums, counts, out=np.full(len(rows), np.nan), where=counts > 0))
