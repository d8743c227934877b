"""What a run's record holds from which its energy is accounted, and the meters of its devices."""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ecorl.carbon.timeline import Timelines, unknown_timelines
from ecorl.ledger import AttemptRow, BarrierRow, DeviceRow, ExecutionRow, NodeRow
from ecorl.records import Provenance
from ecorl.report.energy.emissions import Draw, Emissions, total_emissions
from ecorl.report.energy.readings import (
    EDGE_S,
    DeviceReadings,
    Span,
    common,
    hull,
    length,
    merged,
    minus,
)
from ecorl.report.energy.stages import energy_j, present

_Array = NDArray[np.float64]


class Attribution:
    """Finds what energies of a run emitted.

    Args:
        timelines: the intensities over the run's time; None: nothing is known of them.
        attempts: of the record.
        spans: begin and end of each attempt, monotonic s, by attempt.
    """

    def __init__(
        self,
        timelines: Timelines | None = None,
        attempts: Sequence[AttemptRow] = (),
        spans: Mapping[int, Span] | None = None,
    ) -> None:
        self.timelines = timelines or unknown_timelines()
        self._to_unix_s = {a.attempt: a.unix_anchor_s - a.monotonic_anchor_s for a in attempts}
        self._spans = dict(spans or {})

    def of_executions(self, rows: Sequence[ExecutionRow]) -> Emissions:
        """Emissions of stage executions, the energy of each drawn evenly over its time.

        Args:
            rows: executions that have an energy.
        """
        windows = []
        for row in rows:
            energy, drawn_j = row.result.energy, energy_j(row.result)
            if energy is not None and drawn_j is not None:
                start_s, end_s = self._within(row.attempt, (energy.t_start_s, energy.t_end_s))
                windows.append((start_s, end_s, drawn_j))
        return self._emitted(*np.array(windows, np.float64).reshape(-1, 3).T)

    def of_readings(
        self,
        readings: Sequence[DeviceReadings],
        within: Mapping[int, Sequence[Span]] | None = None,
    ) -> tuple[Draw, float]:
        """Energy and emissions of what was read, second by second, and the time of it, s.

        Args:
            readings: of devices that have an energy.
            within: spans of each attempt, disjoint and in order, to which it is cut; by default all
                is taken. A second that lies partly within counts in proportion.
        """
        energy_j, time_s, emissions = 0.0, 0.0, []
        # One by one: a long run's seconds of all devices at once are large.
        for r in readings:
            pieces = [(r.starts_s, r.ends_s, r.energies_j)]
            if within is not None:
                pieces = [_cut(r, span) for span in within.get(r.attempt, ())]
            if not pieces:
                continue
            starts_s, ends_s, drawn_j = (np.concatenate(own) for own in zip(*pieces, strict=True))
            offset_s = self._to_unix_s.get(r.attempt, 0.0)
            emissions.append(self._emitted(starts_s + offset_s, ends_s + offset_s, drawn_j))
            energy_j += float(np.sum(drawn_j))
            time_s += float(np.sum(ends_s - starts_s))
        return Draw(energy_j, total_emissions(emissions)), time_s

    def evenly(self, energy_j: float, spans: Mapping[int, Sequence[Span]]) -> Emissions:
        """Emissions of energy that is drawn evenly over some time.

        Args:
            energy_j: the energy, J.
            spans: disjoint, by attempt, monotonic s.
        """
        start_s, end_s = self.windows(spans)
        if not len(start_s):
            start_s, end_s = np.zeros(1), np.zeros(1)
        length_s = end_s - start_s
        time_s = float(np.sum(length_s))
        n = len(length_s)
        share = length_s / time_s if time_s > 0 else np.full(n, 1.0 / n)
        return self._emitted(start_s, end_s, energy_j * share)

    def windows(self, spans: Mapping[int, Sequence[Span]] | None = None) -> tuple[_Array, _Array]:
        """Begins and ends of some times in s since 1970, each ``[n] float64``.

        Args:
            spans: by attempt, monotonic s; by default the whole run.
        """
        if spans is None:
            spans = {attempt: [span] for attempt, span in self._spans.items()}
        found = [self._within(attempt, span) for attempt, own in spans.items() for span in own]
        start_s, end_s = np.array(found, np.float64).reshape(-1, 2).T
        return start_s, end_s

    def _emitted(self, start_s: _Array, end_s: _Array, energy_j: _Array) -> Emissions:
        """By both kinds; times in s since 1970."""
        marginal = self.timelines.marginal
        return Emissions(
            self.timelines.average.emitted(start_s, end_s, energy_j),
            None if marginal is None else marginal.emitted(start_s, end_s, energy_j),
        )

    def _within(self, attempt: int, span: Span) -> Span:
        """A time in s since 1970, cut to its attempt."""
        low_s, high_s = self._spans.get(attempt, span)
        start_s = max(low_s, min(span[0], high_s - EDGE_S))
        end_s = max(start_s, min(span[1], high_s))
        offset_s = self._to_unix_s.get(attempt, 0.0)
        return start_s + offset_s, end_s + offset_s


def _cut(readings: DeviceReadings, span: Span) -> tuple[_Array, _Array, _Array]:
    """The seconds of a device's readings within a span: begins, ends (monotonic s), joules."""
    first = int(np.searchsorted(readings.ends_s, span[0], "right"))
    last = int(np.searchsorted(readings.starts_s, span[1], "left"))
    starts_s, ends_s = readings.starts_s[first:last], readings.ends_s[first:last]
    low_s, high_s = np.maximum(starts_s, span[0]), np.minimum(ends_s, span[1])
    share = (high_s - low_s) / (ends_s - starts_s)
    return low_s, high_s, readings.energies_j[first:last] * share


FULL_COVERAGE = 0.98
"""Share of the time from which readings count as complete; the first and last reading never hit
the edges exactly."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The records of a run from which its energy is accounted.

    Attributes:
        executions: stage executions, superseded ones included.
        barriers: waits at the completion barrier.
        devices: what each attempt recorded of its devices.
        readings: energy of each device in each attempt by its readings.
        spans: begin and end of each attempt, monotonic s of the head, by attempt.
        own_spans: begin and end of a device's time in an attempt, by both; where a device is not
            named it is the attempt's.
        lost: machines whose record is missing or not whole.
        pauses: when the run stood still by choice, by attempt, disjoint and in order.
        grid: finds what energy emitted by when it was drawn.
    """

    executions: Sequence[ExecutionRow]
    barriers: Sequence[BarrierRow]
    devices: Sequence[DeviceRow]
    readings: Sequence[DeviceReadings]
    spans: dict[int, Span]
    own_spans: Mapping[tuple[int, str], Span] = field(default_factory=dict)
    lost: Sequence[NodeRow] = ()
    pauses: Mapping[int, Sequence[Span]] = field(default_factory=dict)
    grid: Attribution = field(default_factory=Attribution)

    def held(self, device_ids: Collection[str]) -> dict[int, Span]:
        """Spans of the attempts that had one of these devices, from when the first of them joined.

        An attempt that recorded no device at all counts as having had every one of them.
        """
        recorded = [(d.attempt, {d.device_id}) for d in self.devices]
        recorded += [(r.attempt, {r.device_id}) for r in self.readings]
        recorded += [(e.attempt, device_ids_of(e)) for e in self.executions]
        silent = set(self.spans) - {attempt for attempt, _ in recorded}
        own = {attempt for attempt, ids in recorded if not ids.isdisjoint(device_ids)} | silent
        found = {}
        for attempt in own & set(self.spans):
            known = [self.own_spans.get((attempt, device_id)) for device_id in device_ids]
            # A device of which its own machine's record says nothing, since that is lost, may have
            # been there all the time.
            found[attempt] = hull([s for s in known if s is not None] or [self.spans[attempt]])
        return dict(sorted(found.items()))

    def paused(
        self, spans: Mapping[int, Span], executions: Sequence[ExecutionRow]
    ) -> dict[int, list[Span]]:
        """The pauses within some time of each attempt, but for what was executed in them.

        Args:
            spans: begin and end of the time, by attempt.
            executions: of the device that it is about.
        """
        if not self.pauses:
            return {}
        busy = working(executions)
        return {
            attempt: minus(common(self.pauses.get(attempt, ()), [span]), busy.get(attempt, ()))
            for attempt, span in spans.items()
        }


def device_ids_of(execution: ExecutionRow) -> set[str]:
    """Ids of the devices that ran an execution or that were read for it."""
    r = execution.result
    return {*r.device_ids, *(r.energy.device_ids if r.energy else ())}


@dataclass(frozen=True, slots=True)
class Meter:
    """One device, or several whose energy was read together."""

    device: str
    members: tuple[str, ...]
    executions: tuple[ExecutionRow, ...]

    @property
    def key(self) -> str:
        """Name for display: the ids of its devices with ``+`` between them."""
        return "+".join(self.members)

    def readings(self, evidence: Evidence) -> list[DeviceReadings]:
        """The readings of its devices."""
        return [r for r in evidence.readings if r.device_id in self.members]


# ---------------------------------------------------------------- time with work


def working(executions: Sequence[ExecutionRow]) -> dict[int, list[Span]]:
    """When something was executed, by attempt, disjoint and in order.

    Only where time was measured: a simulated card's windows are the simulation's.
    """
    found: dict[int, list[Span]] = defaultdict(list)
    for e in executions:
        if e.result.time_provenance is Provenance.MEASURED:
            found[e.attempt].append((e.result.t_start_s, e.result.t_end_s))
    return {attempt: merged(spans) for attempt, spans in found.items()}


def busy_time_s(executions: Sequence[ExecutionRow]) -> float:
    """Time in which the device ran something, s.

    Where time was measured: the union of the executions' windows, so that overlapping ones count
    once. A simulated card's device times are added up instead.
    """
    measured = [length(spans) for spans in working(executions).values()]
    other = [
        e.result.time_s for e in executions if e.result.time_provenance is not Provenance.MEASURED
    ]
    return math.fsum([*measured, *present(other)])


def free_time_s(
    spans: Mapping[int, Span],
    executions: Sequence[ExecutionRow],
    paused: Mapping[int, Sequence[Span]],
) -> float:
    """Time of some attempts in which nothing was executed and the run was not paused, s.

    Args:
        spans: begin and end of a device's time, by attempt.
        executions: of the device; those of other attempts do not count.
        paused: when the run was paused meanwhile.
    """
    busy_s = busy_time_s([e for e in executions if e.attempt in spans])
    return max(0.0, length(spans.values()) - busy_s - paused_time_s(paused))


def paused_time_s(paused: Mapping[int, Sequence[Span]]) -> float:
    """Length of all pauses, s."""
    return math.fsum(length(spans) for spans in paused.values())


# ---------------------------------------------------------------- what the readings cover


def not_in_readings(
    executions: Sequence[ExecutionRow], meter: Meter, evidence: Evidence
) -> list[ExecutionRow]:
    """Select the executions during which a device of the meter was not read all the time.

    Args:
        executions: stage executions to check.
        meter: the devices.
        evidence: what the ledger holds of the run.
    """
    parts: dict[tuple[int, str], list[Span]] = defaultdict(list)
    for r in meter.readings(evidence):
        parts[r.attempt, r.device_id] += r.covered
    covered = {key: merged(spans) for key, spans in parts.items()}
    return [
        e
        for e in executions
        # Of devices read together an attempt may have had some alone.
        if not all(
            _is_covered(e, covered.get((e.attempt, m), []))
            for m in device_ids_of(e).intersection(meter.members)
        )
    ]


def _is_covered(execution: ExecutionRow, covered: Sequence[Span]) -> bool:
    """Whether readings hold an execution's whole time, but for a little at its edges."""
    start, end = execution.result.t_start_s, execution.result.t_end_s
    # Only what begins within the window or next before it can cover any of it.
    first = max(0, bisect.bisect_left(covered, (start, start)) - 1)
    last = bisect.bisect_left(covered, (end, end))
    missing_s = length(minus([(start, end)], covered[first:last]))
    return bool(covered) and missing_s <= (1 - FULL_COVERAGE) * (end - start)
