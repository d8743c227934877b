"""Where the joules went: useful, wasted, unknown.

Definitions, which the report repeats in its notes:

- useful: the energy of generation, scoring (reward, reference, critic) and training executions
  whose results the run kept;
- superseded: the energy of executions that a resume threw away (they came after the checkpoint);
- rest: what a device drew beside its executions. For a device with power readings: energy of the
  device over the run, by its readings, minus its executions. For a device without: profile idle
  power x (run time - busy time), which is modelled;
- the rest of a device of the GPU path is split by time into ``barrier wait`` (the training thread
  stood at the completion barrier and the device ran nothing) and what remains. By readings that
  is ``beside stages``, since such a device also evaluates, saves and runs the framework; from
  idle power it is ``idle``, as is the rest of a card.

Wasted = superseded + barrier wait + idle. What was drawn beside stages is neither useful nor
wasted: the readings do not tell which.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ecorl.ledger import (
    BarrierRow,
    DeviceRow,
    ExecutionRow,
)
from ecorl.records import Provenance, Stage, weakest
from ecorl.report.model_energy import EnergyPart
from ecorl.report.numbers import share
from ecorl.report.readings import DeviceReadings
from ecorl.report.spans import Span, length, merged, minus
from ecorl.report.stage_table import energy_j, gpu_path_devices, present, total

CAUSE_OF_STAGE = {
    Stage.GENERATION: "generation",
    Stage.REWARD: "scoring",
    Stage.REFERENCE: "scoring",
    Stage.CRITIC: "scoring",
    Stage.ACTOR_TRAIN: "training",
    Stage.CRITIC_TRAIN: "training",
}
USEFUL_CAUSES = ("generation", "scoring", "training")
OTHER_CAUSES = ("beside stages",)
WASTED_CAUSES = ("superseded", "barrier wait", "idle")
CAUSES = (*USEFUL_CAUSES, *OTHER_CAUSES, *WASTED_CAUSES)

_FULL_COVERAGE = 0.98
"""Share of the run time from which readings count as complete; the first and last reading never
hit the run's edges exactly."""


# ---------------------------------------------------------------- parts


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that the accounting of energy looks at."""

    executions: Sequence[ExecutionRow]
    barriers: Sequence[BarrierRow]
    devices: Sequence[DeviceRow]
    readings: dict[str, DeviceReadings]
    spans: dict[int, Span]

    @property
    def run_time_s(self) -> float:
        """Sum over the attempts, s."""
        return length(self.spans.values())


@dataclass(frozen=True, slots=True)
class _Meter:
    """One device, or several whose energy was read together (``gpu0+gpu1``)."""

    key: str
    device: str
    members: tuple[str, ...]
    executions: tuple[ExecutionRow, ...]


def _meters(evidence: Evidence) -> list[_Meter]:
    """Devices as their energy was read, so that nothing is counted twice."""
    keys = {
        e.result.energy.device_id if e.result.energy else e.result.device_id
        for e in evidence.executions
    }
    keys |= {d.device_id for d in evidence.devices} | set(evidence.readings)
    group_of = {m: key for key in sorted(keys) if "+" in key for m in key.split("+")}
    own: dict[str, list[ExecutionRow]] = {group_of.get(k, k): [] for k in sorted(keys)}
    for e in evidence.executions:
        key = e.result.energy.device_id if e.result.energy else e.result.device_id
        own[group_of.get(key, key)].append(e)
    profiles = {d.device_id: d.profile for d in evidence.devices}
    meters = []
    for key, executions in own.items():
        members = tuple(key.split("+"))
        names = [e.result.device for e in executions] + [profiles.get(m, m) for m in members]
        meters.append(_Meter(key, names[0], members, tuple(executions)))
    return meters


def energy_parts(evidence: Evidence) -> list[EnergyPart]:
    """All parts of the energy of all devices that the run held."""
    on_gpu = gpu_path_devices(evidence.executions)
    parts = []
    for meter in _meters(evidence):
        is_read = any(m in evidence.readings for m in meter.members)
        parts += _execution_parts(meter, is_read=is_read)
        rest = _rest(meter, evidence)
        ids = {*meter.members, *(e.result.device_id for e in meter.executions)}
        if ids & on_gpu:
            rest = replace(rest, cause="beside stages") if is_read else rest
            parts += _split_rest(rest, meter.executions, evidence)
        else:
            parts.append(rest)
    return parts


def _execution_parts(meter: _Meter, *, is_read: bool) -> list[EnergyPart]:
    groups: dict[tuple[str, Provenance | None], list[ExecutionRow]] = defaultdict(list)
    for e in meter.executions:
        cause = "superseded" if e.superseded else CAUSE_OF_STAGE[e.result.stage]
        energy = e.result.energy if energy_j(e.result) is not None else None
        groups[cause, energy.provenance if energy else None].append(e)
    parts = []
    for (cause, provenance), group in groups.items():
        gap = None
        if provenance is None:
            gap = f"{meter.key}: {len(group)} {cause} calls have no energy figure"
            if is_read:
                gap += " of their own; the device's readings hold it beside the stages"
        parts.append(
            EnergyPart(
                device_id=meter.key,
                device=meter.device,
                cause=cause,
                useful=cause in USEFUL_CAUSES,
                energy_j=total(energy_j(e.result) for e in group),
                provenance=provenance,
                time_s=total(e.result.time_s for e in group),
                at_least=provenance is None and not is_read,
                gap=gap,
            )
        )
    return parts


def _rest(meter: _Meter, evidence: Evidence) -> EnergyPart:
    """What the device drew beside its executions."""
    rest_s = max(0.0, evidence.run_time_s - busy_time_s(meter.executions))
    if any(m in evidence.readings for m in meter.members):
        rest = _rest_by_readings(meter, evidence)
    else:
        rest = _rest_by_profile(meter, evidence, rest_s)
    return EnergyPart(
        device_id=meter.key,
        device=meter.device,
        cause="idle",
        useful=False,
        energy_j=rest.energy_j,
        provenance=rest.provenance,
        time_s=rest_s,
        at_least=rest.at_least,
        gap=rest.gap,
    )


class _Rest(NamedTuple):
    """Energy of a rest, J, its provenance, whether it is a lower bound, and what is wrong."""

    energy_j: float | None
    provenance: Provenance | None
    at_least: bool
    gap: str | None


def _rest_by_readings(meter: _Meter, evidence: Evidence) -> _Rest:
    readings = [evidence.readings[m] for m in meter.members if m in evidence.readings]
    known_j = total(energy_j(e.result) for e in meter.executions) or 0.0
    remarks = [r.remark for r in readings if r.remark]
    joules = present(r.energy_j for r in readings)
    if len(joules) < len(readings):
        return _Rest(None, None, True, "; ".join(remarks))
    read_j = math.fsum(joules)
    coverage = math.fsum(r.coverage for r in readings) / len(meter.members)
    if read_j < known_j:
        # Never invent: the executions overlap, or were read by another instrument.
        excess = (
            f"{meter.key}: its executions add up to {known_j:.4g} J, more than its readings over "
            f"the run ({read_j:.4g} J); what it drew beside them is unknown"
        )
        return _Rest(None, None, True, "; ".join([excess, *remarks]))
    is_sparse = coverage < _FULL_COVERAGE
    if is_sparse:
        lacking = f"{meter.key}: power readings cover {share(coverage, 0)} of the run time"
        remarks.insert(0, lacking)
    provenance = weakest(*(r.provenance for r in readings))
    return _Rest(read_j - known_j, provenance, is_sparse, "; ".join(remarks) or None)


def _rest_by_profile(meter: _Meter, evidence: Evidence, rest_s: float) -> _Rest:
    newest = {d.device_id: d.idle_w for d in evidence.devices}
    idle_w = [newest.get(m) for m in meter.members]
    known = present(idle_w)
    if len(known) < len(idle_w):
        unknown = f"{meter.key}: no power readings and no idle power; idle unknown"
        return _Rest(None, None, True, unknown)
    return _Rest(math.fsum(known) * rest_s, Provenance.MODELLED, False, None)


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
    rest: EnergyPart, executions: Sequence[ExecutionRow], evidence: Evidence
) -> list[EnergyPart]:
    """Split the rest of a GPU path device by time into barrier wait and idle."""
    wait_s = waiting_alone_s(executions, evidence.barriers)
    if not rest.time_s or wait_s <= 0:
        return [rest]
    waited_share = min(1.0, wait_s / rest.time_s)
    waited, idle = (
        EnergyPart(
            device_id=rest.device_id,
            device=rest.device,
            cause=cause,
            useful=False,
            energy_j=None if rest.energy_j is None else rest.energy_j * part,
            provenance=rest.provenance,
            time_s=rest.time_s * part,
            at_least=rest.at_least,
            gap=rest.gap,
        )
        for cause, part in (("barrier wait", waited_share), (rest.cause, 1.0 - waited_share))
    )
    return [waited, idle]


def waiting_alone_s(executions: Sequence[ExecutionRow], barriers: Sequence[BarrierRow]) -> float:
    """Time at the barrier in which the device of these executions ran nothing, s."""
    seconds = 0.0
    for attempt in {b.attempt for b in barriers}:
        waits = [
            (b.t_s - b.wait_s, b.t_s)
            for b in barriers
            if b.attempt == attempt and b.wait_s is not None
        ]
        busy = [(e.result.t_start_s, e.result.t_end_s) for e in executions if e.attempt == attempt]
        seconds += length(minus(merged(waits), merged(busy)))
    return seconds
