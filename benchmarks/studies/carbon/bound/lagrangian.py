"""A bound for whole epochs with what changes cost: Lagrange's, by dynamic programming.

The budget is taken out of the problem and each token given a price. What is left is a path through
the states of `EpochNetwork`, over all actions of the table, and the least that it costs less what
its tokens are worth is a bound at any price. The price that gives the highest bound is searched
for. What the bound lacks is that blocks of epochs come as a whole, and do not add up to the budget:
over a month of epochs of 5 minutes less than 3e-5 of the costs, on four recorded grids, without a
cap on low precision.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from benchmarks.studies.carbon.bound.network import EpochNetwork
from benchmarks.studies.carbon.bound.replayed import played_actions
from benchmarks.studies.carbon.bound.search import best_prices
from ecorl.carbon.series import Series
from ecorl.controllers.clairvoyant.lp import ClairvoyantBound, lp_bound
from ecorl.controllers.horizon.pricing import Price
from ecorl.controllers.problem.table import FloatArray, TrainingAction
from ecorl.controllers.problem.training import TrainingProblem
from ecorl.controllers.replay.playing import PlayedTraining


@dataclass(frozen=True, slots=True, eq=False)
class LagrangianBound:
    """A bound with what changes cost, and a schedule near it.

    Attributes:
        cost_g: the bound, gCO2e; the linear programme's where that is higher.
        price: at which it is reached.
        ends_g: ``[E] float64``, a bound by the epoch in which the last token falls, gCO2e.
        free: the bound without what changes cost.
        played: what became of the schedule in a replay.
        actions: the schedule, epoch by epoch.
    """

    cost_g: float
    price: Price
    ends_g: FloatArray = field(repr=False)
    free: ClairvoyantBound
    played: PlayedTraining
    actions: tuple[TrainingAction, ...] = field(repr=False)


def lagrangian_bound(problem: TrainingProblem, truth: Series) -> LagrangianBound:
    """Bound what a training costs in whole epochs, changes included.

    Args:
        problem: what has to be met.
        truth: the intensities, g/kWh, from start to deadline at least.

    Raises:
        ConfigError: when the series does not fit the problem.
        MissingToolError: without SciPy.
    """
    return bounded(EpochNetwork(problem, truth), truth)


def bounded(network: EpochNetwork, truth: Series) -> LagrangianBound:
    """The same for a network that is there already.

    Args:
        network: of the problem.
        truth: the intensities, g/kWh.

    Raises:
        ConfigError: when the series does not fit the problem.
        MissingToolError: without SciPy.
    """
    p = network.problem
    free = lp_bound(p, truth)
    prices = best_prices(network, free.price)
    found = []
    may_end = np.arange(network.n_epochs) == prices.end
    for price in (prices.price, prices.more):
        actions = network.cheapest(network.values(price, may_end))
        found.append((played_actions(p, truth, actions), actions))
    played, actions = min(found, key=lambda one: (one[0].deficit, one[0].cost_g))
    return LagrangianBound(
        cost_g=max(free.cost_g, float(prices.ends_g.min())),
        price=prices.price,
        ends_g=prices.ends_g,
        free=free,
        played=played,
        actions=actions,
    )
