"""The pool of scenarios on which one network is trained for all families."""

from __future__ import annotations

import math
from collections.abc import Callable

from ecorl.sim.families.hypothetical import hypothetical_scenarios
from ecorl.sim.families.jobs import drift_scenarios, mixed_scenarios, wrong_table_scenarios
from ecorl.sim.families.paper import paper_scenarios
from ecorl.sim.scenario import Scenario


def training_pool(seed: int, n: int) -> list[Scenario]:
    """Draw scenarios of every family, for one network that serves them all.

    Args:
        seed: of the draw.
        n: scenarios; where they are few the last families have none.
    """
    found: list[Scenario] = []
    for share, draw in POOL:
        found += draw(seed, min(math.ceil(share * n), n - len(found)))
    return found


def paper_pool(seed: int, n: int) -> list[Scenario]:
    """Draw scenarios under the paper's calibration, a third of them harder.

    Args:
        seed: of the draw.
        n: scenarios.
    """
    n_hard = n // 3
    drawn = paper_scenarios(seed, n - n_hard)
    return drawn + paper_scenarios(seed + 1, n_hard, harder=True, name="hard")


POOL: tuple[tuple[float, Callable[[int, int], list[Scenario]]], ...] = (
    (0.33, drift_scenarios),
    (0.27, wrong_table_scenarios),
    (0.25, mixed_scenarios),
    (0.08, paper_pool),
    (0.07, hypothetical_scenarios),
)
"""Families of the training pool, and their shares."""
