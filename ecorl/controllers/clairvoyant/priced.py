"""The dual of the linear programme: at any price of a token, a bound that holds.

The programme's dual function at the prices lambda (of a token) and mu (beside it, of one in low
precision) is

    lambda B - mu B_low + sum over spans of seconds * min over actions of (c P - (lambda - mu) tau)

and lies below the programme's optimum whatever the prices are: by it the solver's answer is
checked, and the few actions are found that it has to choose from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ecorl.controllers.clairvoyant.spans import GridSpans
from ecorl.controllers.horizon.frontier import Frontier
from ecorl.controllers.horizon.pricing import Hulls
from ecorl.controllers.problem.table import FloatArray
from ecorl.controllers.problem.training import Kept, TrainingProblem
from ecorl.errors import MissingToolError


class Highs(NamedTuple):
    """What is used of SciPy.

    Attributes:
        optimize: its module of solvers.
        sparse: its module of sparse matrices.
    """

    optimize: Any
    sparse: Any


def highs() -> Highs:
    """SciPy, imported when a bound is asked for.

    Raises:
        MissingToolError: without SciPy.
    """
    try:
        from scipy import optimize, sparse
    except ImportError as error:
        message = f"a clairvoyant bound needs SciPy: pip install 'ecorl[carbon]' ({error})"
        raise MissingToolError(message) from error
    return Highs(optimize, sparse)


_NUDGE = 1e-6
"""Share of a price by which slopes are measured. Invented."""

_SAME = 1e-9
"""Share of a bound that is not worth another round. Invented."""

Bounds = Callable[[FloatArray], FloatArray]
"""Takes prices ``[P, 2]`` to bounds ``[P, N]``, one for each end of the training, g."""


class PricePlanes:
    """Bounds at prices that were tried, with planes that lie above all bounds.

    A bound is concave in the prices, so that a plane through one, with its slopes, lies above it
    everywhere. Slopes are measured by a nudge of each price.

    Args:
        bounds: the function.
        guess: a price of a token of the size that is expected, above 0, g.
        most: the highest price of a token, as a multiple of the guess.
    """

    def __init__(self, bounds: Bounds, guess: float, most: float) -> None:
        self._bounds, self._guess, self._most = bounds, guess, most
        self._points = np.zeros((0, 2))
        self._bounds_g: list[FloatArray] = []
        self._slopes: list[FloatArray] = []

    @property
    def ends_g(self) -> FloatArray:
        """``[N]``, the best bound of each end, g."""
        return np.asarray(np.max(self._bounds_g, axis=0))

    def add(self, points: FloatArray) -> None:
        """Try some prices.

        Args:
            points: ``[P, 2]``, of a token, and of one in low precision beside that, g.
        """
        step = _NUDGE * self._guess
        nudges = np.array([[0.0, 0.0], [step, 0.0], [0.0, step]])
        found = self._bounds((points[:, None, :] + nudges).reshape(-1, 2))
        for at_g, *moved_g in found.reshape(len(points), 3, -1):
            self._bounds_g.append(at_g)
            # An end that is too early has no finite bound, and no slope.
            known_g = np.where(np.isfinite(at_g), at_g, 0.0)
            self._slopes.append(np.stack([moved - known_g for moved in moved_g]) / step)
        self._points = np.concatenate((self._points, points))

    def best(self, end: int | None) -> FloatArray:
        """The best prices so far, ``[2]``, g.

        Args:
            end: number of the end that counts; None: the least over all ends.
        """
        heights = [float(np.min(one) if end is None else one[end]) for one in self._bounds_g]
        return np.asarray(self._points[int(np.argmax(heights))])

    def next_points(self, end: int | None) -> FloatArray | None:
        """Prices that are worth a try, or None where none can be better.

        Those where the planes meet, and two more between them and the best so far, because planes
        know little of what is far from their points.

        Args:
            end: number of the end that counts; None: the least over all ends.
        """
        numbers = [int(np.argmin(one)) if end is None else end for one in self._bounds_g]
        heights = np.array([one[at] for one, at in zip(self._bounds_g, numbers, strict=True)])
        slopes = np.stack([one[:, at] for one, at in zip(self._slopes, numbers, strict=True)])
        is_finite = np.isfinite(heights)
        heights, slopes, points = (part[is_finite] for part in (heights, slopes, self._points))
        if not len(heights):
            return None
        scale_g = max(float(np.abs(heights).max()), 1e-300)
        answer = highs().optimize.linprog(
            [0.0, 0.0, -1.0],
            A_ub=np.column_stack((-slopes * self._guess / scale_g, np.ones(len(points)))),
            b_ub=(heights - (slopes * points).sum(axis=1)) / scale_g,
            bounds=[(0.0, self._most), (0.0, self._most), (None, None)],
            method="highs",
        )
        if answer.x is None or answer.x[2] * scale_g - heights.max() <= _SAME * scale_g:
            return None
        top, best = self._guess * answer.x[:2], self.best(end)
        return np.stack([top, 0.5 * (top + best), 0.15 * top + 0.85 * best])


IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

_LEAST_G_PER_J = 1e-18
"""An intensity by which a price can be divided where the grid emits nothing."""

_POINTS, _ROUNDS = 16, 7
"""Prices that are tried at once, and how often they are drawn together. Invented: the last ones
differ by less than a millionth, at which hardly an interval leaves a choice."""

_RANGE = 1e-5
"""Lowest price that is tried at first beside 0, as a share of the highest. Invented."""

_ROUNDS_CAPPED = 24
"""How often two prices are looked for. Invented: most often a dozen times are enough."""

_ABOUT = 1.0 + 1e-5
"""Factor about two prices within which the best ones are expected. Invented."""


class TokenClass(NamedTuple):
    """Efficient actions whose tokens count alike.

    Attributes:
        hull: the actions.
        is_low: whether the cap on low precision counts their tokens.
    """

    hull: Frontier
    is_low: bool

    @property
    def slopes_j(self) -> FloatArray:
        """Joules of each token more along the hull; below 0 where more speed takes less power."""
        return np.diff(self.hull.extra_w) / np.diff(self.hull.tokens_per_s)


class PriceBox(NamedTuple):
    """Prices between which the best ones lie.

    Attributes:
        least, most: of a token, g.
        least_low, most_low: of a token in low precision, what it costs beside that taken off, g.
    """

    least: float
    most: float
    least_low: float
    most_low: float

    def of(self, is_low: bool) -> tuple[float, float]:
        """The two ends for one class.

        Args:
            is_low: which class.
        """
        return (self.least_low, self.most_low) if is_low else (self.least, self.most)

    def wider(self, factor: float) -> PriceBox:
        """A box around this one.

        Args:
            factor: by which each end moves away.
        """
        return PriceBox(
            self.least / factor,
            self.most * factor,
            self.least_low / factor if self.least_low > 0.0 else self.least_low * factor,
            self.most_low * factor if self.most_low > 0.0 else self.most_low / factor,
        )


class PricedEnds:
    """Bounds by prices, for each span in which the last token may fall.

    Machines that are kept until the last token, and lateness after a soft deadline, make a second
    cost something for as long as the training is not done. What the rest costs is then least for
    an end that has to be searched for; all of them are bounded at once.

    Args:
        problem: what has to be met; what changes cost is left out.
        spans: the time.
    """

    def __init__(self, problem: TrainingProblem, spans: GridSpans) -> None:
        hulls = Hulls.of(problem)
        self.problem, self.spans, self.seconds = problem, spans, spans.seconds
        self.classes: tuple[TokenClass, ...] = (TokenClass(hulls.all, False),)
        if hulls.low is not None and problem.low_share > 0.0:
            self.classes = (TokenClass(hulls.high, False), TokenClass(hulls.low, True))
        idle_g = spans.idle_g(problem)
        is_held = problem.kept is Kept.DONE
        self.wait_g = np.diff(spans.late_g) + (idle_g if is_held else 0.0)
        self.fixed_g = float(spans.late_g[0]) + (0.0 if is_held else float(idle_g.sum()))
        self.is_too_early = spans.edges_s[1:] < self._least_s() * (1.0 - 1e-9)
        self.is_too_early[-1] = False
        self._ratio_g_per_j = np.maximum(spans.g_per_j, _LEAST_G_PER_J)

    def _least_s(self) -> float:
        """The least time in which the budget can be trained, s, without changes and epochs."""
        speeds = [float(one.hull.tokens_per_s[-1]) for one in self.classes]
        tokens, fastest = self.problem.tokens, max(speeds)
        if len(speeds) == 1 or speeds[1] <= speeds[0]:
            return tokens / fastest
        low = self.problem.low_share
        return tokens * (low / speeds[1] + (1.0 - low) / max(speeds[0], 1e-300))

    def gains(self, at: TokenClass, prices: FloatArray) -> FloatArray:
        """What the best actions of a class gain over a pause, g/s.

        Args:
            at: the class.
            prices: ``[P]``, of its tokens, g.

        Returns:
            ``[P, N]``, 0 or more.
        """
        places = self.places(at, prices)
        rates, extra_w = at.hull.tokens_per_s[places], at.hull.extra_w[places]
        return np.asarray(prices[:, None] * rates - self.spans.g_per_j * extra_w)

    def places(self, at: TokenClass, prices: FloatArray) -> IntArray:
        """Numbers of the best actions of a class, ``[P, N]``.

        Args:
            at: the class.
            prices: ``[P]``, of its tokens, g.
        """
        ratios = prices[:, None] / self._ratio_g_per_j
        return np.searchsorted(at.slopes_j, ratios, side="right").astype(np.int64, copy=False)

    def least_g(self, prices: FloatArray) -> FloatArray:
        """Bounds at some prices.

        Args:
            prices: ``[P, 2]``, of a token, and of one in low precision beside that; 0 or more.

        Returns:
            ``[P, N]``, gCO2e: no schedule whose last token falls in that span costs less; infinite
            where none can be done so early.
        """
        gain = np.zeros((len(prices), len(self.seconds)))
        for one in self.classes:
            own = prices[:, 0] - prices[:, 1] if one.is_low else prices[:, 0]
            np.maximum(gain, self.gains(one, own), out=gain)
        each = self.wait_g - gain * self.seconds
        before = np.cumsum(each, axis=1) - each
        budget = self.problem.tokens * (prices[:, 0] - self.problem.low_share * prices[:, 1])
        # The last span is left when the last token is trained: its cost is linear in that time, so
        # that one of its ends is the cheapest.
        found = self.fixed_g + budget[:, None] + before + np.minimum(each, 0.0)
        found[:, self.is_too_early] = np.inf
        return found

    def tightened(self, last: int | None = None) -> tuple[FloatArray, PriceBox]:
        """The best bounds that prices give, and the prices between which they lie.

        Args:
            last: the span whose bound is to be the best; None: the least of all spans is.

        Returns:
            ``[N]``, gCO2e, and the box.
        """
        steepest_j = max(float(one.slopes_j.max()) for one in self.classes)
        top = 1.01 * max(float(self.spans.g_per_j.max()), _LEAST_G_PER_J) * max(steepest_j, 1e-12)
        grid = np.concatenate(([0.0], np.geomspace(_RANGE * top, top, 2 * _POINTS)))
        return (self._along if len(self.classes) == 1 else self._across)(grid, last)

    def _along(self, grid: FloatArray, last: int | None) -> tuple[FloatArray, PriceBox]:
        """By one price. What is sought is concave in it: the best is beside the best tried."""
        best = np.full(len(self.seconds), -np.inf)
        for _ in range(_ROUNDS):
            found = self.least_g(np.column_stack((grid, np.zeros_like(grid))))
            best = np.maximum(best, found.max(axis=0))
            at = int(_of_end(found, last).argmax())
            least, most = grid[max(0, at - 1)], grid[min(len(grid) - 1, at + 1)]
            grid = np.linspace(least, most, _POINTS)
        return best, PriceBox(float(least), float(most), float(least), float(most))

    def _across(self, grid: FloatArray, last: int | None) -> tuple[FloatArray, PriceBox]:
        """By two prices; the box is drawn about the best that was found."""
        found = self.least_g(np.column_stack((grid, np.zeros_like(grid))))
        guess = float(grid[max(1, int(_of_end(found, last).argmax()))])
        planes = PricePlanes(self.least_g, guess, float(grid[-1]) / guess)
        points: FloatArray | None = guess * np.array([[1.0, 0.0], [1.3, 0.3], [1.6, 0.6]])
        for _ in range(_ROUNDS_CAPPED):
            if points is None:
                break
            planes.add(points)
            points = planes.next_points(last)
        price, low_price = planes.best(last)
        low = float(price - low_price)
        box = PriceBox(float(price), float(price), low, low).wider(_ABOUT)
        return np.maximum(planes.ends_g, found.max(axis=0)), box


def _of_end(found: FloatArray, last: int | None) -> FloatArray:
    """``[P]``: the bounds of one end, or the least over all ends."""
    return found.min(axis=1) if last is None else found[:, last]
