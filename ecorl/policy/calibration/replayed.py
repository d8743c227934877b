"""A recorded run as a scenario that goes through the run's own batches.

    replayed(run_dir)  ->  Scenario

Costs are those of the run's calibration; lengths and times come batch by batch from its ledger
(`ecorl.sim.replay`). What the run never did is not replayed: where a stage did not run on a path,
its cost is that of the table times what the last batch that ran it there measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ecorl.policy.calibration.calibrate import calibrated
from ecorl.policy.calibration.calibration import Calibration
from ecorl.policy.calibration.costs import RecordedJob
from ecorl.policy.calibration.fit import FAR, nearby_median
from ecorl.policy.calibration.readings import Side, StageReading, read_run
from ecorl.records import Action, Stage, weakest
from ecorl.scheduler.iteration_costs import at_ratio
from ecorl.scheduler.tables import COLUMN, Float64
from ecorl.sim.factors import CARD_PLACE, CARD_POWER, GPU_PLACE, N_POWERS, N_TIMES
from ecorl.sim.lengths import CompletionLengths, usual_lengths
from ecorl.sim.replay import Replay
from ecorl.sim.scenario import Scenario


def replayed(run_dir: Path, **changes: Any) -> Scenario:
    """Make a scenario that replays a run.

    Args:
        run_dir: the run folder, or the ledger in it; the scenario has the folder's name.
        changes: fields of `Scenario` to set otherwise, e.g. ``n_iterations``.

    Raises:
        RunError: when the run cannot be calibrated; one line that says what is missing.
        MissingToolError: without SciPy.
    """
    job = RecordedJob.of(read_run(Path(run_dir)))
    made = calibrated(job)
    name = job.run.path.resolve().parent.name
    return made.scenario(**{"name": name, "replay": replay_of(job, made), **changes})


def replay_of(job: RecordedJob, made: Calibration) -> Replay:
    """Set what a run measured against the table that was fitted to it.

    Args:
        job: the recorded run.
        made: its calibration.
    """
    lengths = _lengths(job, made)
    ratios = _Ratios(job, made, lengths)
    time, power = np.full((N_TIMES, ratios.n), np.nan), np.full((N_POWERS, ratios.n), np.nan)
    used: list[StageReading] = []
    for stage in job.stages:
        found = job.readings(stage, "gpu")
        used += found
        time[GPU_PLACE[stage]] = ratios.times(stage, "gpu", found)
        power[GPU_PLACE[stage]] = ratios.powers(stage, found)
    on_cards = [r for stage in job.offloaded for r in job.readings(stage, "card")]
    for stage in job.offloaded:
        found = job.readings(stage, "card")
        time[CARD_PLACE[stage]] = ratios.times(stage, "card", found)
    power[CARD_POWER] = ratios.card_powers(on_cards)
    n_left_out = sum(_leave_out(row) for row in (*time, *power))
    return Replay(
        run_id=job.run.run_id,
        length=lengths.mean,
        longest=lengths.longest,
        tail=np.stack(lengths.tail),
        time=time,
        power=power,
        readings=weakest(*(r.provenance for r in (*used, *on_cards))),
        n_left_out=n_left_out,
    )


def _lengths(job: RecordedJob, made: Calibration) -> CompletionLengths:
    """The batches' lengths; of what the ledger does not tell, those of the usual mix."""
    usual = usual_lengths(job.length, np.array(made.lengths.mix), made.max_length)
    known = np.isfinite(job.longest)
    longest = np.where(known, np.maximum(job.longest, job.length), usual.longest)
    return CompletionLengths(job.length, np.maximum(longest, job.length), usual.tail)


class _Ratios:
    """Measured times and powers of a run's batches over those of its table."""

    def __init__(self, job: RecordedJob, made: Calibration, lengths: CompletionLengths) -> None:
        self.n, self._slow = len(job.length), made.slow
        self._table, self._row = made.table, made.table.at(job.length)
        self._stretch = lengths.longest / lengths.mean

    def times(self, stage: Stage, side: Side, found: list[StageReading]) -> Float64:
        """Factors on the times of a stage on one side, ``[n] float64``; NaN without a reading."""
        table_s = self._column(f"{stage}_card_s") if side == "card" else self._of(stage, "s")
        made = np.full(self.n, np.nan)
        for r in found:
            # The simulator slows the cards beside the GPUs by itself.
            beside = side == "card" and r.action is Action.CONCURRENT
            alone_s = r.time_s / (self._slow if beside else 1.0)
            made[r.rollout] = _over(alone_s, table_s[r.rollout])
        return made

    def powers(self, stage: Stage, found: list[StageReading]) -> Float64:
        """Factors on the mean power of the GPUs in a stage, ``[n] float64``."""
        table_s, table_j = self._of(stage, "s"), self._of(stage, "j")
        made = np.full(self.n, np.nan)
        for r in found:
            k = r.rollout
            if r.energy_j is not None and table_s[k] > 0:
                made[k] = _over(r.energy_j / r.time_s, table_j[k] / table_s[k])
        return made

    def card_powers(self, found: list[StageReading]) -> Float64:
        """Factors on the mean power of the busy cards, over all stages of a batch."""
        joules, seconds = np.zeros(self.n), np.zeros(self.n)
        for r in found:
            if r.energy_j is not None:
                joules[r.rollout] += r.energy_j
                seconds[r.rollout] += r.time_s
        made = np.full(self.n, np.nan)
        for k in np.flatnonzero(seconds > 0):
            made[k] = _over(joules[k] / seconds[k], self._table.card_active_w)
        return made

    def _of(self, stage: Stage, unit: str) -> Float64:
        """Time or energy of a stage on the GPUs by the table."""
        if stage is not Stage.GENERATION:
            return self._column(f"{stage}_{unit}")
        short, long = (self._column(f"generation_{row}_{unit}") for row in ("short", "long"))
        return np.asarray(at_ratio(short, long, self._stretch))

    def _column(self, name: str) -> Float64:
        return np.asarray(self._row[:, COLUMN[name]])


def _over(measured: float, table: float) -> float:
    """The ratio; NaN where the table has nothing to compare with."""
    return measured / table if table > 0 else float("nan")


def _leave_out(factors: Float64) -> int:
    """Forget factors that are no readings of the stage, in place; how many there were.

    By the rule of the fits (`ecorl.policy.calibration.fit.FAR`), but among the batches before and
    after: a first call that compiles is left out, a tenant who stays is not.
    """
    seen = np.flatnonzero(np.isfinite(factors))
    if not len(seen):
        return 0
    ratio = factors[seen] / nearby_median(seen.astype(np.float64), factors[seen])
    alien = seen[(ratio >= FAR) | (ratio <= 1.0 / FAR)]
    factors[alien] = np.nan
    return len(alien)
