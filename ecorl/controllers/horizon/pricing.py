"""What a token is worth: the price at which the rest of the budget is just trained in time.

Intensities to come are a set of equally likely values, each of which stands for the same time. It
does not matter which of them comes when, as long as nothing is paid for changes: a price buys the
same tokens at an intensity whenever it comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ecorl.controllers.horizon.fan import Fan
from ecorl.controllers.horizon.frontier import Frontier, frontier
from ecorl.controllers.problem.table import FloatArray, TrainingAction
from ecorl.controllers.problem.training import TrainingProblem
from ecorl.units import JOULES_PER_KWH

_GRID = 96
"""Number of prices at which a curve is computed; between them it is interpolated. Invented."""

_STEPS_OF_GRID = np.linspace(0.0, 1.0, _GRID)

_VALUES = 64
"""Number of intensities by which a capped problem is priced. Invented."""

_HALVINGS = 18
"""Number of times that an interval of prices is halved. Invented: to one part in 260,000."""


class Price(NamedTuple):
    """What tokens are worth.

    Attributes:
        g_per_token: of any token.
        low_g_per_token: what one in low precision costs beside that, where the cap binds.
    """

    g_per_token: float
    low_g_per_token: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Hulls:
    """The efficient actions of a problem, with and without those of low precision.

    Attributes:
        all: of all actions.
        low: of those of low precision, or None without a cap that may bind.
        high: of the others.
        g_per_j: emissions of a joule at 1 g/kWh, by the PUE.
    """

    all: Frontier
    low: Frontier | None
    high: Frontier
    g_per_j: float

    @classmethod
    def of(cls, problem: TrainingProblem, some: Sequence[TrainingAction] | None = None) -> Hulls:
        """The hulls of a problem.

        Args:
            problem: whose actions are meant.
            some: of its actions, which alone are meant; None: all.
        """
        actions = problem.table.actions() if some is None else list(some)
        low = [a for a in actions if a.is_low]
        high = [a for a in actions if not a.is_low]
        is_capped = bool(low) and problem.low_share < 1.0
        return cls(
            all=frontier(problem, actions if problem.low_share > 0 else high),
            low=frontier(problem, low) if is_capped else None,
            high=frontier(problem, high),
            g_per_j=problem.pue / JOULES_PER_KWH,
        )

    @property
    def actions(self) -> tuple[TrainingAction, ...]:
        """All actions that are best at some price, each once."""
        hulls = (self.all, self.high) if self.low is None else (self.all, self.high, self.low)
        return tuple(dict.fromkeys(action for hull in hulls for action in hull.actions))

    def best(self, price: Price, g_per_kwh: float) -> TrainingAction:
        """The best action at a price.

        Args:
            price: of a token.
            g_per_kwh: intensity of the grid.
        """
        per_joule = max(g_per_kwh, 1e-9) * self.g_per_j
        ratio = price.g_per_token / per_joule
        if self.low is None or price.low_g_per_token <= 0.0:
            return self.all.actions[self.all.place(ratio)]
        low_ratio = (price.g_per_token - price.low_g_per_token) / per_joule
        gain, low_gain = (
            hull.worth(np.array([r]))[1][0]
            for hull, r in ((self.high, ratio), (self.low, low_ratio))
        )
        if low_gain > gain:
            return self.low.actions[self.low.place(low_ratio)]
        return self.high.actions[self.high.place(ratio)]

    def as_good(
        self, price: Price, g_per_kwh: float, present: TrainingAction, within: float
    ) -> bool:
        """Whether an action is the best one at a price that is hardly another.

        Args:
            price: of a token.
            g_per_kwh: intensity of the grid.
            present: the action.
            within: by which share the other price may differ.
        """
        lower, higher = (
            self.best(Price(*(share * one for one in price)), g_per_kwh)
            for share in (1.0 - within, 1.0 + within)
        )
        return present in (lower, higher)


class PriceCurve:
    """Tokens by their price, over a time to come.

    Args:
        hulls: the actions.
        values: ``[...] float64``, equally likely intensities, g/kWh.
        seconds: how much time all stand for together, s.
        again: ``[...] float64``, those of `values` that come again, g/kWh; None: none do.
        times: how many times they come again.
    """

    def __init__(
        self,
        hulls: Hulls,
        values: FloatArray,
        seconds: float,
        again: FloatArray | None = None,
        times: float = 0.0,
    ) -> None:
        self.seconds = seconds
        self._hulls = hulls
        # Sorting is most of the work: what comes again is sorted once.
        self._parts = [(_sorted_costs(hulls, values), 1.0)]
        if again is not None and times > 0.0:
            self._parts.append((_sorted_costs(hulls, again), times))
        costs = self._parts[0][0]
        self._each_s = seconds / sum(len(part) * weight for part, weight in self._parts)
        add, at = hulls.all.steps
        lowest, highest = costs[0] * at[0] * 0.999, costs[-1] * at[-1] * 1.001
        prices = lowest * (highest / lowest) ** _STEPS_OF_GRID
        self._prices = prices
        ratios = prices[:, None] / at[None, :]
        places = [(part, w, np.searchsorted(part, ratios, side="right")) for part, w in self._parts]
        counts = sum(w * place for _, w, place in places)
        sums = sum(w * np.concatenate(([0.0], np.cumsum(part)))[place] for part, w, place in places)
        self._tokens = (counts @ add) * self._each_s
        self._grams = (sums @ (add * at)) * self._each_s

    @classmethod
    def of(cls, hulls: Hulls, fan: Fan, seconds: float) -> PriceCurve:
        """The curve of a fan.

        Args:
            hulls: the actions.
            fan: of the hours to come.
            seconds: how much time they stand for together, s.
        """
        return cls(hulls, fan.values, seconds, fan.fortnight, fan.times)

    def price(self, tokens: float, low_tokens: float = float("inf")) -> Price:
        """The price at which some tokens are trained, in expectation.

        Args:
            tokens: number of them.
            low_tokens: how many of them may be in low precision.
        """
        found = float(np.interp(tokens, self._tokens, self._prices))
        if self._hulls.low is None or low_tokens >= tokens:
            return Price(found)
        return self._capped(tokens, low_tokens, found)

    def grams(self, tokens: float) -> float:
        """What some tokens emit above a pause, gCO2e, in expectation.

        Args:
            tokens: number of them, trained at what they cost without a cap.
        """
        # By tokens and not by their price: many hours may cost the same, and some of them be run.
        return float(np.interp(tokens, self._tokens, self._grams))

    def _quantiles(self) -> FloatArray:
        """What a joule emits at equally likely quantiles, rising, g/J, the ends included."""
        costs = np.concatenate([part for part, _ in self._parts])
        weights = np.concatenate([np.full(len(part), weight) for part, weight in self._parts])
        order = np.argsort(costs, kind="stable")
        below = np.cumsum(weights[order])
        n = min(_VALUES, len(costs))
        places = np.searchsorted(below, np.linspace(below[0], below[-1], n) * (1.0 - 1e-12))
        return np.asarray(costs[order][places], dtype=np.float64)

    def _capped(self, tokens: float, low_tokens: float, free: float) -> Price:
        """Both prices, by halving intervals: of the cap outside, of tokens inside."""
        costs = self._quantiles()
        each_s = self.seconds / len(costs)
        highest = float(self._prices[-1])

        def trained(price: float, low_price: float) -> tuple[float, float]:
            assert self._hulls.low is not None
            rate, gain = self._hulls.high.worth(price / costs)
            low_rate, low_gain = self._hulls.low.worth((price - low_price) / costs)
            is_low = low_gain > gain
            low = float(low_rate[is_low].sum()) * each_s
            return float(rate[~is_low].sum()) * each_s + low, low

        def balanced(low_price: float) -> float:
            begin, end = 0.0, 4.0 * highest
            for _ in range(_HALVINGS):
                middle = (begin + end) / 2
                if trained(middle, low_price)[0] >= tokens:
                    end = middle
                else:
                    begin = middle
            return end

        if trained(free, 0.0)[1] <= low_tokens:
            return Price(free)
        begin, end = 0.0, highest
        for _ in range(_HALVINGS // 2):
            middle = (begin + end) / 2
            if trained(balanced(middle), middle)[1] > low_tokens:
                begin = middle
            else:
                end = middle
        return Price(balanced(end), end)


def _sorted_costs(hulls: Hulls, values: FloatArray) -> FloatArray:
    """What a joule emits, rising, g/J."""
    return np.asarray(np.sort(np.maximum(values, 1e-9), axis=None) * hulls.g_per_j)
