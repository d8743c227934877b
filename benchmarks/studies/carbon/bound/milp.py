"""The least that whole epochs with changes cost: a mixed-integer programme, solved by HiGHS.

A schedule is a path through the states of `EpochNetwork`: one binary variable for each epoch that
may be spent in some way, at each state as many arcs that lead to it as away from it, and one row
for the budget. That is the most compact form of it known: without the budget's row its linear
relaxation is exact, so that little is left to branch on.

A month of epochs of five minutes and 33 actions has nine million arcs. Lagrange's bound tells which
of them no schedule below some cost can use; HiGHS chooses among the others. What it finds is
optimal among all schedules where it lies below that cost, and else that cost is the bound.

The programme costs what `ecorl.controllers.replay.playing.Training` accounts for the same schedule,
and less in two cases that hardly occur: lateness counts as nothing in an epoch that holds the
soft deadline within it, and a change of the gear counts as one of the width where that takes less
time.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace

import numpy as np

from benchmarks.studies.carbon.bound.chosen import chosen
from benchmarks.studies.carbon.bound.core import CoreNetwork
from benchmarks.studies.carbon.bound.lagrangian import bounded
from benchmarks.studies.carbon.bound.network import EpochNetwork, Values
from benchmarks.studies.carbon.bound.replayed import played_actions
from ecorl.carbon.series import Series
from ecorl.controllers.problem.table import TrainingAction
from ecorl.controllers.problem.training import TrainingProblem
from ecorl.controllers.replay.playing import PlayedTraining

_FIRST_STATES = 1500
"""States beside those of one schedule that HiGHS is given at first. Invented: seconds suffice for
them, and without a cap they hold the optimum of a month on each of four recorded grids."""

_GROWTH = 4
"""Factor by which there are more of them where they did not hold it. Invented."""

_MOST_ARCS = 150_000
"""Arcs that HiGHS does not finish with in its time. Invented."""

_CLOSED = 1e-6
"""Share of the costs by which a schedule may lie above the bound and count as the optimum."""

_SHORTEST_S = 0.2
"""Time that is worth another try, s. Invented."""


@dataclass(frozen=True, slots=True, eq=False)
class ChangeBound:
    """The least that a training can cost in whole epochs with changes, and a schedule near it.

    Attributes:
        cost_g: the bound, gCO2e: the largest of the three that follow. Nobody's
            `PlayedTraining.cost_g` is less.
        lp_g: the linear programme's, without what changes cost.
        lagrangian_g: Lagrange's.
        programme_g: the mixed-integer programme's; None where it was not asked, because the
            schedule of Lagrange's bound is the optimum or too much was left to choose from.
        incumbent_g: costs of HiGHS's best schedule as it counts them; None without one.
        played: what became of the best schedule in a replay.
        actions: that schedule, epoch by epoch until the last token.
    """

    cost_g: float
    lp_g: float
    lagrangian_g: float
    programme_g: float | None
    incumbent_g: float | None
    played: PlayedTraining
    actions: tuple[TrainingAction, ...] = field(repr=False)

    @property
    def gap(self) -> float:
        """Share of its costs by which the schedule lies above the bound."""
        if self.played.deficit > 0.0:
            return math.inf
        return max(0.0, self.played.cost_g - self.cost_g) / max(self.played.cost_g, 1e-300)

    @property
    def is_optimal(self) -> bool:
        """Whether the schedule is the cheapest that there is."""
        return self.gap <= _CLOSED


def milp_bound(problem: TrainingProblem, truth: Series, time_limit_s: float = 20.0) -> ChangeBound:
    """Bound what a training costs in whole epochs with changes, as closely as time allows.

    Args:
        problem: what has to be met.
        truth: the intensities, g/kWh, from start to deadline at least.
        time_limit_s: for HiGHS, s; Lagrange's bound comes before that.

    Raises:
        ConfigError: when the series does not fit the problem.
        MissingToolError: without SciPy.
    """
    network = EpochNetwork(problem, truth)
    warm = bounded(network, truth)
    found = ChangeBound(
        cost_g=warm.cost_g,
        lp_g=warm.free.cost_g,
        lagrangian_g=warm.cost_g,
        programme_g=None,
        incumbent_g=None,
        played=warm.played,
        actions=warm.actions,
    )
    if not found.is_optimal:
        # Ends that cost more than the schedule that is known are none of the optimum.
        may_end = warm.ends_g <= _worst_g(found)
        values = network.values(warm.price, may_end)
        found = _closer(network, truth, found, values, time_limit_s)
    return found


def _closer(
    network: EpochNetwork, truth: Series, found: ChangeBound, values: Values, limit_s: float
) -> ChangeBound:
    """Ask HiGHS, of more and more states, until the optimum is among them or time is over."""
    core = CoreNetwork(network, values)
    budget_g = float(network.budget_g(np.array([values.price]))[0])
    until_s, n_more = time.perf_counter() + limit_s, _FIRST_STATES
    while not found.is_optimal and until_s - time.perf_counter() > _SHORTEST_S:
        worst_g = _worst_g(found)
        cut_g = min(core.cut_g(network.n_epochs + n_more) + budget_g, worst_g)
        if core.n_states(cut_g - budget_g) > 2 * (network.n_epochs + n_more):
            break  # many schedules cost the same, and there is little to tell them apart by
        arcs = core.arcs(cut_g - budget_g)
        if len(arcs.epoch) > _MOST_ARCS:
            break
        answer = chosen(network, values, arcs, until_s - time.perf_counter())
        bound_g = min(answer.bound_g, cut_g)
        found = replace(
            found,
            cost_g=max(found.cost_g, bound_g),
            programme_g=max(found.programme_g or bound_g, bound_g),
        )
        if answer.actions:
            found = replace(found, incumbent_g=answer.cost_g)
            played = played_actions(network.problem, truth, answer.actions)
            if (played.deficit, played.cost_g) < (found.played.deficit, found.played.cost_g):
                found = replace(found, played=played, actions=answer.actions)
        if cut_g == worst_g or answer.cost_g <= cut_g:
            break
        n_more *= _GROWTH
    return found


def _worst_g(found: ChangeBound) -> float:
    """What the optimum does not cost more than, gCO2e."""
    return math.inf if found.played.deficit > 0.0 else found.played.cost_g
