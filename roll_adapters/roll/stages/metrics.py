"""ROLL's metrics in the run's record."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

_NAMES = {
    "actor/total_loss": "loss",
    # Of preference pairs, of a student, and of supervised fine-tuning.
    "actor/loss": "loss",
    "train/loss": "loss",
    "sft_train/loss": "loss",
    "critic/rewards/mean": "reward",
    "critic/score/mean": "reward",
    "actor/approxkl": "kl",
    "actor_train/grad_norm": "grad_norm",
    "actor/lr": "learning_rate",
    "token/response_length/mean": "completion_length",
}
"""ROLL's names and those that all of ecorl's reports know, the first that is there; others keep
theirs. Its ``time/step_total`` is that of the step before, and keeps its name."""


def trainer_metrics(values: Mapping[str, Any]) -> Iterator[tuple[str, float | None]]:
    """Yield the scalars of a step by their names in the record.

    Args:
        values: ROLL's metrics; what is no number is left out, what is not finite is missing.
    """
    taken: set[str] = set()
    for key, value in values.items():
        number = _number(value)
        if number is None:
            continue
        # How ROLL puts micro-batches together ("...@sum") is no part of a name for its trackers.
        own = key.rsplit("@", 1)[0]
        name = _NAMES.get(own, own)
        if name in taken:
            name = own
        taken.add(name)
        yield name, number if math.isfinite(number) else None


def _number(value: Any) -> float | None:
    """A scalar as a float; None for what is none. NumPy's and torch's scalars have ``item``."""
    item = getattr(value, "item", None)
    # Torch's tensors tell their size by `numel`, NumPy's by `size`.
    count = getattr(value, "numel", None)
    if item is not None and (count() if callable(count) else getattr(value, "size", 1)) == 1:
        value = item()
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)
