"""Other jobs on the cards, fitted to the queues that a run met.

A queue at the end of generation is what is left of bursts of this iteration and of those before;
work of the run's own that waits behind them lets the cards run dry. So the simulator's bursts are
played against the record of the run, with many draws side by side, and their size, rate and
persistence are changed until three figures come out as they were seen: how often there was a
queue, how long it was on the mean, and how often it came and went.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ecorl.policy.calibration.costs import Costs, RecordedJob
from ecorl.policy.calibration.fit import MIN_READINGS, fit_ratio
from ecorl.policy.calibration.readings import StageReading
from ecorl.records import Action, Stage
from ecorl.scheduler.tables import Float64

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class OtherJobs:
    """Other jobs on the cards; names and meaning as in `ecorl.sim.scenario.Scenario`."""

    load: float
    burst_s: float
    calm: float


NO_OTHER_JOBS = OtherJobs(0.0, 0.5, 0.9)
"""The array is this job's alone. There are no bursts; their form is that of a default scenario."""


@dataclass(frozen=True, slots=True)
class QueueRecord:
    """Queues on the cards as a run recorded them, batch by batch, ``[n]`` each.

    Attributes:
        generation_s: generation, s.
        rest_s: the iteration after it without waiting for the cards, s.
        limit_s: queue at which offloading is refused, s.
        offloads: whether a stage went to the cards or would have gone without a queue.
        streamed: whether rows were handed over during generation.
        seen: whether the queue after generation is known.
        queue_s: that queue, s; `limit_s` where an offload was refused; of no meaning if not seen.
    """

    generation_s: Float64
    rest_s: Float64
    limit_s: Float64
    offloads: Flags
    streamed: Flags
    seen: Flags
    queue_s: Float64


_OWN_CLOCK = 0.25
"""A card's window tells of its queue where the device's time is this close to the time that its
work took by this host's clock. Assumed; a C-simulated card works at the host's pace, off by far
more."""

_ON = 0.01
"""Queue, in GPU-only iterations, that counts as one. Assumed: below it nothing changes."""

_SIDE_BY_SIDE = 64
"""Draws of all bursts of the run."""

_ROUNDS = 25
_DAMPING = 0.7
"""Share of a change that is made in one round, in the exponent."""

_MOST = 0.95
"""Highest rate of bursts, as in `ecorl.sim.trace`, and highest load."""

_LARGEST = 8.0
"""Largest mean burst, GPU-only iterations."""


def queue_record(costs: Costs, q_max: float) -> QueueRecord | None:
    """Read the queues on the cards from a run; None when too few are known.

    Args:
        costs: of the run.
        q_max: queue at which the run's guard refused, batches.
    """
    job, n = costs.job, len(costs.job.run.rollouts)
    first = job.offloaded[0]
    cards = [r for stage in job.offloaded for r in job.run.of(stage, "card")]
    host = fit_ratio(np.array([r.host_s for r in cards]), np.array([r.time_s for r in cards]))
    if abs(host - 1.0) > _OWN_CLOCK:
        return None
    generation = {r.rollout: r for r in job.run.of(Stage.GENERATION, "gpu")}
    streamed = {k for k, r in generation.items() if r.action is Action.CONCURRENT}
    limit_s = q_max * costs.at(f"{first}_card_s", range(n))
    queue_s = np.full(n, np.nan)
    for r in job.run.of(first, "card"):
        queue_s[r.rollout] = max(0.0, r.end_s - r.start_s - r.host_s)
    for k, stage in job.run.refused:
        if stage is first:
            queue_s[k] = limit_s[k]
    # Rows that are handed over during generation wait for one another, not for other jobs alone.
    queue_s[list(streamed)] = np.nan
    seen = np.isfinite(queue_s)
    if seen.sum() < MIN_READINGS:
        return None
    offloads = {r.rollout for r in cards} | {k for k, _ in job.run.refused}
    generation_s, rest_s = _parts(job, generation)
    return QueueRecord(
        generation_s=generation_s,
        rest_s=rest_s,
        limit_s=limit_s,
        offloads=np.isin(np.arange(n), list(offloads)),
        streamed=np.isin(np.arange(n), list(streamed)),
        seen=seen,
        queue_s=np.nan_to_num(queue_s),
    )


def _parts(job: RecordedJob, generation: Mapping[int, StageReading]) -> tuple[Float64, Float64]:
    """Length of generation and of the rest of each iteration without its waits, s.

    Where a batch or the next one has no reading it is the median of the others.
    """
    n = len(job.run.rollouts)
    generation_s, rest_s = np.full(n, np.nan), np.full(n, np.nan)
    for k, r in generation.items():
        generation_s[k] = r.time_s
        batch, following = job.run.rollouts[k], generation.get(k + 1)
        if following is None or job.run.rollouts[k + 1].attempt != batch.attempt:
            continue
        waits = job.run.barriers.get((batch.attempt, batch.iteration), ())
        waited_s = sum(b.wait_s or 0.0 for b in waits)
        rest_s[k] = max(0.0, following.start_s - r.start_s - r.time_s - waited_s)
    for part in (generation_s, rest_s):
        known = part[np.isfinite(part)]
        part[~np.isfinite(part)] = np.median(known) if len(known) else 0.0
    return generation_s, rest_s


class _Bursts(NamedTuple):
    """Chance of a burst, its mean work in s, and chance that calm ends."""

    rate: float
    burst_s: float
    starts: float


class _Figures(NamedTuple):
    """Share of batches with a queue, mean queue in s, share of neighbours that differ."""

    share: float
    mean_s: float
    changes: float


def fit_other_jobs(record: QueueRecord, iteration_s: float) -> OtherJobs:
    """Fit the simulator's bursts to a run.

    Args:
        record: what the run met; some batches must have `seen`.
        iteration_s: GPU-only iteration, s.
    """
    least_s = _ON * iteration_s
    queue_s = np.minimum(record.queue_s, record.limit_s)
    wanted = _figures(queue_s[:, None], record.seen, least_s)
    if wanted.share == 0:
        return NO_OTHER_JOBS
    draws = _Draws.of(len(queue_s))
    rate = min(wanted.share, _MOST)
    guess = _Bursts(rate, 2.0 * wanted.mean_s / wanted.share, _bound(wanted.changes, 0.01, 0.5))
    for _ in range(_ROUNDS):
        made = _figures(draws.play(record, guess), record.seen, least_s)
        guess = _Bursts(
            rate=_bound(guess.rate * _factor(wanted.share, made.share), 1e-3, _MOST),
            burst_s=_bound(
                # The mean is that of a rate and a size: what the rate explains is not the size's.
                guess.burst_s
                * _factor(wanted.mean_s, made.mean_s)
                / _factor(wanted.share, made.share),
                least_s,
                _LARGEST * iteration_s,
            ),
            starts=_bound(guess.starts * _factor(wanted.changes, made.changes), 0.01, 0.5),
        )
    return OtherJobs(
        load=_bound(guess.rate * guess.burst_s / iteration_s, 0.0, _MOST),
        burst_s=guess.burst_s / iteration_s,
        calm=1.0 - guess.starts,
    )


def _bound(value: float, low: float, high: float) -> float:
    return float(min(max(value, low), high))


def _factor(wanted: float, made: float) -> float:
    """By how much to change what makes `made`; at most doubled or halved."""
    return float(_bound((wanted + 1e-9) / (made + 1e-9), 0.5, 2.0) ** _DAMPING)


def _figures(queue_s: Float64, seen: Flags, least_s: float) -> _Figures:
    """Of queues ``[n, m]`` where they are seen; neighbours are batches of which both are."""
    on = queue_s > least_s
    both = seen[1:] & seen[:-1]
    differ = (on[1:] != on[:-1])[both]
    return _Figures(
        float(on[seen].mean()),
        float(queue_s[seen].mean()),
        float(differ.mean()) if differ.size else 0.1,
    )


@dataclass(frozen=True, slots=True)
class _Draws:
    """Chance of all bursts ``[n, m]``, the same in every round."""

    flips: Float64
    early: Float64
    late: Float64
    first: Float64

    @classmethod
    def of(cls, n: int) -> _Draws:
        rng = np.random.default_rng(0)
        shape = (n, _SIDE_BY_SIDE)
        work, split = rng.standard_exponential((2, *shape)), rng.random(shape)
        return cls(
            rng.random(shape), work[0] * split, work[1] * (1.0 - split), rng.random(shape[1])
        )

    def play(self, record: QueueRecord, bursts: _Bursts) -> Float64:
        """Queues after generation, cut at their limits, s ``[n, m]``."""
        rate, burst_s, starts = bursts
        ends = min(starts * (1.0 - rate) / rate, 1.0)
        on = self.first < rate
        left_s = np.zeros(self.flips.shape[1])
        queue_s = np.empty_like(self.flips)
        for k in range(len(queue_s)):
            on = np.where(on, self.flips[k] >= ends, self.flips[k] < starts)
            late_s = on * self.late[k] * burst_s
            early_s = left_s + on * self.early[k] * burst_s
            queue = np.maximum(0.0, early_s - record.generation_s[k]) + late_s
            queue_s[k] = np.minimum(queue, record.limit_s[k])
            # Own work behind the queue is waited for; what was handed over came before the rest.
            passes = record.offloads[k] & (queue < record.limit_s[k])
            before_s = np.where(passes, late_s if record.streamed[k] else 0.0, queue)
            left_s = np.maximum(0.0, before_s - record.rest_s[k])
        return queue_s
