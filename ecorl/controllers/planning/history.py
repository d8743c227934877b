"""The grid up to now, from a recording or from a feed, in hours from which a plan can begin."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ecorl.carbon.chain import FeedChain, Kind
from ecorl.carbon.forecasts.forecast import Forecast
from ecorl.carbon.outlook import providers_forecast, series_of
from ecorl.carbon.series import Series
from ecorl.carbon.traces.trace import GridTrace
from ecorl.controllers.horizon.levels import DAY_H, row_means
from ecorl.errors import DataError, FeedSilent
from ecorl.grid import Gas
from ecorl.kinds import Provenance

NEEDED_DAYS = 2.0
"""Days of a grid's past below which nothing is planned: `LevelFan` says nothing from less."""

SHORT_HOLE_H = 6.0
"""Hours up to which missing values are bridged by what stood before them. Invented: a quarter of a
day leaves its shape."""

LONGEST_HOLE_H = 48.0
"""Hours up to which they are bridged by the same hours of the day before. Invented: longer holes
are for the user to fill."""


@dataclass(frozen=True, slots=True, eq=False)
class GridPast:
    """What is known of a grid when a plan is made.

    Attributes:
        source: who told it, and of which place, in words.
        provenance: of the values.
        gas: what the grams are of.
        hours: the values, g/kWh, in hours of the grid; NaN where one is missing.
        hour_s: length of an hour of the grid, s: less where a recording is played faster.
        forecast: the provider's own, of the time after; None without one.
    """

    source: str
    provenance: Provenance
    gas: Gas
    hours: Series
    hour_s: float = 3600.0
    forecast: Forecast | None = None

    @property
    def known_days(self) -> float:
        """For how many days of the grid values are known."""
        return float(np.count_nonzero(np.isfinite(self.hours.values))) / DAY_H

    def begin_s(self, now_s: float) -> float:
        """The first begin of an hour from a time on, counted from the end of the past.

        Args:
            now_s: time, s since 1970.
        """
        late = max(0, math.ceil((now_s - self.hours.end_s) / self.hour_s - 1e-6))
        return self.hours.end_s + late * self.hour_s


def past_of_trace(trace: GridTrace, now_s: float) -> GridPast:
    """What a recording tells until a time; what it has after it is not looked at.

    Args:
        trace: the recording.
        now_s: time, s since 1970.

    Raises:
        DataError: when its intervals do not make up hours, or less than `NEEDED_DAYS` are known.
    """
    source = f"{trace.name}, recorded in {trace.path.name}"
    hours = _hours(trace.series.until(now_s), 3600.0)
    if hours is None:
        step_s = trace.series.step_s
        raise DataError(f"{trace.path}: intervals of {step_s:g} s make up no hours")
    past = GridPast(source, Provenance.REPLAYED, trace.gas, hours)
    if past.known_days < NEEDED_DAYS:
        raise DataError(f"{trace.path}: {too_little(past)}")
    return past


def past_of_feed(chain: FeedChain[Kind], value: Kind, now_s: float) -> GridPast:
    """What a feed has told so far, with its provider's forecast; it asks the feed for that.

    Args:
        chain: that remembers what its feeds told.
        value: the newest of the feed, which counts.
        now_s: time, s since 1970.

    Raises:
        FeedSilent: when a stated figure is all there is, intervals do not make up hours, or less
            than `NEEDED_DAYS` are known.
    """
    info = chain.feed(value.feed).info
    if info.is_stated:
        raise FeedSilent(
            f"{value.feed} is a stated figure, the same in each hour: there is nothing to plan but "
            "the gear; a plan takes a feed or a recording (--trace)"
        )
    told = chain.past(value.feed)
    hour_s = info.day_s / DAY_H
    hours = _hours(series_of(told, info.interval_s), hour_s)
    if hours is None:
        raise FeedSilent(f"{info.source}: intervals of {info.interval_s:g} s make up no hours")
    forecast = providers_forecast(chain, value.feed, now_s)
    past = GridPast(info.source, value.provenance, value.gas, hours, hour_s, forecast)
    if past.known_days < NEEDED_DAYS:
        raise FeedSilent(f"{info.source}: {too_little(past)}")
    return past


def too_little(past: GridPast) -> str:
    """Says how much of a past is missing.

    Args:
        past: of less than `NEEDED_DAYS`.
    """
    return (
        f"{past.known_days:.2g} days of the grid's past are known, and a plan takes "
        f"{NEEDED_DAYS:g} at least"
    )


def bridged(series: Series) -> tuple[Series, int]:
    """A recording in which holes of up to two days go on with what was known before them.

    Up to `SHORT_HOLE_H` that is the value before the hole, up to `LONGEST_HOLE_H` the same hours of
    the day before. Longer holes stay, and those at the begin.

    Args:
        series: the recording, g/kWh.

    Returns:
        The series, and how many of its values were bridged.
    """
    values = series.values
    is_missing = ~np.isfinite(values)
    if not is_missing.any():
        return series, 0
    short, longest, day = (
        int(hours * 3600.0 / series.step_s + 1e-9) for hours in (SHORT_HOLE_H, LONGEST_HOLE_H, 24)
    )
    filled = values.copy()
    edges = np.diff(np.concatenate(([0], is_missing.astype(np.int8), [0])))
    for begin, end in zip(np.flatnonzero(edges > 0), np.flatnonzero(edges < 0), strict=True):
        if begin > 0 and end - begin <= short:
            filled[begin:end] = filled[begin - 1]
        elif begin >= day > 0 and end - begin <= longest:
            for number in range(begin, end):
                filled[number] = filled[number - day]
    n = int(np.count_nonzero(is_missing & np.isfinite(filled)))
    return replace(series, values=filled), n


def _hours(series: Series, hour_s: float) -> Series | None:
    """Means over hours that end with the series; None where its intervals do not make up hours."""
    per_hour = hour_s / series.step_s
    block = round(per_hour)
    if block < 1 or abs(per_hour - block) > 1e-6 * per_hour:
        return None
    n = len(series.values) // block
    rows = series.values[len(series.values) - n * block :].reshape(n, block)
    return Series(series.end_s - n * hour_s, hour_s, row_means(rows))
