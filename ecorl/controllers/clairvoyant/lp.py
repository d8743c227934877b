"""The least that a training could emit if the whole course of the grid were known: a linear bound.

    minimise    sum over spans and actions of  c P(s) y    + what waiting for the end costs
    subject to  sum of y <= 1 in each span,  sum of tau(s) y >= B,  low tokens <= their share of B

with ``y`` the share of a span that is spent with an efficient action. It is solved by HiGHS. What
changes cost is left out, and epochs may be of any length, so that no controller reaches below it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ecorl.carbon.series import Series
from ecorl.controllers.clairvoyant.priced import BoolArray, IntArray, PriceBox, PricedEnds, highs
from ecorl.controllers.clairvoyant.spans import interval_spans
from ecorl.controllers.horizon.pricing import Price
from ecorl.controllers.problem.table import FloatArray, TrainingAction
from ecorl.controllers.problem.training import TrainingProblem
from ecorl.errors import ConfigError

_CLOSED = 1e-8
"""Share of the costs by which the solver's answer and its dual may differ. HiGHS is exact to 1e-7
of a row, and rows are scaled to a span's tokens."""

_LEAST_SHARE = 1e-9
"""Shares of a span below it are rounding."""

_WIDER = 1.0, 1.02, 1.3, 10.0
"""Factors by which the box of prices is made wider where it left too little to choose from."""

_ANY = PriceBox(0.0, 1e290, 0.0, 1e290)
"""Prices between which every action is the best at one."""


class SpanShare(NamedTuple):
    """Shares of spans that are spent with actions.

    Attributes:
        spans: ``[K]``, number of the span.
        actions: ``[K]``, the action.
        shares: ``[K]``, share of its time, above 0.
    """

    spans: IntArray
    actions: tuple[TrainingAction, ...]
    shares: FloatArray


@dataclass(frozen=True, slots=True)
class EndOptimum:
    """The least that a schedule costs whose last token falls in a given span.

    Attributes:
        cost_g: what the schedule costs, gCO2e.
        price: the duals of the budget and of the cap.
        schedule: what is done when.
    """

    cost_g: float
    price: Price
    schedule: SpanShare


class _Columns(NamedTuple):
    """Spans, classes and actions that may be chosen; no pause is among them."""

    spans: IntArray
    classes: IntArray
    places: IntArray
    tokens: FloatArray
    cost_g: FloatArray


class _Reach(NamedTuple):
    """What the prices of a box leave of one class, by span.

    The first and the last action of the hull, and the gain at the lowest and the highest price.
    """

    first: IntArray
    last: IntArray
    floor: FloatArray
    top: FloatArray


def end_optimum(ends: PricedEnds, last: int, box: PriceBox) -> EndOptimum | None:
    """Solve the programme of one end.

    A span in which one action alone is the best at all prices of the box leaves nothing to choose,
    and no variables. Whether the box held too little is seen by the dual, which counts all actions;
    then it is made wider.

    Args:
        ends: the problem and its dual.
        last: number of the span in which the last token falls.
        box: prices between which the best ones are expected.

    Returns:
        The optimum, or None where nothing can be done so early.
    """
    found = None
    for tried in (*(box.wider(factor) for factor in _WIDER), _ANY):
        solved = _solved(ends, last, *_candidates(ends, last, tried))
        if solved is None:
            continue
        found = solved
        dual_g = ends.least_g(np.array([solved.price]))[0, last]
        if solved.cost_g - dual_g <= _CLOSED * abs(solved.cost_g):
            break
    return found


def _reach(ends: PricedEnds, number: int, last: int, box: PriceBox) -> _Reach:
    """What the prices of a box leave of one class until the last span."""
    one = ends.classes[number]
    prices = np.array(box.of(one.is_low))
    places = ends.places(one, prices)[:, : last + 1]
    gain = ends.gains(one, prices)[:, : last + 1]
    # All actions are to choose from in the last span, whose length is chosen too.
    places[:, last] = 0, len(one.hull.actions) - 1
    gain[:, last] = 0.0
    return _Reach(*places, *gain)


def _candidates(ends: PricedEnds, last: int, box: PriceBox) -> tuple[_Columns, BoolArray]:
    """What may be chosen until the last span, and in which spans there is a choice."""
    reaches = [_reach(ends, number, last, box) for number in range(len(ends.classes))]
    floor = np.maximum.reduce([reach.floor for reach in reaches])
    n_choices = np.zeros(last + 1, np.int64)
    may_pause = np.zeros(last + 1, bool)
    parts = []
    for number, (one, reach) in enumerate(zip(ends.classes, reaches, strict=True)):
        is_in = reach.top >= floor
        may_pause |= is_in & (reach.first == 0)
        first = np.maximum(reach.first, 1)
        each = np.where(is_in, reach.last - first + 1, 0)
        n_choices += each
        spans = np.repeat(np.arange(last + 1), each)
        places = first[spans] + np.arange(len(spans)) - np.repeat(np.cumsum(each) - each, each)
        seconds = ends.seconds[spans]
        tokens = seconds * one.hull.tokens_per_s[places]
        cost_g = seconds * ends.spans.g_per_j[spans] * one.hull.extra_w[places]
        parts.append(_Columns(spans, np.full(len(spans), number), places, tokens, cost_g))
    is_choice = n_choices + may_pause > 1
    is_choice[last] = True
    return _Columns(*(np.concatenate(part) for part in zip(*parts, strict=True))), is_choice


def _solved(
    ends: PricedEnds, last: int, columns: _Columns, is_choice: BoolArray
) -> EndOptimum | None:
    """Solve what is left to choose; None where it cannot be met."""
    p = ends.problem
    solver = highs()
    is_low = np.array([one.is_low for one in ends.classes])[columns.classes]
    free = is_choice[columns.spans]
    cap = p.low_share * p.tokens
    fixed_g = ends.fixed_g + float(ends.wait_g[:last].sum() + columns.cost_g[~free].sum())
    tokens, low = columns.tokens[free], np.where(is_low, columns.tokens, 0.0)[free]
    left = p.tokens - float(columns.tokens[~free].sum())
    low_left = cap - float(columns.tokens[~free & is_low].sum())
    # The variables are shares of spans, and at last the share of the last span until the end.
    rows = (np.cumsum(is_choice) - 1)[columns.spans[free]]
    n, n_rows = len(tokens), int(is_choice.sum())
    unit = float(ends.seconds.max()) * max(float(c.hull.tokens_per_s[-1]) for c in ends.classes)
    cost_g = np.append(columns.cost_g[free], ends.wait_g[last])
    unit_g = max(float(np.abs(cost_g).max()), 1e-300)
    spans = solver.sparse.csr_array(
        (np.append(np.ones(n), -1.0), (np.append(rows, n_rows - 1), np.arange(n + 1))),
        shape=(n_rows, n + 1),
    )
    budget = solver.sparse.csr_array(np.append(-tokens, 0.0)[None] / unit)
    capped = solver.sparse.csr_array(np.append(low, 0.0)[None] / unit)
    most = np.append(np.ones(n_rows - 1), 0.0)
    answer = solver.optimize.linprog(
        cost_g / unit_g,
        A_ub=solver.sparse.vstack([budget, capped, spans]).tocsr(),
        b_ub=np.concatenate(([-left / unit, low_left / unit], most)),
        bounds=(0.0, 1.0),
        method="highs",
    )
    if answer.x is None:
        return None
    duals = np.maximum(-answer.ineqlin.marginals[:2], 0.0) * (unit_g / unit)
    shares = np.ones(len(columns.spans))
    shares[free] = answer.x[:-1]
    return EndOptimum(
        cost_g=fixed_g + float(answer.fun) * unit_g,
        price=Price(float(duals[0]), float(duals[1])),
        schedule=_schedule(ends, columns, shares),
    )


def _schedule(ends: PricedEnds, columns: _Columns, shares: FloatArray) -> SpanShare:
    """The shares that are not 0, span by span."""
    used = np.flatnonzero(shares > _LEAST_SHARE)
    used = used[np.argsort(columns.spans[used], kind="stable")]
    names = tuple(
        ends.classes[number].hull.actions[place]
        for number, place in zip(columns.classes[used], columns.places[used], strict=True)
    )
    return SpanShare(columns.spans[used], names, shares[used])


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
    for span, action, share in zip(*plan, strict=True):
        shares.setdefault(action, np.zeros(len(ends.seconds)))[span] = share
    last = int(plan.spans[-1])
    within = min(1.0, float(plan.shares[plan.spans == last].sum()))
    end_s = float(edges_s[last] + within * ends.seconds[last])
    late_g = float(np.interp(end_s, edges_s, ends.spans.late_g))
    return ClairvoyantBound(
        carbon_g=cost_g - late_g,
        late_g=late_g,
        end_s=p.start_s + end_s,
        price_g_per_token=found.price.g_per_token,
        low_price_g_per_token=found.price.low_g_per_token,
        begins_s=p.start_s + edges_s[:-1],
        seconds_each=ends.seconds,
        shares=shares,
    )
