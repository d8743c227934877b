"""Costs and progress of an iteration as far as they show while its rows are streamed."""

from __future__ import annotations

from typing import Any

import numpy as np

from ecorl.stages import Carry, Number, Ops, Work

_REVEALED = (
    "generation_s", "generation_j", "handover_s", "tail", "gpu_s", "gpu_j", "card_s",
    "forward_s", "backward_s", "actor_j", "early_s", "early_j", "critic_s", "critic_j",
    "swap_s", "swap_j", "late_arriving_s", "lost",
)  # fmt: skip
"""What of a batch is only expected until its rows are there. What the cards lose in this iteration
is part of it: nobody sees a failure before it happens."""


def picked_carry(streaming: Number, hoped: Carry, real: Carry) -> Carry:
    """Return `hoped` where rows are streamed, else `real`.

    Args:
        streaming: 1 where rows are streamed, else 0.
        hoped: the iteration so far at the lengths that are expected.
        real: the same at the real ones.
    """
    if isinstance(streaming, float):
        return hoped if streaming else real
    picked = streaming > 0.0
    return Carry._make(np.where(picked, a, b) for a, b in zip(hoped, real, strict=True))


def mixed(streaming: Number, expected: Work, actual: Work, ops: Ops) -> Work:
    """Return what is known of the costs: where rows are streamed what is expected, else the real.

    Args:
        streaming: 1 where rows are streamed, else 0.
        expected: costs at the lengths that are expected.
        actual: costs at the real ones.
        ops: `SCALAR` for floats, `BATCH` for arrays.
    """
    if not ops.any(streaming):
        return actual._replace(lost=expected.lost)
    if isinstance(streaming, float):
        return expected
    picked = streaming > 0.0

    def mix(hoped: Any, real: Any) -> Any:
        if isinstance(real, tuple):
            return tuple(map(mix, hoped, real))
        return np.where(picked, hoped, real)

    changed = {name: mix(getattr(expected, name), getattr(actual, name)) for name in _REVEALED}
    return actual._replace(**changed | {"lost": expected.lost})
