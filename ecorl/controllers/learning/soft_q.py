"""Soft Q-learning over widths and gears: CarbonGearRL's Algorithm 1, as printed and corrected.

The paper's are the state (intensity and tokens trained), the update of Q (line 5), the Gibbs policy
``exp(-Q / tau_ent)`` (Eq. 14) and the update of lambda (line 7). It tells neither how states are
told apart nor any unit, and both are ours. A cost of 1 is an epoch of the fastest action at the
mean intensity of the past; lambda counts reference prices, as in `ecorl.controllers.learning.dual`;
a deficit is a share of the budget.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import SupportsInt, cast

import numpy as np

from ecorl.control import GearChoice, Why
from ecorl.controllers.horizon.pricing import Hulls
from ecorl.controllers.learning.critics import (
    CORRECTED_SHAPE,
    PRINTED_SHAPE,
    CorrectedCritic,
    Critic,
    PrintedCritic,
    QState,
    SoftQShape,
    gibbs,
)
from ecorl.controllers.learning.dual import LAMBDA_MAX
from ecorl.controllers.learning.pace import (
    PAST_DAYS,
    FirstPrice,
    due_tokens,
    epoch_of,
    first_memory,
    first_price,
    first_recalled,
    known_values,
    number,
    unknown,
)
from ecorl.controllers.problem.table import PAUSE, FloatArray, TrainingAction
from ecorl.controllers.problem.training import Progress, TrainingProblem
from ecorl.controllers.protocol import Seen
from ecorl.controllers.step import choice

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
        shape: how it learns; None: as its kind does.
        day_s: length of a day of the grid, s.
    """

    def __init__(
        self,
        problem: TrainingProblem,
        corrected: bool,
        seed: int = 0,
        shape: SoftQShape | None = None,
        day_s: float = 86400.0,
    ) -> None:
        self.name = SOFT_Q if corrected else SOFT_Q_PRINTED
        self._problem, self._day_s, self._hulls = problem, day_s, Hulls.of(problem)
        self._shape = shape or (CORRECTED_SHAPE if corrected else PRINTED_SHAPE)
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
        self._first: FirstPrice | None = None
        self._edges: FloatArray = np.zeros(0)
        self._mean, self._dual, self._k, self._epoch, self._drawn = 0.0, 0.0, 0, -1, 0
        self._before: tuple[QState, float, float] | None = None

    @property
    def critic(self) -> Critic:
        """Values of the actions."""
        return self._printed if self._corrected is None else self._corrected

    def decide(self, now_s: float, seen: Seen) -> GearChoice:
        """See `Controller.decide`."""
        p, progress, known = self._problem, seen.progress, seen.intensity
        assert progress is not None
        if self._first is None:
            self._begin(now_s, seen)
        epoch = epoch_of(p, now_s)
        is_new = epoch > self._epoch
        if is_new:
            self._epoch = epoch
            self._move_dual(now_s, progress)
        if known is None or self._first is None:
            self._before = None
            return unknown(self.name, now_s, p, seen)
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
            "first": first_memory(self._first),
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
        self._dual, self._mean = number(memory["dual"]), number(memory["mean"])
        self._edges = np.array(memory["edges"], dtype=np.float64)
        self._first = first_recalled(memory["first"])
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
        self._first = first_price(self._problem, self._hulls, now_s, seen, self._day_s)
        if self._first is None:
            return
        values = known_values(seen.past, PAST_DAYS, self._day_s)
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
        due = p.tokens if self._corrected is None else due_tokens(p, now_s)
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
