"""Times that were taken in several processes, as times of the day, put together."""

from __future__ import annotations

import time
from collections.abc import Sequence

Interval = tuple[float, float]
"""Begin and end, s; of which clock its owner says."""


def union(intervals: Sequence[Interval]) -> list[Interval]:
    """The times that lie in at least one of the intervals, in order.

    Args:
        intervals: of one clock, s.
    """
    found: list[Interval] = []
    for start_s, end_s in sorted(intervals):
        if found and start_s <= found[-1][1]:
            found[-1] = (found[-1][0], max(end_s, found[-1][1]))
        else:
            found.append((start_s, end_s))
    return found


def without(interval: Interval, pauses: Sequence[Interval]) -> list[Interval]:
    """The parts of an interval that lie in no pause.

    Args:
        interval: of one clock, s.
        pauses: of the same clock, in order and apart, s.
    """
    found, (start_s, end_s) = [], interval
    for pause_s, again_s in pauses:
        if start_s < pause_s < end_s:
            found.append((start_s, pause_s))
        if pause_s < end_s:
            start_s = max(start_s, again_s)
    return [*found, (start_s, end_s)] if start_s < end_s else found


def monotonic(intervals: Sequence[Interval]) -> list[Interval]:
    """Times of the day on this machine's monotonic clock, s.

    Args:
        intervals: times of the day, s, taken in processes that may be on other machines.
    """
    ahead_s = time.monotonic() - time.time()
    return [(start_s + ahead_s, end_s + ahead_s) for start_s, end_s in intervals]
