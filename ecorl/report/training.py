"""What the run learned and how long it waited: metrics, evaluations, rank flips, barriers."""

from __future__ import annotations

import math
import re
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from ecorl.ledger import BarrierRow, EvaluationRow, MetricRow
from ecorl.records import EvaluationPhase, step_of_phase
from ecorl.report.energy.stages import present, total
from ecorl.report.model import BarrierSummary, LogprobShift, PairedGain, RankFlips
from ecorl.report.render.numbers import count, figure, share
from ecorl.runtime.packed_tokens import COMPUTED, DIFFERENCE, TOKENS, UNPACKED
from ecorl.statistics import wilson_interval

RANK_FLIP = "rank_flip"
"""Evaluation with 1 for each held-out pair that INT8 and float order differently, else 0."""
SCORE_SHIFT = "score_shift"
LOGPROB_SHIFT = "logprob_shift"
"""Evaluation whose values are INT8 score minus float score, one per scored row."""

EVAL_REWARD = "eval_reward"
"""Metric with the mean reward of an evaluation that the trainer itself made after a step."""

_CORRECTNESS = frozenset({"correct", "correctness", "accuracy", "exact"})
"""Words in the name of an evaluation that says whether answers are right."""


def is_correctness(name: str) -> bool:
    """Whether an evaluation is of right answers, by its name: ``correct``, ``math/accuracy``."""
    return not _CORRECTNESS.isdisjoint(re.split(r"[^a-z]+", name.lower()))


def is_reward(name: str) -> bool:
    """Whether an evaluation is of a reward model's scores, by its name: ``eval/reward``."""
    return "reward" in re.split(r"[^a-z]+", name.lower())


def percentile(values: Sequence[float], q: float) -> float | None:
    """Compute the q-th percentile by linear interpolation; None without values.

    Args:
        values: in any order.
        q: 0 to 100.
    """
    return float(np.percentile(np.asarray(values), q)) if values else None


def metric_series(metrics: Sequence[MetricRow]) -> dict[str, tuple[MetricRow, ...]]:
    """Sort metrics by name, one value an iteration: the last recorded that was not superseded."""
    newest: dict[str, dict[int, MetricRow]] = defaultdict(dict)
    for row in metrics:
        if not row.superseded:
            newest[row.name][row.iteration] = row
    return {name: tuple(rows[i] for i in sorted(rows)) for name, rows in newest.items()}


def own_evaluations(metrics: Mapping[str, Sequence[MetricRow]]) -> str | None:
    """Say what the trainer's own evaluations found; None where it made none.

    Args:
        metrics: from `metric_series`.
    """
    rows = [row for row in metrics.get(EVAL_REWARD, ()) if present([row.value])]
    if not rows:
        return None
    ends = [rows[0]] if len(rows) == 1 else [rows[0], rows[-1]]
    told = " -> ".join(f"{figure(row.value)} after step {row.iteration}" for row in ends)
    n = "1 evaluation" if len(rows) == 1 else f"{count(len(rows))} evaluations"
    return f"the trainer's own evaluations: mean reward {told} ({n})"


def barrier_summary(barriers: Sequence[BarrierRow]) -> BarrierSummary:
    """Summarise the waits of the whole run, superseded ones included: they took time too."""
    waits = present(b.wait_s for b in barriers)
    return BarrierSummary(
        n_waits=len(barriers),
        total_s=total(waits),
        p50_s=percentile(waits, 50),
        p95_s=percentile(waits, 95),
        max_s=max(waits, default=None),
        n_rows=sum(b.n_rows for b in barriers),
        n_missing=sum(b.n_missing for b in barriers),
        n_late=sum(b.n_late for b in barriers),
        waits_s=tuple(waits),
        n_duplicates=sum(b.n_duplicates for b in barriers) if barriers else None,
        n_unknown=sum(b.n_unknown for b in barriers) if barriers else None,
    )


def _newest(evaluations: Sequence[EvaluationRow]) -> dict[str, dict[str, EvaluationRow]]:
    by_name: dict[str, dict[str, EvaluationRow]] = defaultdict(dict)
    for row in evaluations:
        by_name[row.name][row.phase] = row
    return by_name


def paired_gains(evaluations: Sequence[EvaluationRow]) -> tuple[PairedGain, ...]:
    """Compare ``after`` (or each other phase) with ``before``, item by item."""
    gains = []
    for name, phases in _newest(evaluations).items():
        if name in (RANK_FLIP, SCORE_SHIFT, LOGPROB_SHIFT):
            continue
        before = phases.get(EvaluationPhase.BEFORE)
        # What was found along training is told by `evaluated_along`.
        others = [p for p in phases if p != EvaluationPhase.BEFORE and step_of_phase(p) is None]
        if before is None or not others:
            gains.append(_lonely(name, next(iter(phases.values()))))
            continue
        gains += [_paired(before, phases[p]) for p in others]
    return tuple(gains)


def evaluated_along(evaluations: Sequence[EvaluationRow]) -> tuple[str, ...]:
    """Say what evaluations along training found, one sentence a name; nothing without any.

    Args:
        evaluations: of the run.
    """
    told = []
    for name, phases in _newest(evaluations).items():
        by_step = {step_of_phase(phase): row for phase, row in phases.items()}
        steps = sorted(step for step in by_step if step is not None)
        means = [
            (step, statistics.fmean(v)) for step in steps if (v := present(by_step[step].values))
        ]
        if means:
            course = ", ".join(f"{figure(mean)} ({step})" for step, mean in _some(means))
            told.append(f"{name} along training, by step: {course}")
    return tuple(told)


_MOST_POINTS = 8
"""Points of a course that a sentence tells: more are a plot's, and the ledger has them all."""


def _some(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Points of a course, evenly chosen where they are many; the last is among them."""
    stride = -(-len(points) // _MOST_POINTS)
    return list(points[::-1][::stride][::-1])


def _lonely(name: str, row: EvaluationRow) -> PairedGain:
    values = present(row.values)
    mean = statistics.fmean(values) if values else None
    is_before = row.phase == EvaluationPhase.BEFORE
    note = f"no gain: only the evaluation '{row.phase}' was recorded"
    return PairedGain(
        name=name,
        before=EvaluationPhase.BEFORE,
        after=EvaluationPhase.AFTER if is_before else row.phase,
        mean_before=mean if is_before else None,
        mean_after=None if is_before else mean,
        gain=None,
        standard_error=None,
        n_pairs=0,
        note=note,
    )


def _paired(before: EvaluationRow, after: EvaluationRow) -> PairedGain:
    head = (before.name, before.phase, after.phase)
    if len(before.values) != len(after.values):
        means = [
            statistics.fmean(v) if (v := present(row.values)) else None for row in (before, after)
        ]
        note = f"no gain: {len(before.values)} items before, {len(after.values)} after"
        return PairedGain(*head, means[0], means[1], None, None, 0, note)
    pairs = [
        (a, b)
        for a, b in zip(before.values, after.values, strict=True)
        if len(present([a, b])) == 2 and a is not None and b is not None
    ]
    if not pairs:
        return PairedGain(*head, None, None, None, None, 0, "no gain: no item has both values")
    differences = [b - a for a, b in pairs]
    spread = statistics.stdev(differences) if len(pairs) > 1 else None
    left_out = len(before.values) - len(pairs)
    return PairedGain(
        *head,
        mean_before=statistics.fmean(a for a, _ in pairs),
        mean_after=statistics.fmean(b for _, b in pairs),
        gain=statistics.fmean(differences),
        standard_error=None if spread is None else spread / math.sqrt(len(pairs)),
        n_pairs=len(pairs),
        note=f"{left_out} items without both values are left out" if left_out else None,
    )


def logprob_shifts(evaluations: Sequence[EvaluationRow]) -> tuple[LogprobShift, ...]:
    """Summarise shifts of log-probs, INT8 against float, one entry per phase."""
    rows = _newest(evaluations).get(LOGPROB_SHIFT, {})
    known = {phase: present(row.values) for phase, row in rows.items()}
    return tuple(
        LogprobShift(phase, len(shifts), statistics.fmean(shifts), max(shifts))
        for phase, shifts in known.items()
        if shifts
    )


def rank_flips(evaluations: Sequence[EvaluationRow]) -> tuple[RankFlips, ...]:
    """Summarise flips and score shifts of INT8 against float, one entry per phase."""
    newest = _newest(evaluations)
    found = []
    for phase, row in newest.get(RANK_FLIP, {}).items():
        flips = present(row.values)
        if not flips:
            continue
        n_flips = sum(v != 0 for v in flips)
        shift_row = newest.get(SCORE_SHIFT, {}).get(phase)
        shifts = present(shift_row.values) if shift_row else []
        found.append(
            RankFlips(
                phase=phase,
                n_pairs=len(flips),
                n_flips=n_flips,
                share=n_flips / len(flips),
                interval=wilson_interval(n_flips, len(flips)),
                n_scores=len(shifts),
                shift_mean=statistics.fmean(shifts) if shifts else None,
                shift_abs_mean=statistics.fmean(map(abs, shifts)) if shifts else None,
                shift_abs_p99=percentile([abs(s) for s in shifts], 99),
            )
        )
    return tuple(found)


def packing_remark(metrics: Mapping[str, Sequence[MetricRow]]) -> str | None:
    """Say what packing rows by length saved; None where none were packed.

    Args:
        metrics: from `ecorl.report.training.metric_series`.
    """
    computed, unpacked = _total(metrics, COMPUTED), _total(metrics, UNPACKED)
    real = _total(metrics, TOKENS)
    if not unpacked:
        return None
    padding = unpacked - real
    avoided = f", {share((unpacked - computed) / padding)} of the padding" if padding > 0 else ""
    return (
        f"adaptive micro-batches left out {count(round(unpacked - computed))} of "
        f"{count(round(unpacked))} tokens, padding included{avoided}; "
        f"{_apart(_values(metrics, DIFFERENCE))}"
    )


def _apart(differences: Sequence[float]) -> str:
    if not differences:
        return "results with and without them were not compared"
    word = "comparison" if len(differences) == 1 else "comparisons"
    return (
        f"results with and without them differ by {figure(max(differences), 2)} of the largest "
        f"value at most ({count(len(differences))} {word}, measured)"
    )


def _total(metrics: Mapping[str, Sequence[MetricRow]], begin: str) -> float:
    return sum(_values(metrics, begin))


def _values(metrics: Mapping[str, Sequence[MetricRow]], begin: str) -> list[float]:
    """Values of all metrics whose name begins so, whatever was computed."""
    rows = [row for name, series in metrics.items() if name.startswith(begin) for row in series]
    return present(row.value for row in rows)
