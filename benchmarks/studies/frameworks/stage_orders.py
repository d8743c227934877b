"""Stage orders as data: which piece of an iteration runs where, and what it waits for.

A `Schedule` says how a framework runs an iteration on a cluster: groups of GPUs by their share, and
one `ScheduledTask` a piece, in order of precedence. `list_scheduler` beside it evaluates it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from ecorl.errors import ConfigError


class Piece(StrEnum):
    """The pieces of an iteration: its stages, the actor's step in two, and moving weights."""

    RESHARD = "reshard"
    GENERATION = "generation"
    REWARD = "reward"
    REFERENCE = "reference"
    CRITIC = "critic"
    FORWARD = "actor_forward"
    BACKWARD = "actor_backward"
    CRITIC_TRAIN = "critic_train"


INFERENCE = (Piece.REWARD, Piece.REFERENCE, Piece.CRITIC)
TRAINING = (Piece.FORWARD, Piece.BACKWARD, Piece.CRITIC_TRAIN)

CARDS = "cards"
"""Name of the group that is the cards; it holds no GPU."""


class Need(NamedTuple):
    """What a task waits for.

    Attributes:
        piece: the piece.
        ago: 0 for that of the same iteration, 1 for that of the iteration before, and so on.
        by_rows: the task may start on the rows that generation has handed over so far.
    """

    piece: Piece
    ago: int = 0
    by_rows: bool = False


@dataclass(frozen=True, slots=True)
class ScheduledTask:
    """One piece on one group.

    Attributes:
        piece: what runs.
        group: name of the group that it runs on.
        needs: what it waits for.
        shares: whether other tasks of the group that share may use what it leaves free: copies of
            the policy without rows, idle stages of a training pipeline. Else it holds the group.
        early: a forward pass before the barrier, which has its price (`Work.early_s`).
    """

    piece: Piece
    group: str
    needs: tuple[Need, ...]
    shares: bool = False
    early: bool = False


class Group(NamedTuple):
    """Some GPUs of the cluster, or the cards.

    Attributes:
        name: of the group.
        share: of the cluster's GPUs, 0 to 1; None for two groups: what the others leave, divided
            so that both take equally long for their tasks.
    """

    name: str
    share: float | None


@dataclass(frozen=True, slots=True)
class Schedule:
    """How a framework runs iterations.

    Attributes:
        name: for tables.
        groups: all groups; together at most the cluster.
        tasks: one a piece, the first in precedence first.
        reshard: share of the policy's weights that every GPU of the generation fetches before it.
        migrates: whether the last rows of generation are moved together, which frees GPUs.
        source: what is documented.
        assumed: what is not, and was assumed here.

    Raises:
        ConfigError: for shares above the cluster, one group without a share, an unknown group or
            piece, a piece that is there twice, or needs that form a cycle.
    """

    name: str
    groups: tuple[Group, ...]
    tasks: tuple[ScheduledTask, ...]
    reshard: float = 0.0
    migrates: bool = False
    source: str = ""
    assumed: str = ""

    def __post_init__(self) -> None:
        key = f"schedule {self.name}"
        shares = [g.share for g in self.groups if g.share is not None]
        if min(shares, default=0.0) < 0 or sum(shares) > 1 + 1e-9:
            raise ConfigError(f"{key}: shares", shares, "0 or more, together at most 1")
        if (n_open := len(self.groups) - len(shares)) not in (0, 2):
            raise ConfigError(f"{key}: groups without a share", n_open, "none or two")
        names, pieces = [g.name for g in self.groups], self.pieces
        if len(set(pieces)) < len(pieces):
            raise ConfigError(f"{key}: pieces", [*map(str, pieces)], "each piece once")
        for task in self.tasks:
            if task.group not in names:
                raise ConfigError(f"{key}: group of {task.piece}", task.group, f"one of {names}")
            for need in task.needs:
                if need.piece not in pieces:
                    raise ConfigError(
                        f"{key}: need of {task.piece}", str(need.piece), "a piece of the schedule"
                    )
        _check_order(key, self.tasks)

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The pieces, in order of precedence."""
        return tuple(t.piece for t in self.tasks)


def _check_order(key: str, tasks: tuple[ScheduledTask, ...]) -> None:
    done: set[Piece] = set()
    waiting = list(tasks)
    while waiting:
        ready = [t for t in waiting if all(n.ago or n.piece in done for n in t.needs)]
        if not ready:
            raise ConfigError(key, [str(t.piece) for t in waiting], "needs without a cycle")
        done |= {t.piece for t in ready}
        waiting = [t for t in waiting if t.piece not in done]


def all_of(pieces: Iterable[Piece], ago: int = 0) -> tuple[Need, ...]:
    """Needs of the whole of some pieces."""
    return tuple(Need(piece, ago) for piece in pieces)
