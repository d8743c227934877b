"""Whether a drawn scenario can be priced at all, and how long its iteration is."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ecorl.errors import ConfigError, PhysicalBoundError
from ecorl.scheduler.tables import COLUMN, Float64, roofline_table
from ecorl.sim.scenario import Scenario

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
