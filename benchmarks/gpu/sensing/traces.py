"""Arithmetic on recorded readings of a sensor. All functions are pure."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

from ecorl.telemetry.integrate import Reading, counter_difference, hold_integral


class TracePoint(NamedTuple):
    """One value of an instrument: time, s, and power, W, or cumulative energy, J."""

    t_s: float
    value: float


def trapezoid_integral(
    points: Sequence[TracePoint], t_start_s: float, t_end_s: float
) -> float | None:
    """Integrate between readings by straight lines, J; None where they do not span the window.

    Args:
        points: in the order of time.
        t_start_s: start of the window, s.
        t_end_s: its end, s.
    """
    start, end = value_at(points, t_start_s), value_at(points, t_end_s)
    if start is None or end is None:
        return None
    inside = [p for p in points if t_start_s < p.t_s < t_end_s]
    corners = [TracePoint(t_start_s, start), *inside, TracePoint(t_end_s, end)]
    return math.fsum(0.5 * (a.value + b.value) * (b.t_s - a.t_s) for a, b in pairwise(corners))


def value_at(points: Sequence[TracePoint], t_s: float) -> float | None:
    """Interpolate a value in time; None outside the readings.

    Args:
        points: in the order of time.
        t_s: when.
    """
    if not points or not points[0].t_s <= t_s <= points[-1].t_s:
        return None
    after = min(bisect_right(points, t_s, key=attrgetter("t_s")), len(points) - 1)
    a, b = points[max(0, after - 1)], points[after]
    if b.t_s <= a.t_s:
        return a.value
    return a.value + (b.value - a.value) * (t_s - a.t_s) / (b.t_s - a.t_s)


def held_energy(
    points: Sequence[TracePoint], t_start_s: float, t_end_s: float, hold_s: float = 1.0
) -> float | None:
    """Integrate power that is held from one reading to the next, J; None where a part is uncovered.

    Args:
        points: power readings in the order of time.
        t_start_s: start of the window, s.
        t_end_s: its end, s.
        hold_s: longest time for which a reading stands, s.
    """
    found = hold_integral(
        [Reading(p.t_s, p.value, None) for p in points], t_start_s, t_end_s, hold_s
    )
    complete = found.covered_s >= 0.999 * (t_end_s - t_start_s)
    return found.energy_j if complete else None


def counted_energy(
    points: Sequence[TracePoint], t_start_s: float, t_end_s: float, gap_s: float = 1.0
) -> float | None:
    """Rise of a cumulative counter over a window, J, or None.

    The counter stands between its refreshes, so that the value at an end is taken on the line
    between the refreshes around it, not between readings of the same count.

    Args:
        points: readings of the counter in the order of time.
        t_start_s: start of the window, s.
        t_end_s: its end, s.
        gap_s: widest gap between refreshes that is interpolated, s.
    """
    steps = [Reading(p.t_s, None, p.value) for p in changes(points)]
    return counter_difference(steps, t_start_s, t_end_s, gap_s)


def changes(points: Sequence[TracePoint]) -> list[TracePoint]:
    """Return the readings that differ from the one before: the refreshes that were seen.

    Args:
        points: in the order of time.
    """
    return [b for a, b in pairwise(points) if b.value != a.value]


def refresh_intervals(points: Sequence[TracePoint]) -> list[float]:
    """Times from one change of the value to the next, s.

    Args:
        points: in the order of time.
    """
    return [b.t_s - a.t_s for a, b in pairwise(changes(points))]


def refresh_period(points: Sequence[TracePoint]) -> float | None:
    """Period of an instrument that refreshes regularly, s, or None without four changes.

    Over a long record the number of periods between the first and the last change gives it far
    more exactly than one interval does. Changes that were missed (an unchanged value) count: each
    interval is a whole number of the median one.

    Args:
        points: in the order of time, under a load that changes all the while.
    """
    intervals = refresh_intervals(points)
    if len(intervals) < 3:
        return None
    usual = statistics.median(intervals)
    n_periods = sum(max(1, round(interval / usual)) for interval in intervals)
    return math.fsum(intervals) / n_periods


class Step(NamedTuple):
    """How an instrument follows a load that is switched on.

    Attributes:
        delay_s: until it has risen by a tenth, s.
        rise_s: from there until it has risen by nine tenths, s.
    """

    delay_s: float
    rise_s: float


def step_response(
    points: Sequence[TracePoint], t_before_s: float, t_on_s: float, t_off_s: float
) -> Step | None:
    """Describe the answer to a load that is switched on; None where there is none to see.

    Args:
        points: power readings in the order of time.
        t_before_s: from when the load was off, s.
        t_on_s: when it was switched on, s.
        t_off_s: when it was switched off again, s.
    """
    last_s = t_off_s - 0.25 * (t_off_s - t_on_s)
    low = [p.value for p in points if t_before_s <= p.t_s < t_on_s]
    high = [p.value for p in points if last_s <= p.t_s < t_off_s]
    if not low or not high:
        return None
    low_w, high_w = statistics.median(low), statistics.median(high)
    rising = [p for p in points if t_on_s <= p.t_s < t_off_s]
    at = [
        next((p.t_s for p in rising if p.value >= low_w + share * (high_w - low_w)), None)
        for share in (0.1, 0.9)
    ]
    if high_w <= low_w or at[0] is None or at[1] is None:
        return None
    return Step(at[0] - t_on_s, at[1] - at[0])


def deviations(values: Iterable[float]) -> list[float]:
    """Share by which each value differs from the mean of all.

    Args:
        values: of the same work, e.g. one a phase of a periodic load.
    """
    kept = list(values)
    mean = statistics.fmean(kept)
    return [value / mean - 1.0 for value in kept]


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which a share of the values lies, by the nearest rank.

    Args:
        values: at least one.
        share: 0 to 1.
    """
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]
