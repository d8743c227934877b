"""Accounts the energy that a device drew beside its executions, attempt by attempt.

An attempt counts for a device only where the run held it there. Attempts in which a device was
read by instruments of another provenance stand apart, so that a measured rest never holds what a
model said, nor the other way round.
"""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ecorl.ledger import BarrierRow, DeviceRow, ExecutionRow, NodeRow
from ecorl.records import Provenance, weakest
from ecorl.report.energy.model import Cause, EnergyPart
from ecorl.report.energy.readings import DeviceReadings, remark
from ecorl.report.energy.spans import Span, hull, length, merged, minus
from ecorl.report.energy.stages import energy_j, present
from ecorl.report.render.numbers import joules, share

_FULL_COVERAGE = 0.98
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
    """

    executions: Sequence[ExecutionRow]
    barriers: Sequence[BarrierRow]
    devices: Sequence[DeviceRow]
    readings: Sequence[DeviceReadings]
    spans: dict[int, Span]
    own_spans: Mapping[tuple[int, str], Span] = field(default_factory=dict)
    lost: Sequence[NodeRow] = ()

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
    for r in _own(meter, evidence):
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
    return bool(covered) and missing_s <= (1 - _FULL_COVERAGE) * (end - start)


# ---------------------------------------------------------------- attempts read alike


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Attempts in which a meter was read with the same provenances.

    Attributes:
        readings: by provenance; none where the meter was never read.
        name: which attempts, for a reader.
    """

    spans: dict[int, Span]
    readings: dict[Provenance, list[DeviceReadings]]
    executions: tuple[ExecutionRow, ...]
    name: str

    @property
    def rest_s(self) -> float:
        return _rest_s(self.spans, self.executions)

    def coverage(self, device_id: str, evidence: Evidence) -> float:
        """Share of the time of its attempts over which a device was read."""
        rows = [r for own in self.readings.values() for r in own if r.device_id == device_id]
        time_s = length(s for a, s in evidence.held([device_id]).items() if a in self.spans)
        # A device that none of these attempts had is not missing from them.
        return min(1.0, math.fsum(r.covered_s for r in rows) / time_s) if time_s else 1.0

    def known_j(self, provenance: Provenance) -> float:
        """Energy of the executions that the readings of one provenance hold, J.

        An attempt that was not read holds none. Where no readings have the provenance of an
        execution's energy, those of the weakest hold it.
        """
        read = {r.attempt for own in self.readings.values() for r in own}
        known_j = 0.0
        for e in self.executions:
            energy = e.result.energy
            if energy is None or e.attempt not in read:
                continue
            own = energy.provenance in self.readings
            if provenance is (energy.provenance if own else weakest(*self.readings)):
                known_j += energy_j(e.result) or 0.0
        return known_j


def _stretches(meter: Meter, evidence: Evidence) -> list[_Stretch]:
    """Group a meter's attempts by the provenances that it was read with.

    An attempt without readings joins the group of the one before it, where its gap shows as missing
    coverage.
    """
    held = evidence.held(meter.members)
    classes = {a: _by_class([r for r in _own(meter, evidence) if r.attempt == a]) for a in held}
    # An attempt without readings at the very beginning joins the first that has some.
    last: frozenset[Provenance] = next((frozenset(c) for c in classes.values() if c), frozenset())
    groups: dict[frozenset[Provenance], list[int]] = defaultdict(list)
    for attempt, found in classes.items():
        last = frozenset(found) or last
        groups[last].append(attempt)
    stretches = []
    for attempts in groups.values():
        readings: dict[Provenance, list[DeviceReadings]] = defaultdict(list)
        for attempt in attempts:
            for provenance, rows in classes[attempt].items():
                readings[provenance] += rows
        stretches.append(
            _Stretch(
                spans={a: held[a] for a in attempts},
                readings=dict(readings),
                executions=tuple(e for e in meter.executions if e.attempt in attempts),
                name=_name(attempts, held, evidence),
            )
        )
    return stretches


def _name(attempts: Sequence[int], held: Mapping[int, Span], evidence: Evidence) -> str:
    """Name the time for which a meter was in some attempts."""
    if len(attempts) < len(evidence.spans):
        return f"attempt{'s' * (len(attempts) > 1)} {', '.join(map(str, attempts))}"
    whole = all(held[a] == evidence.spans[a] for a in attempts)
    return "the run time" if whole else "its machine's time in the run"


def _own(meter: Meter, evidence: Evidence) -> list[DeviceReadings]:
    return [r for r in evidence.readings if r.device_id in meter.members]


def _by_class(readings: Sequence[DeviceReadings]) -> dict[Provenance, list[DeviceReadings]]:
    """Sort the readings of one attempt by provenance.

    Joules of several devices were read as one sum: where the devices differ in provenance, all
    that was read is as good as the weakest.
    """
    of_device: dict[str, set[Provenance]] = defaultdict(set)
    for r in readings:
        of_device[r.device_id].add(r.provenance)
    kinds = set().union(*of_device.values())
    alike = all(own == kinds for own in of_device.values())
    found: dict[Provenance, list[DeviceReadings]] = defaultdict(list)
    for r in readings:
        found[r.provenance if alike else weakest(*kinds)].append(r)
    return found


# ---------------------------------------------------------------- rests


class _Rest(NamedTuple):
    """Energy of a rest, J, its provenance, whether it is a lower bound, and what is wrong."""

    energy_j: float | None
    provenance: Provenance | None
    at_least: bool
    gap: str | None


def rests(meter: Meter, evidence: Evidence, *, on_gpu_path: bool) -> list[EnergyPart]:
    """Compute what a meter drew beside its executions, one part or more per provenance.

    Args:
        meter: one device, or several that were read together.
        evidence: what the ledger holds of the run.
        on_gpu_path: whether the meter is of the framework's devices.
    """
    parts = []
    for stretch in _stretches(meter, evidence):
        rows = [r for own in stretch.readings.values() for r in own]
        all_s = math.fsum(r.covered_s for r in rows)
        found = [(_rest_by_profile(meter, evidence), 1.0)]
        if rows:
            found = [
                (
                    _rest_by_readings(meter, stretch, p, evidence),
                    math.fsum(r.covered_s for r in own) / all_s,
                )
                for p, own in stretch.readings.items()
            ]
        # Where instruments of several provenances covered parts of the time, the rest time is split
        # among them by what each covered: which of them read which idle second is not kept.
        for rest, part in found:
            one = EnergyPart(
                device_id=meter.key,
                device_ids=meter.members,
                device=meter.device,
                cause=Cause.BESIDE_STAGES if rows and on_gpu_path else Cause.IDLE,
                useful=False,
                energy_j=rest.energy_j,
                provenance=rest.provenance,
                time_s=stretch.rest_s * part,
                at_least=rest.at_least,
                gap=rest.gap,
            )
            parts += _split_rest(one, stretch, evidence.barriers) if on_gpu_path else [one]
    return parts


def _rest_by_readings(
    meter: Meter, stretch: _Stretch, provenance: Provenance, evidence: Evidence
) -> _Rest:
    """Rest of a meter by readings of one provenance: all that was read, less the executions."""
    readings = stretch.readings[provenance]
    by_device = [[r for r in readings if r.device_id == m] for m in meter.members]
    remarks = [told for told in map(remark, by_device) if told]
    known_j = stretch.known_j(provenance)
    energies_j = present(r.energy_j for r in readings)
    if len(energies_j) < len(readings):
        return _Rest(None, None, True, "; ".join(remarks))
    read_j = math.fsum(energies_j)
    if read_j < known_j:
        # Never invent: the executions overlap, or were read by another instrument.
        excess = (
            f"{meter.key}: its executions add up to {joules(known_j)}, more than its readings over "
            f"the run ({joules(read_j)}); what it drew beside them is unknown"
        )
        return _Rest(None, None, True, "; ".join([excess, *remarks]))
    coverage, worst = min((stretch.coverage(m, evidence), m) for m in meter.members)
    is_sparse = coverage < _FULL_COVERAGE
    if is_sparse:
        whose = f" of {worst}" if len(meter.members) > 1 else ""
        part = f"{share(coverage, 0)} of {stretch.name}"
        remarks.insert(0, f"{meter.key}: power readings{whose} cover {part}")
    return _Rest(read_j - known_j, provenance, is_sparse, "; ".join(remarks) or None)


def _rest_by_profile(meter: Meter, evidence: Evidence) -> _Rest:
    """Rest of a meter without readings: idle power of its profile over the time without work."""
    newest = {d.device_id: d.idle_w for d in evidence.devices}
    idle_w = [newest.get(m) for m in meter.members]
    known = present(idle_w)
    if len(known) < len(idle_w):
        unknown = f"{meter.key}: no power readings and no idle power; idle unknown"
        return _Rest(None, None, True, unknown)
    rest_s = [_rest_s(evidence.held([m]), meter.executions) for m in meter.members]
    idle_j = math.fsum(w * s for w, s in zip(known, rest_s, strict=True))
    return _Rest(idle_j, Provenance.MODELLED, False, None)


def _rest_s(spans: dict[int, Span], executions: Sequence[ExecutionRow]) -> float:
    """Time of some attempts in which nothing was executed, s."""
    busy_s = busy_time_s([e for e in executions if e.attempt in spans])
    return max(0.0, length(spans.values()) - busy_s)


def busy_time_s(executions: Sequence[ExecutionRow]) -> float:
    """Time in which the device ran something, s.

    Where time was measured: the union of the executions' windows, so that overlapping ones count
    once. A simulated card's windows are the simulation's; its device times are added up instead.
    """
    measured: dict[int, list[Span]] = defaultdict(list)
    other = []
    for e in executions:
        r = e.result
        if r.time_provenance is Provenance.MEASURED:
            measured[e.attempt].append((r.t_start_s, r.t_end_s))
        else:
            other.append(r.time_s)
    return math.fsum([*(length(merged(s)) for s in measured.values()), *present(other)])


def _split_rest(
    rest: EnergyPart, stretch: _Stretch, barriers: Sequence[BarrierRow]
) -> list[EnergyPart]:
    """Split the rest of a GPU path device by time into barrier wait and what remains."""
    wait_s = waiting_alone_s(stretch.executions, barriers, stretch.spans)
    if not rest.time_s or wait_s <= 0:
        return [rest]
    # Power while waiting and while resting is not told apart by readings of whole seconds, so the
    # energy is split by time.
    waited = min(1.0, wait_s / stretch.rest_s)
    return [
        replace(
            rest,
            cause=cause,
            energy_j=None if rest.energy_j is None else rest.energy_j * part,
            time_s=rest.time_s * part,
        )
        for cause, part in ((Cause.BARRIER_WAIT, waited), (rest.cause, 1.0 - waited))
    ]


def waiting_alone_s(
    executions: Sequence[ExecutionRow], barriers: Sequence[BarrierRow], spans: Mapping[int, Span]
) -> float:
    """Add up the time at the barrier in which the device of these executions ran nothing, s.

    Args:
        executions: executions of one device.
        barriers: waits at the barrier.
        spans: begin and end of the device's time, by attempt; a wait outside is none of it.
    """
    seconds = 0.0
    for attempt, (start, end) in spans.items():
        waits = [
            (max(b.t_s - b.wait_s, start), min(b.t_s, end))
            for b in barriers
            if b.attempt == attempt and b.wait_s is not None
        ]
        busy = [(e.result.t_start_s, e.result.t_end_s) for e in executions if e.attempt == attempt]
        seconds += length(minus(merged(waits), merged(busy)))
    return seconds
