"""Time spans in monotonic seconds, and their unions and differences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from ecorl.ledger import AttemptRow

Span = tuple[float, float]


def merged(spans: Iterable[Span]) -> list[Span]:
    """The union of time spans as disjoint spans in order; spans of no length are dropped."""
    result: list[Span] = []
    for start, end in sorted(s for s in spans if s[1] > s[0]):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(result[-1][1], end))
        else:
            result.append((start, end))
    return result


def length(spans: Iterable[Span]) -> float:
    """Total length of disjoint spans."""
    return math.fsum(end - start for start, end in spans)


def minus(spans: Sequence[Span], holes: Sequence[Span]) -> list[Span]:
    """Cut holes out of time spans.

    Args:
        spans: disjoint, in order.
        holes: disjoint, in order.

    Returns:
        What is left of the spans, disjoint and in order.
    """
    result: list[Span] = []
    first = 0
    for start, end in spans:
        at = start
        # Holes that end before this span end before all later ones, too.
        while first < len(holes) and holes[first][1] <= start:
            first += 1
        for i in range(first, len(holes)):
            left, right = holes[i]
            if left >= end:
                break
            if left > at:
                result.append((at, left))
            at = max(at, right)
        if at < end:
            result.append((at, end))
    return result


def attempt_spans(attempts: Sequence[AttemptRow], last_t_s: dict[int, float]) -> dict[int, Span]:
    """Span each attempt from its start to its last record, monotonic s.

    Args:
        attempts: attempts of the run.
        last_t_s: time of the last record of each attempt, monotonic s.
    """
    return {
        a.attempt: (a.monotonic_anchor_s, max(last_t_s.get(a.attempt, 0.0), a.monotonic_anchor_s))
        for a in attempts
    }
