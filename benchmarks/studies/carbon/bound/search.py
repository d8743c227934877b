"""Search for the prices at which whole epochs are bounded best.

At each end of the training the bound is concave in the prices, so that what was tried tells where
it may be higher. All ends are bounded by each price that is tried; the one that is looked at is
the end with the lowest bound, which is the bound of all.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from benchmarks.studies.carbon.bound.network import EpochNetwork
from ecorl.controllers.clairvoyant.priced import PricePlanes
from ecorl.controllers.horizon.pricing import Price
from ecorl.controllers.problem.table import FloatArray

_POINTS = 9
"""Prices that are tried at once. Invented: as many take hardly longer than one."""

_LEAST, _MOST = 0.8, 1.4
"""Where the price is looked for at first, as a multiple of that without costs of changes. Changes
lose tokens, so that the price is higher; outside of these it is looked for later. Invented."""

_CLOSE = 3e-5
"""Share of a price to which it is searched for. Invented: by then a bound moves by 1e-7 of it."""

_LONGEST = 12
"""Rounds of the search. Invented: five are usual."""

_MORE = 1.001
"""Factor of the price at which enough is bought where a cap binds too. Invented: of those tried on
three recorded grids, it gave the cheapest schedules."""

_MOST_OF_TWO = 8.0
"""Where two prices are looked for, as a multiple of that without costs of changes. Invented."""


class FoundPrices(NamedTuple):
    """What the search found.

    Attributes:
        price: at which the bound is the highest.
        more: a little higher: what it buys is enough.
        end: the epoch of the last token for which the bound is the lowest.
        ends_g: ``[E]``, by that epoch the best bound, g.
    """

    price: Price
    more: Price
    end: int
    ends_g: FloatArray


class _Tried:
    """Prices with their bounds."""

    def __init__(self, network: EpochNetwork) -> None:
        self._network = network
        self.prices = np.zeros((0, 2))
        self.bounds_g = np.zeros((0, network.n_epochs))

    def add(self, prices: FloatArray) -> None:
        self.prices = np.concatenate((self.prices, prices))
        self.bounds_g = np.concatenate((self.bounds_g, self._network.ends_g(prices)))
        order = np.argsort(self.prices[:, 0], kind="stable")
        self.prices, self.bounds_g = self.prices[order], self.bounds_g[order]

    @property
    def ends_g(self) -> FloatArray:
        return np.asarray(self.bounds_g.max(axis=0))

    @property
    def end(self) -> int:
        return int(self.ends_g.argmin())


def best_prices(network: EpochNetwork, free: Price) -> FoundPrices:
    """Search from the prices that hold without costs of changes.

    Args:
        network: the problem in whole epochs.
        free: those prices.
    """
    if len(network.phases) == 1:
        return _by_one(network, max(free.g_per_token, 1e-12))
    return _by_two(network, free)


def _by_one(network: EpochNetwork, guess: float) -> FoundPrices:
    """By the price of a token: the best is beside the best one tried."""
    tried = _Tried(network)
    grid = np.linspace(_LEAST * guess, _MOST * guess, _POINTS)
    for _ in range(_LONGEST):
        tried.add(np.column_stack((grid, np.zeros_like(grid))))
        known, end = tried.prices[:, 0], tried.end
        at = int(tried.bounds_g[:, end].argmax())
        is_within = 0 < at < len(known) - 1
        least = float(known[at - 1]) if at else 0.5 * float(known[0])
        most = float(known[at + 1]) if at < len(known) - 1 else 2.0 * float(known[-1])
        if is_within and most - least <= _CLOSE * most:
            break
        grid = np.linspace(least, most, _POINTS)[1:-1]
        if not is_within:
            grid = np.append(grid, most if at else least)
    return FoundPrices(Price(float(known[at])), Price(most), end, tried.ends_g)


def _by_two(network: EpochNetwork, free: Price) -> FoundPrices:
    """By the price of a token and that of the cap."""
    planes = PricePlanes(network.ends_g, max(free.g_per_token, 1e-12), _MOST_OF_TWO)
    points: FloatArray | None = np.array([free, free]) * [[1.0, 1.0], [1.02, 1.0]]
    for _ in range(_LONGEST):
        if points is None:
            break
        planes.add(points)
        points = planes.next_points(int(planes.ends_g.argmin()))
    end = int(planes.ends_g.argmin())
    best = planes.best(end)
    more = Price(float(best[0]) * _MORE, float(best[1]))
    return FoundPrices(Price(*best.tolist()), more, end, planes.ends_g)
