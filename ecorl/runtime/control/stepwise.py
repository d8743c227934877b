"""The control step for a training that counts optimizer steps: the very one that replays play.

`ecorl.trainer.ElasticTrainer` asks it at each step boundary, with the steps that are done and left.
An epoch's choice holds until the epoch is over, as in a replay.
"""

from __future__ import annotations

from collections.abc import Callable

from ecorl.control import GearChoice
from ecorl.controllers.problem.table import PAUSE
from ecorl.controllers.problem.training import Progress, TrainingProblem
from ecorl.controllers.protocol import Controller, Seen
from ecorl.controllers.replay.knowledge import GridView
from ecorl.controllers.step import action_of, control_step


class StepwiseControl:
    """Decides width and gear of a training by its steps.

    Args:
        controller: who decides, new for each training.
        problem: what has to be met; a step of the training is ``step_tokens`` of its tokens.
        look: what is known of the grid at a time, s since 1970.
        step_tokens: tokens of a step, of all workers together.
    """

    def __init__(
        self,
        controller: Controller,
        problem: TrainingProblem,
        look: Callable[[float], GridView],
        step_tokens: float,
    ) -> None:
        self._controller, self._problem, self._look = controller, problem, look
        self._step_tokens = step_tokens
        self._choice: GearChoice | None = None
        self._action = PAUSE
        self._n_done = 0
        self._low_tokens = 0.0
        self._waited_s = 0.0

    @property
    def latest(self) -> GearChoice | None:
        """The newest choice; None before the first."""
        return self._choice

    def decide(self, now_s: float, steps_done: int, steps_left: int) -> GearChoice:
        """The choice that holds now; a new one when an epoch begins.

        Args:
            now_s: s since 1970.
            steps_done: steps that count.
            steps_left: steps that are asked for and not done.
        """
        newly, self._n_done = max(0, steps_done - self._n_done), steps_done
        if self._action.is_low:
            self._low_tokens += newly * self._step_tokens
        if self._choice is not None and now_s < self._choice.look_again_s:
            return self._choice
        problem, view = self._problem, self._look(now_s)
        left = steps_left * self._step_tokens
        low_left = max(0.0, problem.low_share * problem.tokens - self._low_tokens)
        progress = Progress(left, low_left, self._action)
        rate = problem.rate(problem.fastest(progress))
        seen = Seen(
            intensity=view.intensity,
            forecast=view.forecast,
            past=view.past,
            progress=progress,
            waited_s=self._waited_s,
            has_begun=steps_done > 0,
            left_s=left / rate if rate else None,
        )
        self._choice = control_step(self._controller, problem, now_s, seen)
        self._action = action_of(self._choice)
        if self._action.is_pause:
            self._waited_s += problem.epoch_s
        return self._choice
