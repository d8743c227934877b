"""Controllers that know the future: what they reach in whole epochs, beside the bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from ecorl.carbon.series import Series
from ecorl.control import GearChoice, Why
from ecorl.controllers.clairvoyant.lp import optimum
from ecorl.controllers.problem.table import PAUSE, TrainingAction
from ecorl.controllers.problem.training import Progress, TrainingProblem
from ecorl.controllers.protocol import Memoryless, Seen
from ecorl.controllers.replay.knowledge import Knowledge
from ecorl.controllers.replay.playing import PlayedTraining, Training, outcome, play
from ecorl.controllers.step import choice
from ecorl.errors import ConfigError

SCRIPTED, CLAIRVOYANT = "scripted", "clairvoyant"

_ASTRAY = 2.0
"""Epochs at full speed by which a training may differ from its plan before it is made anew.
Invented: less would plan anew because epochs are whole."""


class ClairvoyantController:
    """Plays the linear programme's schedule in whole epochs.

    No controller could: it is not causal. It is told the whole course beforehand, and shows how far
    a schedule of whole epochs is from the bound. What changes cost is no part of the programme.
    Where they lose so many tokens that the plan is not met, the rest is planned anew.

    Args:
        problem: what has to be met.
        truth: the intensities until the deadline, g/kWh.

    Raises:
        ConfigError: when the series lacks a value between start and deadline, or it is negative.
        MissingToolError: without SciPy.
    """

    name = CLAIRVOYANT

    def __init__(self, problem: TrainingProblem, truth: Series) -> None:
        self._problem, self._truth = problem, truth
        begin = problem.begin()
        self._planned = (problem.start_s, begin.tokens_left, begin.low_tokens_left)
        self._lay_out(problem)

    def decide(self, now_s: float, seen: Seen) -> GearChoice:
        """See `Controller.decide`."""
        assert seen.progress is not None
        p, progress = self._problem, seen.progress
        if self._is_astray(now_s, progress):
            self._plan_anew(now_s, progress.tokens_left, progress.low_tokens_left)
        price = self._bound.price_g_per_token
        told = f"a token is worth {1e6 * price:.3g} g a million, the whole course being known"
        found = choice(self.name, now_s, p, seen, self._action(now_s), Why.PRICED, told)
        return replace(found, price_g_per_token=price)

    def memory(self) -> Mapping[str, object]:
        """When it planned last, and what was left then."""
        planned_s, tokens, low_tokens = self._planned
        return {"planned_s": planned_s, "tokens_left": tokens, "low_tokens_left": low_tokens}

    def recall(self, memory: Mapping[str, object]) -> None:
        """Go on with the plan of a memory.

        Args:
            memory: of a controller for the same problem and series.
        """
        keys = ("planned_s", "tokens_left", "low_tokens_left")
        planned_s, tokens, low_tokens = (float(str(memory[key])) for key in keys)
        self._plan_anew(planned_s, tokens, low_tokens)

    # ------------------------------------------------------------ the plan

    def _plan_anew(self, now_s: float, tokens: float, low_tokens: float) -> None:
        """Plan what is left; where it cannot be met any more, the control step sees to it."""
        with suppress(ConfigError):
            self._lay_out(
                replace(
                    self._problem,
                    tokens=tokens,
                    start_s=now_s,
                    low_share=min(1.0, low_tokens / tokens),
                    width_change_s=0.0,
                    gear_change_s=0.0,
                )
            )
            self._planned = (now_s, tokens, low_tokens)

    def _lay_out(self, problem: TrainingProblem) -> None:
        self._bound = bound = optimum(problem, self._truth)
        # The fastest actions first, so that a part of an epoch at the end trains too much, not too
        # little: what is missing at the end has to be trained at whatever intensity it has then.
        self._actions = sorted(bound.shares, key=problem.rate, reverse=True)
        shares = np.stack([bound.shares[action] for action in self._actions])
        self._until = np.cumsum(shares, axis=0)
        rates = np.array([problem.rate(action) for action in self._actions])
        trained = np.cumsum((rates @ shares) * bound.seconds_each)
        self._left = problem.tokens - np.concatenate(([0.0], trained))

    def _span(self, now_s: float) -> int:
        found = np.searchsorted(self._bound.begins_s, now_s + 1e-3, side="right") - 1
        return max(0, int(found))

    def _action(self, now_s: float) -> TrainingAction:
        at = self._span(now_s)
        passed = (now_s - self._bound.begins_s[at]) / self._bound.seconds_each[at]
        found = np.flatnonzero(self._until[:, at] > passed + 1e-6)
        return self._actions[int(found[0])] if found.size else PAUSE

    def _is_astray(self, now_s: float, progress: Progress) -> bool:
        """Whether the plan is over, or at the begin of a span not met."""
        bound, at = self._bound, self._span(now_s)
        if now_s >= bound.end_s - 1e-3:
            return True
        if now_s > bound.begins_s[at] + 1e-3:
            return False
        p = self._problem
        most = _ASTRAY * p.epoch_s * p.rate(p.fastest(progress))
        return bool(abs(progress.tokens_left - self._left[at]) > most)


class ScriptedActions(Memoryless):
    """Does what was written down beforehand, epoch by epoch.

    Args:
        problem: what has to be met.
        actions: of the first epochs; after them it pauses.
    """

    name = SCRIPTED

    def __init__(self, problem: TrainingProblem, actions: Sequence[TrainingAction]) -> None:
        self._problem, self._actions = problem, tuple(actions)

    def decide(self, now_s: float, seen: Seen) -> GearChoice:
        """See `Controller.decide`."""
        p = self._problem
        epoch = round((now_s - p.start_s) / p.epoch_s)
        action = self._actions[epoch] if epoch < len(self._actions) else PAUSE
        return choice(self.name, now_s, p, seen, action, Why.STATIC, "it is written down")


def played_actions(
    problem: TrainingProblem, truth: Series, actions: Sequence[TrainingAction]
) -> PlayedTraining:
    """What becomes of a training whose actions were written down beforehand.

    Where they lack tokens, the control step adds what the promise of the budget asks for.

    Args:
        problem: what has to be met.
        truth: the intensities, g/kWh.
        actions: of the first epochs; after them there is a pause.
    """
    training = Training(problem, truth)
    while not training.is_over:
        epoch = training.n_epochs
        training.run(actions[epoch] if epoch < len(actions) else PAUSE)
    training.keep_until_deadline()
    found = outcome(SCRIPTED, training)
    if found.deficit > 0.0:
        return play(ScriptedActions(problem, actions), problem, Knowledge(truth))
    return found
