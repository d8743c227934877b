"""Time spans in monotonic seconds, and their unions and differences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from ecorl.ledger import AttemptRow, NodeSpan

Span = tuple[float, float]

EDGE_S = 1e-3
"""What lies outside of its attempt, as a clock that is a little off has it, counts for this first
or last bit of it, s."""


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


def common(spans: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """What two lists of time spans share.

    Args:
        spans: disjoint, in order.
        others: disjoint, in order.
    """
    return minus(spans, minus(spans, others))


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


def device_spans(
    nodes: Sequence[NodeSpan], spans: Mapping[int, Span]
) -> dict[tuple[int, str], Span]:
    """Span each device's time in each attempt, by attempt and device.

    A device counts from when its machine joined, and until the machine left by its own word: one
    whose record just ends may have drawn power until the end of the attempt.

    Args:
        nodes: for which time the files tell of which devices, in the head's clock.
        spans: start and end of each attempt.
    """
    found: dict[tuple[int, str], Span] = {}
    for node in nodes:
        if node.attempt not in spans:
            continue
        start, end = spans[node.attempt]
        left = end if node.end_t_s is None else min(node.end_t_s, end)
        joined = min(max(node.start_t_s, start), left)
        for device_id in node.device_ids:
            key = (node.attempt, device_id)
            found[key] = hull([(joined, left), found.get(key, (joined, left))])
    return found


def hull(spans: Sequence[Span]) -> Span:
    """The shortest span that holds all of these; there must be one at least."""
    return min(start for start, _ in spans), max(end for _, end in spans)
