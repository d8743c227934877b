"""What of the policy's training can be changed between two steps of a framework on Ray."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from ecorl.control import AS_IT_IS
from ecorl.records import StageWork
from ecorl.runtime.control.governor import WIDTH_CHANGE
from ecorl.runtime.control.standing import stand
from ecorl.runtime.ray.remote import RemoteRuntime
from roll_adapters.ray_jobs.gears.control import JobGears
from roll_adapters.ray_jobs.widths.handover import WidthLeft
from roll_adapters.ray_jobs.widths.leaving import Leaving

NEXT_WIDTH = "next_width"
"""The ledger's metric, at the last step before a change, of the width that is changed to."""


class PolicyTraining:
    """The policy's training, as the control path sees it.

    Args:
        width: processes that train it; None: nobody counts them.
        gears: between which it can be shifted; None: it stays as the framework has it.
        leaving: when its job ends for another number of processes; None: the width stays.
        n_optimizer_steps: of the whole training, where that is known without asking.
    """

    def __init__(
        self,
        width: int | None = None,
        gears: JobGears | None = None,
        leaving: Leaving | None = None,
        n_optimizer_steps: int | None = None,
    ) -> None:
        self._width, self._gears, self._leaving = width, gears, leaving
        self._n_optimizer_steps = n_optimizer_steps
        self._n_tokens: float | None = None
        self._left: WidthLeft | None = None

    def make_ready(self, number: int) -> int | None:
        """Have the processes that train make their gears ready, once.

        Args:
            number: of the step, 1-based, for the record.

        Returns:
            Optimizer steps of the whole training, as these processes know them; None: unknown.
        """
        if self._gears is not None:
            self._gears.make_ready(number)
            if self._gears.n_optimizer_steps is not None:
                return self._gears.n_optimizer_steps
        return None if self._leaving is None else self._n_optimizer_steps

    def stand(self, runtime: RemoteRuntime, number: int, steps_left: int | None) -> None:
        """Stand before a step for as long as the control path asks for it, and shift for it.

        Args:
            runtime: of the run.
            number: of the step, 1-based.
            steps_left: steps that training has before it, with this one; None: unknown.
        """
        stage = AS_IT_IS if self._gears is None else self._gears.stage(steps_left)
        if self._leaving is not None:
            stage = replace(stage, width=self._width, widths=self._leaving.widths)
        start_s = time.monotonic()
        choice = stand(runtime, steps_left=steps_left, stage=stage)
        if self._leaving is not None:
            self._leaving.chosen(choice.width, time.monotonic() - start_s)
            self._left = self._leaving.leaves(number - 1, steps_left)
            if self._left is not None:
                runtime.record.metric(number - 1, NEXT_WIDTH, float(self._left.width))
                return
        if self._gears is not None:
            gear = choice.gear_at(None if self._leaving is None else self._width)
            self._gears.begin_step(gear, number, steps_left)

    def begin(self, work: StageWork) -> StageWork:
        """The work of a step's training, with its gear and width.

        Args:
            work: without them.
        """
        self._n_tokens = float(work.n_tokens)
        label = None if self._gears is None else self._gears.label
        return replace(work, gear=label, width=self._width)

    def end(self, number: int) -> None:
        """Take over what became of a step's training, if there was any.

        Args:
            number: of the step, 1-based.
        """
        n_tokens, self._n_tokens = self._n_tokens, None
        if self._gears is not None and n_tokens is not None:
            self._gears.end_step(number, n_tokens)

    def saved(self, runtime: RemoteRuntime, number: int, *, is_complete: bool) -> None:
        """Take over that a step is logged and saved, if it was to be saved.

        Args:
            runtime: of the run.
            number: of the step, 1-based.
            is_complete: whether a checkpoint of it is there.
        """
        if self._leaving is not None:
            cost_s = self._leaving.ended(number, saved=is_complete)
            if cost_s is not None:
                runtime.record.metric(number, WIDTH_CHANGE, cost_s)

    def take_leave(self) -> None:
        """Leave the training for other processes, where that was chosen.

        Raises:
            WidthLeft: then; it ends the job.
        """
        left, self._left = self._left, None
        if left is not None:
            raise left

    def memory(self) -> dict[str, Any] | None:
        """What a resumed run has to know of its gears; None: nothing."""
        return None if self._gears is None else self._gears.memory()
