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
from dataclasses import dataclass, field
from typing import NamedTuple

from benchmarks.studies.frameworks.pieces import (
    TINY,
    Cluster,
    Profile,
    above_idle_j,
    generation_profile,
    group_s,
    piece_s,
)
from benchmarks.studies.frameworks.stage_orders import (
    CARDS,
    TRAINING,
    Piece,
    Schedule,
    ScheduledTask,
)
from ecorl.errors import ConfigError
from ecorl.stages.figures import Work

_BISECTIONS = 30
_WINDOW = 4
"""Iterations that may be under way at once; more than any schedule overlaps."""


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


@dataclass(frozen=True, slots=True)
class ScheduleTimeline:
    """A schedule, evaluated.

    Attributes:
        schedule: its name.
        shares: of the cluster's GPUs, by group.
        spans: what ran when, in order of their ends.
        time_s: until the last task is done.
        gpu_j, card_j: energy, idle power included; cards count where the schedule has them.
        idle_w: power of all GPUs when idle.
    """

    schedule: str
    shares: Mapping[str, float]
    spans: tuple[BusySpan, ...]
    time_s: float
    gpu_j: float
    card_j: float
    idle_w: float

    @property
    def energy_j(self) -> float:
        """GPUs and cards, J."""
        return self.gpu_j + self.card_j

    @property
    def busy_s(self) -> float:
        """Time that all GPUs together would need for what they did."""
        return sum((s.end_s - s.start_s) * s.busy * self.shares[s.group] for s in self.spans)

    @property
    def bubble(self) -> float:
        """Share of GPU time in which GPUs had nothing to do, 0 to 1."""
        return 1.0 - self.busy_s / self.time_s if self.time_s > 0 else 0.0


def run_schedule(
    schedule: Schedule | Sequence[Schedule], works: Sequence[Work], cluster: Cluster
) -> ScheduleTimeline:
    """Evaluate a stage order on some iterations.

    Args:
        schedule: one, or one an iteration with equal groups.
        works: what each iteration costs, in floats.
        cluster: what the work does not say.

    Raises:
        ConfigError: when there are not as many schedules as iterations, or their groups differ.
    """
    orders = [schedule] * len(works) if isinstance(schedule, Schedule) else list(schedule)
    if len(orders) != len(works) or len({o.groups for o in orders}) > 1:
        raise ConfigError("schedule", len(orders), f"{len(works)} with equal groups")
    shares = _shares(orders[0], works, cluster)
    engine = _Engine(orders, works, cluster, shares)
    time_s = engine.run()
    idle_w = float(works[0].gpu_idle_w)
    above_j = sum(above_idle_j(t, w) for o, w in zip(orders, works, strict=True) for t in o.tasks)
    card_j = 0.0
    if any(g.name == CARDS for g in orders[0].groups):
        card_j = float(works[0].card_idle_w) * time_s + sum(
            (w.card_active_w - w.card_idle_w) * piece_s(t, w, cluster, o.reshard)
            for o, w in zip(orders, works, strict=True) for t in o.tasks if t.group == CARDS
        )  # fmt: skip
    return ScheduleTimeline(
        schedule=orders[0].name,
        shares=shares,
        spans=tuple(engine.spans),
        time_s=time_s,
        gpu_j=idle_w * time_s + above_j,
        card_j=card_j,
        idle_w=idle_w,
    )


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
    profile: Profile | None = None
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
        return self.profile.ends_s[j] if j < len(self.profile.ends_s) else self.total_s


@dataclass
class _Engine:
    orders: Sequence[Schedule]
    works: Sequence[Work]
    cluster: Cluster
    shares: Mapping[str, float]
    spans: list[BusySpan] = field(default_factory=list)

    def run(self) -> float:
        """Run all iterations; returns the time of the last end, s."""
        self.jobs: dict[tuple[int, Piece], _Job] = {}
        self.open: list[_Job] = []
        self.next_iteration, self.now_s = 0, 0.0
        self._admit()
        while self.open:
            self._start()
            self._allocate()
            step_s = min((self._step_s(j) for j in self.open if j.rate > 0), default=None)
            finished = [j for j in self.open if j.started and self._is_done(j)]
            if step_s is None and not finished:
                waiting = [f"{j.task.piece} of iteration {j.iteration}" for j in self.open]
                raise ConfigError("schedule", waiting[:3], "an order that can be run")
            if step_s is not None and not finished:
                self._go(step_s)
            self._close()
        return self.now_s

    def _admit(self) -> None:
        """Bring iterations into the window."""
        oldest = self.open[0].iteration if self.open else self.next_iteration
        while self.next_iteration < min(len(self.works), oldest + _WINDOW):
            k = self.next_iteration
            order, work = self.orders[k], self.works[k]
            for task in order.tasks:
                job = self._job(k, task, order, work)
                self.jobs[k, task.piece] = job
                self.open.append(job)
            self.next_iteration += 1

    def _job(self, k: int, task: ScheduledTask, order: Schedule, work: Work) -> _Job:
        total_s = piece_s(task, work, self.cluster, order.reshard)
        full = 1.0 - self.cluster.pipeline_bubble if task.piece in TRAINING else 1.0
        useful = 0.0 if task.piece is Piece.RESHARD else full
        profile = None
        if task.piece is Piece.GENERATION and total_s > 0:
            profile = generation_profile(work, self.cluster, order.migrates)
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
                share = 1.0 if job.task.group == CARDS else self.shares[job.task.group]
                free = left[job.task.group]
                self._run(job, share, free)
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

    def _is_done(self, job: _Job) -> bool:
        return job.progress_s >= job.total_s * (1.0 - TINY) - 1e-15

    def _step_s(self, job: _Job) -> float:
        return max(job.next_stop_s() - job.progress_s, 0.0) / job.rate

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

    def _close(self) -> None:
        for job in self.open:
            job.done = job.started and self._is_done(job)
        self.open = [j for j in self.open if not j.done]
        self._admit()
