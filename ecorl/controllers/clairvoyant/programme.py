"""The linear programme of one end, with the actions that prices leave to choose from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ecorl.controllers.clairvoyant.highs import highs
from ecorl.controllers.clairvoyant.priced import BoolArray, IntArray, PriceBox, PricedEnds
from ecorl.controllers.horizon.pricing import Price
from ecorl.controllers.problem.table import FloatArray, TrainingAction

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
