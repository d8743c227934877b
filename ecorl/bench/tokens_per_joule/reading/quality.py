"""Held-out quality along a training, and what the training up to each evaluation took.

Evaluations themselves are in no figure: neither their time nor their joules.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ecorl.bench.tokens_per_joule.reading.model import (
    CardEnergy,
    MachineEnergy,
    QualityPoint,
    RunFigures,
)
from ecorl.config import AccountingConfig
from ecorl.ledger import EvaluationRow, ExecutionRow, LedgerReader
from ecorl.records import EVALUATION_ROLE, EvaluationPhase, step_of_phase
from ecorl.report.energy.card import card_timeline
from ecorl.report.energy.causes import simulated_cards, spending
from ecorl.report.energy.emissions import IntensityKind
from ecorl.report.energy.evidence import Evidence, working
from ecorl.report.energy.footprint import footprint
from ecorl.report.energy.model import CardTimeline, Cause, Spending
from ecorl.report.energy.readings import length
from ecorl.report.energy.stages import gpu_path_devices, present
from ecorl.report.energy.windows import Window, step_windows, window_evidence
from ecorl.report.training import is_correctness, is_reward


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


def quality_points(
    reader: LedgerReader, n_steps: int, end_s: float | None = None
) -> tuple[QualityPoint, ...]:
    """Read the held-out evaluations of a run, in the order of steps.

    Args:
        reader: the run's ledger.
        n_steps: of the training, the warm-up among them.
        end_s: when training ended, monotonic s, where the record has no row of the evaluation that
            came behind it; None where it has.
    """
    by_step: dict[int, list[EvaluationRow]] = {}
    for row in reader.evaluations():
        step = _step_of(row.phase, n_steps)
        if step is not None:
            by_step.setdefault(step, []).append(row)
    rows = [row for row in reader.executions() if row.result.role == EVALUATION_ROLE]
    points = (_point(reader, step, by_step[step], rows, end_s) for step in sorted(by_step))
    return tuple(points)


def _step_of(phase: str, n_steps: int) -> int | None:
    if phase == EvaluationPhase.BEFORE:
        return 0
    return n_steps if phase == EvaluationPhase.AFTER else step_of_phase(phase)


def _point(
    reader: LedgerReader,
    step: int,
    found: Sequence[EvaluationRow],
    evaluations: Sequence[ExecutionRow],
    end_s: float | None,
) -> QualityPoint:
    reward, correct = (_mean(found, is_it) for is_it in (is_reward, is_correctness))
    if step == 0:
        return QualityPoint(0, reward, correct, 0.0, 0.0, None)
    # Values are recorded once the evaluation is over, whose row says when it began.
    recorded_s = min(row.t_s for row in found)
    before = [e.result.t_start_s for e in evaluations if e.result.t_end_s <= recorded_s]
    until_s = max(before, default=recorded_s)
    until_s = until_s if end_s is None else min(until_s, end_s)
    drawn = window_energy(reader, step_windows(reader, until_s=until_s), None)
    machine, card = drawn.machine, drawn.card
    return QualityPoint(
        step=step,
        reward=reward,
        correct=correct,
        time_s=drawn.time_s,
        energy_j=None if machine is None else machine.energy_j,
        provenance=None if machine is None else machine.provenance,
        at_least=machine is not None and machine.at_least,
        with_card_s=None if card is None else card.time_s,
        with_card_j=None if card is None else card.both_j,
    )


def _mean(rows: Iterable[EvaluationRow], is_it: Callable[[str], bool]) -> float | None:
    """Mean over the items of the first evaluation of a kind; None without one."""
    for row in rows:
        values = present(row.values)
        if is_it(row.name) and values:
            return statistics.fmean(values)
    return None


# ---------------------------------------------------------------- targets


@dataclass(frozen=True, slots=True)
class QualityTarget:
    """A held-out quality that the arms are to reach.

    Attributes:
        measure: ``reward`` or ``correct``.
        value: the least mean; None where there is none that all arms reach.
        why: where the value comes from, or why there is none.
    """

    measure: str
    value: float | None
    why: str


def quality_of(point: QualityPoint, measure: str) -> float | None:
    """The mean of a measure at an evaluation."""
    return point.reward if measure == "reward" else point.correct


def common_target(runs: Sequence[RunFigures], measure: str) -> QualityTarget:
    """The highest quality that every run reaches at some evaluation after the first step.

    Args:
        runs: that have figures.
        measure: ``reward`` or ``correct``.
    """
    highest, before = [], []
    for run in runs:
        values = [(p.step, quality_of(p, measure)) for p in run.quality]
        after = [value for step, value in values if step > 0 and value is not None]
        if not after:
            return QualityTarget(measure, None, f"a run has no held-out {measure} after training")
        highest.append(max(after))
        before += [value for step, value in values if step == 0 and value is not None]
    if not highest:
        return QualityTarget(measure, None, "there is no run")
    value = min(highest)
    if before and value <= max(before):
        return QualityTarget(measure, None, "some run never came above where it began")
    return QualityTarget(measure, value, "the highest that every run reached")


def first_reached(run: RunFigures, target: QualityTarget) -> QualityPoint | None:
    """The first evaluation at or above a target; None where it was never reached.

    Nothing is interpolated between evaluations: what lies between them was not seen.

    Args:
        run: with its evaluations.
        target: what is to be reached.
    """
    if target.value is None:
        return None
    for point in run.quality:
        value = quality_of(point, target.measure)
        if value is not None and value >= target.value:
            return point
    return None
