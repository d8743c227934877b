"""What training may draw, what it never sees, and whether a drawn scenario can be priced."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ecorl.errors import ConfigError, PhysicalBoundError
from ecorl.records import Abilities, Algorithm
from ecorl.scheduler.tables import COLUMN, Float64, roofline_table
from ecorl.sim.scenario import Scenario

HELD_OUT_GPU = "a100_sxm"
HELD_OUT_SIZE = "3b"
HELD_OUT_ALGORITHM = Algorithm.DAPO
"""Never drawn for training: neither as the training's GPU nor in the card's place."""

GPUS = ("h100_sxm", "h200", "b200_sxm", "l4", "cpu")
SIZES = ("160k", "15m", "135m", "360m", "0.5b", "1b", "8b")
TRAINING_ALGORITHMS = (Algorithm.PPO, Algorithm.GRPO, Algorithm.REINFORCE_PP)
ALGORITHMS = (*TRAINING_ALGORITHMS, HELD_OUT_ALGORITHM)
LONG_S = 4.0
"""Iterations above which a card's heat can be planned with."""

FROZEN = Abilities(True, True, True, False)
ALL = Abilities(True, True, True, True)


_GPU_TIMES = (
    "generation_short_s", "reward_s", "reference_s", "critic_s", "actor_train_s", "critic_train_s",
)  # fmt: skip


def iteration_s(scenario: Scenario) -> float | None:
    """Compute the GPU-only iteration at the nominal length, s; None where it cannot be priced."""
    row = _nominal_row(scenario)
    return None if row is None else sum(row[name] for name in _GPU_TIMES)


def _nominal_row(scenario: Scenario) -> Mapping[str, float] | None:
    length = scenario.nominal_length
    lengths: Float64 = np.array([length, 2.0 * length])
    try:
        values = roofline_table(scenario.setting, lengths).values[0]
    except (ConfigError, PhysicalBoundError):
        return None
    return {name: float(values[i]) for name, i in COLUMN.items()}


def is_priced(scenario: Scenario) -> bool:
    """Tell whether every stage of a scenario has a price."""
    try:
        return bool(np.isfinite(scenario.table.values).all())
    except (ConfigError, PhysicalBoundError):
        return False
