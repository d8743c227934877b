"""Computes the energy of a device from its readings.

From the 1 s roll-ups, whose times and energies add up (see `ecorl.ledger.rollup`): the rise of the
device's counter where there is one, the zero-order hold of its power readings where the counter
tells nothing. Nothing is extrapolated: what is not covered is missing, and the coverage says so.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from ecorl.ledger import AttemptRow, EnergySums, NodeSpan, PowerSecond
from ecorl.records import Provenance
from ecorl.report.render.numbers import joules
from ecorl.telemetry.check import stopped_seconds
from ecorl.telemetry.integrate import CounterVerdict, judge_counter

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


_Array = NDArray[np.float64]
_FIGURES = tuple(one.name for one in fields(EnergySums))


_FULL_SECOND = 0.98
"""Share of a second from which readings count as covering all of it; invented."""


@dataclass(frozen=True, slots=True)
class DeviceReadings:
    """Energy of one device in one attempt by one instrument.

    Several instruments of one device and attempt never count the same second twice.

    Attributes:
        energy_j: J over the covered part; None when counter and power readings contradict each
            other.
        covered_s: time of the attempt that the energy covers, s.
        covered: the whole seconds that the energy covers, as disjoint spans in order; none where
            there is no energy.
        n_breaks: how often the device's counter was reset or lost.
        stopped_s: time in which the counter stood still while the device drew power, s.
        disputed: rise of the counter and energy held over the same time, J, where neither can be
            believed.
        starts_s, ends_s: ``[n] float64``, begin and end of each second of the energy, monotonic s,
            in order and cut to the span of the attempt; none where there is no energy.
        energies_j: ``[n] float64``, the energy of each, J; they add up to ``energy_j``.
    """

    attempt: int
    device_id: str
    provenance: Provenance
    energy_j: float | None
    covered_s: float
    covered: tuple[Span, ...]
    n_breaks: int
    stopped_s: float
    disputed: tuple[float, float] | None
    starts_s: _Array = field(default_factory=lambda: np.empty(0), repr=False, compare=False)
    ends_s: _Array = field(default_factory=lambda: np.empty(0), repr=False, compare=False)
    energies_j: _Array = field(default_factory=lambda: np.empty(0), repr=False, compare=False)


@dataclass(slots=True)
class _Second(EnergySums):
    """One second with its parts added up."""

    second: int = 0


def device_readings(seconds: Iterable[PowerSecond], spans: dict[int, Span]) -> list[DeviceReadings]:
    """Add up the energy of each device in each attempt from its roll-ups, by instrument.

    Args:
        seconds: one-second roll-ups.
        spans: start and end of each attempt, monotonic s, by attempt.
    """
    series: dict[tuple[int, str, Provenance, str], list[PowerSecond]] = defaultdict(list)
    for row in seconds:
        if row.attempt in spans:
            series[row.attempt, row.device_id, row.provenance, row.source].append(row)
    by_device: dict[tuple[int, str], list[list[PowerSecond]]] = defaultdict(list)
    for (attempt, device_id, _, _), rows in sorted(series.items(), key=lambda item: item[0][:2]):
        by_device[attempt, device_id].append(rows)
    found = [
        _series_energy(rows, spans[attempt])
        for (attempt, _), own in by_device.items()
        for rows in _apart(own)
    ]
    return [one for one in found if one.covered_s > 0]


def _apart(series: Sequence[list[PowerSecond]]) -> list[list[PowerSecond]]:
    """Drop from each series of a device and attempt the seconds that a fuller series covers."""
    taken: set[int] = set()
    found = []
    # The series with most readings first: where instruments overlap it is the one to believe.
    for rows in sorted(series, key=lambda rows: -sum(r.n for r in rows)):
        own = [r for r in rows if r.second not in taken]
        taken.update(r.second for r in own if r.held_s > 0 or r.counted_s > 0)
        if own:
            found.append(own)
    return found


def remark(readings: Sequence[DeviceReadings]) -> str | None:
    """Describe what was wrong with the counter of one device; None when nothing was."""
    if not readings:
        return None
    device_id = readings[0].device_id
    disputed = [r.disputed for r in readings if r.disputed is not None]
    if disputed:
        counted_j, held_j = (math.fsum(column) for column in zip(*disputed, strict=True))
        return (
            f"{device_id}: its energy counter says {joules(counted_j)}, its power readings say "
            f"{joules(held_j)} for the same time; neither is believed"
        )
    n_breaks = sum(r.n_breaks for r in readings)
    stopped_s = math.fsum(r.stopped_s for r in readings)
    found = []
    if n_breaks:
        found.append(f"was reset or lost {'once' if n_breaks == 1 else f'{n_breaks} times'}")
    if stopped_s:
        found.append(f"stood still for {stopped_s:.4g} s while the device drew power")
    if not found:
        return None
    why = f"{device_id}: its energy counter {' and '.join(found)}"
    return why + "; there its power readings count, as far as they go"


def _series_energy(rows: Sequence[PowerSecond], span: Span) -> DeviceReadings:
    """Compute the energy of one series within one attempt.

    Where the counter stood still its seconds count by the power readings; all others count by the
    counter, and by the readings for the time over which the counter tells nothing.
    """
    seconds, first = _added_up(rows), rows[0]
    # The counter of a model is the model integrated: its two figures cannot check each other.
    judged = first.provenance is not Provenance.MODELLED
    stopped = _stopped(seconds) if judged else set()
    by_hold = [s for s in seconds if s.second in stopped]
    by_counter = [s for s in seconds if s.second not in stopped]
    disputed = _disputed(by_counter) if judged else None
    energies_j = {s.second: s.held_j for s in by_hold}
    energies_j |= {s.second: s.counted_j + s.alone_j for s in by_counter}
    known = [] if disputed else sorted(energies_j)
    starts_s, ends_s = _windows(known, span)
    covered_s = {s.second: s.held_s for s in by_hold}
    covered_s |= {s.second: s.counted_s + s.alone_s for s in by_counter}
    return DeviceReadings(
        attempt=first.attempt,
        device_id=first.device_id,
        provenance=first.provenance,
        energy_j=None if disputed else math.fsum(energies_j.values()),
        covered_s=math.fsum(covered_s.values()),
        covered=() if disputed else tuple(_covered(covered_s, span)),
        n_breaks=sum(r.n_breaks for r in rows),
        stopped_s=math.fsum(s.counted_s for s in by_hold),
        disputed=disputed,
        starts_s=starts_s,
        ends_s=ends_s,
        energies_j=np.array([energies_j[second] for second in known], np.float64),
    )


def _windows(seconds: Sequence[int], span: Span) -> tuple[_Array, _Array]:
    """Begin and end of whole seconds, cut to the span of the attempt."""
    starts_s = np.array(seconds, np.float64)
    low_s, high_s = span[0], max(span[0], span[1] - EDGE_S)
    cut_s = np.clip(starts_s, low_s, high_s)
    return cut_s, np.clip(starts_s + 1.0, cut_s + EDGE_S, max(high_s + EDGE_S, span[1]))


def _covered(covered_s: dict[int, float], span: Span) -> list[Span]:
    """Find the seconds that are covered, cut to the span of the attempt."""
    parts = {s: (max(float(s), span[0]), min(s + 1.0, span[1])) for s in covered_s}
    return merged(
        (start, end)
        for s, (start, end) in parts.items()
        if covered_s[s] >= _FULL_SECOND * (end - start)
    )


def _added_up(rows: Sequence[PowerSecond]) -> list[_Second]:
    """Add up rows of the same second, which may come in two parts (see `PowerSecond`)."""
    found: dict[int, _Second] = {}
    for row in rows:
        into = found.setdefault(row.second, _Second(second=row.second))
        for name in _FIGURES:
            setattr(into, name, getattr(into, name) + getattr(row, name))
    return [found[second] for second in sorted(found)]


def _stopped(seconds: Sequence[_Second]) -> set[int]:
    """Find the seconds in which the counter stood still while the device drew power.

    A counter that refreshes very slowly stands still as well, but catches up: where the rise after
    a stretch makes up for more than half of it, the counter holds its joules already.
    """
    still = stopped_seconds(seconds)
    found: set[int] = set()
    stretch: list[_Second] = []
    for s in seconds:
        if s.second in still:
            stretch.append(s)
        elif s.counted_s > 0:
            missed_j = math.fsum(x.held_j for x in stretch)
            if s.counted_j - s.held_j <= missed_j / 2:
                found.update(x.second for x in stretch)
            stretch = []
    return found.union(x.second for x in stretch)


def _disputed(seconds: Sequence[_Second]) -> tuple[float, float] | None:
    """Rise of the counter and energy held over the same time, J, if neither can be believed."""
    counted_s = math.fsum(s.counted_s for s in seconds)
    if counted_s <= 0:
        return None
    counted_j = math.fsum(s.counted_j for s in seconds)
    # Only the time that both instruments cover can be compared.
    held_j = math.fsum(s.held_j - s.alone_j for s in seconds)
    held_s = math.fsum(s.held_s - s.alone_s for s in seconds)
    verdict = judge_counter(counted_j, held_j, held_s / counted_s, counted_s)
    return (counted_j, held_j) if verdict is CounterVerdict.DISPUTED else None
