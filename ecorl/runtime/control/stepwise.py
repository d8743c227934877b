"""The control step for a training that counts optimizer steps: the very one that replays play.

`ecorl.trainer.ElasticTrainer` asks it at each step boundary, with the steps that are done and left.
An epoch's choice holds until the epoch is over, as in a replay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from ecorl.control import Gear, GearChoice
from ecorl.controllers.problem.table import PAUSE, TrainingAction
from ecorl.controllers.problem.training import Progress, TrainingProblem
from ecorl.controllers.protocol import Controller, Seen
from ecorl.controllers.replay.knowledge import GridView
from ecorl.controllers.step import action_of, control_step
from ecorl.runtime.control.step_record import positive_figure


class _Counted(NamedTuple):
    """What of the training is counted; it is replaced whole, so that any thread may read it.

    Attributes:
        n_done: steps that are counted.
        low_tokens: tokens of them in low precision.
        waited_s: how long the training was paused, s.
        action: what it does from there on.
    """

    n_done: int = 0
    low_tokens: float = 0.0
    waited_s: float = 0.0
    action: TrainingAction = PAUSE


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
        self._counted = _Counted()

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
        counted = self._count(steps_done)
        if self._choice is not None and now_s < self._choice.look_again_s:
            return self._choice
        problem, view = self._problem, self._look(now_s)
        left = steps_left * self._step_tokens
        low_left = max(0.0, problem.low_share * problem.tokens - counted.low_tokens)
        progress = Progress(left, low_left, counted.action)
        rate = problem.rate(problem.fastest(progress))
        seen = Seen(
            intensity=view.intensity,
            forecast=view.forecast,
            past=view.past,
            progress=progress,
            waited_s=counted.waited_s,
            has_begun=steps_done > 0,
            left_s=left / rate if rate else None,
        )
        self._choice = control_step(self._controller, problem, now_s, seen)
        action = action_of(self._choice)
        waited_s = counted.waited_s + (problem.epoch_s if action.is_pause else 0.0)
        self._counted = counted._replace(action=action, waited_s=waited_s)
        return self._choice

    def _count(self, steps_done: int) -> _Counted:
        """Count the steps that were done since the last decision to what was chosen there."""
        counted = self._counted
        newly = max(0, steps_done - counted.n_done) if counted.action.is_low else 0
        low_tokens = counted.low_tokens + newly * self._step_tokens
        self._counted = counted._replace(n_done=steps_done, low_tokens=low_tokens)
        return self._counted

    # ------------------------------------------------------------ across a resume

    def memory(self) -> dict[str, object]:
        """What has to be known to go on from here, in values that JSON can hold."""
        counted = self._counted
        gear = counted.action.gear
        return {
            "n_done": counted.n_done,
            "low_tokens": counted.low_tokens,
            "waited_s": counted.waited_s,
            "width": counted.action.width,
            "gear": None if gear is None else str(gear),
            "controller": dict(self._controller.memory()),
        }

    def recall(self, memory: Mapping[str, object]) -> None:
        """Go on from a memory; what cannot be read of it is as in a training that begins.

        The next decision is a new one. Time that was waited since the memory stays waited.

        Args:
            memory: from `memory`; empty: the training begins.
        """
        n_done, width, gear = memory.get("n_done"), memory.get("width"), memory.get("gear")
        action = PAUSE
        if type(width) is int and width > 0:
            action = TrainingAction(width, Gear(str(gear)) if gear in list(Gear) else None)
        self._counted = _Counted(
            n_done=n_done if type(n_done) is int else 0,
            low_tokens=positive_figure(memory.get("low_tokens")) or 0.0,
            waited_s=max(self._counted.waited_s, positive_figure(memory.get("waited_s")) or 0.0),
            action=action,
        )
        self._choice = None
        own = memory.get("controller")
        if isinstance(own, Mapping):
            self._controller.recall(own)
