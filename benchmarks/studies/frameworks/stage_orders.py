"""Stage orders of five RLHF frameworks, and of EcoRL-Sched on top of the last, as data.

A `Schedule` says how a framework runs an iteration on a cluster: groups of GPUs by their share, and
one `ScheduledTask` a piece, in order of precedence. `list_scheduler` beside it evaluates it; what
each source documents and what was assumed stands in ``schedules.toml``.

Every framework gets the same work: `ecorl.stages.figures.Work` prices a stage by what it computes,
not by whose kernels compute it. What separates the frameworks here is the order alone: who waits
for whom, which GPUs stand still, and how much weight moves. Kernels, memory management and
parallelism, which make up much of the differences that their papers report, are left out; the
ratios found here are what the order is worth, and lower than published end-to-end ones.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from ecorl.records import Stage
from ecorl.stages.figures import CONCURRENT, FPGA, GPU


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

ALL_GPUS = "all"
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
    share: float | None = None


@dataclass(frozen=True, slots=True)
class Schedule:
    """How a framework runs iterations.

    Attributes:
        name: for tables.
        groups: all groups; together at most the cluster.
        tasks: one a piece, the first in precedence first.
        reshard: share of the policy's weights that every GPU of the generation fetches before it.
        migrates: whether the last rows of generation are moved together, which frees GPUs.
    """

    name: str
    groups: tuple[Group, ...]
    tasks: tuple[ScheduledTask, ...]
    reshard: float = 0.0
    migrates: bool = False


def all_of(pieces: Iterable[Piece], ago: int = 0) -> tuple[Need, ...]:
    """Needs of the whole of some pieces."""
    return tuple(Need(piece, ago) for piece in pieces)


FILE = "schedules.toml"
_FOUND: dict[str, Any] = tomllib.loads((resources.files(__package__) / FILE).read_text("utf-8"))


def _schedule(name: str, tasks: tuple[ScheduledTask, ...] = ()) -> Schedule:
    """A schedule of the file, whose tasks may be given."""
    entry = _FOUND[name]
    groups = tuple(Group(*group) for group in entry["groups"])
    listed = tuple(
        ScheduledTask(
            Piece(task["piece"]),
            task["group"],
            tuple(Need(Piece(piece), ago) for piece, ago in task["needs"]),
        )
        for task in entry.get("tasks", ())
    )
    return Schedule(name, groups, tasks or listed, entry["reshard"], entry.get("migrates", False))


def _fused(places: Sequence[int] | None = None) -> tuple[ScheduledTask, ...]:
    """RLHFuse's tasks; with `places` (codes by stage) reward and reference may be on the cards.

    A frozen stage on the cards starts with the first finished rows where generation has a3, else
    after it. With a2 what comes next on the GPUs waits for it; with a3 the actor's backward pass
    does, and the forward pass too unless actor_train has a3.
    """
    codes = dict(zip(Stage, places, strict=True)) if places is not None else {}
    off = [p for p in (Piece.REWARD, Piece.REFERENCE) if codes.get(Stage(p.value), GPU) != GPU]
    waited = [p for p in off if codes[Stage(p.value)] == FPGA]
    early = codes.get(Stage.ACTOR_TRAIN) == CONCURRENT
    streams = codes.get(Stage.GENERATION) == CONCURRENT
    tasks = [
        ScheduledTask(Piece.RESHARD, ALL_GPUS, all_of(TRAINING[1:], ago=1), True),
        ScheduledTask(Piece.GENERATION, ALL_GPUS, (Need(Piece.RESHARD),), True),
    ]
    for piece in INFERENCE:
        on_cards = piece in off
        first = Need(Piece.GENERATION, by_rows=streams if on_cards else True)
        before = all_of(p for p in waited if INFERENCE.index(p) < INFERENCE.index(piece))
        group = CARDS if on_cards else ALL_GPUS
        tasks.append(ScheduledTask(piece, group, (first, *(() if on_cards else before)), True))
    joined = [p for p in INFERENCE if not (early and p in off and p not in waited)]
    generated = Need(Piece.GENERATION)
    tasks += [
        ScheduledTask(Piece.FORWARD, ALL_GPUS, (generated, *all_of(joined)), True, early),
        ScheduledTask(Piece.BACKWARD, ALL_GPUS, (Need(Piece.FORWARD), *all_of(INFERENCE)), True),
        ScheduledTask(Piece.CRITIC_TRAIN, ALL_GPUS, (generated, *all_of(INFERENCE)), True),
    ]
    return tuple(tasks)


DEEPSPEED_CHAT = _schedule("DeepSpeed-Chat")
HYBRIDFLOW = _schedule("HybridFlow", DEEPSPEED_CHAT.tasks)
OPENRLHF = _schedule("OpenRLHF")
LLAMARL = _schedule("LlamaRL")
RLHFUSE = _schedule("RLHFuse", _fused())


@cache
def ecorl_schedule(codes: tuple[int, ...]) -> Schedule:
    """RLHFuse's schedule with reward and reference where a policy puts them.

    The paper builds on RLHFuse (its ablation starts there). The critic's step is fused with the
    actor's as in RLHFuse, so an a3 of critic_train changes nothing here.

    Args:
        codes: one action code a stage, in the order of the enum, as the guards let them through.
    """
    return _schedule("EcoRL-Sched", _fused(codes))
