"""The actions that are best at some price of a token: the lower hull of power over throughput.

At the price lambda of a token (g/token) and the intensity c, the best action is the one with the
largest ``lambda tau(s) - c P(s)``. It depends on ``lambda / c`` alone, which is what may be spent
on a token, in J/token. Actions beside the hull are best at no price.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ecorl.controllers.problem.table import PAUSE, FloatArray, TrainingAction
from ecorl.controllers.problem.training import TrainingProblem

_FEW = 16
"""Number of steps by which a hull is priced. Invented: with one worker more at each step there are
hundreds, whose prices differ by less than intensities are known."""

_LEAST_J = 1e-12
"""What a token costs at least, J: logarithms of prices are taken."""


@dataclass(frozen=True, slots=True, eq=False)
class Frontier:
    """Actions by the joules that a token may cost.

    Attributes:
        actions: ``V`` of them, the pause first, then by throughput.
        tokens_per_s: ``[V] float64``.
        extra_w: ``[V] float64``, what each draws above the pause, W.
        j_per_token: ``[V - 1] float64``, rising: from which J/token on the next action is the best;
            almost 0 where training draws less than kept workers that do not train.
    """

    actions: tuple[TrainingAction, ...]
    tokens_per_s: FloatArray
    extra_w: FloatArray
    j_per_token: FloatArray

    def place(self, j_per_token: float) -> int:
        """Number of the best action.

        Args:
            j_per_token: what a token may cost, J.
        """
        return int(np.searchsorted(self.j_per_token, j_per_token, side="right"))

    def worth(self, j_per_token: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Throughput of the best actions, and what they gain over a pause.

        Args:
            j_per_token: ``[...]``, what a token may cost, J.

        Returns:
            Throughput, tokens/s, and ``j_per_token * tokens_per_s - extra_w``, W, of that shape.
        """
        places = np.searchsorted(self.j_per_token, j_per_token, side="right")
        rates = self.tokens_per_s[places]
        return rates, j_per_token * rates - self.extra_w[places]

    @property
    def steps(self) -> tuple[FloatArray, FloatArray]:
        """Throughput that each step of the hull adds, tokens/s, and its J/token; few steps."""
        add, at = np.diff(self.tokens_per_s), self.j_per_token
        if len(add) <= _FEW:
            return add, at
        parts = [p for p in np.array_split(np.arange(len(add)), _FEW) if p.size]
        sums = np.array([add[p].sum() for p in parts])
        means = np.array([(add[p] * at[p]).sum() for p in parts]) / sums
        return sums, means


def frontier(problem: TrainingProblem, actions: Iterable[TrainingAction]) -> Frontier:
    """The hull of some actions and the pause.

    Args:
        problem: for power and throughput.
        actions: of its table.
    """
    paused_w = problem.draw_w(PAUSE)
    found = sorted(
        ((problem.rate(a), problem.draw_w(a) - paused_w, a) for a in actions),
        key=lambda one: (one[0], one[1]),
    )
    hull: list[tuple[float, float, TrainingAction]] = [(0.0, 0.0, PAUSE)]
    for point in found:
        if point[0] <= hull[-1][0] and point[1] >= hull[-1][1]:
            continue
        # Fewer watts for as many tokens or more: whatever lay above is no more on the hull.
        while len(hull) > 1 and _slope(hull[-2], point) <= _slope(hull[-2], hull[-1]):
            hull.pop()
        hull.append(point)
    rates, extra = (np.array([point[i] for point in hull]) for i in (0, 1))
    return Frontier(
        actions=tuple(point[2] for point in hull),
        tokens_per_s=rates,
        extra_w=extra,
        j_per_token=np.maximum(np.diff(extra) / np.diff(rates), _LEAST_J),
    )


def _slope(
    low: tuple[float, float, TrainingAction], high: tuple[float, float, TrainingAction]
) -> float:
    """Joules of each token more, J/token."""
    return (high[1] - low[1]) / (high[0] - low[0])
