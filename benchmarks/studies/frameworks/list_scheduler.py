"""A small deterministic list scheduler: what a stage order costs in time, energy and idle GPUs.

Tasks start as soon as what they need is there and their group is free, in order of iteration and
precedence. A task that shares takes what those before it leave of the group; one that does not
holds the group until it is done. Inference and training divide evenly: on half the GPUs they take
twice as long. So does generation while all GPUs have rows; once the rows left need fewer GPUs than
the group has, it takes as long as it would on the whole cluster. So GPU-seconds are conserved.

Two tasks leave GPUs free while they run. Generation: as rows finish, copies of the policy have none
left, or so few that others could take them. Training: a pipeline of stages fills and drains. GPUs
with nothing to do, and those that hold rows which fewer GPUs could hold, are the bubble; weights
that move count as nothing done. So the work is the same for every framework, in whatever order.

Energy: a piece's joules above idle power are the same wherever and beside whatever it runs; all
GPUs draw idle power all the time. So any overlap saves idle power times the time it saves, and no
more. Other jobs on the cards, failures and heat are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.studies.frameworks.stage_orders import (
    CARDS,
    INFERENCE,
    TRAINING,
    Piece,
    Schedule,
    ScheduledTask,
)
from ecorl.errors import ConfigError
from ecorl.stages.figures import Work

MIGRATE_BELOW = 0.2
"""Share of rows left at which they are moved together. Assumed: RLHFuse searches for it."""

TINY = 1e-9
"""Relative slack of comparisons of times."""

_BISECTIONS = 30
_WINDOW = 4
"""Iterations that may be under way at once; more than any schedule overlaps."""


class Cluster(NamedTuple):
    """What the work does not say of the cluster.

    Attributes:
        n_rows: completions an iteration.
        n_copies: copies of the policy that generate them.
        pipeline_bubble: share of a training step in which a GPU of its pipeline has nothing to do,
            0 to below 1.
        reshard_s: time to bring all of the policy's weights to every GPU.
    """

    n_rows: float = 1.0
    n_copies: float = 1.0
    pipeline_bubble: float = 0.0
    reshard_s: float = 0.0


def piece_s(task: ScheduledTask, work: Work, cluster: Cluster, reshard: float) -> float:
    """Return the time of a piece alone on all GPUs, or on the cards, s.

    Args:
        task: the piece and its group.
        work: what the stages cost.
        cluster: what the work does not say of the cluster.
        reshard: share of the weights that are moved between training and generation.
    """
    piece = task.piece
    if piece in INFERENCE:
        i = INFERENCE.index(piece)
        if task.group == CARDS:
            return float(work.card_s[i] / max(work.cards_up, TINY) * work.slow)
        return float(work.gpu_s[i])
    return float(
        {
            Piece.RESHARD: reshard * cluster.reshard_s,
            Piece.GENERATION: work.generation_s,
            Piece.FORWARD: work.forward_s + (work.early_s if task.early else 0.0),
            Piece.BACKWARD: work.backward_s,
            Piece.CRITIC_TRAIN: work.critic_s,
        }[piece]
    )


def group_s(
    task: ScheduledTask, work: Work, cluster: Cluster, schedule: Schedule, share: float
) -> float:
    """Return the time of a piece alone on a share of the GPUs, s.

    Args:
        task: the piece and its group.
        work: what the stages cost.
        cluster: what the work does not say of the cluster.
        schedule: says what is moved, and whether few rows are moved together.
        share: of the GPUs, 0 to 1.
    """
    total_s = piece_s(task, work, cluster, schedule.reshard)
    if task.piece is Piece.GENERATION and total_s > 0:
        return generation_profile(work, cluster, schedule.migrates).on_share_s(max(share, TINY))
    return total_s / max(share, TINY)


def above_idle_j(task: ScheduledTask, work: Work) -> float:
    """Return the energy of a piece above that of idle GPUs, J; 0.0 on the cards.

    Args:
        task: the piece and its group.
        work: what the stages cost.
    """
    if task.group == CARDS or task.piece is Piece.RESHARD:
        return 0.0
    if task.piece in INFERENCE:
        i = INFERENCE.index(task.piece)
        return float(work.gpu_j[i] - work.gpu_idle_w * work.gpu_s[i])
    actor_s = work.forward_s + work.backward_s
    forward = work.forward_s / actor_s if actor_s > 0 else 0.0
    early_s, early_j = (work.early_s, work.early_j) if task.early else (0.0, 0.0)
    joules, seconds = {
        Piece.GENERATION: (work.generation_j, work.generation_s),
        Piece.FORWARD: (work.actor_j * forward + early_j, work.forward_s + early_s),
        Piece.BACKWARD: (work.actor_j * (1.0 - forward), work.backward_s),
        Piece.CRITIC_TRAIN: (work.critic_j, work.critic_s),
    }[task.piece]
    return float(joules - work.gpu_idle_w * seconds)


class Profile(NamedTuple):
    """Generation over its time on all GPUs.

    Attributes:
        ends_s: ends of the intervals, rising.
        used: share of the GPUs that has rows, by interval.
        busy: share of the GPUs that the rows need, by interval.
        handed: share of the tokens that is handed over at the end of the interval or before.
    """

    ends_s: tuple[float, ...]
    used: tuple[float, ...]
    busy: tuple[float, ...]
    handed: tuple[float, ...]

    def passed(self, progress_s: float) -> int:
        """Hand-overs that have been, at a time on all GPUs."""
        return sum(progress_s >= end_s * (1.0 - TINY) for end_s in self.ends_s)

    def at(self, progress_s: float) -> tuple[float, float]:
        """Shares of the GPUs that have rows, and that the rows need, at a time on all GPUs."""
        j = min(self.passed(progress_s), len(self.ends_s) - 1)
        return self.used[j], self.busy[j]

    def on_share_s(self, share: float) -> float:
        """Time on a share of the GPUs: what needs less of them is not slowed, s."""
        starts_s = (0.0, *self.ends_s)
        return sum(
            (end_s - start_s) * max(1.0, busy / share)
            for start_s, end_s, busy in zip(starts_s, self.ends_s, self.busy, strict=False)
        )

    def handed_at(self, progress_s: float) -> float:
        """Share of the tokens that has been handed over, at a time on all GPUs."""
        j = self.passed(progress_s)
        return self.handed[j - 1] if j else 0.0


def generation_profile(work: Work, cluster: Cluster, migrates: bool) -> Profile:
    """How GPUs fall idle as rows finish.

    Rows of an interval are its tokens over its middle, since a row's length is the time it took.
    Rows are dealt out at random, so a copy of b rows has none left with chance
    ``finished ** b``; rows that are moved together need as many copies as they fill. One row, and
    so one copy, goes on to the end.
    """
    per_copy = max(cluster.n_rows / cluster.n_copies, 1.0)
    edges = [0.0, *(float(t) for t in work.handover_s)]
    tail = [*(float(t) for t in work.tail), 0.0]
    rows = [
        max(tail[j] - tail[j + 1], 0.0) / max((edges[j] + edges[j + 1]) / 2, TINY)
        for j in range(len(edges) - 1)
    ]
    n_rows = sum(rows)
    used, busy = [], []
    for j, finishing in enumerate(rows):
        left = (sum(rows[j + 1 :]) + finishing / 2) / n_rows if n_rows > 0 else 1.0
        left = max(left, 1.0 / cluster.n_rows)
        dealt = max(1.0 - (1.0 - left) ** per_copy, 1.0 / cluster.n_copies)
        together = max(left, 1.0 / cluster.n_copies)
        needed = min(together, dealt) if left <= MIGRATE_BELOW else dealt
        used.append(needed if migrates else dealt)
        busy.append(needed)
    handed = tuple(1.0 - t for t in tail[1:])
    return Profile(tuple(edges[1:]), tuple(used), tuple(busy), handed)


class BusySpan(NamedTuple):
    """Time in which a task runs at one rate.

    Attributes:
        iteration, piece, group: what runs where.
        start_s, end_s: since the start of the first iteration.
        held: share of the group that nobody else may use, 0 to 1.
        used: share of the group that the task occupies, at most `held`.
        busy: share of the group that has work to do, at most `used`.
    """

    iteration: int
    piece: Piece
    group: str
    start_s: float
    end_s: float
    held: float
    used: float
    busy: float


class ScheduleTimeline(NamedTuple):
    """A schedule, evaluated.

    Attributes:
        shares: of the cluster's GPUs, by group.
        spans: what ran when, in order of their ends.
        time_s: until the last task is done.
        gpu_j, card_j: energy, idle power included; cards count where the schedule has them.
    """

    shares: Mapping[str, float]
    spans: tuple[BusySpan, ...]
    time_s: float
    gpu_j: float
    card_j: float

    @property
    def energy_j(self) -> float:
        """GPUs and cards, J."""
        return self.gpu_j + self.card_j

    @property
    def busy_s(self) -> float:
        """Time that all GPUs together would need for what they did."""
        return sum((s.end_s - s.start_s) * s.busy * self.shares[s.group] for s in self.spans)


def run_schedule(schedule: Schedule, works: Sequence[Work], cluster: Cluster) -> ScheduleTimeline:
    """Evaluate a stage order on some iterations.

    Args:
        schedule: the order.
        works: what each iteration costs, in floats.
        cluster: what the work does not say.

    Raises:
        ConfigError: for an order that cannot be run.
    """
    shares = _shares(schedule, works, cluster)
    engine = _Engine(schedule, works, cluster, shares)
    time_s = engine.run()
    above_j = sum(above_idle_j(t, w) for w in works for t in schedule.tasks)
    card_j = 0.0
    if any(g.name == CARDS for g in schedule.groups):
        card_j = float(works[0].card_idle_w) * time_s + sum(
            (w.card_active_w - w.card_idle_w) * piece_s(t, w, cluster, schedule.reshard)
            for w in works for t in schedule.tasks if t.group == CARDS
        )  # fmt: skip
    gpu_j = float(works[0].gpu_idle_w) * time_s + above_j
    return ScheduleTimeline(shares, tuple(engine.spans), time_s, gpu_j, card_j)


def _shares(schedule: Schedule, works: Sequence[Work], cluster: Cluster) -> dict[str, float]:
    """Share of each group; two that have none get what makes both take equally long."""
    shares = {g.name: g.share for g in schedule.groups if g.share is not None}
    names = [g.name for g in schedule.groups if g.share is None]
    if not names:
        return shares
    rest = 1.0 - sum(shares.values())

    def load_s(name: str, share: float) -> float:
        tasks = [t for t in schedule.tasks if t.group == name]
        return sum(group_s(t, w, cluster, schedule, share) for w in works for t in tasks)

    low, high = 0.0, rest
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        slower = load_s(names[0], middle) > load_s(names[1], rest - middle)
        low, high = (middle, high) if slower else (low, middle)
    return shares | {names[0]: high, names[1]: rest - high}


@dataclass(slots=True)
class _Job:
    """A task of one iteration under way; progress in seconds of the piece alone on all GPUs."""

    iteration: int
    task: ScheduledTask
    total_s: float
    full: float
    useful: float
    profile: Profile | None
    progress_s: float = 0.0
    rate: float = 0.0
    held: float = 0.0
    used: float = 0.0
    busy: float = 0.0
    limit_s: float = 0.0
    started: bool = False
    done: bool = False

    def handed(self) -> float:
        """Share of the tokens that a generation has handed over so far."""
        return self.profile.handed_at(self.progress_s) if self.profile is not None else 0.0

    def next_stop_s(self) -> float:
        """Progress at which something changes: its end, the rows there are, a hand-over."""
        if self.profile is None:
            return min(self.total_s, self.limit_s)
        j = self.profile.passed(self.progress_s)
        return (*self.profile.ends_s, self.total_s)[j]

    def is_complete(self) -> bool:
        """Whether all of it has been done."""
        return self.started and self.progress_s >= self.total_s * (1.0 - TINY) - 1e-15


class _Engine:
    def __init__(
        self,
        schedule: Schedule,
        works: Sequence[Work],
        cluster: Cluster,
        shares: Mapping[str, float],
    ) -> None:
        self.schedule, self.works = schedule, works
        self.cluster, self.shares = cluster, {**shares, CARDS: 1.0}
        self.spans: list[BusySpan] = []
        self.jobs: dict[tuple[int, Piece], _Job] = {}
        self.open: list[_Job] = []
        self.next_iteration, self.now_s = 0, 0.0

    def run(self) -> float:
        """Run all iterations; returns the time of the last end, s."""
        self._admit()
        while self.open:
            self._start()
            self._allocate()
            if not any(j.is_complete() for j in self.open):
                running = [j for j in self.open if j.rate > 0]
                if not running:
                    waiting = [f"{j.task.piece} of iteration {j.iteration}" for j in self.open]
                    raise ConfigError("schedule", waiting[:3], "an order that can be run")
                self._go(min(max(j.next_stop_s() - j.progress_s, 0.0) / j.rate for j in running))
            for job in self.open:
                job.done = job.is_complete()
            self.open = [j for j in self.open if not j.done]
            self._admit()
        return self.now_s

    def _admit(self) -> None:
        """Bring iterations into the window."""
        oldest = self.open[0].iteration if self.open else self.next_iteration
        while self.next_iteration < min(len(self.works), oldest + _WINDOW):
            for task in self.schedule.tasks:
                job = self._job(self.next_iteration, task)
                self.jobs[job.iteration, task.piece] = job
                self.open.append(job)
            self.next_iteration += 1

    def _job(self, k: int, task: ScheduledTask) -> _Job:
        work = self.works[k]
        total_s = piece_s(task, work, self.cluster, self.schedule.reshard)
        full = 1.0 - self.cluster.pipeline_bubble if task.piece in TRAINING else 1.0
        useful = 0.0 if task.piece is Piece.RESHARD else full
        profile = None
        if task.piece is Piece.GENERATION and total_s > 0:
            profile = generation_profile(work, self.cluster, self.schedule.migrates)
        return _Job(k, task, total_s, full, useful, profile)

    def _start(self) -> None:
        running: dict[str, list[_Job]] = defaultdict(list)
        for job in self.open:
            if job.started:
                running[job.task.group].append(job)
        for job in self.open:
            if job.started or not self._ready(job):
                continue
            others = running[job.task.group]
            # Generation has the group to itself at first: all copies have rows.
            alone = not job.task.shares or job.task.piece is Piece.GENERATION
            if others and (alone or not all(o.task.shares for o in others)):
                continue
            job.started = True
            others.append(job)

    def _ready(self, job: _Job) -> bool:
        for need in job.task.needs:
            other = self.jobs.get((job.iteration - need.ago, need.piece))
            if other is None or other.done:
                continue
            if not (need.by_rows and other.started and other.handed() > 0):
                return False
        return True

    def _allocate(self) -> None:
        left: dict[str, float] = defaultdict(lambda: 1.0)
        for job in self.open:
            if job.started:
                free = left[job.task.group]
                self._run(job, self.shares[job.task.group], free)
                job.held = job.used if job.task.shares else free
                left[job.task.group] = free - job.held

    def _run(self, job: _Job, share: float, free: float) -> None:
        """Set a job's rate and what it takes of its group, which has `share` of the GPUs."""
        if job.profile is not None:
            used, needed = job.profile.at(job.progress_s)
            job.rate = min(1.0, share / needed)
            job.used, job.busy = min(1.0, used / share), needed * job.rate / share
            return
        job.limit_s = self._limit_s(job)
        waits = job.progress_s >= job.limit_s - TINY * job.total_s
        job.used = 0.0 if waits else min(job.full, free)
        job.rate = share * job.used / job.full if job.used > TINY else 0.0
        job.busy = job.used * job.useful / job.full

    def _limit_s(self, job: _Job) -> float:
        """Progress that the rows which are there allow."""
        share = 1.0
        for need in job.task.needs:
            other = self.jobs.get((job.iteration - need.ago, need.piece))
            if need.by_rows and other is not None and not other.done:
                share = min(share, other.handed())
        return share * job.total_s

    def _go(self, step_s: float) -> None:
        end_s = self.now_s + step_s
        for job in self.open:
            if not job.started or (job.rate == 0 and job.held == 0):
                continue
            self.spans.append(
                BusySpan(job.iteration, job.task.piece, job.task.group, self.now_s, end_s,
                     job.held, job.used, job.busy)
            )  # fmt: skip
            stop_s = job.next_stop_s()
            job.progress_s += job.rate * step_s
            if abs(job.progress_s - stop_s) <= TINY * max(job.total_s, 1e-12):
                job.progress_s = stop_s
        self.now_s = end_s
