"""What the pieces of an iteration take: time, energy above idle, and GPUs that have work.

Everything comes from `ecorl.stages.figures.Work`; `Cluster` adds what it does not say.
"""

from __future__ import annotations

from typing import NamedTuple

from benchmarks.studies.frameworks.stage_orders import (
    CARDS,
    INFERENCE,
    Piece,
    Schedule,
    ScheduledTask,
)
from ecorl.stages.figures import Work

MIGRATE_BELOW = 0.2
"""Share of rows left at which they are moved together. Assumed: RLHFuse searches for it."""

TINY = 1e-9
"""Relative slack of comparisons of times."""


class Cluster(NamedTuple):
    """What the work does not say of the cluster.

    Attributes:
        n_rows: completions an iteration.
        n_copies: copies of the policy that generate them.
        pipeline_bubble: share of a training step in which a GPU of its pipeline has nothing to do,
            0 to below 1.
        reshard_s: time to bring all of the policy's weights to every GPU.
        migrate_below: share of rows left at which `Schedule.migrates` moves them together.
    """

    n_rows: float = 1.0
    n_copies: float = 1.0
    pipeline_bubble: float = 0.0
    reshard_s: float = 0.0
    migrate_below: float = MIGRATE_BELOW


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
        needed = min(together, dealt) if left <= cluster.migrate_below else dealt
        used.append(needed if migrates else dealt)
        busy.append(needed)
    handed = tuple(1.0 - t for t in tail[1:])
    return Profile(tuple(edges[1:]), tuple(used), tuple(busy), handed)
