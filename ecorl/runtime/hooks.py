"""What every runtime does in the process of the hooks: clocks of stages, and the exact path.

The runtimes differ in who decides (`_place`), who is told which devices are held (`_hold`) and who
records what is over (`account`). When a stage begins and ends is the same for all of them.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

from ecorl.errors import EngineError
from ecorl.records import Action, StageWork
from ecorl.runtime.handles import Float32, Iteration, Landed, PlacedStage, Span, StageRun
from ecorl.runtime.overhead import HookClock
from ecorl.runtime.protocol import ExactRows
from ecorl.runtime.scheduling.accounting import rows_of
from ecorl.runtime.training import TrainingSide


class StageHooks(ABC):
    """The part of a `Runtime` that reads clocks, waits for the device and asks the exact path.

    Args:
        training: facts of this process.
        clock: counts the time of ecorl's own work in it.
        device_ids: devices that this process holds; None: all of its machine's GPU path.
    """

    def __init__(
        self, training: TrainingSide, clock: HookClock, device_ids: tuple[str, ...] | None = None
    ) -> None:
        self.training, self.clock, self._device_ids = training, clock, device_ids

    def on_stage_start(
        self,
        iteration: Iteration,
        work: StageWork,
        *,
        may_offload: bool = True,
        starts_now: bool = True,
    ) -> StageRun:
        """Decide where a stage runs and start its clock. See `Runtime`."""
        with self.clock:
            run = StageRun(self._place(iteration, work, may_offload), None)
        if starts_now:
            self.restart(run)
        return run

    def restart(self, run: StageRun) -> None:
        """Start the clock of a stage on the GPU path. See `Runtime`."""
        # What the device still has to do is the previous stage's; after it this one's time begins.
        self.training.fence()
        run.t_start_s = time.monotonic()
        if run.placement.on_gpu:
            now = Span(run.t_start_s, math.inf, self._device_ids)
            self._hold(run.stage, [*run.spans(self._device_ids), now])

    def pause(self, run: StageRun) -> None:
        """Stop the clock of a stage on the GPU path. See `Runtime`."""
        self._stop(run)
        self._hold(run.stage, run.spans(self._device_ids))

    def on_stage_end(self, run: StageRun, work: StageWork | None = None) -> None:
        """Record a stage that ran on the GPU path. See `Runtime`."""
        self._stop(run)
        stage = replace(run.stage, work=work or run.work)
        self.account(stage, run.spans(self._device_ids), self.training.home)

    def fill(self, run: StageRun, landed: Landed, exact: ExactRows) -> list[Float32]:
        """Answer the bad rows on the exact path. See `Runtime`."""
        if not landed.bad_rows:
            return landed.filled(())
        if run.batch is None:
            raise EngineError(f"the rows of {run.work.role} were not submitted")
        # The exact path's own execution: its time and energy are the GPU path's.
        work = rows_of(run.batch, landed.bad_rows, run.work)
        placement = replace(run.placement, action=Action.GPU)
        serial = self._repetition_serial(run.stage)
        stage = replace(run.stage, serial=serial, work=work, placement=placement)
        again = StageRun(stage, None)
        self.restart(again)
        answers = exact(landed.bad_rows)
        self.on_stage_end(again)
        return landed.filled(answers)

    def machine_name(self, host: str) -> str:
        """Name of a machine of the trainer in device ids and in the record. See `Runtime`."""
        return host

    # ------------------------------------------------------------ what the runtimes differ in

    @abstractmethod
    def account(self, stage: PlacedStage, spans: Sequence[Span], node: str) -> None:
        """Record a stage of the GPU path that is over. See `Runtime`."""

    @abstractmethod
    def _place(self, iteration: Iteration, work: StageWork, may_offload: bool) -> PlacedStage:
        """Decide where a stage runs."""

    @abstractmethod
    def _hold(self, stage: PlacedStage, spans: Sequence[Span]) -> None:
        """Tell which devices a stage has held so far, and holds now."""

    def _repetition_serial(self, stage: PlacedStage) -> int:
        """Number of the exact path's own execution for rows of a stage that did not land."""
        return time.monotonic_ns()

    def _stop(self, run: StageRun) -> None:
        """Stop a stage's clock once the device has run what was launched."""
        # Its kernels may still be queued: they are its own.
        self.training.fence()
        run.pause(time.monotonic())
