"""Held-out quality along a training, and what the training up to each evaluation took.

Evaluations themselves are in no figure: neither their time nor their joules.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ecorl.bench.tokens_per_joule.reading.energy import window_energy
from ecorl.bench.tokens_per_joule.reading.model import QualityPoint, RunFigures
from ecorl.ledger import EvaluationRow, ExecutionRow, LedgerReader
from ecorl.records import EVALUATION_ROLE, EvaluationPhase, step_of_phase
from ecorl.report.energy.stages import present
from ecorl.report.energy.windows.steps import step_windows
from ecorl.report.training import is_correctness, is_reward


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
