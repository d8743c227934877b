"""Width by the price of spot machines: the paper's SPOT-ONLY."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import cast

import numpy as np

from ecorl.control import Gear, GearChoice, Why
from ecorl.controllers.problem.table import TrainingAction
from ecorl.controllers.problem.training import TrainingProblem
from ecorl.controllers.protocol import Seen
from ecorl.controllers.rules.static import checked_gear
from ecorl.controllers.step import choice
from ecorl.errors import ConfigError


class SpotOnly:
    """Scales the width with the price of a worker, in one gear; it does not look at the grid.

    CarbonGearRL says of its baseline only that it "scales n_k with spot-instance prices but keeps
    precision fixed". The rule here is an invention, and the simplest one that does so:

        n = the largest width of the table with n * price <= n_max * base_price

    so that an hour costs at most what the full width costs at the base price, and all workers train
    at or below it. But n is never so small that the rest of the budget, at its pace, would take
    longer than until the deadline; so the rule does not lean on the shield. Where the price is
    unknown, it is the full width.

    Args:
        problem: what has to be met.
        gear: of all choices; None: the fastest one that is not of low precision.
        base_price: at which the full width is still taken, in the currency of the prices; None: the
            mean of the prices seen so far.

    Raises:
        ConfigError: for a gear that the table does not have, and a price that is not above 0.
    """

    name = "spot"

    def __init__(
        self,
        problem: TrainingProblem,
        gear: Gear | None = None,
        base_price: float | None = None,
    ) -> None:
        if base_price is not None and not (base_price > 0 and math.isfinite(base_price)):
            raise ConfigError(f"{problem.key}.base_price", base_price, "a price above 0")
        self._problem, self._gear = problem, checked_gear(problem, gear)
        self._base_price = base_price
        table = problem.table
        self._widths = np.array(table.widths)
        self._rates = table.tokens_per_s[table.gears.index(self._gear)]
        self._n_seen, self._sum_seen = 0, 0.0

    def decide(self, now_s: float, seen: Seen) -> GearChoice:
        """See `Controller.decide`."""
        assert seen.progress is not None
        p, price = self._problem, seen.spot_price
        widest = len(self._widths) - 1
        if price is None or not math.isfinite(price):
            action = TrainingAction(int(self._widths[widest]), self._gear)
            told = "the price of a worker is unknown"
            return choice(self.name, now_s, p, seen, action, Why.UNKNOWN, told)
        self._n_seen, self._sum_seen = self._n_seen + 1, self._sum_seen + max(price, 0.0)
        base = self._base_price or self._sum_seen / self._n_seen
        affordable = self._widths * max(price, 0.0) <= self._widths[widest] * base * (1 + 1e-9)
        by_price = int(np.count_nonzero(affordable)) - 1
        left_s = p.deadline_s - now_s
        pace = seen.progress.tokens_left / left_s if left_s > 0 else math.inf
        by_pace = int(np.searchsorted(self._rates, pace * (1 - 1e-9)))
        place = min(widest, max(0, by_price, by_pace))
        action = TrainingAction(int(self._widths[place]), self._gear)
        told = f"a worker costs {price:.4g} an hour, against {base:.4g}"
        return choice(self.name, now_s, p, seen, action, Why.PRICED, told)

    def memory(self) -> Mapping[str, object]:
        """Number and sum of the prices seen so far."""
        return {"n_seen": self._n_seen, "sum_seen": self._sum_seen}

    def recall(self, memory: Mapping[str, object]) -> None:
        """Go on from the prices that were seen.

        Args:
            memory: number and sum of them.
        """
        self._n_seen = cast("int", memory.get("n_seen", 0))
        self._sum_seen = cast("float", memory.get("sum_seen", 0.0))
