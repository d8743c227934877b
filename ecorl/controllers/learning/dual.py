"""Pacing by a dual variable: a token gains worth while training is behind its schedule.

The dual variable lambda is the price of a token, and each epoch has the action that minimises
``c P(s) - lambda tau(s)``. lambda follows CarbonGearRL's Algorithm 2 (`RobustDual`). The paper
leaves the units open, and ours are: a deficit is a share of the token budget, and lambda counts
reference prices. The reference price, in g/token, is what a token of the fastest action costs at
the mean intensity of the past.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import SupportsInt, cast

import numpy as np

from ecorl.control import GearChoice, Why
from ecorl.controllers.horizon.pricing import Hulls, Price
from ecorl.controllers.learning import pace
from ecorl.controllers.problem.training import TrainingProblem
from ecorl.controllers.protocol import Seen
from ecorl.controllers.step import choice

DUAL, DUAL_PRINTED = "dual", "dual-printed"

LAMBDA_MAX = 1e3
"""Largest lambda, in reference prices: the figure of the paper, whose unit it does not tell."""


@dataclass(frozen=True, slots=True)
class DualSteps:
    """How lambda moves. The paper gives `rho` alone.

    Attributes:
        base: step size beta_0, in reference prices for a deficit of the whole budget. Invented:
            of 0.02 to 10 about the one that emitted least on EIA-930's hours of 2022, in starts
            from March to May in California, PJM and New York, and in Bonneville's whole year.
        rho: share of its last value that a moving average keeps at each epoch.
        warm_epochs: over how many epochs the step size rises. Invented: 1 / (1 - rho), as many as
            the moving averages remember.
    """

    base: float = 0.1
    rho: float = 0.99
    warm_epochs: int = 100

    def beta(self, k: int) -> float:
        """Step size of an epoch (Algorithm 2, lines 9 to 13).

        Args:
            k: number of the epoch, from 0 on.
        """
        if k < self.warm_epochs:
            return self.base * (k + 1) / self.warm_epochs
        return self.base / math.sqrt(k - self.warm_epochs + 1)


class RobustDual:
    """The dual variable of CarbonGearRL's Algorithm 2, and its moving averages.

    The printed algorithm lacks the line that changes lambda. The notes beside it tell what it does:
    ``lambda <- clip(lambda + beta_k |s| d, 0, lambda_max)``.

    Args:
        first: lambda at the begin, in reference prices; the paper begins with 0.
        steps: how it moves.

    Attributes:
        price: lambda, in reference prices.
        deficit: d, the moving average of the deficit, in shares of the budget.
        sign: s, the moving average of the deficit's sign, -1 to 1.
        k: number of updates so far.
    """

    def __init__(self, first: float = 0.0, steps: DualSteps | None = None) -> None:
        self.steps = steps or DualSteps()
        self.price, self.deficit, self.sign, self.k = min(first, LAMBDA_MAX), 0.0, 0.0, 0

    def update(self, deficit: float) -> float:
        """Take one epoch's deficit in, and tell the new lambda.

        Args:
            deficit: of tokens, as a share of the budget; below 0 where there are more than due.
        """
        rho = self.steps.rho
        self.deficit = rho * self.deficit + (1.0 - rho) * deficit
        self.sign = rho * self.sign + (1.0 - rho) * float(np.sign(deficit))
        moved = self.price + self.steps.beta(self.k) * abs(self.sign) * self.deficit
        self.price = min(max(moved, 0.0), LAMBDA_MAX)
        self.k += 1
        return self.price

    def memory(self) -> dict[str, object]:
        """What it has to remember."""
        return {"price": self.price, "deficit": self.deficit, "sign": self.sign, "k": self.k}

    def recall(self, memory: Mapping[str, object]) -> None:
        """Go on from a memory.

        Args:
            memory: of another one with the same steps.
        """
        self.price, self.deficit, self.sign = (
            pace.number(memory[name]) for name in ("price", "deficit", "sign")
        )
        self.k = int(cast(SupportsInt, memory["k"]))


class DualPaced:
    """Trains what the price of a token pays for, and moves the price by the tokens still due.

    Ours beside the paper: deficits are against the pro-rata schedule, and lambda begins with the
    price that would have trained the budget on the past. As it is printed the deficit is all that
    the budget lacks, which is never negative, so lambda only rises; and it begins with 0.

    Args:
        problem: what has to be met.
        printed: whether deficit and begin are as in the paper.
        day_s: length of a day of the grid, s.
    """

    def __init__(
        self,
        problem: TrainingProblem,
        *,
        printed: bool = False,
        day_s: float = 86400.0,
    ) -> None:
        self.name = DUAL_PRINTED if printed else DUAL
        self._problem, self._printed, self._day_s = problem, printed, day_s
        self._hulls = Hulls.of(problem)
        self._dual = RobustDual()
        self._first: pace.FirstPrice | None = None
        self._epoch = -1

    def decide(self, now_s: float, seen: Seen) -> GearChoice:
        """See `Controller.decide`."""
        p, progress, known = self._problem, seen.progress, seen.intensity
        assert progress is not None
        if self._first is None:
            self._first = pace.first_price(p, self._hulls, now_s, seen, self._day_s)
            if self._first is not None and not self._printed:
                self._dual.price = min(self._first.warm, LAMBDA_MAX)
        epoch = pace.epoch_of(p, now_s)
        if epoch > self._epoch:
            self._epoch = epoch
            due = p.tokens if self._printed else pace.due_tokens(p, now_s)
            self._dual.update((due - (p.tokens - progress.tokens_left)) / p.tokens)
        if known is None or self._first is None:
            return pace.unknown(self.name, now_s, p, seen)
        price = self._first.price(self._dual.price)
        if self._printed:
            price = Price(price.g_per_token)
        elif progress.low_tokens_left <= 0.0:
            price = Price(price.g_per_token, price.g_per_token)
        action = self._hulls.best(price, known.g_per_kwh)
        told = f"a token is worth {1e6 * price.g_per_token:.3g} g a million by its dual variable"
        return choice(self.name, now_s, p, seen, action, Why.PRICED, told, price.g_per_token)

    def memory(self) -> Mapping[str, object]:
        """See `Controller.memory`."""
        return {
            "epoch": self._epoch,
            "dual": self._dual.memory(),
            "first": pace.first_memory(self._first),
        }

    def recall(self, memory: Mapping[str, object]) -> None:
        """See `Controller.recall`.

        Args:
            memory: of a controller of this kind for the same problem.
        """
        self._epoch = int(cast(SupportsInt, memory["epoch"]))
        self._dual.recall(cast(Mapping[str, object], memory["dual"]))
        self._first = pace.first_recalled(memory["first"])
