"""OpenRLHF's metrics in the run's record."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

_NAMES = {
    "policy_loss": "loss",
    "reward": "reward",
    "rollout/reward_std": "reward_std",
    "kl": "kl",
    "entropy_loss": "entropy",
    "actor_grad_norm": "grad_norm",
    "actor_lr": "learning_rate",
    "response_length": "completion_length",
    "rollout/truncated_rate": "clipped_ratio",
    "timing/step_total": "step_time_s",
}
"""OpenRLHF's names and those that all of ecorl's reports know; others keep theirs."""


def trainer_metrics(status: Mapping[str, Any]) -> Iterator[tuple[str, float | None]]:
    """Yield the scalars of a step by their names in the record.

    Args:
        status: OpenRLHF's metrics; what is no number is left out, what is not finite is missing.
    """
    for key, value in status.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        yield _NAMES.get(key, key), float(value) if math.isfinite(value) else None
