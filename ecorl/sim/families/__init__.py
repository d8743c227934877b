"""Families of scenarios: what policies are trained on, and what they are compared on.

Training and comparison draw from different seeds and differ in kind (`ecorl.sim.families.pools`).
"""

from __future__ import annotations

from ecorl.sim.families.hypothetical import hypothetical_scenarios
from ecorl.sim.families.jobs import (
    drift_scenarios,
    mixed_scenarios,
    real_pairs,
    wrong_table_scenarios,
)
from ecorl.sim.families.paper import paper_scenarios
from ecorl.sim.families.pools import (
    ALL,
    FROZEN,
    HELD_OUT_ALGORITHM,
    HELD_OUT_GPU,
    HELD_OUT_SIZE,
)
from ecorl.sim.families.profiles import cpu_profile, silicon_card
from ecorl.sim.families.training import paper_pool, training_pool

__all__ = [
    "ALL",
    "FROZEN",
    "HELD_OUT_ALGORITHM",
    "HELD_OUT_GPU",
    "HELD_OUT_SIZE",
    "cpu_profile",
    "drift_scenarios",
    "hypothetical_scenarios",
    "mixed_scenarios",
    "paper_pool",
    "paper_scenarios",
    "real_pairs",
    "silicon_card",
    "training_pool",
    "wrong_table_scenarios",
]
