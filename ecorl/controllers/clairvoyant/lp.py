"""The least that a training could emit if the whole course of the grid were known: a linear bound.

    minimise    sum over spans and actions of  c P(s) y    + what waiting for the end costs
    subject to  sum of y <= 1 in each span,  sum of tau(s) y >= B,  low tokens <= their share of B

with ``y`` the share of a span that is spent with an efficient action. It is solved by HiGHS. What
changes cost is left out, and epochs may be of any length, so that no controller reaches below it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ecorl.carbon.series import Series
from ecorl.controllers.clairvoyant.priced import PricedEnds
from ecorl.controllers.clairvoyant.programme import EndOptimum, end_optimum
from ecorl.controllers.clairvoyant.spans import interval_spans
from ecorl.controllers.horizon.pricing import Price
from ecorl.controllers.problem.table import FloatArray, TrainingAction
from ecorl.controllers.problem.training import TrainingProblem
from ecorl.errors import ConfigError

_ROUNDING = 1e-8
"""Share of the costs by which two ends may differ and count as the same."""


@dataclass(frozen=True, slots=True, eq=False)
class ClairvoyantBound:
    """The least that a training can cost, and how.

    Attributes:
        carbon_g: emissions of the cheapest schedule, gCO2e.
        late_g: what its lateness after the soft deadline counts as, gCO2e.
        end_s: when it trains the last token, s since 1970.
        price_g_per_token: the grams that one token less would save, at the same cap in tokens.
        low_price_g_per_token: what a token in low precision costs beside that, because the cap
            leaves no room for another; 0 where it does not bind.
        is_exact: whether a schedule reaches the bound, epochs being short: nothing is lost by
            changes, and nothing is trained beyond the budget.
        begins_s: ``[N] float64``, where the spans of the schedule begin, s since 1970.
        seconds_each: ``[N] float64``, how long they are, s.
        shares: by action, ``[N] float64``: the share of each span that is spent with it. The rest
            is a pause, or after the end.
    """

    carbon_g: float
    late_g: float
    end_s: float
    price_g_per_token: float
    low_price_g_per_token: float
    is_exact: bool
    begins_s: FloatArray = field(repr=False)
    seconds_each: FloatArray = field(repr=False)
    shares: Mapping[TrainingAction, FloatArray] = field(repr=False)

    @property
    def cost_g(self) -> float:
        """The bound: emissions and lateness, gCO2e. Nobody's `PlayedTraining.cost_g` is less."""
        return self.carbon_g + self.late_g

    @property
    def price(self) -> Price:
        """What a token is worth."""
        return Price(self.price_g_per_token, self.low_price_g_per_token)


def lp_bound(problem: TrainingProblem, truth: Series) -> ClairvoyantBound:
    """Solve the linear programme of a training along a known grid.

    Where machines are kept until the last token, or lateness costs something, the least is taken
    over the span in which the last token falls. For each such end the programme is exact: how much
    of that span passes until the end is a variable of it. Its dual bounds all ends at once by any
    price, so that HiGHS is asked for the few ends alone that no price has ruled out.

    Args:
        problem: what has to be met.
        truth: the intensities, g/kWh, from start to deadline at least.

    Raises:
        ConfigError: when the series lacks a value between start and deadline, or it is negative.
        MissingToolError: without SciPy.
    """
    ends = PricedEnds(problem, interval_spans(problem, truth))
    best_g = np.full(len(ends.seconds), np.inf)
    if ends.wait_g.any():
        best_g = ends.tightened()[0]
    else:
        # Nothing is saved by an early end: the whole time is there to train in.
        best_g[-1] = -np.inf
    open_g, cheapest = best_g.copy(), None
    while cheapest is None or open_g.min() < cheapest.cost_g * (1.0 - _ROUNDING):
        at = int(open_g.argmin())
        if open_g[at] == np.inf:
            raise ConfigError(f"{problem.key}.tokens", problem.tokens, "less, by the deadline")
        more_g, box = ends.tightened(at)
        best_g = np.maximum(best_g, more_g)
        found = end_optimum(ends, at, box)
        if found is not None:
            # The dual at the solver's prices is a bound, however exact the solver is.
            best_g = np.maximum(best_g, ends.least_g(np.array([found.price]))[0])
            if cheapest is None or found.cost_g < cheapest.cost_g:
                cheapest = found
        else:
            best_g[at] = np.inf
        open_g = np.maximum(open_g, best_g)
        open_g[at] = np.inf
    return _told(ends, cheapest, min(cheapest.cost_g, float(best_g.min())))


def _told(ends: PricedEnds, found: EndOptimum, cost_g: float) -> ClairvoyantBound:
    """The bound with the schedule that reaches it."""
    p, plan, edges_s = ends.problem, found.schedule, ends.spans.edges_s
    shares: dict[TrainingAction, FloatArray] = {}
    tokens = 0.0
    for span, action, share in zip(*plan, strict=True):
        shares.setdefault(action, np.zeros(len(ends.seconds)))[span] = share
        tokens += share * ends.seconds[span] * p.rate(action)
    last = int(plan.spans[-1])
    within = min(1.0, float(plan.shares[plan.spans == last].sum()))
    end_s = float(edges_s[last] + within * ends.seconds[last])
    late_g = float(np.interp(end_s, edges_s, ends.spans.late_g))
    loses_none = p.width_change_s == 0.0 and p.gear_change_s == 0.0
    return ClairvoyantBound(
        carbon_g=cost_g - late_g,
        late_g=late_g,
        end_s=p.start_s + end_s,
        price_g_per_token=found.price.g_per_token,
        low_price_g_per_token=found.price.low_g_per_token,
        is_exact=loses_none and bool(tokens <= p.tokens * (1.0 + 1e-6)),
        begins_s=p.start_s + edges_s[:-1],
        seconds_each=ends.seconds,
        shares=shares,
    )
