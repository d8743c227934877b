"""Where the joules went: useful, wasted, unknown.

Definitions, which the report repeats in its notes:

- useful: the energy of generation, scoring (reward, reference, critic) and training executions
  whose results the run kept, and of evaluations of the policy that are recorded as such;
- superseded: the energy of executions that a further attempt threw away (they came after the
  checkpoint, or the start, from which it went on);
- rest: what a device drew beside its executions in the attempts that held it. For a device with
  power readings: its energy by its readings, minus its executions, for each provenance of its
  readings apart. For a device without: profile idle power x (time of those attempts - busy time),
  which is modelled;
- the rest of a device of the GPU path is split by time into ``barrier wait`` (the training thread
  stood at the completion barrier and the device ran nothing) and what remains. By readings that
  is ``beside stages``, since such a device also evaluates, saves and runs the framework; from
  idle power it is ``idle``, as is the rest of a card;
- paused: what a device drew while the run stood still by choice, waiting for a clean window, and
  the device ran nothing: by its readings in that time, else profile idle power x that time. It is
  no part of the rest.

Wasted = superseded + barrier wait + idle. What was drawn beside stages is neither useful nor
wasted: the readings do not tell which. Nor is what was drawn while paused: it was drawn so that the
rest would be drawn in cleaner hours.
"""

from __future__ import annotations

from collections import defaultdict

from ecorl.ledger import ExecutionRow
from ecorl.records import EVALUATION_ROLE, Provenance, Stage, StageResult
from ecorl.report.energy.emissions import NO_EMISSIONS
from ecorl.report.energy.evidence import Evidence, Meter, not_in_readings
from ecorl.report.energy.model import Cause, EnergyPart
from ecorl.report.energy.rest import rests
from ecorl.report.energy.stages import energy_j, gpu_path_devices, total

_CAUSE_OF_STAGE = {
    Stage.GENERATION: Cause.GENERATION,
    Stage.REWARD: Cause.SCORING,
    Stage.REFERENCE: Cause.SCORING,
    Stage.CRITIC: Cause.SCORING,
    Stage.ACTOR_TRAIN: Cause.TRAINING,
    Stage.CRITIC_TRAIN: Cause.TRAINING,
}
USEFUL_CAUSES = (Cause.GENERATION, Cause.SCORING, Cause.TRAINING, Cause.EVALUATION)
OTHER_CAUSES = (Cause.BESIDE_STAGES,)
PAUSE_CAUSES = (Cause.PAUSED,)
WASTED_CAUSES = (Cause.SUPERSEDED, Cause.BARRIER_WAIT, Cause.IDLE)
RARE_CAUSES = (Cause.EVALUATION,)
"""Useful causes of which nothing is said where a run has none of them."""
CAUSES = (*USEFUL_CAUSES, *OTHER_CAUSES, *PAUSE_CAUSES, *WASTED_CAUSES)


def cause_of(result: StageResult) -> Cause:
    """What the energy of an execution was spent on, had no resume thrown it away.

    Args:
        result: the execution.
    """
    is_evaluation = result.role == EVALUATION_ROLE
    return Cause.EVALUATION if is_evaluation else _CAUSE_OF_STAGE[result.stage]


def _meters(evidence: Evidence) -> list[Meter]:
    """Group the devices by how their energy was read, so that nothing is counted twice.

    Sets of devices that were read as one sum and that share a device are one meter: an attempt
    with fewer GPUs than another is such a case.
    """
    read_together = {_metered(e) for e in evidence.executions}
    read_together |= {(d.device_id,) for d in evidence.devices}
    read_together |= {(r.device_id,) for r in evidence.readings}
    group_of: dict[str, tuple[str, ...]] = {}
    # The largest first, for it names the others.
    for members in sorted(read_together, key=lambda members: (-len(members), members)):
        known = [m for member in members for m in group_of.get(member, ())]
        group = tuple(dict.fromkeys([*known, *members]))
        group_of |= dict.fromkeys(group, group)
    own: dict[tuple[str, ...], list[ExecutionRow]] = {
        group_of[members[0]]: [] for members in sorted(read_together)
    }
    for e in evidence.executions:
        own[group_of[_metered(e)[0]]].append(e)
    profiles = {d.device_id: d.profile for d in evidence.devices}
    meters = []
    for group, executions in own.items():
        names = [e.result.device for e in executions] + [profiles.get(m, m) for m in group]
        meters.append(Meter(names[0], group, tuple(executions)))
    return meters


def _metered(execution: ExecutionRow) -> tuple[str, ...]:
    """Devices whose energy was read for an execution; without energy, those that ran it."""
    r = execution.result
    return r.energy.device_ids if r.energy else r.device_ids


def energy_parts(evidence: Evidence) -> list[EnergyPart]:
    """Split the energy of all devices of the run into parts by cause and provenance."""
    on_gpu = gpu_path_devices(evidence.executions)
    parts = []
    for meter in _meters(evidence):
        ids = {*meter.members, *(i for e in meter.executions for i in e.result.device_ids)}
        parts += _execution_parts(meter, evidence)
        parts += rests(meter, evidence, on_gpu_path=bool(ids & on_gpu))
    return parts


def _execution_parts(meter: Meter, evidence: Evidence) -> list[EnergyPart]:
    """Energy of a meter's executions by cause; those without a figure are parts without energy."""
    is_read = any(r.device_id in meter.members for r in evidence.readings)
    groups: dict[tuple[Cause, Provenance | None], list[ExecutionRow]] = defaultdict(list)
    for e in meter.executions:
        cause = Cause.SUPERSEDED if e.superseded else cause_of(e.result)
        energy = e.result.energy if energy_j(e.result) is not None else None
        groups[cause, energy.provenance if energy else None].append(e)
    parts = []
    for (cause, provenance), group in groups.items():
        gap, n_lost = None, 0
        if provenance is None:
            # Calls without a figure of their own are in the rest where the device was read then;
            # only the others make the total a lower bound.
            n_lost = len(not_in_readings(group, meter, evidence))
            gap = f"{meter.key}: {_without_energy(len(group), n_lost, cause, is_read=is_read)}"
        parts.append(
            EnergyPart(
                device_id=meter.key,
                device_ids=meter.members,
                device=meter.device,
                cause=cause,
                useful=cause in USEFUL_CAUSES,
                energy_j=total(energy_j(e.result) for e in group),
                provenance=provenance,
                time_s=total(e.result.time_s for e in group),
                at_least=n_lost > 0,
                gap=gap,
                emissions=NO_EMISSIONS
                if provenance is None
                else evidence.grid.of_executions(group),
            )
        )
    return parts


def _without_energy(n: int, n_lost: int, cause: Cause, *, is_read: bool) -> str:
    """Describe calls without energy, ``n_lost`` of which no reading covers either."""
    said = f"{n} {cause} calls have no energy figure"
    own, are = "their", "are"
    if n == 1:
        said, own, are = f"1 {cause} call has no energy figure", "its", "is"
    if not is_read:
        return said
    if not n_lost:
        return f"{said} of {own} own; the device's readings hold it beside the stages"
    lost = f"and {are}" if n_lost == n else f"and {n_lost} of them {'is' if n_lost == 1 else 'are'}"
    return f"{said} of {own} own {lost} not in the device's readings either"
