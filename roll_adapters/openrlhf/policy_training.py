"""What of the policy's training can be changed between two steps of OpenRLHF."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ecorl.records import StageWork
from ecorl.runtime.control.standing import stand
from ecorl.runtime.ray.remote import RemoteRuntime
from roll_adapters.openrlhf.flags import steps_of
from roll_adapters.ray_jobs.gears.control import JobGears


class PolicyTraining:
    """What of the policy's training can be changed between two steps.

    Args:
        width: processes that train it; None: nobody counts them.
        gears: between which it can be shifted; None: it stays as OpenRLHF has it.
    """

    def __init__(self, width: int | None = None, gears: JobGears | None = None) -> None:
        self._width, self._gears = width, gears
        self._n_tokens: float | None = None

    def stand(self, runtime: RemoteRuntime, args: Any, step: int) -> None:
        """Stand before a step for as long as the control path asks for it, and shift for it.

        Args:
            runtime: of the run.
            args: OpenRLHF's flags, nested.
            step: that is done.
        """
        if self._gears is None:
            stand(runtime)
            return
        self._gears.make_ready(step + 1)
        total = steps_of(args, self._gears.n_optimizer_steps)
        left = None if total is None else max(0, total - step)
        choice = stand(runtime, steps_left=left, stage=self._gears.stage(left))
        self._gears.begin_step(choice.gear, step + 1, left)

    def begin(self, work: StageWork) -> StageWork:
        """The work of a step's training, with its gear and width.

        Args:
            work: without them.
        """
        self._n_tokens = float(work.n_tokens)
        label = None if self._gears is None else self._gears.label
        return replace(work, gear=label, width=self._width)

    def end(self, step: int) -> None:
        """Take over what became of a step's training, if there was any.

        Args:
            step: its number, 1-based.
        """
        n_tokens, self._n_tokens = self._n_tokens, None
        if self._gears is not None and n_tokens is not None:
            self._gears.end_step(step, n_tokens)

    def memory(self) -> dict[str, Any] | None:
        """What a resumed run has to know of its gears; None: nothing."""
        return None if self._gears is None else self._gears.memory()
