"""A bound for whole epochs with what changes cost: Lagrange's, by dynamic programming.

The budget is taken out of the problem and each token given a price. What is left is a path through
the states of `EpochNetwork`, over all actions of the table, and the least that it costs less what
its tokens are worth is a bound at any price. The price that gives the highest bound is searched
for. What the bound lacks is that blocks of epochs come as a whole, and do not add up to the budget:
over a month of epochs of 5 minutes less than 3e-5 of the costs, on four recorded grids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from benchmarks.studies.carbon.bound.network import EpochNetwork
from ecorl.carbon.series import Series
from ecorl.control import GearChoice, Why
from ecorl.controllers.clairvoyant.lp import ClairvoyantBound, lp_bound
from ecorl.controllers.problem.table import PAUSE, FloatArray, TrainingAction
from ecorl.controllers.problem.training import TrainingProblem
from ecorl.controllers.protocol import Memoryless, Seen
from ecorl.controllers.replay.knowledge import Knowledge
from ecorl.controllers.replay.playing import PlayedTraining, Training, outcome, play
from ecorl.controllers.step import choice

_POINTS = 9
"""Prices that are tried at once. Invented: as many take hardly longer than one."""

_LEAST, _MOST = 0.8, 1.4
"""Where the price is looked for at first, as a multiple of that without costs of changes. Changes
lose tokens, so that the price is higher; outside of these it is looked for later. Invented."""

_CLOSE = 3e-5
"""Share of a price to which it is searched for. Invented: by then a bound moves by 1e-7 of it."""

_LONGEST = 12
"""Rounds of the search. Invented: five are usual."""

SCRIPTED = "scripted"


@dataclass(frozen=True, slots=True, eq=False)
class LagrangianBound:
    """A bound with what changes cost, and a schedule near it.

    Attributes:
        cost_g: the bound, gCO2e; the linear programme's where that is higher.
        price: of a token, at which it is reached, g.
        ends_g: ``[E] float64``, a bound by the epoch in which the last token falls, gCO2e.
        free: the bound without what changes cost.
        played: what became of the schedule in a replay.
        actions: the schedule, epoch by epoch.
    """

    cost_g: float
    price: float
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
    prices = best_prices(network, max(free.price.g_per_token, 1e-12))
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


class FoundPrices(NamedTuple):
    """What the search found.

    Attributes:
        price: of a token, at which the bound is the highest, g.
        more: a little higher: what it buys is enough.
        end: the epoch of the last token for which the bound is the lowest.
        ends_g: ``[E]``, by that epoch the best bound, g.
    """

    price: float
    more: float
    end: int
    ends_g: FloatArray


def best_prices(network: EpochNetwork, guess: float) -> FoundPrices:
    """Search for the price at which whole epochs are bounded best: beside the best one tried.

    At each end of the training the bound is concave in the price, so that what was tried tells
    where it may be higher. All ends are bounded by each price that is tried; the one that is looked
    at is the end with the lowest bound, which is the bound of all.

    Args:
        network: the problem in whole epochs.
        guess: the price that holds without costs of changes, above 0, g.
    """
    known, bounds_g = np.zeros(0), np.zeros((0, network.n_epochs))
    grid = np.linspace(_LEAST * guess, _MOST * guess, _POINTS)
    for _ in range(_LONGEST):
        known = np.concatenate((known, grid))
        bounds_g = np.concatenate((bounds_g, network.ends_g(grid)))
        order = np.argsort(known, kind="stable")
        known, bounds_g = known[order], bounds_g[order]
        ends_g = bounds_g.max(axis=0)
        end = int(ends_g.argmin())
        at = int(bounds_g[:, end].argmax())
        is_within = 0 < at < len(known) - 1
        least = float(known[at - 1]) if at else 0.5 * float(known[0])
        most = float(known[at + 1]) if at < len(known) - 1 else 2.0 * float(known[-1])
        if is_within and most - least <= _CLOSE * most:
            break
        grid = np.linspace(least, most, _POINTS)[1:-1]
        if not is_within:
            grid = np.append(grid, most if at else least)
    return FoundPrices(float(known[at]), most, end, ends_g)


class ScriptedActions(Memoryless):
    """Does what was written down beforehand, epoch by epoch.

    Args:
        problem: what has to be met.
        actions: of the first epochs; after them it pauses.
    """

    name = SCRIPTED

    def __init__(self, problem: TrainingProblem, actions: Sequence[TrainingAction]) -> None:
        self._problem, self._actions = problem, tuple(actions)

    def decide(self, now_s: float, seen: Seen) -> GearChoice:
        """See `Controller.decide`."""
        p = self._problem
        epoch = round((now_s - p.start_s) / p.epoch_s)
        action = self._actions[epoch] if epoch < len(self._actions) else PAUSE
        return choice(self.name, now_s, p, seen, action, Why.STATIC, "it is written down")


def played_actions(
    problem: TrainingProblem, truth: Series, actions: Sequence[TrainingAction]
) -> PlayedTraining:
    """What becomes of a training whose actions were written down beforehand.

    Where they lack tokens, the control step adds what the promise of the budget asks for.

    Args:
        problem: what has to be met.
        truth: the intensities, g/kWh.
        actions: of the first epochs; after them there is a pause.
    """
    training = Training(problem, truth)
    while not training.is_over:
        epoch = training.n_epochs
        training.run(actions[epoch] if epoch < len(actions) else PAUSE)
    training.keep_until_deadline()
    found = outcome(SCRIPTED, training)
    if found.deficit > 0.0:
        return play(ScriptedActions(problem, actions), problem, Knowledge(truth))
    return found
