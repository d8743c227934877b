"""Soft Q-learning over widths and gears: CarbonGearRL's Algorithm 1, as printed and corrected.

The paper's are the state (intensity and tokens trained), the update of Q (line 5), the Gibbs policy
``exp(-Q / tau_ent)`` (Eq. 14) and the update of lambda (line 7). It tells neither how states are
told apart nor any unit, and both are ours. A cost of 1 is an epoch of the fastest action at the
mean intensity of the past; lambda counts reference prices, as in `ecorl.controllers.learning.dual`;
a deficit is a share of the budget.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, SupportsInt, cast

import numpy as np

from ecorl.control import GearChoice, Why
from ecorl.controllers.horizon.pricing import Hulls
from ecorl.controllers.learning import pace
from ecorl.controllers.learning.dual import LAMBDA_MAX
from ecorl.controllers.problem.table import PAUSE, FloatArray, TrainingAction
from ecorl.controllers.problem.training import Progress, TrainingProblem
from ecorl.controllers.protocol import Seen
from ecorl.controllers.step import choice


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
    return np.asarray(weights / weights.sum())


def _state(told: str) -> QState:
    intensity, progress = told.split(",")
    return QState(int(intensity), int(progress))


SOFT_Q, SOFT_Q_PRINTED = "soft-q", "soft-q-printed"

_INTENSITIES = 24
"""Number of intervals of the intensity, equally many values of the past in each. Invented."""

_PROGRESSES = 10
"""Number of equal intervals of the share of the budget that is trained. Invented."""


class SoftQ:
    """Draws actions by their Q.

    As printed: all actions of the table and the pause; Q by line 5 and Eq. 13; tau_ent = 1, beside
    which costs of at most some units leave the draw near uniform; lambda by line 7, which rises
    while any token is missing. The gradient step of line 6 is taken to its end: a table can hold
    ``exp(-Q)`` itself. Gears that take more joules for a token are drawn as often as the others;
    `TrainingProblem.of` makes a problem without them.

    Corrected: the actions that are best at some price; the sign of Eq. 13 turned; a low
    temperature; lambda begins with the price that would have trained the budget on the past and
    moves by the deficit against the pro-rata schedule.

    Args:
        problem: what has to be met.
        corrected: whether it is ours, or as printed.
        seed: of the draws.
        day_s: length of a day of the grid, s.
    """

    def __init__(
        self,
        problem: TrainingProblem,
        corrected: bool,
        seed: int = 0,
        day_s: float = 86400.0,
    ) -> None:
        self.name = SOFT_Q if corrected else SOFT_Q_PRINTED
        self._problem, self._day_s, self._hulls = problem, day_s, Hulls.of(problem)
        self._shape = CORRECTED_SHAPE if corrected else PRINTED_SHAPE
        self._actions = _efficient(self._hulls) if corrected else (PAUSE, *problem.table.actions())
        self._is_low = np.array([action.is_low for action in self._actions])
        self._numbers = {action: at for at, action in enumerate(self._actions)}
        fastest = problem.fastest(problem.begin())
        full_w = max(self._extra_w(fastest), 1e-9)
        self._full_tokens = problem.rate(fastest) * problem.epoch_s
        self._power = np.array([self._extra_w(one) / full_w for one in self._actions])
        rate = np.array([problem.rate(one) for one in self._actions]) / problem.rate(fastest)
        self._corrected = CorrectedCritic(self._power, rate, self._shape) if corrected else None
        self._printed = PrintedCritic(len(self._actions), self._shape)
        self._rng = np.random.default_rng(seed)
        self._first: pace.FirstPrice | None = None
        self._edges: FloatArray = np.zeros(0)
        self._mean, self._dual, self._k, self._epoch, self._drawn = 0.0, 0.0, 0, -1, 0
        self._before: tuple[QState, float, float] | None = None

    @property
    def critic(self) -> PrintedCritic | CorrectedCritic:
        """Values of the actions."""
        return self._printed if self._corrected is None else self._corrected

    def decide(self, now_s: float, seen: Seen) -> GearChoice:
        """See `Controller.decide`."""
        p, progress, known = self._problem, seen.progress, seen.intensity
        assert progress is not None
        if self._first is None:
            self._begin(now_s, seen)
        epoch = pace.epoch_of(p, now_s)
        is_new = epoch > self._epoch
        if is_new:
            self._epoch = epoch
            self._move_dual(now_s, progress)
        if known is None or self._first is None:
            self._before = None
            return pace.unknown(self.name, now_s, p, seen)
        if is_new or self._before is None:
            intensity = known.g_per_kwh / self._mean
            self._drawn = self._draw(self._state(intensity, progress), intensity, progress)
        told = f"drawn by learned costs of the actions, at lambda {self._dual:.3g}"
        found = choice(self.name, now_s, p, seen, self._actions[self._drawn], Why.PRICED, told)
        if self._corrected is None:
            return found
        return replace(found, price_g_per_token=self._first.price(self._dual).g_per_token)

    def memory(self) -> Mapping[str, object]:
        """See `Controller.memory`."""
        before = self._before
        return {
            "epoch": self._epoch,
            "k": self._k,
            "drawn": self._drawn,
            "dual": self._dual,
            "mean": self._mean,
            "edges": self._edges.tolist(),
            "first": pace.first_memory(self._first),
            "before": None if before is None else [*before[0], *before[1:]],
            "critic": self.critic.memory(),
            "draws": _told(self._rng.bit_generator.state),
        }

    def recall(self, memory: Mapping[str, object]) -> None:
        """See `Controller.recall`.

        Args:
            memory: of a controller of this kind for the same problem.
        """
        self._epoch, self._k, self._drawn = (
            int(cast(SupportsInt, memory[name])) for name in ("epoch", "k", "drawn")
        )
        self._dual, self._mean = pace.number(memory["dual"]), pace.number(memory["mean"])
        self._edges = np.array(memory["edges"], dtype=np.float64)
        self._first = pace.first_recalled(memory["first"])
        self._weigh()
        self._before = None
        if memory["before"] is not None:
            at, done, intensity, tokens = cast(list[float], memory["before"])
            self._before = QState(int(at), int(done)), float(intensity), float(tokens)
        self.critic.recall(cast(Mapping[str, list[float]], memory["critic"]))
        self._rng.bit_generator.state = _untold(memory["draws"])

    # ------------------------------------------------------------ parts of a decision

    def _begin(self, now_s: float, seen: Seen) -> None:
        """Learn units, intervals and the first lambda from the past."""
        self._first = pace.first_price(self._problem, self._hulls, now_s, seen, self._day_s)
        if self._first is None:
            return
        values = pace.known_values(seen.past, self._day_s)
        if not values.size:
            assert seen.intensity is not None
            values = np.array([seen.intensity.g_per_kwh])
        self._mean = max(float(values.mean()), 1e-9)
        inner = np.arange(1, _INTENSITIES) / _INTENSITIES
        self._edges = np.quantile(values / self._mean, inner)
        if self._corrected is not None:
            self._dual = min(self._first.warm, LAMBDA_MAX)
        self._weigh()

    def _weigh(self) -> None:
        """Take into account what low precision costs beside its tokens."""
        if self._corrected is not None and self._first is not None:
            self._corrected.worth = 1.0 - self._first.low_share * self._is_low

    def _move_dual(self, now_s: float, progress: Progress) -> None:
        """Line 7: ``lambda <- [lambda + beta_k (B - b_k)]_+``, or against the schedule."""
        p, s = self._problem, self._shape
        due = p.tokens if self._corrected is None else pace.due_tokens(p, now_s)
        deficit = (due - (p.tokens - progress.tokens_left)) / p.tokens
        moved = self._dual + s.beta * (self._k + 1) ** -s.beta_falls * deficit
        self._dual = min(max(moved, 0.0), LAMBDA_MAX)
        self._k += 1

    def _draw(self, state: QState, intensity: float, progress: Progress) -> int:
        """Learn from the last epoch, and draw the action of the next."""
        if self._corrected is not None:
            self._corrected.learn(state, intensity, self._dual)
        elif self._before is not None and progress.action in self._numbers:
            before, its_intensity, left = self._before
            done = self._numbers[progress.action]
            tokens = (left - progress.tokens_left) / self._full_tokens
            cost = its_intensity * float(self._power[done]) + self._dual * tokens
            self._printed.learn(self._k, before, done, cost, state)
        self._before = state, intensity, progress.tokens_left
        values = self.critic.values(state)
        if self._corrected is not None and progress.low_tokens_left <= 0.0:
            values = np.where(self._is_low, np.inf, values)
        chances = gibbs(values, self._shape.temperature)
        return int(self._rng.choice(len(chances), p=chances))

    def _state(self, intensity: float, progress: Progress) -> QState:
        done = 1.0 - progress.tokens_left / self._problem.tokens
        at = int(np.searchsorted(self._edges, intensity, side="right"))
        return QState(at, min(int(done * _PROGRESSES), _PROGRESSES - 1))

    def _extra_w(self, action: TrainingAction) -> float:
        """What an action draws above a pause, W."""
        return self._problem.draw_w(action) - self._problem.draw_w(PAUSE)


def _efficient(hulls: Hulls) -> tuple[TrainingAction, ...]:
    """The pause and the actions that are best at some price, each once."""
    found = list(hulls.all.actions)
    for hull in (hulls.low, hulls.high):
        found += hull.actions if hulls.low is not None and hull is not None else ()
    return tuple(dict.fromkeys(found))


def _told(state: Mapping[str, object]) -> object:
    """The state of a generator, its integers as text: they do not fit into 64 bits."""
    return {
        key: _told(cast(Mapping[str, object], value)) if isinstance(value, Mapping) else str(value)
        for key, value in state.items()
    }


def _untold(told: object) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in cast(Mapping[str, object], told).items():
        if isinstance(value, Mapping):
            found[key] = _untold(value)
        else:
            text = str(value)
            found[key] = int(text) if text.isdigit() else text
    return found
