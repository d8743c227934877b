"""The least that whole epochs with changes cost: a mixed-integer programme, solved by HiGHS.

A schedule is a path through the states of `EpochNetwork`: one binary variable for each epoch that
may be spent in some way, at each state as many arcs that lead to it as away from it, and one row
for the budget. That is the most compact form of it known: without the budget's row its linear
relaxation is exact, so that little is left to branch on.

A month of epochs of five minutes and 33 actions has nine million arcs. At Lagrange's price, the
least that any schedule costs which passes a state is known: where that is above some cost, no
schedule below that cost passes it. HiGHS chooses among the others. What it finds is optimal among
all schedules where it lies below that cost, and else that cost is the bound.

The programme costs what `ecorl.controllers.replay.playing.Training` accounts for the same schedule,
and less where a change of the gear takes more time than one of the width, as which it then counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from benchmarks.studies.carbon.bound.lagrangian import bounded, played_actions
from benchmarks.studies.carbon.bound.network import EpochNetwork, Values
from ecorl.carbon.series import Series
from ecorl.controllers.clairvoyant.priced import BoolArray, IntArray, highs
from ecorl.controllers.problem.table import PAUSE, FloatArray, TrainingAction
from ecorl.controllers.problem.training import Kept, TrainingProblem
from ecorl.controllers.replay.playing import PlayedTraining

_STATES = 6000
"""States beside those of one schedule that HiGHS is given. Invented: seconds suffice for them, and
without a cap a quarter of them held the optimum of a month on each of four recorded grids."""

_MOST_ARCS = 150_000
"""Arcs that HiGHS does not finish with in its time. Invented."""

_CLOSED = 1e-6
"""Share of the costs by which a schedule may lie above the bound and count as the optimum."""

_ROUNDING = 1e-11
"""Share by which the same sum differs when it is taken in another order, amply."""

_GAP, _CLOSE = 1e-5, 5e-7
"""Share of its objective by which HiGHS may miss the optimum, and share of all costs. Invented."""

_INFEASIBLE = 2
"""What SciPy calls the status of a programme that nothing meets."""

SINK = -1
"""Where a schedule goes with its last token."""


@dataclass(frozen=True, slots=True, eq=False)
class ChangeBound:
    """The least that a training can cost in whole epochs with changes, and a schedule near it.

    Attributes:
        cost_g: the bound, gCO2e: the programme's, or Lagrange's where that is higher. Nobody's
            `PlayedTraining.cost_g` is less.
        lp_g: the linear programme's, without what changes cost.
        lagrangian_g: Lagrange's.
        incumbent_g: costs of HiGHS's best schedule as it counts them; None without one.
        played: what became of the best schedule in a replay.
        actions: that schedule, epoch by epoch until the last token.
    """

    cost_g: float
    lp_g: float
    lagrangian_g: float
    incumbent_g: float | None
    played: PlayedTraining
    actions: tuple[TrainingAction, ...] = field(repr=False)

    @property
    def is_optimal(self) -> bool:
        """Whether the schedule is the cheapest that there is."""
        above_g = self.played.cost_g - self.cost_g
        return self.played.deficit <= 0.0 and above_g <= _CLOSED * self.played.cost_g


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
    played, least_g = warm.played, warm.cost_g
    found = ChangeBound(least_g, warm.free.cost_g, least_g, None, played, warm.actions)
    if found.is_optimal:
        return found
    worst_g = math.inf if played.deficit > 0.0 else played.cost_g
    # Ends that cost more than the schedule that is known are none of the optimum.
    values = network.values(warm.price, warm.ends_g <= worst_g)
    budget_g = problem.tokens * values.price
    arcs, cut_g = _core(network, values, worst_g - budget_g)
    if len(arcs.epoch) > _MOST_ARCS:
        return found
    answer = _chosen(network, values, arcs, time_limit_s)
    bound_g = min(answer.bound_g, cut_g + budget_g)
    found = replace(found, cost_g=max(found.cost_g, bound_g))
    if answer.actions:
        found = replace(found, incumbent_g=answer.cost_g)
        played = played_actions(problem, truth, answer.actions)
        if (played.deficit, played.cost_g) < (found.played.deficit, found.played.cost_g):
            found = replace(found, played=played, actions=answer.actions)
    return found


class Arcs(NamedTuple):
    """Epochs that may be spent: with which action, after which, and what that costs.

    An arc is broken where its epoch ends before its time, by the last token. How much of it comes
    before that is free; the rest is after the end.

    Attributes:
        epoch: ``[n]``, number of the epoch.
        action: ``[n]``, its action.
        begin: ``[n]``, number of the state that it comes from.
        end: ``[n]``, number of the state that it leads to, or `SINK`.
        is_broken: ``[n]``, whether it is.
        cost_g: ``[n]``, emissions, of a broken one those that are not free, g.
        more_g: ``[n]``, of a broken one what it costs more if it lasts for its whole time, g.
        tokens: ``[n]``, trained in it, of a broken one if it lasts for its whole time.
    """

    epoch: IntArray
    action: IntArray
    begin: IntArray
    end: IntArray
    is_broken: BoolArray
    cost_g: FloatArray
    more_g: FloatArray
    tokens: FloatArray


def _core(network: EpochNetwork, values: Values, worst_g: float) -> tuple[Arcs, float]:
    """Arcs of the network that a schedule below a cost at the price can use, and that cost, g."""
    after_g = network.after_g(values)
    through_g = values.before + after_g
    n_states, costs = network.n_epochs + _STATES, through_g.ravel()
    if n_states < costs.size:
        worst_g = min(worst_g, float(np.partition(costs, n_states)[n_states]))
    cut_g = worst_g + _ROUNDING * abs(worst_g)
    is_left, parts = through_g <= cut_g, list[Arcs]()
    trains = np.flatnonzero(network.rates > 0.0)
    for epoch in range(network.n_epochs):
        before, after = (np.flatnonzero(is_left[edge]) for edge in (epoch, epoch + 1))
        parts.append(_whole(network, epoch, before, after, float(after_g[-1, 0])))
        if values.may_end[epoch]:
            parts.append(_last(network, epoch, before, trains))
    arcs = Arcs(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    worth_g = values.price * arcs.tokens
    free_g = np.where(arcs.is_broken, np.minimum(0.0, arcs.more_g - worth_g), -worth_g)
    rest_g = np.append(after_g.ravel(), 0.0)[arcs.end]
    kept = values.before.ravel()[arcs.begin] + (arcs.cost_g + free_g) + rest_g <= cut_g
    return Arcs(*(column[kept] for column in arcs)), worst_g


def _whole(
    network: EpochNetwork, epoch: int, before: IntArray, after: IntArray, stop_g: float
) -> Arcs:
    """Epochs that last for their whole time; after the last one it costs `stop_g`."""
    cost_g, useful_s = network.spent(epoch, before, after)
    if epoch + 1 == network.n_epochs:
        return _built(network, epoch, (before, after), cost_g + stop_g, useful_s, is_end=True)
    return _built(network, epoch, (before, after), cost_g, useful_s)


def _last(network: EpochNetwork, epoch: int, before: IntArray, after: IntArray) -> Arcs:
    """Epochs in which the last token is trained."""
    whole_g, useful_s = network.spent(epoch, before, after)
    c = network.g_per_j[epoch]
    cost_g = whole_g - c * network.draw_w[after] * useful_s
    if network.problem.kept is Kept.DEADLINE:
        cost_g = cost_g + c * network.problem.draw_w(PAUSE) * useful_s
    more_g, cost_g = whole_g - cost_g, cost_g + network.tail_g[epoch + 1]
    return _built(network, epoch, (before, after), cost_g, useful_s, more_g, is_end=True)


def _built(
    network: EpochNetwork,
    epoch: int,
    actions: tuple[IntArray, IntArray],
    cost_g: FloatArray,
    useful_s: FloatArray,
    more_g: FloatArray | None = None,
    *,
    is_end: bool = False,
) -> Arcs:
    """Arcs from each action to each."""
    (before, after), m = actions, len(network.actions)

    def flat(values: Any) -> Any:
        return np.broadcast_to(values, cost_g.shape).ravel()

    return Arcs(
        epoch=flat(epoch),
        action=flat(after),
        begin=flat((epoch * m + before)[:, None]),
        end=flat(SINK if is_end else (epoch + 1) * m + after),
        is_broken=flat(more_g is not None),
        cost_g=flat(cost_g),
        more_g=flat(0.0 if more_g is None else more_g),
        tokens=flat(network.rates[after] * useful_s),
    )


class _Chosen(NamedTuple):
    """What HiGHS says: its bound, and its best path's cost, gCO2e, and actions.

    The bound is infinite where no path trains the budget, the cost where none was found.
    """

    bound_g: float
    cost_g: float
    actions: tuple[TrainingAction, ...]


def _chosen(network: EpochNetwork, values: Values, arcs: Arcs, limit_s: float) -> _Chosen:
    """Let HiGHS choose a path along the arcs, in some seconds at most.

    Costs are counted above Lagrange's bound, and tokens in those of an epoch at full speed: the
    objective is the gap, where the costs as they are would differ in the sixth place alone.
    Variables are of each arc whether it is used, then how much of each broken one, then the tokens
    beyond the budget, and a constant.
    """
    solver, price = highs(), values.price
    n, broken = len(arcs.epoch), np.flatnonzero(arcs.is_broken)
    unit = float(network.rates.max()) * float(network.seconds.max())
    worth_g, least_g = price * arcs.tokens, float(values.stop.min())
    potential = np.append(values.before.ravel(), least_g)  # the last one is that of `SINK`
    # One part of a cost differs from the next by rounding alone: what is below 0 is 0.
    own_g = potential[arcs.begin] + arcs.cost_g - potential[arcs.end]
    own_g = np.where(arcs.is_broken, own_g, np.maximum(own_g - worth_g, 0.0))
    base_g = least_g + network.problem.tokens * price
    # HiGHS stops at a share of its objective: with this constant that is one of all costs, too.
    constant_g = base_g * _CLOSE / _GAP
    more_g = (arcs.more_g - worth_g)[broken]
    costs = np.concatenate((own_g, more_g, [price * unit, constant_g]))
    unit_g = max(price * unit, float(np.abs(costs).max()) * 1e-6, 1e-300)
    most = np.concatenate((np.ones(len(costs) - 2), [np.inf, 1.0]))
    least = np.append(np.zeros(len(costs) - 1), 1.0)
    answer = solver.optimize.milp(
        costs / unit_g,
        integrality=(np.arange(len(costs)) < n).astype(np.int64),
        bounds=solver.optimize.Bounds(least, most),
        constraints=_rows(solver, network, arcs, broken, unit),
        options={"time_limit": limit_s, "mip_rel_gap": _GAP},
    )
    if answer.status == _INFEASIBLE:
        return _Chosen(math.inf, math.inf, ())
    base_g -= constant_g
    bound = answer.mip_dual_bound
    bound_g = base_g + unit_g * bound if bound is not None and math.isfinite(bound) else -math.inf
    if answer.x is None:
        return _Chosen(bound_g, math.inf, ())
    used = np.flatnonzero(answer.x[:n] > 0.5)
    used = used[np.argsort(arcs.epoch[used], kind="stable")]
    actions = tuple(network.actions[number] for number in arcs.action[used])
    return _Chosen(bound_g, base_g + unit_g * float(answer.fun), actions)


def _rows(
    solver: Any, network: EpochNetwork, arcs: Arcs, broken: IntArray, unit: float
) -> list[Any]:
    """What a path has to meet."""
    sparse, constraint = solver.sparse, solver.optimize.LinearConstraint
    n, n_broken = len(arcs.epoch), len(broken)
    width = n + n_broken + 2
    leads = np.flatnonzero(arcs.end != SINK)
    states = np.unique(np.concatenate((arcs.begin, arcs.end[leads])))
    away, to = (np.searchsorted(states, part) for part in (arcs.begin, arcs.end[leads]))
    signs = np.concatenate((np.ones(n), -np.ones(len(leads))))
    places = (np.concatenate((away, to)), np.concatenate((np.arange(n), leads)))
    flow = sparse.csr_array((signs, places), shape=(len(states), width))
    begins = np.zeros(len(states))
    begins[np.searchsorted(states, network.pause)] = 1.0
    # A broken arc lasts for some time only where it is used.
    signs = np.repeat([1.0, -1.0], n_broken)
    places = (np.tile(np.arange(n_broken), 2), np.concatenate((n + np.arange(n_broken), broken)))
    lasts = sparse.csr_array((signs, places), shape=(n_broken, width))
    tokens = arcs.tokens / unit
    whole = np.where(arcs.is_broken, 0.0, tokens)
    trained = sparse.csr_array(np.concatenate((whole, tokens[broken], [-1.0, 0.0]))[None])
    budget = network.problem.tokens / unit
    return [
        constraint(flow, begins, begins),
        constraint(lasts, -np.inf, 0.0),
        constraint(trained, budget, budget),
    ]
