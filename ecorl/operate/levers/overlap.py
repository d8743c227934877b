"""What is gained where stages run beside generation on the same GPUs.

Decoding waits for memory and leaves arithmetic units free, which scoring and training keep busy. By
the graph of an algorithm (`ecorl.stages.graph`) rows can be scored as soon as they are finished;
one step off-policy, the scoring and training of one batch can run beside the generation of the
next, which trains on rows of an older policy.

The bytes and operations are as many as before. What is saved is time, and the power that GPUs draw
whatever they do. How much of a stage hides depends on how both get into each other's way: from
nothing up to all that memory, arithmetic and the board's power leave room for.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np

from ecorl.operate.levers.gears import End
from ecorl.operate.levers.step import StageDraw
from ecorl.records import INFERENCE_STAGES, Stage
from ecorl.scheduler.tables import CONTENTION
from ecorl.stages.figures import Number

LAST_SHARE = 0.25
"""Share of a batch's rows that are finished too late to be scored beside generation. Assumed."""

_HIDDEN: dict[End, float] = {"low": 0.0, "usual": 1.0 - CONTENTION, "high": 1.0}
"""Share of a stage's time that hides beside generation."""


def overlapping(off_policy: bool) -> frozenset[Stage]:
    """Return the stages that can run beside generation.

    Args:
        off_policy: whether training may be one step behind.
    """
    later = {Stage.ACTOR_TRAIN, Stage.CRITIC_TRAIN} if off_policy else set()
    return frozenset({*INFERENCE_STAGES, *later})


def hidden_s(
    draws: Sequence[StageDraw],
    limit_w: float | None,
    end: End = "usual",
    *,
    off_policy: bool = False,
) -> Number:
    """Compute by how much a step is shorter where stages run beside generation, s.

    Args:
        draws: of its stages on the GPUs.
        limit_w: what all GPUs may draw together, W; None: there is no limit.
        end: of what is assumed of the stages' getting into each other's way.
        off_policy: whether training may be one step behind.
    """
    generation = next((draw for draw in draws if draw.stage is Stage.GENERATION), None)
    if generation is None:
        return 0.0
    scoring = [draw for draw in draws if draw.stage in INFERENCE_STAGES]
    found = _hidden_s(generation, scoring, 1.0 - LAST_SHARE, limit_w, end)
    if off_policy:
        # Where the board's power leaves no room for all, less may still hide.
        beside = [draw for draw in draws if draw.stage in overlapping(True)]
        for stages in (scoring, beside):
            found = np.maximum(found, _hidden_s(generation, stages, 1.0, limit_w, end))
    return found


def _hidden_s(
    generation: StageDraw,
    beside: Sequence[StageDraw],
    share: float,
    limit_w: float | None,
    end: End,
) -> Number:
    """Compute the time that a share of some stages hides beside generation, s."""
    side_s = share * sum(draw.time_s for draw in beside)
    together_s = generation.time_s + side_s
    # No resource can be used twice at a time, and the board's power is one of them.
    least = [
        generation.time_s,
        side_s,
        generation.memory_s + share * sum(draw.memory_s for draw in beside),
        generation.compute_s + share * sum(draw.compute_s for draw in beside),
    ]
    if limit_w is not None:
        moving_j = share * sum(draw.memory_j + draw.compute_j for draw in beside)
        moving_j = generation.memory_j + generation.compute_j + moving_j
        least.append(moving_j / np.maximum(limit_w - generation.busy_w, 1e-9))
    room_s = together_s - reduce(np.maximum, least)
    return np.maximum(0.0, np.minimum(_HIDDEN[end] * side_s, room_s))
