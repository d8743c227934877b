"""The cheapest path among some arcs that trains the budget, chosen by HiGHS."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from benchmarks.studies.carbon.bound.core import SINK, Arcs
from benchmarks.studies.carbon.bound.network import EpochNetwork, Values
from ecorl.controllers.clairvoyant.priced import IntArray, highs
from ecorl.controllers.problem.table import FloatArray, TrainingAction

_GAP, _CLOSE = 1e-5, 5e-7
"""Share of its objective by which HiGHS may miss the optimum, and share of all costs. Invented."""

_INFEASIBLE = 2
"""What SciPy calls the status of a programme that nothing meets."""


class ChosenPath(NamedTuple):
    """What HiGHS says.

    Attributes:
        bound_g: no path along the arcs that trains the budget costs less, gCO2e; infinite where
            there is none.
        cost_g: what its best path costs, gCO2e; infinite where it found none.
        actions: of that path, epoch by epoch.
    """

    bound_g: float
    cost_g: float
    actions: tuple[TrainingAction, ...]


class _Columns(NamedTuple):
    """Variables: of each arc whether it is used, then how much of each broken one, then three more.

    Those are the tokens beyond the budget, the room that is left below the cap, and a constant.
    """

    arcs: Arcs
    broken: IntArray
    unit: float

    @property
    def n(self) -> int:
        return len(self.arcs.epoch) + len(self.broken) + 3

    def row(self, values: FloatArray, surplus: float, room: float) -> FloatArray:
        """One row over all variables, of what a whole arc adds."""
        whole = np.where(self.arcs.is_broken, 0.0, values)
        return np.concatenate((whole, values[self.broken], [surplus, room, 0.0]))


def chosen(network: EpochNetwork, values: Values, arcs: Arcs, limit_s: float) -> ChosenPath:
    """Let HiGHS choose a path.

    Costs are counted above Lagrange's bound, and tokens in those of an epoch at full speed: the
    objective is the gap, where the costs as they are would differ in the sixth place alone.

    Args:
        network: the problem in whole epochs.
        values: least costs at a price.
        arcs: those that may be used.
        limit_s: time that it may take, s.
    """
    solver, price = highs(), values.price
    unit = max(float(one.rates.max()) for one in network.phases) * float(network.seconds.max())
    columns = _Columns(arcs, np.flatnonzero(arcs.is_broken), unit)
    worth = price.g_per_token * arcs.tokens - price.low_g_per_token * arcs.low_tokens
    least_g = float(values.stop.min())
    potential = np.append(values.before.ravel(), least_g)  # the last one is that of `SINK`
    # One part of a cost differs from the next by rounding alone: what is below 0 is 0.
    own_g = potential[arcs.begin] + arcs.cost_g - potential[arcs.end]
    own_g = np.where(arcs.is_broken, own_g, np.maximum(own_g - worth, 0.0))
    more_g = (arcs.more_g - worth)[columns.broken]
    base_g = least_g + float(network.budget_g(np.array([price]))[0])
    # HiGHS stops at a share of its objective: with this constant that is one of all costs, too.
    constant_g = base_g * _CLOSE / _GAP
    costs = np.concatenate((own_g, more_g, np.array(price) * unit, [constant_g]))
    unit_g = max(price.g_per_token * unit, float(np.abs(costs).max()) * 1e-6, 1e-300)
    most = np.concatenate((np.ones(columns.n - 3), [np.inf, np.inf, 1.0]))
    least = np.append(np.zeros(columns.n - 1), 1.0)
    is_whole = np.arange(columns.n) < len(arcs.epoch)
    answer = solver.optimize.milp(
        costs / unit_g,
        integrality=is_whole.astype(np.int64),
        bounds=solver.optimize.Bounds(least, most),
        constraints=_rows(solver, network, columns),
        options={"time_limit": limit_s, "mip_rel_gap": _GAP},
    )
    if answer.status == _INFEASIBLE:
        return ChosenPath(math.inf, math.inf, ())
    base_g -= constant_g
    bound = answer.mip_dual_bound
    bound_g = base_g + unit_g * bound if bound is not None and math.isfinite(bound) else -math.inf
    if answer.x is None:
        return ChosenPath(bound_g, math.inf, ())
    used = np.flatnonzero(answer.x[: len(arcs.epoch)] > 0.5)
    used = used[np.argsort(arcs.epoch[used], kind="stable")]
    actions = tuple(network.actions[number] for number in arcs.action[used])
    return ChosenPath(bound_g, base_g + unit_g * float(answer.fun), actions)


def _rows(solver: Any, network: EpochNetwork, columns: _Columns) -> list[Any]:
    """What a path has to meet."""
    arcs, p, sparse = columns.arcs, network.problem, solver.sparse
    n, n_broken = len(arcs.epoch), len(columns.broken)
    leads = np.flatnonzero(arcs.end != SINK)
    states = np.unique(np.concatenate((arcs.begin, arcs.end[leads])))
    away, to = (np.searchsorted(states, part) for part in (arcs.begin, arcs.end[leads]))
    flow = sparse.csr_array(
        (
            np.concatenate((np.ones(n), -np.ones(len(leads)))),
            (np.concatenate((away, to)), np.concatenate((np.arange(n), leads))),
        ),
        shape=(len(states), columns.n),
    )
    begins = np.zeros(len(states))
    begins[np.searchsorted(states, network.pause)] = 1.0
    # A broken arc lasts for some time only where it is used.
    numbers = np.arange(n_broken)
    lasts = sparse.csr_array(
        (
            np.concatenate((np.ones(n_broken), -np.ones(n_broken))),
            (np.tile(numbers, 2), np.concatenate((n + numbers, columns.broken))),
        ),
        shape=(n_broken, columns.n),
    )
    budget, cap = p.tokens / columns.unit, p.low_share * p.tokens / columns.unit
    trained = columns.row(arcs.tokens / columns.unit, -1.0, 0.0)
    low = columns.row(arcs.low_tokens / columns.unit, 0.0, 1.0)
    # Whoever uses up the cap leaves no room below it.
    is_using_up = np.append(arcs.is_broken & (arcs.end != SINK), np.zeros(n_broken + 3, bool))
    used_up = np.where(is_using_up, cap, 0.0)
    used_up[-2] = 1.0
    constraint = solver.optimize.LinearConstraint
    return [
        constraint(flow, begins, begins),
        constraint(lasts, -np.inf, 0.0),
        constraint(sparse.csr_array(trained[None]), budget, budget),
        constraint(sparse.csr_array(low[None]), cap, cap),
        constraint(sparse.csr_array(used_up[None]), -np.inf, cap),
    ]
