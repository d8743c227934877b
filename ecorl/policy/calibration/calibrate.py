"""The ``fitted`` calibration: a simulator of the job that a run's ledger records.

    calibrate(run_dir)  ->  Calibration  ->  Calibration.scenario()

From the ledger come the time and energy of each stage over the length of its completions, the
powers, what overlapping costs, how lengths vary, and other jobs' load. What it does not tell is
assumed, and the notes say so. Costs are those of the batches that were seen; beyond their lengths
they are extrapolated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ecorl.policy.calibration import queue
from ecorl.policy.calibration.calibration import Calibration, Reach
from ecorl.policy.calibration.costs import (
    Costs,
    Overlap,
    RecordedJob,
    check_readings,
    fit_costs,
    fit_overlap,
    idle_w,
    on_card,
)
from ecorl.policy.calibration.fit import Lengths, fit_lengths
from ecorl.policy.calibration.readings import RunReadings, read_run
from ecorl.records import Abilities, Action, Provenance, Stage, weakest
from ecorl.scheduler.iteration_costs import at_ratio
from ecorl.scheduler.tables import COLUMN, CostTable, length_grid
from ecorl.sim.scenario import Limits
from ecorl.sim.tasks import nominal_length

__all__ = ["Calibration", "calibrate", "calibrated"]

_REACH = 3.0
"""Longest mean completion of the table over the longest that was seen. Assumed: a policy should
know of lengths that drift beyond the run's, and a line does not hold for ever."""

_SAME_LENGTH = 1.2
"""Longest mean over the shortest below which the run tells nothing of costs over the length.
Assumed: with readings of a few percent, a line's slope is then a guess."""

_LONGEST_RATIO = 2.0
"""Longest row over the mean at which an iteration's length is taken, as in `ecorl.sim.trace`."""


def calibrate(run_dir: Path) -> Calibration:
    """Fit the simulator to a run.

    Args:
        run_dir: the run folder, or the ledger in it.

    Raises:
        RunError: when there is no readable ledger, or it lacks readings or idle powers; one line
            that says what is missing.
        MissingToolError: without SciPy.
    """
    return calibrated(RecordedJob.of(read_run(Path(run_dir))))


def calibrated(job: RecordedJob) -> Calibration:
    """Fit the simulator to a run that has been read; as `calibrate`.

    Args:
        job: the recorded run.
    """
    run = job.run
    check_readings(job)
    idle = {"gpu_idle_w": idle_w(run, "gpu"), "card_idle_w": idle_w(run, "card")}
    costs = fit_costs(job)
    overlap = fit_overlap(costs)
    max_length, limit_notes = _max_length(job)
    lengths = _lengths(job, max_length)
    table = _table(costs, overlap, idle, max_length)
    others, others_notes = _others(costs, table, lengths, max_length)
    notes = (*_notes(job), *limit_notes, *overlap.notes, *others_notes)
    return Calibration(
        run_id=run.run_id,
        table=replace(table, notes=notes),
        algorithm=job.algorithm,
        with_reference=job.with_reference,
        n_rows=_usual_rows(job),
        prompt_length=float(job.prompt.mean()),
        max_length=max_length,
        gpu=run.profiles["gpu"],
        n_gpus=len(run.gpu_ids),
        card=run.profiles["card"],
        n_cards=len(run.card_ids),
        lengths=lengths,
        others=others,
        slow=costs.slow,
        abilities=_abilities(job),
        limits=_limits(run.head),
        counts={name: f.n for name, f in costs.fits.items()} | dict(overlap.counts),
        spreads={name: f.spread for name, f in costs.fits.items()},
        reach=_reach(job),
    )


def _reach(job: RecordedJob) -> Reach:
    return Reach(
        n_batches=len(job.run.rollouts),
        rows_least=int(job.n_rows.min()),
        rows_most=int(job.n_rows.max()),
        prompt_least=float(job.prompt.min()),
        prompt_most=float(job.prompt.max()),
        completion_least=float(job.length.min()),
        completion_most=float(job.length.max()),
        models=job.run.models,
    )


def _usual_rows(job: RecordedJob) -> int:
    return round(float(np.median(job.n_rows)))


def _table(
    costs: Costs, overlap: Overlap, idle: Mapping[str, float], max_length: float
) -> CostTable:
    job = costs.job
    shortest, longest = float(job.length.min()), float(job.length.max())
    grid = length_grid(0.5 * shortest, max(min(max_length, _REACH * longest), 1.1 * longest))
    return CostTable(
        lengths=grid,
        values=costs.columns(grid, _usual_rows(job), float(job.prompt.mean())),
        gpu_idle_w=idle["gpu_idle_w"],
        card_active_w=max(costs.card_active_w, idle["card_idle_w"]),
        card_idle_w=idle["card_idle_w"],
        forward_share=overlap.forward_share,
        early_share=overlap.early_share,
        swap_share=overlap.swap_share,
        contention=overlap.contention,
        card_usable=on_card(costs),
        provenance=_provenance(job.run),
    )


def _provenance(run: RunReadings) -> Provenance:
    """The weakest of the readings and of the instruments behind the idle powers."""
    devices = [run.devices[i].provenance for i in (*run.gpu_ids, *run.card_ids)]
    return weakest(*(r.provenance for r in run.readings), *devices)


def _max_length(job: RecordedJob) -> tuple[float, tuple[str, ...]]:
    """The limit of a completion, tokens, and a note where the run does not tell it."""
    told = _number(job.run.head, "max_completion_length")
    longest = float(np.nanmax([*job.length, *job.longest]))
    if told is not None and told > 0:
        return max(told, longest), ()
    limit = longest if job.knows_longest else 2.0 * longest
    return limit, (f"the limit of a completion is not in the ledger: assumed {limit:.0f} tokens",)


def _lengths(job: RecordedJob, max_length: float) -> Lengths:
    shares = [r.shares for r in job.run.rollouts if r.shares is not None]
    known = len(shares) == len(job.length)
    at = np.arange(len(job.length), dtype=np.float64)
    return fit_lengths(job.length, np.array(shares) if known else None, at, max_length)


def _abilities(job: RecordedJob) -> Abilities:
    """What the run did at least once."""

    def did(stage: Stage) -> bool:
        return bool(job.run.of(stage, "gpu", Action.CONCURRENT))

    return Abilities(
        stream=did(Stage.GENERATION),
        early_forward=did(Stage.ACTOR_TRAIN),
        defer_critic=did(Stage.CRITIC_TRAIN),
        offload_critic=Stage.CRITIC in job.offloaded,
    )


def _limits(head: Mapping[str, Any]) -> Limits:
    known = {name: _number(head, name) for name in ("q_max", "l_max", "energy_margin")}
    return Limits(**{name: value for name, value in known.items() if value is not None})


def _number(head: Mapping[str, Any], name: str) -> float | None:
    value = head.get(name)
    return float(value) if isinstance(value, int | float) else None


def _notes(job: RecordedJob) -> tuple[str, ...]:
    """What was seen, and what the ledger lacks."""
    run, shortest, longest = job.run, float(job.length.min()), float(job.length.max())
    notes = [f"{len(run.unsound)} of {len(run.rollouts)} batches have readings that were left out"]
    if longest < _SAME_LENGTH * shortest:
        notes.append("the lengths hardly vary: costs at other lengths are guesses")
    if np.ptp(job.n_rows) > 0:
        notes.append(f"the batches' rows vary: the table is for {_usual_rows(job)}")
    if not job.knows_longest:
        notes.append("the longest completions are not in the ledger: generation goes by tokens")
    if any(r.shares is None for r in run.rollouts):
        notes.append("the prompts' tasks are not in the ledger: the usual mix is assumed")
    return tuple(notes)


def _others(
    costs: Costs, table: CostTable, lengths: Lengths, max_length: float
) -> tuple[queue.OtherJobs, tuple[str, ...]]:
    """Other jobs' load from the queues at the first stage after generation."""
    record = queue.queue_record(costs, _limits(costs.job.run.head).q_max)
    if record is None:
        return queue.NO_OTHER_JOBS, ("other jobs' load does not show in the ledger: assumed none",)
    nominal = nominal_length(np.array(lengths.mix), lengths.length_scale, max_length)
    row = table.at(nominal)
    generation = (row[COLUMN["generation_short_s"]], row[COLUMN["generation_long_s"]])
    rest = [COLUMN[f"{s}_s"] for s in costs.job.stages if s is not Stage.GENERATION]
    iteration_s = float(at_ratio(*generation, _LONGEST_RATIO)) + float(row[rest].sum())
    return queue.fit_other_jobs(record, iteration_s), ()
