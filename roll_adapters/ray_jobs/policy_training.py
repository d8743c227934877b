"""What of the policy's training can be changed between two steps of a framework on Ray."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ecorl.control import AS_IT_IS
from ecorl.records import StageWork
from ecorl.runtime.control.standing import stand
from ecorl.runtime.ray.remote import RemoteRuntime
from roll_adapters.ray_jobs.gears.control import JobGears


class PolicyTraining:
    """The policy's training, as the control path sees it.

    Args:
        width: processes that train it; None: nobody counts them.
        gears: between which it can be shifted; None: it stays as the framework has it.
    """

    def __init__(self, width: int | None = None, gears: JobGears | None = None) -> None:
        self._width, self._gears = width, gears
        self._n_tokens: float | None = None

    def make_ready(self, number: int) -> int | None:
        """Have the processes that train make their gears ready, once.

        Args:
            number: of the step, 1-based, for the record.

        Returns:
            Optimizer steps of the whole training, as these processes know them; None: unknown.
        """
        if self._gears is None:
            return None
        self._gears.make_ready(number)
        return self._gears.n_optimizer_steps

    def stand(self, runtime: RemoteRuntime, number: int, steps_left: int | None) -> None:
        """Stand before a step for as long as the control path asks for it, and shift for it.

        Args:
            runtime: of the run.
            number: of the step, 1-based.
            steps_left: steps that training has before it, with this one; None: unknown.
        """
        stage = AS_IT_IS if self._gears is None else self._gears.stage(steps_left)
        choice = stand(runtime, steps_left=steps_left, stage=stage)
        if self._gears is not None:
            self._gears.begin_step(choice.gear, number, steps_left)

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

    def memory(self) -> dict[str, Any] | None:
        """What a resumed run has to know of its gears; None: nothing."""
        return None if self._gears is None else self._gears.memory()
