"""Energy of a time window, from counters and from power readings. Pure functions.

Two figures are always sought and both are reported. The *counter* figure is the difference of the
device's cumulative counter, interpolated linearly at the window's ends. The *integral* holds each
power reading until the next one (zero-order hold). Repeated readings are not removed before
integration: they are what makes the hold right when the polling is faster than the refresh.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

MIN_COVERAGE = 0.95
"""Least share of a window that valid readings must cover for its integral to be used as energy.

Invented. Nothing is extrapolated over the uncovered part, so an integral understates the energy
by about the uncovered share; 0.95 keeps that at the size of an instrument's own error. Below it the
integral is still reported as such, next to its coverage, and the energy is missing.
"""


class Reading(NamedTuple):
    """What integration needs of a sample.

    Attributes:
        t_s: time, s, ascending within a sequence.
        power_w: W, or None for a missing reading, which ends the hold of the one before.
        energy_j: cumulative counter, J, or None.
        reset: the device was lost here, so that its counter may have started again.
    """

    t_s: float
    power_w: float | None
    energy_j: float | None
    reset: bool = False


class Integral(NamedTuple):
    """Zero-order-hold integral: J over the covered part, and the length of that part in s."""

    energy_j: float
    covered_s: float


def hold_integral(
    readings: Sequence[Reading], t_start_s: float, t_end_s: float, hold_s: float
) -> Integral:
    """Integrate power over a window, each reading held until the next, for at most `hold_s`.

    Readings before the window count as far as their hold reaches into it.
    """
    energy_j = covered_s = 0.0
    for i, reading in enumerate(readings):
        if reading.power_w is None:
            continue
        until_s = reading.t_s + hold_s
        if i + 1 < len(readings):
            until_s = min(until_s, readings[i + 1].t_s)
        span_s = min(until_s, t_end_s) - max(reading.t_s, t_start_s)
        if span_s > 0:
            energy_j += reading.power_w * span_s
            covered_s += span_s
    return Integral(energy_j, covered_s)


def counter_difference(
    readings: Sequence[Reading], t_start_s: float, t_end_s: float, max_gap_s: float
) -> float | None:
    """Rise of the cumulative counter over a window, J, or None where it cannot be known.

    It cannot be known when a window's end has no counter reading on both sides within
    `max_gap_s` of each other, when the counter falls anywhere in between, or when the device was
    lost in between (a counter that started again may already have passed its old value).
    """
    bracket = [r for r in readings if r.energy_j is not None or r.reset]
    counters = [r for r in bracket if r.energy_j is not None]
    first = _segment(counters, t_start_s)
    last = _segment(counters, t_end_s)
    if first is None or last is None:
        return None
    begin_s, end_s = counters[first].t_s, counters[last + 1].t_s
    previous: float | None = None
    for reading in bracket:
        if not begin_s <= reading.t_s <= end_s:
            continue
        if reading.energy_j is None:
            return None
        if previous is not None and reading.energy_j < previous:
            return None
        previous = reading.energy_j
    start_j = _interpolate(counters[first], counters[first + 1], t_start_s, max_gap_s)
    end_j = _interpolate(counters[last], counters[last + 1], t_end_s, max_gap_s)
    if start_j is None or end_j is None:
        return None
    # Interpolating twice within one segment may differ in the last bit.
    return max(0.0, end_j - start_j)


def _segment(counters: Sequence[Reading], t_s: float) -> int | None:
    """Index i of the pair (i, i+1) around `t_s`; None outside the counter readings."""
    if len(counters) < 2 or not counters[0].t_s <= t_s <= counters[-1].t_s:
        return None
    low, high = 0, len(counters) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if counters[middle].t_s <= t_s:
            low = middle
        else:
            high = middle
    return low


def _interpolate(a: Reading, b: Reading, t_s: float, max_gap_s: float) -> float | None:
    if a.energy_j is None or b.energy_j is None:
        return None
    if t_s == a.t_s:
        return a.energy_j
    if t_s == b.t_s:
        return b.energy_j
    if b.t_s - a.t_s > max_gap_s:
        return None
    return a.energy_j + (b.energy_j - a.energy_j) * (t_s - a.t_s) / (b.t_s - a.t_s)
