"""Where a concave function of two prices is the highest: planes through what was tried."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ecorl.controllers.clairvoyant.highs import highs
from ecorl.controllers.problem.table import FloatArray

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
        found: FloatArray = np.max(self._bounds_g, axis=0)
        return found

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
        found: FloatArray = self._points[int(np.argmax(heights))]
        return found

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
