"""Energy of a time window, from counters and from power readings. Pure functions.

Two figures are always sought and both are reported. The *counter* figure is the difference of the
device's cumulative counter, interpolated linearly at the window's ends. The *integral* holds each
power reading until the next one (zero-order hold). Repeated readings are not removed before
integration: they are what makes the hold right when the polling is faster than the refresh.

Neither is the truth. `judge_counter` says when the counter cannot be believed: it has stopped, or
the two figures are too far apart for any bias that is known. Where a GPU tells its average power as
well, `ecorl.telemetry.sources.nvml` judges more closely.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

from ecorl.records import MIN_COVERAGE

STOPPED_AFTER_S = 1.5
"""A counter that stands still for longer than this, s, while the device draws power has stopped.

Counters of GPUs and processors refresh within 0.1 s; the slowest ones met are recordings at 1 Hz.
Polled with jitter, a refresh of 1 s looks like at most 1.3 s. No shorter window is judged: within
one refresh a rise of 0 says nothing.
"""

DISPUTED_FACTOR = 3.0
"""Counter and integral that differ by more than this factor are both not believed.

Polling that locks to the load is known to make an integral wrong by 56 % (a factor of 2.3 when it
reads too little) while the counter is right. 3 lies beyond that. Which of the two is wrong
cannot be told.
"""

DISPUTED_AFTER_S = 5.0
"""Shortest window over which counter and integral are compared, s.

Readings that average over 1 s lag at the window's ends: on a device that goes from a tenth of its
power to all of it that alone makes a factor of 2 over 1 s, and of less than 2 over 5 s.
"""


class CounterVerdict(Enum):
    """The verdict of `judge_counter`."""

    FINE = "fine"
    STOPPED = "stopped"
    DISPUTED = "disputed"
    FOREIGN = "foreign"


class Reading(NamedTuple):
    """A power sample as integration uses it.

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

    Args:
        readings: in the order of time.
        t_start_s: start of the window, s.
        t_end_s: its end, s.
        hold_s: longest time for which a reading stands without a successor, s.
    """
    energy_j = covered_s = 0.0
    for power_w, span_s in _holds(readings, t_start_s, t_end_s, hold_s):
        energy_j += power_w * span_s
        covered_s += span_s
    return Integral(energy_j, covered_s)


def _holds(
    readings: Sequence[Reading], t_start_s: float, t_end_s: float, hold_s: float
) -> Iterator[tuple[float, float]]:
    """Power in W and the time in s for which it held, for each valid reading in a window."""
    for i, reading in enumerate(readings):
        if reading.power_w is None:
            continue
        until_s = reading.t_s + hold_s
        if i + 1 < len(readings):
            until_s = min(until_s, readings[i + 1].t_s)
        span_s = min(until_s, t_end_s) - max(reading.t_s, t_start_s)
        if span_s > 0:
            yield reading.power_w, span_s


def judge_counter(
    counter_j: float | None, integral_j: float | None, coverage: float, length_s: float
) -> CounterVerdict:
    """Judge whether a counter's rise over a window is credible, by the power readings in it.

    Args:
        counter_j: rise of the counter, J, or None.
        integral_j: zero-order-hold integral over the covered part, J, or None.
        coverage: share of the window covered by valid power readings, 0 to 1.
        length_s: length of the window, s.

    Returns:
        STOPPED: a rise of 0 over more than `STOPPED_AFTER_S` that readings of 0 W do not explain.
        DISPUTED: the figures differ by more than `DISPUTED_FACTOR` over `DISPUTED_AFTER_S` or
        more, covered to at least `MIN_COVERAGE`. FINE: everything else, also without a counter.
    """
    if counter_j is None:
        return CounterVerdict.FINE
    if counter_j <= 0:
        explained = integral_j == 0 and coverage >= MIN_COVERAGE
        return (
            CounterVerdict.FINE
            if explained or length_s <= STOPPED_AFTER_S
            else CounterVerdict.STOPPED
        )
    if integral_j is None or length_s < DISPUTED_AFTER_S or coverage < MIN_COVERAGE - 1e-9:
        return CounterVerdict.FINE
    low_j, high_j = sorted((counter_j, integral_j))
    return CounterVerdict.DISPUTED if high_j > DISPUTED_FACTOR * low_j else CounterVerdict.FINE


def standstill_s(
    readings: Sequence[Reading], t_start_s: float, t_end_s: float, hold_s: float
) -> float:
    """Longest time for which the counter stood still at power, in a stretch that meets a window, s.

    The stretch may begin before the window and end after it; the time in it for which a reading
    of 0 W held does not count, because then a counter has to stand still. A stretch ends where
    the counter moves and where the device was lost.

    Args:
        readings: in the order of time.
        t_start_s: start of the window, s.
        t_end_s: its end, s.
        hold_s: longest time for which a power reading stands without a successor, s.
    """
    longest_s = 0.0
    for since_s, until_s in _flat_stretches(readings):
        if since_s < t_end_s and until_s > t_start_s:
            holds = _holds(readings, since_s, until_s, hold_s)
            idle_s = sum(span_s for power_w, span_s in holds if power_w == 0)
            longest_s = max(longest_s, until_s - since_s - idle_s)
    return longest_s


def _flat_stretches(readings: Sequence[Reading]) -> list[tuple[float, float]]:
    """Begin and end of each stretch over which the counter stood still, s."""
    stretches: list[tuple[float, float]] = []
    flat = False
    for a, b in pairwise(r for r in readings if r.energy_j is not None or r.reset):
        if a.energy_j is None or b.energy_j != a.energy_j:
            flat = False
            continue
        since_s = stretches.pop()[0] if flat else a.t_s
        stretches.append((since_s, b.t_s))
        flat = True
    return stretches


def counter_difference(
    readings: Sequence[Reading], t_start_s: float, t_end_s: float, max_gap_s: float
) -> float | None:
    """Rise of the cumulative counter over a window, J, or None where it cannot be known.

    It cannot be known when a window's end has no counter reading on both sides within
    `max_gap_s` of each other, when the counter falls anywhere in between, or when the device was
    lost in between (a counter that started again may already have passed its old value).

    Args:
        readings: in the order of time.
        t_start_s: start of the window, s.
        t_end_s: its end, s.
        max_gap_s: widest gap between two counter readings that is interpolated, s.
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
    after = bisect.bisect_right(counters, t_s, key=lambda counter: counter.t_s)
    return min(after, len(counters) - 1) - 1


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
