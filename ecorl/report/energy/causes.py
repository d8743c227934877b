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

The machine's energy and what a simulated card would have drawn are never added up but for one
figure, the output tokens per joule with the card. A card that does not exist spends nothing; what
it would have drawn depends on how long this host took to simulate it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from ecorl.ledger import DeviceRow, ExecutionRow
from ecorl.records import EVALUATION_ROLE, DeviceKind, Provenance, Stage, StageResult, weakest
from ecorl.report.energy.emissions import NO_EMISSIONS, total_emissions
from ecorl.report.energy.evidence import Evidence, Meter, not_in_readings
from ecorl.report.energy.model import Accounting, Cause, EnergyPart, EnergyTotals, Spending
from ecorl.report.energy.rest import rests
from ecorl.report.energy.stages import (
    energy_j,
    gpu_path_devices,
    modelled_devices,
    provenance_order,
    total,
)
from ecorl.units import kwh_from_joules

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


TOGETHER, CARD, WITH_CARD = "together", "simulated card", "with the simulated card"
"""Titles of totals over several provenances, of the card alone, and of all there is."""


def simulated_cards(
    executions: Sequence[ExecutionRow], devices: Sequence[DeviceRow]
) -> frozenset[str]:
    """Find the ids of cards that stand for no hardware, whether or not they were given any work.

    A card counts as simulated when its energy is modelled, or when it answered in a time that is
    not a clock's.

    Args:
        executions: stage executions of the run.
        devices: what the attempts announced of their devices.
    """
    named = {
        d.device_id
        for d in devices
        if d.provenance is Provenance.MODELLED and d.kind is DeviceKind.FPGA
    }
    return frozenset(named - gpu_path_devices(executions)) | modelled_devices(executions)


def spending(evidence: Evidence, accounting: Accounting | None) -> Spending:
    """Add up where the joules went: parts, totals per provenance and together, and what is missing.

    Args:
        evidence: what the ledger holds of the run.
        accounting: factors of the carbon figure by the config; None without one.
    """
    cards = simulated_cards(evidence.executions, evidence.devices)
    parts = [
        replace(p, simulated=not cards.isdisjoint(p.device_ids)) for p in energy_parts(evidence)
    ]
    own = [p for p in parts if not p.simulated]
    beside = [p for p in parts if p.simulated]
    tokens = sum(
        e.result.n_output_tokens
        for e in evidence.executions
        if cause_of(e.result) is Cause.GENERATION and not e.superseded
    )
    columns = _columns(own, tokens, at_least=bool(evidence.lost))
    card = _totals(CARD, beside) if _known(beside) else None
    both = _totals(WITH_CARD, parts) if columns and card else None
    if both is not None and evidence.lost:
        both = replace(both, at_least=True)
    n_all = len(evidence.executions)
    n_known = sum(energy_j(e.result) is not None for e in evidence.executions)
    return Spending(
        parts=tuple(parts),
        columns=tuple(columns),
        card=card,
        with_card=both and replace(both, tokens_per_joule=_tokens_per_joule(both, tokens)),
        n_output_tokens=tokens,
        covered_share=n_known / n_all if n_all else None,
        gaps=tuple(dict.fromkeys(p.gap for p in parts if p.gap)),
        accounting=accounting,
    )


def _columns(parts: Sequence[EnergyPart], tokens: int, *, at_least: bool) -> list[EnergyTotals]:
    """Sum up what the machines spent: a column per provenance, then all of several together.

    Args:
        parts: of the machines.
        tokens: output tokens of generation.
        at_least: whether the record of a machine is missing from all that is known.
    """
    found = {p.provenance for p in _known(parts) if p.provenance is not None}
    columns = [
        _totals(str(p), [x for x in parts if x.provenance is p])
        for p in sorted(found, key=provenance_order)
    ]
    if len(columns) > 1:
        columns.append(_totals(TOGETHER, parts))
    if at_least:
        # Whose provenance the missing joules would have is as unknown as they are.
        columns = [replace(c, at_least=True) for c in columns]
    if columns:
        # A column of one provenance among several lacks joules that the tokens took.
        columns[-1] = replace(
            columns[-1],
            at_least=at_least or any(p.at_least for p in parts),
            tokens_per_joule=_tokens_per_joule(columns[-1], tokens),
        )
    return columns


def _tokens_per_joule(column: EnergyTotals, tokens: int) -> float | None:
    has_generation = Cause.GENERATION in column.by_cause
    return tokens / column.energy_j if has_generation and column.energy_j > 0 and tokens else None


def _known(parts: Sequence[EnergyPart]) -> list[EnergyPart]:
    return [p for p in parts if p.energy_j is not None and p.provenance is not None]


def _totals(title: str, parts: Sequence[EnergyPart]) -> EnergyTotals:
    known = _known(parts)
    provenances = {p.provenance for p in known if p.provenance is not None}
    by_cause = {
        cause: math.fsum(p.energy_j or 0.0 for p in known if p.cause == cause)
        for cause in CAUSES
        if any(p.cause == cause for p in known)
    }
    energy = math.fsum(by_cause.values())
    emitted = total_emissions(p.emissions for p in known)
    average, marginal = emitted.average, emitted.marginal
    return EnergyTotals(
        title=title,
        provenance=weakest(*provenances),
        n_provenances=len(provenances),
        energy_j=energy,
        useful_j=math.fsum(v for c, v in by_cause.items() if c in USEFUL_CAUSES),
        wasted_j=math.fsum(v for c, v in by_cause.items() if c in WASTED_CAUSES),
        other_j=math.fsum(v for c, v in by_cause.items() if c in OTHER_CAUSES),
        paused_j=math.fsum(v for c, v in by_cause.items() if c in PAUSE_CAUSES),
        by_cause=by_cause,
        energy_kwh=kwh_from_joules(energy),
        carbon_g=None if average is None else average.carbon_g,
        carbon_unknown_j=energy if average is None else average.unknown_j,
        marginal_g=None if marginal is None else marginal.carbon_g,
        marginal_unknown_j=None if marginal is None else marginal.unknown_j,
        tokens_per_joule=None,
        at_least=any(p.at_least for p in parts),
    )
