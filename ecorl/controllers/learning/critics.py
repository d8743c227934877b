"""Values of actions by state, as CarbonGearRL's Algorithm 1 learns them, and with its sign turned.

A cost of 1 is an epoch of the fastest action at the mean intensity of the past.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from ecorl.controllers.problem.table import FloatArray


class QState(NamedTuple):
    """What tells rows of Q apart.

    Attributes:
        intensity: number of the interval of the intensity.
        progress: number of the interval of the share of the budget that is trained.
    """

    intensity: int
    progress: int


@dataclass(frozen=True, slots=True)
class SoftQShape:
    """How Q and lambda are learned.

    Attributes:
        temperature: tau_ent of the Gibbs policy, in unit costs.
        alpha: largest step size of Q.
        alpha_falls: exponent by which that of Q falls with its number.
        beta: first step size of lambda, in reference prices for a deficit of the whole budget.
        beta_falls: exponent by which that of lambda falls with the epochs; the larger of the two,
            so that beta_k = o(alpha_k) as the paper asks.
        gamma: discount of the next state's Q.
    """

    temperature: float
    alpha: float
    alpha_falls: float
    beta: float
    beta_falls: float
    gamma: float


PRINTED_SHAPE = SoftQShape(1.0, 1e-2, 0.6, 1e-2, 0.9, 0.99)
"""The paper's tau_ent = 1 and alpha_k <= 0.01; exponents that fulfil its assumption A3, beta and
gamma are invented."""

CORRECTED_SHAPE = SoftQShape(0.01, 1.0, 0.6, 0.4, 0.7, 0.0)
"""Ours, and invented. Temperature and beta are about the best of 0.005 to 0.1 and of 0.03 to 1 on
EIA-930's hours of 2022, in starts from March to May in California, PJM and New York, and in
Bonneville's whole year. The first visit of a state sets its row, and later ones move it less and
less."""


class Critic(Protocol):
    """Values of the actions in each state."""

    def values(self, state: QState) -> FloatArray:
        """Q of each action, ``[A] float64``, in unit costs.

        Args:
            state: the row.
        """
        ...

    def memory(self) -> dict[str, list[float]]:
        """Rows by ``intensity,progress``."""
        ...

    def recall(self, memory: Mapping[str, list[float]]) -> None:
        """Go on from a memory.

        Args:
            memory: of a critic of the same kind.
        """
        ...


class PrintedCritic:
    """A table of Q, by line 5 and Eq. 13 as they are printed.

    ``Q(x, s) <- Q(x, s) + alpha (psi + lambda tau + gamma min Q(x', .) - Q(x, s))``: tokens cost
    something, at a price that rises while the budget lacks any.

    Args:
        n_actions: number of actions.
        shape: how it learns.
    """

    def __init__(self, n_actions: int, shape: SoftQShape = PRINTED_SHAPE) -> None:
        self._n, self._shape = n_actions, shape
        self._rows: dict[QState, dict[int, float]] = {}

    def values(self, state: QState) -> FloatArray:
        """See `Critic.values`; what was never tried has 0.

        Args:
            state: the row.
        """
        found = np.zeros(self._n)
        for action, value in self._rows.get(state, {}).items():
            found[action] = value
        return found

    def learn(self, k: int, state: QState, action: int, cost: float, after: QState) -> None:
        """Take in what an action has cost.

        Args:
            k: number of the epoch.
            state: in which it was done.
            action: its number.
            cost: psi + lambda tau of the epoch, in unit costs.
            after: the state that followed.
        """
        s = self._shape
        row = self._rows.setdefault(state, {})
        old = row.get(action, 0.0)
        target = cost + s.gamma * float(self.values(after).min())
        row[action] = old + s.alpha * (k + 1) ** -s.alpha_falls * (target - old)

    def memory(self) -> dict[str, list[float]]:
        """See `Critic.memory`; a row is action, value, action, value, ..."""
        return {
            f"{at.intensity},{at.progress}": [float(x) for pair in row.items() for x in pair]
            for at, row in self._rows.items()
        }

    def recall(self, memory: Mapping[str, list[float]]) -> None:
        """See `Critic.recall`.

        Args:
            memory: of a critic of the same kind.
        """
        self._rows = {
            _state(at): {
                int(action): float(value) for action, value in zip(row[::2], row[1::2], strict=True)
            }
            for at, row in memory.items()
        }


class CorrectedCritic:
    """Q by Eq. 13 with its sign corrected: ``Q(x, s) <- (1 - alpha) Q + alpha (c P - lambda tau)``.

    Power and throughput are look-up tables, so that an epoch teaches what every action would have
    cost and not only the one that was done. All rows are then ``c P(s) - lambda tau(s)`` with one c
    and one lambda each, and these two are all that is stored. The value of the next state is left
    out: the tokens that are still due act through lambda, the grid goes its way whatever is done,
    and so it is the same for all actions and cancels in the Gibbs policy (the paper's footnote 3).

    Args:
        power: ``[A] float64``, of the actions, as a share of the fastest one's.
        rate: ``[A] float64``, throughput of the actions, likewise.
        shape: how it learns.

    Attributes:
        worth: ``[A] float64``, what a token of each action is worth, as a share of lambda: less
            than 1 for those in low precision where a cap on them binds.
    """

    def __init__(
        self, power: FloatArray, rate: FloatArray, shape: SoftQShape = CORRECTED_SHAPE
    ) -> None:
        self._power, self._rate, self._shape = power, rate, shape
        self.worth = np.ones_like(rate)
        self._rows: dict[QState, list[float]] = {}

    def values(self, state: QState) -> FloatArray:
        """See `Critic.values`.

        Args:
            state: the row; learned at least once.
        """
        intensity, dual, _ = self._rows[state]
        return intensity * self._power - dual * self.worth * self._rate

    def learn(self, state: QState, intensity: float, dual: float) -> None:
        """Take in what the actions cost now.

        Args:
            state: the state now.
            intensity: of the grid, as a multiple of the mean of the past.
            dual: lambda, in reference prices.
        """
        row = self._rows.setdefault(state, [0.0, 0.0, 0.0])
        row[2] += 1.0
        alpha = self._shape.alpha * row[2] ** -self._shape.alpha_falls
        row[0] += alpha * (intensity - row[0])
        row[1] += alpha * (dual - row[1])

    def memory(self) -> dict[str, list[float]]:
        """See `Critic.memory`; a row is intensity, lambda and the number of visits."""
        return {f"{at.intensity},{at.progress}": list(row) for at, row in self._rows.items()}

    def recall(self, memory: Mapping[str, list[float]]) -> None:
        """See `Critic.recall`.

        Args:
            memory: of a critic of the same kind.
        """
        self._rows = {_state(at): [float(one) for one in row] for at, row in memory.items()}


def gibbs(values: FloatArray, temperature: float) -> FloatArray:
    """Probabilities of the actions (Eq. 14), ``[A] float64``.

    Args:
        values: ``[A] float64``, their Q.
        temperature: tau_ent, in the unit of Q.
    """
    weights = np.exp(-(values - values.min()) / temperature)
    found: FloatArray = weights / weights.sum()
    return found


def _state(told: str) -> QState:
    intensity, progress = told.split(",")
    return QState(int(intensity), int(progress))
