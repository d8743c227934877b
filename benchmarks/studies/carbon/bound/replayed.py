"""Controllers that know the future: what they reach in whole epochs, beside the bounds."""

from __future__ import annotations

from collections.abc import Sequence

from ecorl.carbon.series import Series
from ecorl.control import GearChoice, Why
from ecorl.controllers.problem.table import PAUSE, TrainingAction
from ecorl.controllers.problem.training import TrainingProblem
from ecorl.controllers.protocol import Memoryless, Seen
from ecorl.controllers.replay.knowledge import Knowledge
from ecorl.controllers.replay.playing import PlayedTraining, Training, outcome, play
from ecorl.controllers.step import choice

SCRIPTED = "scripted"


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
