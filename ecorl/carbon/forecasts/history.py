"""Means over a series' past, for many points of time and many lead times at once.

Forecasts from the past are made of three questions: what was the mean at this hour of the day, what
was the mean of the last days, and what is the newest value. To know how good a rule is, they are
asked again for hundreds of earlier times. Prefix sums answer each of them in two look-ups.

An *origin* is the number of the first interval that is not known yet. The interval `lead` of an
origin (1, 2, ...) is interval ``origin + lead - 1`` of the series. Answers for an origin use values
before it only.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ecorl.carbon.series import FloatArray, Series
from ecorl.errors import FeedSilent

IntArray = NDArray[np.int64]

HOUR_S = 3600.0
DAY_S = 86400.0

_EPOCH_WEEKDAY = 3
"""1 January 1970 was a Thursday: day 3 of a week that begins on Monday."""


class History:
    """A series' past, prepared for means over days, weeks and hours of the day.

    Args:
        past: the series; what is not finite counts as missing.

    Attributes:
        start_s: begin of the first interval, s since 1970.
        step_s: length of an interval, s.
        values: ``[n] float64``, NaN where a value is missing.
        day: number of intervals in a day, at least 1.

    Raises:
        FeedSilent: when the series holds no value at all.
    """

    def __init__(self, past: Series) -> None:
        values = np.asarray(past.values, dtype=np.float64)
        known = np.isfinite(values)
        if not known.any():
            raise FeedSilent("the past holds no value to forecast from")
        self.start_s, self.step_s = past.start_s, past.step_s
        self.values = values if known.all() else np.where(known, values, np.nan)
        self.day = max(1, round(DAY_S / past.step_s))
        self._known = known
        self._newest: IntArray | None = None
        self._sums: dict[tuple[int, bool], tuple[FloatArray, FloatArray]] = {}
        self._weekends = np.zeros(0, dtype=np.bool_)

    def __len__(self) -> int:
        """Number of intervals."""
        return len(self.values)

    def steps(self, hours: float) -> int:
        """Number of intervals in some hours, at least 1.

        Args:
            hours: length of time, h.
        """
        return max(1, round(hours * HOUR_S / self.step_s))

    def lattice(self, spacing_s: float, end: int) -> IntArray:
        """The intervals that begin on, or first after, the multiples of a time since 1970.

        They are the same intervals whichever part of a series is looked at.

        Args:
            spacing_s: time between two of them, s.
            end: the first interval that is not wanted.

        Returns:
            ``[k] int64`` numbers of intervals, from 1 up to before `end`.
        """
        end_s = self.start_s + end * self.step_s
        first, last = math.ceil(self.start_s / spacing_s), math.floor(end_s / spacing_s)
        times_s = np.arange(first, last + 1, dtype=np.float64) * spacing_s
        numbers = np.ceil((times_s - self.start_s) / self.step_s).astype(np.int64)
        return numbers[(numbers >= 1) & (numbers < end)]

    def is_weekend(self, intervals: IntArray) -> NDArray[np.bool_]:
        """Whether intervals begin on a Saturday or Sunday, by UTC.

        Args:
            intervals: numbers of intervals from 0 on, of any shape; those to come are allowed.
        """
        n = int(intervals.max(initial=0)) + 1
        if n > len(self._weekends):
            begins_s = self.start_s + np.arange(n) * self.step_s
            days = np.floor(begins_s / DAY_S).astype(np.int64)
            self._weekends = (days + _EPOCH_WEEKDAY) % 7 >= 5
        return np.asarray(self._weekends[intervals])

    def cyclic_mean(
        self, origins: IntArray, leads: IntArray, period: int, count: int, apart: bool = False
    ) -> FloatArray:
        """Mean of the last values at the same place in a cycle, such as the same hour of the day.

        Args:
            origins: first unknown intervals; broadcast against `leads`.
            leads: 1 for the interval of the origin itself, and so on.
            period: length of the cycle, intervals.
            count: over how many cycles; missing values are left out, not replaced by older ones.
            apart: whether intervals of a weekend are compared with such of weekends only, and
                others with others.

        Returns:
            float64 of the broadcast shape; NaN where all of the values are missing.
        """
        targets = origins + leads - 1
        upper = targets - period * ((targets - origins) // period)
        lower = np.maximum(upper - count * period, upper % period)
        sums, counts = self._prefix(period, apart)
        if apart:
            shift = self.is_weekend(targets) * (len(sums) // 2)
            upper, lower = upper + shift, lower + shift
        return _ratio(sums[upper] - sums[lower], counts[upper] - counts[lower])

    def trailing_mean(self, origins: IntArray, span: int) -> FloatArray:
        """Mean of the values right before some origins.

        Args:
            origins: first unknown intervals, of any shape.
            span: over how many intervals.

        Returns:
            float64 of the shape of `origins`; NaN where all of the values are missing.
        """
        return self.window_mean(origins - span, origins)

    def window_mean(self, begin: IntArray, end: IntArray) -> FloatArray:
        """Mean of the values from some intervals up to before others.

        Args:
            begin: first intervals; the part before the series is left out.
            end: first intervals that are not in the window any more.

        Returns:
            float64 of the broadcast shape; NaN where all of the values are missing.
        """
        sums, counts = self._prefix(1, False)
        lower, upper = np.maximum(begin, 0), np.maximum(end, 0)
        return _ratio(sums[upper] - sums[lower], counts[upper] - counts[lower])

    def newest(self, origins: IntArray) -> IntArray:
        """Number of the newest interval with a value before each origin; -1 without one.

        Args:
            origins: first unknown intervals, of any shape.
        """
        if self._newest is None:
            numbers = np.arange(-1, len(self), dtype=np.int64)
            numbers[1:][~self._known] = -1
            self._newest = np.maximum.accumulate(numbers)
        return self._newest[origins]

    def at(self, intervals: IntArray) -> FloatArray:
        """The values of intervals; NaN where they are missing or outside of the series.

        Args:
            intervals: numbers of intervals, of any shape.
        """
        inside = (intervals >= 0) & (intervals < len(self))
        return np.where(inside, self.values[np.where(inside, intervals, 0)], np.nan)

    def _prefix(self, period: int, apart: bool) -> tuple[FloatArray, FloatArray]:
        """Sums and numbers of the values at i - period, i - 2 period, ... for each i.

        Where weekends are kept apart, first those of other days, then those of weekends.
        """
        found = self._sums.get((period, apart))
        if found is None:
            masks = [self._known]
            if apart:
                weekend = self.is_weekend(np.arange(len(self), dtype=np.int64))
                masks = [self._known & ~weekend, self._known & weekend]
            rows = -(-len(self) // period) + 1
            tables = np.zeros((2, len(masks), rows * period))
            for sums, counts, mask in zip(*tables, masks, strict=True):
                sums[period : period + len(self)][mask] = self.values[mask]
                counts[period : period + len(self)] = mask
            tables = np.cumsum(tables.reshape(2, len(masks), rows, period), axis=2)
            found = tables[0].reshape(-1), tables[1].reshape(-1)
            self._sums[period, apart] = found
        return found


def _ratio(sums: FloatArray, counts: FloatArray) -> FloatArray:
    if counts.size and counts.min() > 0.0:
        return sums / counts
    return np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0.0)
