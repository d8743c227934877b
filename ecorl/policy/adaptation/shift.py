"""Detects that a run's workload has shifted from the one that its policy was made for.

Three figures of each batch are watched: the mean row length, the queue of other jobs on the cards,
and the cards' time against the table. The newest third of the batches is held against what the
policy's record says of the workload it was made for, or, where the record says nothing, against
the batches before.

The test: the two means differ by more than `Z_LEVEL` standard errors, and by more than a least
change that matters. Batches follow one another and are alike, so the error of a mean counts
``n (1 - r) / (1 + r)`` batches instead of n, with r the correlation of neighbours. A slow drift can
still pass for a shift; that costs a needless adaptation, whose policy is swapped in only if it is
better in the simulator.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ecorl.policy.calibration.calibrate import calibrate
from ecorl.policy.calibration.calibration import Calibration
from ecorl.policy.calibration.costs import Costs, RecordedJob, check_readings, fit_costs
from ecorl.policy.calibration.fit import MIN_READINGS
from ecorl.policy.calibration.queue import queue_record
from ecorl.policy.calibration.readings import read_run
from ecorl.records import Action
from ecorl.scheduler.tables import COLUMN, Float64
from ecorl.sim.scenario import Limits

WORKLOAD = "workload"
"""Key of a policy's record under which the workload stands that it was made for."""

RECENT = 1.0 / 3.0
"""Share of a run's batches that count as recent. Assumed: a third is long enough for a mean, and
leaves twice as much to hold it against."""

Z_LEVEL = 2.4
"""Standard errors from which means differ: 5 % in all over three figures, two-sided."""

LEAST_CHANGE = {"row_length": 0.15, "other_load": 0.25, "card_time": 0.05}
"""Change below which nothing is worth an adaptation: shares, for `other_load` in batches. Assumed:
smaller ones are within the error of the fits or a usual drift."""

_MEANING = {
    "row_length": "mean row length",
    "other_load": "queue of other jobs on the cards",
    "card_time": "time of the cards against the table",
}


@dataclass(frozen=True, slots=True)
class Level:
    """Mean of a figure over batches.

    Attributes:
        mean: of logarithms for row length (tokens) and card time (over the table's), plain for
            the queue (batches).
        error: its standard error.
        n: batches.
    """

    mean: float
    error: float
    n: int

    @classmethod
    def of(cls, values: Float64) -> Level:
        """Level of values in the order of their batches, ``[n] float64``."""
        n = len(values)
        off = values - values.mean()
        total = float(off @ off)
        alike = float(off[1:] @ off[:-1]) / total if total > 0 else 0.0
        alike = min(max(alike, 0.0), 0.95)
        n_free = max(1.0, n * (1.0 - alike) / (1.0 + alike))
        return cls(float(values.mean()), math.sqrt(total / max(n - 1, 1) / n_free), n)


@dataclass(frozen=True, slots=True)
class Change:
    """One figure, recent against before.

    Attributes:
        name: `row_length`, `other_load` or `card_time`.
        before, recent: tokens; batches in the queue; times the table's.
        amount: change as a share, for `other_load` the difference.
        z: difference of the means in standard errors.
        shifted: whether it counts as a shift.
    """

    name: str
    before: float
    recent: float
    amount: float
    z: float
    shifted: bool

    def __str__(self) -> str:
        unit = {"row_length": " tokens", "other_load": " batches", "card_time": ""}[self.name]
        return f"{_MEANING[self.name]}: {self.before:.3g} -> {self.recent:.3g}{unit}"


@dataclass(frozen=True, slots=True)
class Shift:
    """Figures of a workload that changed, and by how much.

    Attributes:
        changes: every figure that could be compared.
        against: what the recent batches were held against, in words.
    """

    changes: tuple[Change, ...]
    against: str

    @property
    def found(self) -> tuple[Change, ...]:
        """The figures that shifted."""
        return tuple(c for c in self.changes if c.shifted)

    def __bool__(self) -> bool:
        return bool(self.found)

    def __str__(self) -> str:
        if not self:
            return f"no shift against {self.against}"
        return f"shift against {self.against}: " + "; ".join(map(str, self.found))


@dataclass(frozen=True, slots=True)
class RecordedWorkload:
    """Row lengths, queues and card times of a run, batch by batch.

    Attributes:
        calibration: of the run.
        series: by figure: number of each batch, and its value, ``[n]`` each.
        card: each card reading: batch, stage, rows, completion length, whether under a3, time in s.
        n_batches: of the run.
    """

    calibration: Calibration
    series: Mapping[str, tuple[Float64, Float64]]
    card: tuple[tuple[int, str, float, float, bool, float], ...]
    n_batches: int

    @property
    def begins(self) -> int:
        """First recent batch."""
        return self.n_batches - max(MIN_READINGS, round(RECENT * self.n_batches))

    def record(self) -> dict[str, Any]:
        """Plain data for the record of a policy that is made for the recent batches."""
        c = self.calibration
        recent = {name: self.level(name, recent=True) for name in self.series}
        return {
            "run": c.run_id,
            "provenance": str(c.provenance),
            "levels": {name: asdict(level) for name, level in recent.items() if level is not None},
            "n_rows": c.n_rows,
            "slow": c.slow,
            "lengths": c.table.lengths.tolist(),
            "card_s": {
                stage: c.table.values[:, COLUMN[f"{stage}_card_s"]].tolist()
                for stage in sorted({row[1] for row in self.card})
            },
        }

    def level(self, name: str, recent: bool) -> Level | None:
        """Level of the recent batches or of those before; None with too few of them.

        Args:
            name: of the figure in `series`.
            recent: True for the recent batches.
        """
        at, values = self.series.get(name, (np.zeros(0), np.zeros(0)))
        chosen = values[(at >= self.begins) == recent]
        return Level.of(chosen) if len(chosen) >= MIN_READINGS else None

    def card_level(self, made_for: Mapping[str, Any]) -> Level | None:
        """Level of the recent card times against the table of a policy's record."""
        ratios = []
        for k, stage, n_rows, length, beside, time_s in self.card:
            column = made_for["card_s"].get(stage)
            if k < self.begins or column is None:
                continue
            told_s = float(np.interp(length, made_for["lengths"], column))
            told_s *= n_rows / made_for["n_rows"] * (made_for["slow"] if beside else 1.0)
            ratios.append(math.log(time_s / told_s))
        return Level.of(np.array(ratios)) if len(ratios) >= MIN_READINGS else None


def read_workload(run_dir: Path) -> RecordedWorkload:
    """Calibrate a run and read the figures of its batches from the ledger.

    Args:
        run_dir: the run folder, or the ledger in it.

    Raises:
        RunError: as `ecorl.policy.calibration.calibrate.calibrate`.
    """
    calibration = calibrate(run_dir)
    job = RecordedJob.of(read_run(Path(run_dir)))
    check_readings(job)
    costs = fit_costs(job)
    n = len(job.run.rollouts)
    series = {"row_length": (np.arange(n, dtype=np.float64), np.log(job.prompt + job.length))}
    card, ratios = [], []
    for stage in job.offloaded:
        found = job.run.of(stage, "card")
        own_s = costs.at(f"{stage}_card_s", [r.rollout for r in found])
        for r, alone_s in zip(found, own_s, strict=True):
            beside = r.action is Action.CONCURRENT
            k = r.rollout
            card.append(
                (k, str(stage), float(job.n_rows[k]), float(job.length[k]), beside, r.time_s)
            )
            ratios.append((k, math.log(r.time_s / (alone_s * (costs.slow if beside else 1.0)))))
    ordered = np.array(sorted(ratios), dtype=np.float64)
    series["card_time"] = (ordered[:, 0], ordered[:, 1])
    queue = _queue(costs, calibration.limits)
    if queue is not None:
        series["other_load"] = queue
    return RecordedWorkload(calibration, series, tuple(sorted(card)), n)


def shifted(workload: RecordedWorkload, record: Mapping[str, Any]) -> Shift:
    """Compare the recent batches of a run with the workload that its policy was made for.

    Args:
        workload: of the run.
        record: of the run's policy (`PolicyFile.record`); where it tells no workload, the
            run's earlier batches stand in for it.
    """
    made_for = _made_for(record)
    changes = []
    for name in LEAST_CHANGE:
        recent = workload.level(name, recent=True)
        before = workload.level(name, recent=False)
        if made_for is not None:
            told = made_for["levels"].get(name)
            before = None if told is None else Level(**told)
            recent = workload.card_level(made_for) if name == "card_time" else recent
        if before is not None and recent is not None:
            changes.append(_change(name, before, recent))
    against = "the run's earlier batches"
    if made_for is not None:
        against = f"run {made_for['run']}, which the policy was made for"
    return Shift(tuple(changes), against)


def _change(name: str, before: Level, recent: Level) -> Change:
    difference = recent.mean - before.mean
    error = math.hypot(before.error, recent.error)
    z = difference / max(error, 1e-12)
    as_share = name != "other_load"
    old, new = before.mean, recent.mean
    amount = difference
    if as_share:
        old, new, amount = math.exp(old), math.exp(new), math.expm1(difference)
    large = math.expm1(abs(difference)) if as_share else abs(difference)  # halved as doubled
    return Change(name, old, new, amount, z, large >= LEAST_CHANGE[name] and abs(z) >= Z_LEVEL)


def _made_for(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """The workload in a policy's record; None when it tells none, or none of this form."""
    told = record.get(WORKLOAD)
    needed = {"run", "levels", "n_rows", "slow", "lengths", "card_s"}
    return told if isinstance(told, dict) and needed <= set(told) else None


def _queue(costs: Costs, limits: Limits) -> tuple[Float64, Float64] | None:
    """Queue at the first offloaded stage where it is known, in batches like the one at hand."""
    found = queue_record(costs, limits.q_max)
    if found is None:
        return None
    # The guard's limit is this many batches in seconds: beyond it a queue is not seen.
    share = np.minimum(found.queue_s / found.limit_s, 1.0) * limits.q_max
    return np.flatnonzero(found.seen).astype(np.float64), share[found.seen]
