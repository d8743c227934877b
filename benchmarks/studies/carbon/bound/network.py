"""Whole epochs and what changes cost, as a network of states: dynamic programming over all actions.

A state is an action between two epochs. An epoch with another action costs what
`ecorl.controllers.replay.playing.Training` accounts for it: time without tokens, during which the
larger draw of the two counts. Of the budget nothing is known here but the price of a token.

Two things happen within an epoch: the last token is trained, and the cap on low precision is used
up. What follows in the epoch is a pause without a change. How much of the epoch comes before it
is free, and the cost linear in that, so that at given prices one of the epoch's two ends is the
cheapest: it is enough to look at those. Where a cap binds there are two phases, before it is used
up and after it; in the second, actions of low precision are pauses.
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
from ecorl.controllers.horizon.pricing import Price
from ecorl.controllers.problem.table import PAUSE, FloatArray, TrainingAction
from ecorl.controllers.problem.training import TrainingProblem
from ecorl.controllers.replay.playing import Training


class CapPhase(NamedTuple):
    """What actions do, before the cap is used up or after it.

    Attributes:
        rates: ``[M] float64``, tokens/s.
        draw_w: ``[M] float64``, of all kept machines, W, once an action has been changed to.
        low_rates: ``[M] float64``, those tokens that the cap counts, tokens/s.
    """

    rates: FloatArray
    draw_w: FloatArray
    low_rates: FloatArray


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
        before: ``[E + 1, phases, M] float64``, from the start to a state, g.
        stop: ``[E + 1]``, what a schedule costs that ends there, g.
        may_end: ``[E] bool``, whether the last token may fall in that epoch.
        price: the price.
    """

    before: FloatArray
    stop: FloatArray
    may_end: BoolArray
    price: Price


class EpochNetwork:
    """The states and epochs of a problem.

    Args:
        problem: what has to be met.
        truth: the intensities, g/kWh.

    Raises:
        ConfigError: when epochs do not divide intervals, or the series does not fit the problem.
    """

    def __init__(self, problem: TrainingProblem, truth: Series) -> None:
        Training(problem, truth)  # refuses a series whose epochs it could not play
        p, spans = problem, epoch_spans(problem, truth)
        # By their draw, so that all actions below one and all above it are slices.
        self.actions: tuple[TrainingAction, ...] = tuple(
            sorted((PAUSE, *p.table.actions()), key=p.draw_w)
        )
        self.problem, self.pause = p, self.actions.index(PAUSE)
        self.seconds, self.g_per_j = spans.seconds, spans.g_per_j
        self.n_epochs = len(self.seconds)
        self.nominal_w = np.array([p.draw_w(action) for action in self.actions])
        self.phases = _phases(p, self.actions)
        self._widths = np.array([action.width for action in self.actions])
        self._peers = _peers(self.actions)
        self._gear_w = np.maximum(self.nominal_w[self._peers], self.nominal_w[:, None])
        self.tail_g = spans.tail_g(p)
        self._late_g = spans.late_g
        self._late_at_least_g = _late_at_least(p, spans.edges_s, spans.late_g)
        self.stop_g = self.tail_g + self._late_at_least_g

    def budget_g(self, prices: FloatArray) -> FloatArray:
        """What the tokens of the budget are worth, less what the cap's are, g.

        Args:
            prices: ``[P, 2]``, of a token, and of one in low precision beside that.
        """
        worth: FloatArray = prices[:, 0] - self.problem.low_share * prices[:, 1]
        return self.problem.tokens * worth

    def late_within_g(self, epoch: int) -> tuple[float, float]:
        """What lateness counts as when the last token falls on an epoch's begin, or on its end, g.

        Within the epoch it is linear, or more where the soft deadline falls into it.

        Args:
            epoch: number of the epoch.
        """
        if self._late_at_least_g[epoch + 1] < self._late_g[epoch + 1]:
            return 0.0, 0.0
        return float(self._late_g[epoch]), float(self._late_g[epoch + 1])

    # ------------------------------------------------------------ least costs

    def ends_g(self, prices: FloatArray) -> FloatArray:
        """Bounds by prices: the least that a schedule costs, by the epoch of its last token.

        Args:
            prices: ``[P, 2]``, of a token, and of one in low precision beside that.

        Returns:
            ``[P, E]``, g.
        """
        found = np.empty((len(prices), self.n_epochs + 1))
        states = self._begin(len(prices))
        found[:, 0] = states[0].min(axis=-1)
        for epoch, terms in self._all_terms(prices, range(self.n_epochs)):
            states = [self._forth(*pair) for pair in zip(states, terms, strict=True)]
            _use_up(states)
            found[:, epoch + 1] = np.minimum(states[0], states[-1]).min(axis=-1)
        found += self.stop_g + self.budget_g(prices)[:, None]
        return np.minimum(found[:, :-1], found[:, 1:])

    def values(self, price: Price, may_end: BoolArray) -> Values:
        """Least costs to all states.

        Args:
            price: of a token.
            may_end: ``[E]``, whether the last token may fall in that epoch.
        """
        shape = (self.n_epochs + 1, len(self.phases), len(self.actions))
        before, states = np.empty(shape), self._begin(1)
        before[0] = np.concatenate(states)
        for epoch, terms in self._all_terms(np.array([price]), range(self.n_epochs)):
            states = [self._forth(*pair) for pair in zip(states, terms, strict=True)]
            _use_up(states)
            before[epoch + 1] = np.concatenate(states)
        stop = before.min(axis=(1, 2)) + self._stop_at_g(may_end)
        return Values(before, stop, may_end, price)

    def after_g(self, values: Values) -> FloatArray:
        """``[E + 1, phases, M]``, least costs from all states to the end, g.

        Args:
            values: at the price that is meant.
        """
        after, stop_g = np.empty_like(values.before), self._stop_at_g(values.may_end)
        after[-1] = stop_g[-1]
        states = [after[-1, phase][None] for phase in range(len(self.phases))]
        backwards = range(self.n_epochs - 1, -1, -1)
        for epoch, terms in self._all_terms(np.array([values.price]), backwards):
            pairs = zip(states, terms, strict=True)
            states = [np.minimum(self._back(*pair), stop_g[epoch]) for pair in pairs]
            if len(states) > 1:
                np.minimum(states[0], states[1], out=states[0])
            after[epoch] = np.concatenate(states)
        return after

    def _stop_at_g(self, may_end: BoolArray) -> FloatArray:
        """What follows a stop at each edge, infinite where no epoch beside it may be the last."""
        is_end = np.append(may_end, False) | np.append(False, may_end)
        return np.where(is_end, self.stop_g, np.inf)

    def cheapest(self, values: Values) -> tuple[TrainingAction, ...]:
        """The actions of a schedule that costs the least at a price.

        Args:
            values: at that price.
        """
        end = int(values.stop.argmin())
        state = values.before[end]
        phase, at = divmod(int(state.argmin()), len(self.actions))
        every, found = np.arange(len(self.actions)), []
        for epoch in range(end - 1, -1, -1):
            if phase and values.before[epoch + 1, 1, at] >= values.before[epoch + 1, 0, at]:
                phase = 0
            found.append(self.actions[at])
            drawn_g, useful_s = self.spent(epoch, phase, every, np.array([at]))
            worth = self.worth(phase, values.price)[at]
            costs = values.before[epoch, phase] + (drawn_g - worth * useful_s)[:, 0]
            at = int(costs.argmin())
        return tuple(reversed(found))

    def worth(self, phase: int, price: Price) -> FloatArray:
        """``[M]``, what a second of each action is worth by its tokens, g/s.

        Args:
            phase: number of the phase.
            price: of a token.
        """
        one = self.phases[phase]
        return price.g_per_token * one.rates - price.low_g_per_token * one.low_rates

    def spent(
        self, epoch: int, phase: int, before: IntArray, after: IntArray
    ) -> tuple[FloatArray, FloatArray]:
        """What an epoch emits, and for how long it trains.

        Args:
            epoch: number of the epoch.
            phase: number of the phase.
            before: ``[B]``, numbers of the actions before it.
            after: ``[A]``, numbers of its own actions.

        Returns:
            ``[B, A]``, g and s.
        """
        length_s = self.seconds[epoch]
        change_s = np.minimum(length_s, self.changes_s[before[:, None], after])
        drawn_w = np.maximum(self.nominal_w[before[:, None]], self.nominal_w[after])
        drawn_j = change_s * drawn_w + (length_s - change_s) * self.phases[phase].draw_w[after]
        return self.g_per_j[epoch] * drawn_j, length_s - change_s

    @cached_property
    def changes_s(self) -> FloatArray:
        """``[M, M]``, time of a change from each action to each, s."""
        p = self.problem
        is_wide = self._widths[:, None] != self._widths
        found = np.where(is_wide, p.width_change_s, p.gear_change_s)
        np.fill_diagonal(found, 0.0)
        return found

    # ------------------------------------------------------------ one epoch

    def _begin(self, n_prices: int) -> list[FloatArray]:
        """Only a pause costs nothing before the first epoch."""
        state = np.full((n_prices, len(self.actions)), np.inf)
        state[:, self.pause] = 0.0
        return [state.copy() for _ in self.phases]

    def _all_terms(self, prices: FloatArray, epochs: range) -> Iterator[tuple[int, list[_Terms]]]:
        """Epochs with their terms by phase; neighbours that are alike share them."""
        known, terms = (math.nan, math.nan), list[_Terms]()
        for epoch in epochs:
            key = (float(self.g_per_j[epoch]), float(self.seconds[epoch]))
            if key != known:
                known, terms = key, [self._terms(*key, one, prices) for one in self.phases]
            yield epoch, terms

    def _terms(self, c: float, length_s: float, one: CapPhase, prices: FloatArray) -> _Terms:
        """Costs of an epoch of a length in one phase."""
        worth = prices[:, :1] * one.rates - prices[:, 1:] * one.low_rates
        each = c * one.draw_w - worth
        wide_s = min(length_s, self.problem.width_change_s)
        gear_s = min(length_s, self.problem.gear_change_s)
        return _Terms(
            stay=each * length_s,
            wide=each * (length_s - wide_s),
            gear=each * (length_s - gear_s),
            wide_draw=c * wide_s * self.nominal_w,
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


def _use_up(states: list[FloatArray]) -> None:
    """Let the cap be used up between two epochs: the last phase may take over from the first."""
    if len(states) > 1:
        np.minimum(states[1], states[0], out=states[1])


def _phases(problem: TrainingProblem, actions: Sequence[TrainingAction]) -> tuple[CapPhase, ...]:
    """One phase, or two where a cap may bind."""
    rates = np.array([problem.rate(action) for action in actions])
    draw_w = np.array([problem.draw_w(action) for action in actions])
    is_low = np.array([action.is_low for action in actions])
    if not is_low.any() or problem.low_share >= 1.0:
        return (CapPhase(rates, draw_w, np.zeros_like(rates)),)
    used_up = CapPhase(
        np.where(is_low, 0.0, rates),
        np.where(is_low, problem.draw_w(PAUSE), draw_w),
        np.zeros_like(rates),
    )
    if problem.low_share <= 0.0:
        return (used_up,)
    return CapPhase(rates, draw_w, np.where(is_low, rates, 0.0)), used_up


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


def _late_at_least(problem: TrainingProblem, edges_s: FloatArray, late_g: FloatArray) -> FloatArray:
    """``[E + 1]``: what lateness counts as at least when the last token falls by an edge.

    In the one epoch that holds the soft deadline within it lateness is not linear: it counts as
    nothing there.
    """
    if problem.soft_deadline_s is None:
        return late_g
    soft_s = problem.soft_deadline_s - problem.start_s
    is_within = (edges_s[:-1] < soft_s) & (soft_s < edges_s[1:])
    found = late_g.copy()
    found[1:][is_within] = 0.0
    return found
