"""Whole epochs and what changes cost, as a network of states: dynamic programming over all actions.

A state is an action between two epochs. An epoch with another action costs what
`ecorl.controllers.replay.playing.Training` accounts for it: time without tokens, during which the
larger draw of the two counts. Of the budget nothing is known here but the price of a token.

Within an epoch the last token is trained. What follows in the epoch is a pause without a change.
How much of the epoch comes before it is free, and the cost linear in that, so that at a given price
one of the epoch's two ends is the cheapest: it is enough to look at those. A cap on low precision
and a soft deadline are no part of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ecorl.carbon.series import Series
from ecorl.controllers.clairvoyant.priced import BoolArray, IntArray
from ecorl.controllers.clairvoyant.spans import epoch_spans
from ecorl.controllers.problem.table import PAUSE, FloatArray, TrainingAction
from ecorl.controllers.problem.training import TrainingProblem
from ecorl.controllers.replay.playing import Training


class _Terms(NamedTuple):
    """Costs of an epoch at some prices, g: of an action that goes on, and of changes.

    A change costs what the action that is entered loses and draws, and the larger draw beside it.
    """

    stay: FloatArray
    wide: FloatArray
    gear: FloatArray
    wide_draw: FloatArray
    gear_draw: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Values:
    """Least costs at one price, of the way to each state.

    Attributes:
        before: ``[E + 1, M] float64``, from the start to a state, g.
        stop: ``[E + 1]``, what a schedule costs that ends there, g.
        may_end: ``[E] bool``, whether the last token may fall in that epoch.
        price: the price of a token, g.
    """

    before: FloatArray
    stop: FloatArray
    may_end: BoolArray
    price: float


class EpochNetwork:
    """The states and epochs of a problem.

    Args:
        problem: what has to be met.
        truth: the intensities, g/kWh.

    Attributes:
        actions: all actions and the pause, by their draw.
        rates: ``[M] float64``, tokens/s of the actions.
        draw_w: ``[M] float64``, of all kept machines, W, once an action has been changed to.

    Raises:
        ConfigError: when epochs do not divide intervals, or the series does not fit the problem.
        ValueError: for a cap on low precision, or a soft deadline.
    """

    def __init__(self, problem: TrainingProblem, truth: Series) -> None:
        p = self.problem = problem
        if p.low_share < 1.0 or p.soft_deadline_s is not None:
            raise ValueError("whole epochs are bounded without a cap and without a soft deadline")
        Training(p, truth)  # refuses a series whose epochs it could not play
        spans = epoch_spans(p, truth)
        # By their draw, so that all actions below one and all above it are slices.
        self.actions = tuple(sorted((PAUSE, *p.table.actions()), key=p.draw_w))
        self.pause = self.actions.index(PAUSE)
        self.seconds, self.g_per_j = spans.seconds, spans.g_per_j
        self.n_epochs = len(self.seconds)
        self.rates = np.array([p.rate(action) for action in self.actions])
        self.draw_w = np.array([p.draw_w(action) for action in self.actions])
        self._peers = _peers(self.actions)
        self._gear_w = np.maximum(self.draw_w[self._peers], self.draw_w[:, None])
        self.tail_g = spans.tail_g(p)

    # ------------------------------------------------------------ least costs

    def ends_g(self, prices: FloatArray) -> FloatArray:
        """Bounds by prices: the least that a schedule costs, by the epoch of its last token.

        Args:
            prices: ``[P]``, of a token.

        Returns:
            ``[P, E]``, g.
        """
        rest_g = self.tail_g + (self.problem.tokens * prices)[:, None]
        found = self._before(prices).min(axis=-1).T + rest_g
        return np.asarray(np.minimum(found[:, :-1], found[:, 1:]))

    def values(self, price: float, may_end: BoolArray) -> Values:
        """Least costs to all states.

        Args:
            price: of a token, g.
            may_end: ``[E]``, whether the last token may fall in that epoch.
        """
        before = self._before(np.array([price]))[:, 0]
        return Values(before, before.min(axis=1) + self._stop_g(may_end), may_end, price)

    def _before(self, prices: FloatArray) -> FloatArray:
        """``[E + 1, P, M]``, least costs from the start to all states, g."""
        before = np.full((self.n_epochs + 1, len(prices), len(self.actions)), np.inf)
        before[0, :, self.pause] = 0.0  # only a pause costs nothing before the first epoch
        for epoch, terms in self._all_terms(prices, range(self.n_epochs)):
            before[epoch + 1] = self._forth(before[epoch], terms)
        return before

    def after_g(self, values: Values) -> FloatArray:
        """``[E + 1, M]``, least costs from all states to the end, g.

        Args:
            values: at the price that is meant.
        """
        after, stop_g = np.empty_like(values.before), self._stop_g(values.may_end)
        after[-1] = stop_g[-1]
        state = after[-1:]
        backwards = range(self.n_epochs - 1, -1, -1)
        for epoch, terms in self._all_terms(np.array([values.price]), backwards):
            after[epoch] = state = np.minimum(self._back(state, terms), stop_g[epoch])
        return after

    def _stop_g(self, may_end: BoolArray) -> FloatArray:
        """What follows a stop at each edge, infinite where no epoch beside it may be the last."""
        is_end = np.append(may_end, False) | np.append(False, may_end)
        return np.where(is_end, self.tail_g, np.inf)

    def cheapest(self, values: Values) -> tuple[TrainingAction, ...]:
        """The actions of a schedule that costs the least at a price.

        Args:
            values: at that price.
        """
        end = int(values.stop.argmin())
        at = int(values.before[end].argmin())
        every, found = np.arange(len(self.actions)), []
        for epoch in range(end - 1, -1, -1):
            found.append(self.actions[at])
            drawn_g, useful_s = self.spent(epoch, every, np.array([at]))
            worth = values.price * self.rates[at]
            at = int((values.before[epoch] + (drawn_g - worth * useful_s)[:, 0]).argmin())
        return tuple(reversed(found))

    def spent(self, epoch: int, before: IntArray, after: IntArray) -> tuple[FloatArray, FloatArray]:
        """What an epoch emits, and for how long it trains.

        Args:
            epoch: number of the epoch.
            before: ``[B]``, numbers of the actions before it.
            after: ``[A]``, numbers of its own actions.

        Returns:
            ``[B, A]``, g and s.
        """
        length_s = self.seconds[epoch]
        change_s = np.minimum(length_s, self.changes_s[before[:, None], after])
        drawn_w = np.maximum(self.draw_w[before[:, None]], self.draw_w[after])
        drawn_j = change_s * drawn_w + (length_s - change_s) * self.draw_w[after]
        return self.g_per_j[epoch] * drawn_j, length_s - change_s

    @cached_property
    def changes_s(self) -> FloatArray:
        """``[M, M]``, time of a change from each action to each, s."""
        widths = np.array([action.width for action in self.actions])
        is_wide = widths[:, None] != widths
        found = np.where(is_wide, self.problem.width_change_s, self.problem.gear_change_s)
        np.fill_diagonal(found, 0.0)
        return found

    # ------------------------------------------------------------ one epoch

    def _all_terms(self, prices: FloatArray, epochs: range) -> Iterator[tuple[int, _Terms]]:
        """Epochs with their terms; neighbours that are alike share them."""
        known, terms = (math.nan, math.nan), None
        for epoch in epochs:
            key = (float(self.g_per_j[epoch]), float(self.seconds[epoch]))
            if terms is None or key != known:
                known, terms = key, self._terms(*key, prices)
            yield epoch, terms

    def _terms(self, c: float, length_s: float, prices: FloatArray) -> _Terms:
        """Costs of an epoch of a length."""
        each = c * self.draw_w - prices[:, None] * self.rates
        wide_s = min(length_s, self.problem.width_change_s)
        gear_s = min(length_s, self.problem.gear_change_s)
        return _Terms(
            stay=each * length_s,
            wide=each * (length_s - wide_s),
            gear=each * (length_s - gear_s),
            wide_draw=c * wide_s * self.draw_w,
            gear_draw=c * gear_s * self._gear_w,
        )

    def _forth(self, state: FloatArray, terms: _Terms) -> FloatArray:
        """The least cost of each state after an epoch."""
        wide = _changed(state, terms) + terms.wide
        gear: FloatArray = (state[:, self._peers] + terms.gear_draw).min(axis=-1) + terms.gear
        return np.minimum(np.minimum(state + terms.stay, wide), gear)

    def _back(self, state: FloatArray, terms: _Terms) -> FloatArray:
        """The least cost to the end from each state before an epoch."""
        wide = _changed(state + terms.wide, terms)
        gear: FloatArray = ((state + terms.gear)[:, self._peers] + terms.gear_draw).min(axis=-1)
        return np.minimum(np.minimum(state + terms.stay, wide), gear)


def _changed(state: FloatArray, terms: _Terms) -> FloatArray:
    """The least over all actions, with the larger of the two draws during the change.

    A change to the same width by this way costs no less than a change of the gear, or none.
    """
    rising = np.minimum.accumulate(state, axis=-1) + terms.wide_draw
    falling = np.minimum.accumulate((state + terms.wide_draw)[:, ::-1], axis=-1)[:, ::-1]
    return np.minimum(rising, falling)


def _peers(actions: Sequence[TrainingAction]) -> IntArray:
    """``[M, K]``: the actions of the same width, filled up with the action itself."""
    places: dict[int, list[int]] = {}
    for number, action in enumerate(actions):
        places.setdefault(action.width, []).append(number)
    most = max(map(len, places.values()))
    rows = [
        (places[action.width] + [number] * most)[:most] for number, action in enumerate(actions)
    ]
    return np.array(rows)
