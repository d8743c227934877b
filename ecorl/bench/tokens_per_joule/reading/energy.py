"""Energy of a run in some windows of its time: the machine's, and a simulated card's apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ecorl.bench.tokens_per_joule.reading.model import CardEnergy, MachineEnergy
from ecorl.config import AccountingConfig
from ecorl.ledger import LedgerReader
from ecorl.report.energy.card import card_timeline
from ecorl.report.energy.emissions import IntensityKind
from ecorl.report.energy.evidence import Evidence, working
from ecorl.report.energy.footprint import footprint
from ecorl.report.energy.model import CardTimeline, Cause, Spending
from ecorl.report.energy.spans import length
from ecorl.report.energy.stages import gpu_path_devices, present
from ecorl.report.energy.totals import simulated_cards, spending
from ecorl.report.energy.windows.evidence import window_evidence
from ecorl.report.energy.windows.seconds import Window


@dataclass(frozen=True, slots=True)
class WindowEnergy:
    """What was drawn in some windows.

    Attributes:
        evidence: what the record holds of them.
        spent: the energy by device, cause and provenance.
        time_s: their length, s.
        machine: None where no energy of it is known.
        card: None where no card was simulated.
    """

    evidence: Evidence
    spent: Spending
    time_s: float
    machine: MachineEnergy | None
    card: CardEnergy | None


def window_energy(
    reader: LedgerReader, windows: Sequence[Window], accounting: AccountingConfig | None
) -> WindowEnergy:
    """Account what was drawn in some windows of a run.

    Args:
        reader: the run's ledger.
        windows: of its time.
        accounting: factors of the carbon figure; None: no grams are asked for.
    """
    evidence = window_evidence(reader, windows, accounting)
    spent = spending(evidence, None)
    machine = _machine(evidence, spent, with_carbon=accounting is not None)
    return WindowEnergy(
        evidence=evidence,
        spent=spent,
        time_s=length(evidence.spans.values()),
        machine=machine,
        card=_card(evidence, spent, machine),
    )


def _machine(evidence: Evidence, spent: Spending, *, with_carbon: bool) -> MachineEnergy | None:
    if not spent.columns:
        return None
    column = spent.columns[-1]
    grams, provenance = None, None
    if with_carbon:
        found = footprint(evidence, spent).total(IntensityKind.AVERAGE)
        if found is not None:
            grams, provenance = found.emitted.carbon_g, found.provenance
    return MachineEnergy(
        provenance=column.provenance,
        energy_j=column.energy_j,
        useful_j=column.useful_j,
        wasted_j=column.wasted_j,
        beside_j=column.other_j,
        by_cause={str(cause): value for cause, value in column.by_cause.items()},
        at_least=column.at_least,
        carbon_g=grams,
        carbon_provenance=None if grams is None else provenance,
    )


def _card(evidence: Evidence, spent: Spending, machine: MachineEnergy | None) -> CardEnergy | None:
    """What a simulated card would have drawn, in the time that the run would have taken with it."""
    cards = simulated_cards(evidence.executions, evidence.devices)
    if not cards:
        return None
    timeline = card_timeline(evidence)
    if timeline is None:
        return _unused_card(evidence, cards, machine)
    drawn = [
        part.energy_j for part in spent.parts if part.simulated and part.cause is not Cause.IDLE
    ]
    known = present(drawn)
    return CardEnergy(
        work_j=math.fsum(known) if len(known) == len(drawn) else None,
        idle_j=timeline.idle_j,
        time_s=timeline.modelled_run_time_s,
        waits_s=timeline.modelled_waits_s,
        measured_waits_s=timeline.waits_s,
        machine_j=_machine_without_simulation(machine, timeline),
    )


def _machine_without_simulation(
    machine: MachineEnergy | None, timeline: CardTimeline
) -> float | None:
    """What the machine would have drawn: its waits last as long as the card's answers would have.

    What it drew in its waits goes with their length, be it shorter or longer. Where it computed the
    simulation beside work of its own, and the instrument reads all of the processor, that stays in
    the figure.
    """
    if machine is None:
        return None
    waited_j = machine.by_cause.get(str(Cause.BARRIER_WAIT), 0.0)
    left = timeline.modelled_waits_s / timeline.waits_s if timeline.waits_s > 0 else 1.0
    return machine.energy_j - waited_j * (1.0 - left)


def _unused_card(
    evidence: Evidence, cards: frozenset[str], machine: MachineEnergy | None
) -> CardEnergy:
    """A card that was there and got no work: it idles for all of the time."""
    idle_w = {d.device_id: d.idle_w for d in evidence.devices}
    known = present(idle_w.get(card) for card in cards)
    time_s = length(evidence.spans.values())
    return CardEnergy(
        work_j=0.0,
        idle_j=math.fsum(known) * time_s if len(known) == len(cards) else None,
        time_s=time_s,
        waits_s=0.0,
        measured_waits_s=0.0,
        machine_j=None if machine is None else machine.energy_j,
    )


def busy_s(evidence: Evidence) -> float:
    """Time in which the framework's own devices ran a stage, s; overlaps count once.

    Args:
        evidence: of the windows.
    """
    own = gpu_path_devices(evidence.executions)
    rows = [e for e in evidence.executions if not own.isdisjoint(e.result.device_ids)]
    return math.fsum(length(spans) for spans in working(rows).values())
