"""Optimizer steps of the training stage, put together from their executions."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ecorl.controllers.planning.executions import Iteration, WholeExecution
from ecorl.records import Provenance, Stage, StageResult, weakest
from ecorl.report.energy.stages import energy_j, present, total
from ecorl.report.training_stage.model import (
    FixedStage,
    GearMeasurements,
    GearRow,
    GearShifts,
    WidthChanges,
    is_simulated,
)

STAGES = (Stage.ACTOR_TRAIN, Stage.CRITIC_TRAIN)
"""The stages that train."""


@dataclass(frozen=True, slots=True)
class TrainedStep:
    """One optimizer step of one stage, with all its micro-batches.

    Attributes:
        attempt, iteration: in which it was made.
        start_s, end_s: monotonic time of the head, s.
        gear: in which it was computed in the end; ``width`` likewise.
        time_s: of all its executions, s; None where one of them has none. ``energy_j`` likewise.
        energy_provenance: None without an energy.
        is_redone: whether it overflowed and was computed anew.
    """

    attempt: int
    iteration: int
    stage: Stage
    start_s: float
    end_s: float
    gear: str | None
    width: int | None
    n_executions: int
    n_tokens: int
    time_s: float | None
    time_provenance: Provenance
    energy_j: float | None
    energy_provenance: Provenance | None
    is_redone: bool


def trained_steps(
    wholes: Sequence[WholeExecution], redone: Collection[Iteration]
) -> list[TrainedStep]:
    """Put executions together to steps, in the order of time.

    Args:
        wholes: executions that train, without measurements and superseded ones.
        redone: iterations whose step was computed anew.
    """
    by_step: dict[tuple[Iteration, Stage], list[StageResult]] = defaultdict(list)
    for whole in wholes:
        by_step[whole.iteration, whole.row.result.stage].append(whole.row.result)
    steps = [
        _step(iteration, results, is_redone=iteration in redone)
        for (iteration, _), results in by_step.items()
    ]
    return sorted(steps, key=lambda s: (s.attempt, s.start_s))


def _step(iteration: Iteration, results: Sequence[StageResult], *, is_redone: bool) -> TrainedStep:
    last = results[-1]
    times_s, joules = present(r.time_s for r in results), present(map(energy_j, results))
    energies = [r.energy for r in results if r.energy is not None]
    has_energy = len(joules) == len(results)
    return TrainedStep(
        attempt=iteration[0],
        iteration=iteration[1],
        stage=last.stage,
        start_s=min(r.t_start_s for r in results),
        end_s=max(r.t_end_s for r in results),
        gear=last.gear,
        width=last.width,
        n_executions=len(results),
        n_tokens=sum(r.n_tokens for r in results),
        time_s=math.fsum(times_s) if len(times_s) == len(results) else None,
        time_provenance=weakest(*(r.time_provenance for r in results)),
        energy_j=math.fsum(joules) if has_energy else None,
        energy_provenance=weakest(*(e.provenance for e in energies)) if has_energy else None,
        is_redone=is_redone,
    )


# ---------------------------------------------------------------- by gear and width


def gear_rows(steps: Sequence[TrainedStep]) -> tuple[GearRow, ...]:
    """Make a row per stage, gear, width and pair of provenances.

    Steps that only lack an energy join the row of their gear and width where that is the only one,
    and are counted there as steps without energy.

    Args:
        steps: of the run.
    """
    tokens: dict[Stage, int] = defaultdict(int)
    places: dict[tuple[Stage, str | None, int | None, Provenance], list[TrainedStep]]
    places = defaultdict(list)
    for step in steps:
        tokens[step.stage] += step.n_tokens
        places[step.stage, step.gear, step.width, step.time_provenance].append(step)
    rows = []
    for own in places.values():
        by_energy: dict[Provenance | None, list[TrainedStep]] = defaultdict(list)
        for step in own:
            by_energy[step.energy_provenance].append(step)
        if len(by_energy) == 2 and None in by_energy:
            (provenance,) = (p for p in by_energy if p is not None)
            by_energy = {provenance: own}
        rows += [_row(part, p, tokens[own[0].stage]) for p, part in by_energy.items()]
    return tuple(sorted(rows, key=_row_order))


def _row(steps: Sequence[TrainedStep], energy: Provenance | None, all_tokens: int) -> GearRow:
    first = steps[0]
    plain = [s for s in steps if not s.is_redone and s.n_tokens]
    priced = [s for s in plain if s.energy_j is not None]
    paced = [s for s in plain if s.time_s]
    n_tokens = sum(s.n_tokens for s in steps)
    return GearRow(
        stage=first.stage,
        gear=first.gear,
        simulated=is_simulated(first.gear),
        width=first.width,
        time_provenance=first.time_provenance,
        energy_provenance=energy,
        n_steps=len(steps),
        n_executions=sum(s.n_executions for s in steps),
        n_tokens=n_tokens,
        token_share=n_tokens / all_tokens if all_tokens else None,
        n_redone=sum(s.is_redone for s in steps),
        n_timed=sum(s.time_s is not None for s in steps),
        time_s=total(s.time_s for s in steps),
        n_with_energy=sum(s.energy_j is not None for s in steps),
        energy_j=total(s.energy_j for s in steps),
        j_per_token=_over(total(s.energy_j for s in priced), sum(s.n_tokens for s in priced)),
        tokens_per_s=_over(sum(s.n_tokens for s in paced), total(s.time_s for s in paced)),
    )


def _over(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def _row_order(row: GearRow) -> tuple[int, str, int]:
    return STAGES.index(row.stage), row.gear or "", row.width or 0


# ---------------------------------------------------------------- changes


def gear_shifts(steps: Sequence[TrainedStep]) -> GearShifts:
    """Find the shifts between steps of one attempt, and what the first step after them took.

    The first step of an attempt is slower than others whatever its gear: it is none.

    Args:
        steps: of one stage, in the order of time.
    """
    first, changed = [], list(steps[:1])
    for before, step in itertools.pairwise(steps):
        is_begin = before.attempt != step.attempt
        if not is_begin and before.gear != step.gear:
            first.append(step)
        if is_begin or before.gear != step.gear:
            changed.append(step)
    slow = {(s.attempt, s.iteration) for s in changed}
    usual: dict[tuple[str | None, int | None], list[float]] = defaultdict(list)
    for step in steps:
        if _is_clocked(step) and (step.attempt, step.iteration) not in slow:
            usual[step.gear, step.width] += present([step.time_s])
    medians_s = {key: statistics.median(times_s) for key, times_s in usual.items() if times_s}
    extra_s = [
        step.time_s - medians_s[step.gear, step.width]
        for step in first
        if _is_clocked(step) and step.time_s is not None and (step.gear, step.width) in medians_s
    ]
    return GearShifts(
        n=len(first),
        n_timed=len(extra_s),
        median_extra_s=statistics.median(extra_s) if extra_s else None,
        most_extra_s=max(extra_s, default=None),
    )


def _is_clocked(step: TrainedStep) -> bool:
    is_measured = step.time_provenance is Provenance.MEASURED
    return is_measured and step.time_s is not None and not step.is_redone


def n_width_changes(steps: Sequence[TrainedStep]) -> int:
    """How often the number of workers changed, over a resume too: that is how some change it.

    Args:
        steps: of one stage, in the order of time.
    """
    known = [s.width for s in steps if s.width is not None]
    return sum(a != b for a, b in itertools.pairwise(known))


LEAST_STEPS = 2
"""Steps in the first gear and width without which it has no price, the first ones left out.
Invented: as many as a run times of each gear before it plans. Single steps on a busy machine differ
by a third: where their number is told, a reader can judge."""


def fixed_stage(
    steps: Sequence[TrainedStep], measured: GearMeasurements | None, widths: WidthChanges
) -> FixedStage | None:
    """Hold the steps of one stage against the first gear and width.

    Args:
        steps: of one stage, in the order of time.
        measured: what measuring the gears took; None where nothing was measured.
        widths: changes of the number of workers.

    Returns:
        None where all steps were made in one gear and width.
    """
    if len({(s.gear, s.width) for s in steps}) < 2:
        return None
    first = steps[0]
    own = _priced_by(steps)
    known = [s for s in steps if s.energy_j is not None and s.n_tokens]
    n_own_tokens = sum(s.n_tokens for s in own)
    price = None
    if len(own) >= LEAST_STEPS and n_own_tokens:
        price = math.fsum(s.energy_j or 0.0 for s in own) / n_own_tokens
    measuring_j, is_whole = _measuring_j(measured)
    found = [s.energy_provenance for s in known if s.energy_provenance is not None]
    if measured is not None and measured.energy_provenance is not None:
        found.append(measured.energy_provenance)
    return FixedStage(
        gear=first.gear,
        width=first.width,
        n_steps=len(own),
        j_per_token=price,
        drew_j=math.fsum(s.energy_j or 0.0 for s in known) if known else None,
        would_j=None if price is None or not known else price * sum(s.n_tokens for s in known),
        measuring_j=measuring_j,
        n_left_out=len(steps) - len(known),
        n_changes=widths.n,
        n_changes_timed=widths.n_timed,
        changes_s=widths.total_s,
        # What left something out on the side of what was drawn, and nothing on the other.
        at_most=widths.n > 0 or not is_whole,
        # Steps that were never made in that gear have no energy but a modelled one.
        provenance=weakest(*found, Provenance.MODELLED) if found else None,
    )


def _priced_by(steps: Sequence[TrainedStep]) -> list[TrainedStep]:
    """The steps in the first gear and width that say what a step in them takes.

    The first step of each attempt warms things up, and one that was redone was computed twice. Of
    several provenances the most frequent one speaks.
    """
    attempts: set[int] = set()
    found = []
    for step in steps:
        is_first = step.attempt not in attempts
        attempts.add(step.attempt)
        is_own = (step.gear, step.width) == (steps[0].gear, steps[0].width)
        if is_own and not is_first and not step.is_redone and step.energy_j and step.n_tokens:
            found.append(step)
    counts = Counter(step.energy_provenance for step in found)
    most = max(counts, key=lambda provenance: counts[provenance], default=None)
    return [step for step in found if step.energy_provenance is most]


def _measuring_j(measured: GearMeasurements | None) -> tuple[float | None, bool]:
    """What measuring drew beside the steps, J, and whether all of it is known.

    That within a step is a part of the step's.
    """
    if measured is None or measured.n_inside >= measured.n:
        return 0.0, True
    return measured.energy_j, measured.n_with_energy >= measured.n - measured.n_inside
