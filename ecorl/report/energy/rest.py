"""Accounts the energy that a device drew beside its executions, and what that emitted.

An attempt counts for a device only where the run held it there. Attempts in which a device was
read by instruments of another provenance stand apart, so that a measured rest never holds what a
model said, nor the other way round.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ecorl.ledger import BarrierRow, ExecutionRow
from ecorl.records import Provenance, weakest
from ecorl.report.energy.emissions import (
    NO_EMISSIONS,
    Draw,
    Emissions,
    left_over,
    scaled,
    total_emissions,
)
from ecorl.report.energy.evidence import (
    FULL_COVERAGE,
    Evidence,
    Meter,
    free_time_s,
    paused_time_s,
    working,
)
from ecorl.report.energy.model import Cause, EnergyPart
from ecorl.report.energy.readings import DeviceReadings, Span, length, merged, minus, remark
from ecorl.report.energy.stages import energy_j, present
from ecorl.report.render.numbers import joules, share


@dataclass(frozen=True, slots=True)
class Stretch:
    """Attempts in which a meter was read with the same provenances.

    Attributes:
        spans: begin and end of the meter's time, by attempt.
        readings: by provenance; none where the meter was never read.
        executions: of the meter in these attempts.
        paused: when the run was paused meanwhile, by attempt.
        name: which attempts, for a reader.
    """

    spans: dict[int, Span]
    readings: dict[Provenance, list[DeviceReadings]]
    executions: tuple[ExecutionRow, ...]
    paused: dict[int, list[Span]]
    name: str

    @property
    def rest_s(self) -> float:
        """Time in which the meter ran nothing and the run was not paused, s."""
        return free_time_s(self.spans, self.executions, self.paused)

    @property
    def paused_s(self) -> float:
        """Time in which the run was paused and the meter ran nothing, s."""
        return paused_time_s(self.paused)

    def coverage(self, device_id: str, evidence: Evidence) -> float:
        """Share of the time of its attempts over which a device was read.

        Args:
            device_id: a device of the meter.
            evidence: what the ledger holds of the run.
        """
        rows = [r for own in self.readings.values() for r in own if r.device_id == device_id]
        time_s = length(s for a, s in evidence.held([device_id]).items() if a in self.spans)
        # A device that none of these attempts had is not missing from them.
        return min(1.0, math.fsum(r.covered_s for r in rows) / time_s) if time_s else 1.0

    def read_executions(self, provenance: Provenance) -> list[ExecutionRow]:
        """Executions whose energy the readings of one provenance hold.

        An attempt that was not read holds none. Where no readings have the provenance of an
        execution's energy, those of the weakest hold it.

        Args:
            provenance: of the readings.
        """
        read = {r.attempt for own in self.readings.values() for r in own}
        found = []
        for e in self.executions:
            energy = e.result.energy
            if energy is None or e.attempt not in read:
                continue
            own = energy.provenance in self.readings
            if provenance is (energy.provenance if own else weakest(*self.readings)):
                found.append(e)
        return found


def stretches(meter: Meter, evidence: Evidence) -> list[Stretch]:
    """Group a meter's attempts by the provenances that it was read with.

    An attempt without readings joins the group of the one before it, where its gap shows as missing
    coverage.

    Args:
        meter: one device, or several that were read together.
        evidence: what the ledger holds of the run.
    """
    held = evidence.held(meter.members)
    paused = evidence.paused(held, meter.executions)
    read = meter.readings(evidence)
    classes = {a: _by_class([r for r in read if r.attempt == a]) for a in held}
    # An attempt without readings at the very beginning joins the first that has some.
    last: frozenset[Provenance] = next((frozenset(c) for c in classes.values() if c), frozenset())
    groups: dict[frozenset[Provenance], list[int]] = defaultdict(list)
    for attempt, found in classes.items():
        last = frozenset(found) or last
        groups[last].append(attempt)
    made = []
    for attempts in groups.values():
        readings: dict[Provenance, list[DeviceReadings]] = defaultdict(list)
        for attempt in attempts:
            for provenance, rows in classes[attempt].items():
                readings[provenance] += rows
        made.append(
            Stretch(
                spans={a: held[a] for a in attempts},
                readings=dict(readings),
                executions=tuple(e for e in meter.executions if e.attempt in attempts),
                paused={a: paused[a] for a in attempts if a in paused},
                name=_name(attempts, held, evidence),
            )
        )
    return made


def _name(attempts: Sequence[int], held: Mapping[int, Span], evidence: Evidence) -> str:
    """Name the time for which a meter was in some attempts."""
    if len(attempts) < len(evidence.spans):
        return f"attempt{'s' * (len(attempts) > 1)} {', '.join(map(str, attempts))}"
    whole = all(held[a] == evidence.spans[a] for a in attempts)
    return "the run time" if whole else "its machine's time in the run"


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


@dataclass(frozen=True, slots=True)
class _Rest:
    """Energy that was drawn beside the executions.

    Attributes:
        energy_j: J; None when unknown.
        provenance: of it; None when there is no figure.
        at_least: whether it is a lower bound.
        gap: what is wrong with it.
        emissions: of it.
    """

    energy_j: float | None
    provenance: Provenance | None
    at_least: bool = False
    gap: str | None = None
    emissions: Emissions = NO_EMISSIONS


@dataclass(frozen=True, slots=True)
class _Beside:
    """What one kind of reading tells of a stretch.

    Attributes:
        rest: drawn while the run went on.
        paused: drawn while it was paused; None where that lies outside of these readings.
        rest_share, paused_share: share of the time of each that these readings cover.
    """

    rest: _Rest
    paused: _Rest | None
    rest_share: float = 1.0
    paused_share: float = 1.0


def rests(meter: Meter, evidence: Evidence, *, on_gpu_path: bool) -> list[EnergyPart]:
    """Compute what a meter drew beside its executions, one part or more per provenance.

    Args:
        meter: one device, or several that were read together.
        evidence: what the ledger holds of the run.
        on_gpu_path: whether the meter is of the framework's devices.
    """
    parts = []
    for stretch in stretches(meter, evidence):
        is_read = bool(stretch.readings)
        found = (
            _by_readings(meter, stretch, evidence) if is_read else [_by_profile(meter, evidence)]
        )
        for beside in found:
            cause = Cause.BESIDE_STAGES if is_read and on_gpu_path else Cause.IDLE
            one = _part(meter, cause, beside.rest, stretch.rest_s * beside.rest_share)
            parts += _split_rest(one, stretch, evidence.barriers) if on_gpu_path else [one]
            if beside.paused is not None:
                time_s = stretch.paused_s * beside.paused_share
                parts.append(_part(meter, Cause.PAUSED, beside.paused, time_s))
        if stretch.paused_s and not any(beside.paused for beside in found):
            gap = f"{meter.key}: no power reading while the run was paused; what it drew is unknown"
            parts.append(_part(meter, Cause.PAUSED, _Rest(None, None, True, gap), stretch.paused_s))
    return parts


def _part(meter: Meter, cause: Cause, rest: _Rest, time_s: float) -> EnergyPart:
    return EnergyPart(
        device_id=meter.key,
        device_ids=meter.members,
        device=meter.device,
        cause=cause,
        useful=False,
        energy_j=rest.energy_j,
        provenance=rest.provenance,
        time_s=time_s,
        at_least=rest.at_least,
        gap=rest.gap,
        emissions=rest.emissions,
    )


# ---------------------------------------------------------------- by readings


def _by_readings(meter: Meter, stretch: Stretch, evidence: Evidence) -> list[_Beside]:
    """Rests and pauses of a meter, one for each provenance of its readings.

    Where instruments of several provenances covered parts of the time, the rest time is split among
    them by what each covered: which of them read which idle second is not kept.
    """
    all_s = math.fsum(r.covered_s for own in stretch.readings.values() for r in own)
    found, paused_s = [], []
    for provenance, own in stretch.readings.items():
        rest, paused, time_s = _by_provenance(meter, stretch, provenance, evidence)
        found.append(_Beside(rest, paused, math.fsum(r.covered_s for r in own) / all_s))
        paused_s.append(time_s)
    total_s = math.fsum(paused_s)
    if total_s > 0:
        return [
            replace(beside, paused_share=time_s / total_s)
            for beside, time_s in zip(found, paused_s, strict=True)
        ]
    return found


def _by_provenance(
    meter: Meter, stretch: Stretch, provenance: Provenance, evidence: Evidence
) -> tuple[_Rest, _Rest | None, float]:
    """Rest and pauses by readings of one provenance, and how much of the pauses they cover, s.

    The rest is all that was read, less the pauses and the executions.
    """
    readings = stretch.readings[provenance]
    by_device = [[r for r in readings if r.device_id == m] for m in meter.members]
    remarks = [told for told in map(remark, by_device) if told]
    energies_j = present(r.energy_j for r in readings)
    if len(energies_j) < len(readings):
        unknown = _Rest(None, None, True, "; ".join(remarks))
        return unknown, unknown if stretch.paused_s else None, stretch.paused_s
    read_j = math.fsum(energies_j)
    whole, _ = evidence.grid.of_readings(readings)
    executed = _executed(stretch.read_executions(provenance), evidence)
    paused, paused_s = evidence.grid.of_readings(readings, stretch.paused)
    coverage, worst = min((stretch.coverage(m, evidence), m) for m in meter.members)
    is_sparse = coverage < FULL_COVERAGE
    if is_sparse:
        whose = f" of {worst}" if len(meter.members) > 1 else ""
        part = f"{share(coverage, 0)} of {stretch.name}"
        remarks.insert(0, f"{meter.key}: power readings{whose} cover {part}")
    gap = "; ".join(remarks) or None
    left_j = read_j - executed.energy_j
    if 0 <= left_j < paused.energy_j:
        # A second that is partly of an execution and partly of a pause counts in proportion, so
        # that at the edges a pause may be given what an execution drew.
        paused = Draw(left_j, left_over(whole, [executed], left_j))
    waited = None
    if paused_s > 0:
        waited = _Rest(paused.energy_j, provenance, is_sparse, gap, paused.emissions)
    if left_j < 0:
        # Never invent: the executions overlap, or were read by another instrument.
        excess = (
            f"{meter.key}: its executions add up to {joules(executed.energy_j)}, more than its "
            f"readings over the run ({joules(read_j)}); what it drew beside them is unknown"
        )
        told = [excess, *(remarks[1:] if is_sparse else remarks)]
        return _Rest(None, None, True, "; ".join(told)), waited, paused_s
    rest_j = max(0.0, left_j - paused.energy_j)
    emissions = left_over(whole, (executed, paused), rest_j)
    return _Rest(rest_j, provenance, is_sparse, gap, emissions), waited, paused_s


def _executed(executions: Sequence[ExecutionRow], evidence: Evidence) -> Draw:
    """Energy and emissions of some executions."""
    known_j = math.fsum(energy_j(e.result) or 0.0 for e in executions)
    return Draw(known_j, evidence.grid.of_executions(executions))


# ---------------------------------------------------------------- by profile


def _by_profile(meter: Meter, evidence: Evidence) -> _Beside:
    """Rest and pauses of a meter without readings: idle power of its profile x time."""
    held = {m: evidence.held([m]) for m in meter.members}
    paused = {m: evidence.paused(held[m], meter.executions) for m in meter.members}
    paused_s = {m: paused_time_s(paused[m]) for m in meter.members}
    newest = {d.device_id: d.idle_w for d in evidence.devices}
    known_w = {m: w for m in meter.members for w in present([newest.get(m)])}
    if len(known_w) < len(meter.members):
        gap = f"{meter.key}: no power readings and no idle power; idle unknown"
        unknown = _Rest(None, None, True, gap)
        return _Beside(unknown, unknown if any(paused_s.values()) else None)
    busy = working(meter.executions)
    rests_j, emissions, waits = [], [], []
    for m, idle_w in known_w.items():
        free = {
            attempt: minus(minus([span], busy.get(attempt, ())), paused[m].get(attempt, ()))
            for attempt, span in held[m].items()
        }
        rests_j.append(idle_w * free_time_s(held[m], meter.executions, paused[m]))
        emissions.append(evidence.grid.evenly(rests_j[-1], free))
        if paused_s[m] > 0:
            waited_j = idle_w * paused_s[m]
            waits.append(Draw(waited_j, evidence.grid.evenly(waited_j, paused[m])))
    rest = _Rest(math.fsum(rests_j), Provenance.MODELLED, emissions=total_emissions(emissions))
    if not waits:
        return _Beside(rest, None)
    waited = _Rest(
        math.fsum(w.energy_j for w in waits),
        Provenance.MODELLED,
        emissions=total_emissions(w.emissions for w in waits),
    )
    return _Beside(rest, waited)


# ---------------------------------------------------------------- waits at the barrier


def _split_rest(
    rest: EnergyPart, stretch: Stretch, barriers: Sequence[BarrierRow]
) -> list[EnergyPart]:
    """Split the rest of a GPU path device by time into barrier wait and what remains."""
    wait_s = waiting_alone_s(stretch.executions, barriers, stretch.spans, stretch.paused)
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
            emissions=scaled(rest.emissions, part),
        )
        for cause, part in ((Cause.BARRIER_WAIT, waited), (rest.cause, 1.0 - waited))
    ]


def waiting_alone_s(
    executions: Sequence[ExecutionRow],
    barriers: Sequence[BarrierRow],
    spans: Mapping[int, Span],
    paused: Mapping[int, Sequence[Span]],
) -> float:
    """Add up the time at the barrier in which the device of these executions ran nothing, s.

    Args:
        executions: executions of one device.
        barriers: waits at the barrier.
        spans: begin and end of the device's time, by attempt; a wait outside is none of it.
        paused: when the run was paused meanwhile; that is no wait at the barrier.
    """
    seconds = 0.0
    for attempt, (start, end) in spans.items():
        waits = [
            (max(b.t_s - b.wait_s, start), min(b.t_s, end))
            for b in barriers
            if b.attempt == attempt and b.wait_s is not None
        ]
        busy = [(e.result.t_start_s, e.result.t_end_s) for e in executions if e.attempt == attempt]
        seconds += length(minus(merged(waits), merged([*busy, *paused.get(attempt, ())])))
    return seconds
