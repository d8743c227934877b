"""The runtime as a framework's adapter sees it: the calls of the event path, and their handles.

    begin_iteration    a handle; several iterations may be open beside each other
    on_stage_start     where the stage runs is decided, and its clock starts
    submit             rows that leave the GPU go to their engine
    land               completion barrier: what arrived, and which rows are bad
    fill               the exact path answers the bad rows
    on_stage_end       the stage's clock ends

`LocalRuntime` keeps everything in the process of the training thread, `ecorl.runtime.ray` in actors
of a Ray cluster. The handles are plain values that can be pickled: a hook in another process holds
neither a lock nor a thread of the runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable

from ecorl.control import AS_IT_IS, GearChoice, TrainingStage
from ecorl.engines.packing import PackedTokens
from ecorl.engines.protocol import ScoreBatch
from ecorl.records import EventKind, FaultEvent, Role, StageWork
from ecorl.runtime.handles import Float32, Iteration, Landed, PlacedStage, RunTotals, Span, StageRun
from ecorl.runtime.overhead import HookClock
from ecorl.runtime.training import TrainingSide

ExactRows: TypeAlias = Callable[[Sequence[int]], Sequence[Float32]]
"""Answers the given rows on the exact path: one float32 scalar or vector a row."""

TellPacking: TypeAlias = Callable[[PackedTokens], None]
"""Takes what packing made of the rows of a batch."""


class RecordWriter(Protocol):
    """The part of a run's record that an adapter writes to; never raises and never waits."""

    def event(self, kind: EventKind, detail: str) -> None:
        """Note something about the course of the run.

        Args:
            kind: what happened.
            detail: one sentence about it.
        """

    def fault(self, f: FaultEvent) -> None:
        """Record something that went wrong and was survived."""

    def metric(self, iteration: int, name: str, value: float | None) -> None:
        """Record one scalar of the trainer.

        Args:
            iteration: 1-based.
            name: e.g. ``reward``.
            value: None or NaN when it is missing.
        """

    def evaluation(self, name: str, phase: str, values: Sequence[float | None]) -> None:
        """Record per-item values of one evaluation.

        Args:
            name: what was evaluated.
            phase: when, e.g. ``before``.
            values: one an item.
        """

    def checkpoint(self, iteration: int, path: str) -> None:
        """Record a checkpoint of the trainer.

        Args:
            iteration: the last one whose work it holds.
            path: its folder.
        """

    def edi(self, json: str) -> None:
        """Record the EDI matrix.

        Args:
            json: as `Runtime.edi_json` gives it.
        """

    def flush(self, timeout_s: float = 30.0) -> bool:
        """Wait until all that was recorded before is on disk.

        Args:
            timeout_s: longest wait, s.

        Returns:
            Whether all of it is.
        """

    def close(self) -> None:
        """End the record; safe to call twice. What comes later is dropped."""


@runtime_checkable
class Runtime(Protocol):
    """Measures and places the stages of a training run, and records what they cost.

    Nothing in here raises into the training run for a fault of a device, a driver, an engine or
    another machine: the affected rows are answered by the exact path and the fault is recorded.
    """

    training: TrainingSide
    clock: HookClock

    @property
    def is_head(self) -> bool:
        """Whether this process keeps the record; of several training processes one does."""

    @property
    def is_governed(self) -> bool:
        """Whether `tick` ever asks for anything but to go on."""

    @property
    def record(self) -> RecordWriter:
        """The run's record."""

    def start(self) -> None:
        """Load the engines and start sampling.

        A model whose engine does not start stays where the framework computes, with one warning.

        Raises:
            UserError: for a mistake in the configuration, or a recording that is not there.
            EngineError: when an accelerator worker cannot be placed on the cluster.
        """

    def close(self) -> None:
        """Record what waits for readings, stop sampling, end the engines; safe to call twice."""

    def begin_iteration(self, number: int, batch: int | None = None) -> Iteration:
        """Open an iteration; those that were opened before stay open.

        Args:
            number: 1-based, as the trainer's step.
            batch: 0-based number of the rollout batch that is generated in it; by default one
                batch an iteration.
        """

    def on_stage_start(
        self,
        iteration: Iteration,
        work: StageWork,
        *,
        may_offload: bool = True,
        starts_now: bool = True,
    ) -> StageRun:
        """Decide where a stage runs and start its clock.

        Args:
            iteration: that it belongs to.
            work: what is to be done, as far as it is known.
            may_offload: False when only the GPU path can take this call of the stage.
            starts_now: False when the GPU path would come to it later: `restart` starts its clock.
        """

    def restart(self, run: StageRun) -> None:
        """Start the clock of a stage on the GPU path, which comes to it only now.

        Args:
            run: from `on_stage_start`.
        """

    def pause(self, run: StageRun) -> None:
        """Stop the clock of a stage on the GPU path while another one runs; `restart` goes on.

        Args:
            run: from `on_stage_start`.
        """

    def on_stage_end(self, run: StageRun, work: StageWork | None = None) -> None:
        """Record a stage that ran on the GPU path.

        Args:
            run: from `on_stage_start`.
            work: the work as it turned out, when it was not known before (generation).
        """

    def account(self, stage: PlacedStage, spans: Sequence[Span], node: str) -> None:
        """Record a stage of the GPU path that is over, of whatever process.

        Args:
            stage: the execution, with its work as it turned out.
            spans: which devices it held when.
            node: the machine that they are of.
        """

    def submit(self, run: StageRun, batch: Callable[[], ScoreBatch]) -> bool:
        """Send the rows of a placed stage to its engine; returns at once.

        Args:
            run: from `on_stage_start`, placed on an engine.
            batch: makes the rows.

        Returns:
            Whether they were sent. If not (the batch cannot be made, or there is no engine) the
            fault is recorded and the stage is the GPU path's. Where the scheduler is another
            process, what goes wrong there shows at `land`: then all rows are bad, and the fault is
            recorded once.
        """

    def land(self, run: StageRun) -> Landed:
        """Wait for a submitted batch at the completion barrier of its iteration.

        Args:
            run: whose rows were sent.

        Raises:
            EngineError: when they were not.
        """

    def fill(self, run: StageRun, landed: Landed, exact: ExactRows) -> list[Float32]:
        """Answer the bad rows on the exact path.

        Args:
            run: whose rows landed.
            landed: from `land`.
            exact: answers rows on the exact path.

        Returns:
            One float32 scalar array or vector a row, in the order of the batch.
        """

    def forget(self, run: StageRun) -> None:
        """Give up a stage that will not end: an exception has cut its iteration short."""

    def offloads(self, role: Role) -> bool:
        """Whether an engine for this role is loaded and not retired."""

    def machine_name(self, host: str) -> str:
        """Name of a machine of the trainer in device ids and in the record; after `start`.

        Args:
            host: its host name, as `this_node` spells it there.
        """

    def checkpoint(self, role: Role) -> Path | None:
        """Checkpoint folder that a role's engine was loaded from, or None without an engine."""

    def retire(self, role: Role, why: str) -> None:
        """Take a role back to the GPU path for the rest of the run.

        Args:
            role: the role.
            why: one sentence for the record.
        """

    def refreshing(self, role: Role) -> bool:
        """Whether a role's engine is taking over weights just now."""

    def refresh(self, role: Role, checkpoint: Path) -> None:
        """Give a role's engine the weights of its refreshed model; returns at once.

        Until the engine has them the stage runs on the GPU path, and for good if it fails.

        Args:
            role: whose model was refreshed.
            checkpoint: the model as it is now; it must stay where it is.
        """

    def settle(self) -> None:
        """Record executions whose power readings have come in; call between iterations."""

    def tick(
        self,
        now_s: float,
        *,
        steps_left: int | None = None,
        is_stopping: bool = False,
        stage: TrainingStage = AS_IT_IS,
    ) -> GearChoice:
        """Ask the control path what the trainer is to do; call before each iteration.

        Returns at once. `ecorl.runtime.control.standing.stand` asks until training goes on.

        Args:
            now_s: time, monotonic s.
            steps_left: steps that training has before it; None: unknown.
            is_stopping: whether training was asked to stop, by a signal for instance.
            stage: what the training stage did in the last step, and what it can be told to do.
        """

    def edi_json(self) -> str:
        """The EDI matrix as JSON, whole even while readings come in."""

    def totals(self) -> RunTotals:
        """Energy of the run so far."""


def join(
    runtime: Runtime, run: StageRun, exact: ExactRows, note: TellPacking | None = None
) -> list[Float32]:
    """Wait for a submitted batch and fill what did not arrive: `Runtime.land`, then `fill`.

    Args:
        runtime: that it was submitted to.
        run: whose rows were sent.
        exact: answers rows on the exact path.
        note: takes what packing made of the rows in the engine, where it packed them.

    Raises:
        EngineError: when the rows were not sent.
    """
    landed = runtime.land(run)
    if note is not None and landed.packing is not None:
        note(landed.packing)
    return runtime.fill(run, landed, exact)


class NoRecord:
    """The record of a process that keeps none: rank 0 notes everything."""

    def event(self, kind: EventKind, detail: str) -> None:
        """Do nothing."""

    def fault(self, f: FaultEvent) -> None:
        """Do nothing."""

    def metric(self, iteration: int, name: str, value: float | None) -> None:
        """Do nothing."""

    def evaluation(self, name: str, phase: str, values: Sequence[float | None]) -> None:
        """Do nothing."""

    def checkpoint(self, iteration: int, path: str) -> None:
        """Do nothing."""

    def edi(self, json: str) -> None:
        """Do nothing."""

    def flush(self, timeout_s: float = 30.0) -> bool:
        """Do nothing; there is nothing to wait for."""
        return True

    def close(self) -> None:
        """Do nothing."""
