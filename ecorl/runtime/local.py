"""The event path in one process: what happens when a stage starts and when it ends.

    on_stage_start   snapshot -> state -> placement            (ledger: decision)
    submit           batch -> engine                            (inference that leaves the GPU)
    join             barrier -> rows, exact path for the rest   (ledger: wait, faults)
    on_stage_end     result -> energy -> EDI                    (ledger: execution)

Nothing in here raises into the training run for a fault of a device, a driver or an engine: the
affected rows are answered by the exact path and the fault goes into the ledger.
"""

from __future__ import annotations

import atexit
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from pathlib import Path

from ecorl import config as cfg
from ecorl.edi import EdiMatrix
from ecorl.engines.lanes.threaded import AsyncEngine, Result
from ecorl.engines.protocol import Refreshed, ScoreBatch
from ecorl.engines.registry import build_engine
from ecorl.errors import CheckpointError, EngineError
from ecorl.ledger import Ledger
from ecorl.records import (
    Action,
    DeviceKind,
    EventKind,
    FaultEvent,
    FaultKind,
    PowerSample,
    Stage,
    StageWork,
)
from ecorl.runtime.accounting import CARD_ID, Recorder, StageRun, rows_of
from ecorl.runtime.hardware import card_power, gpu_path, named_profile, stays_on_gpu
from ecorl.runtime.offload import Float32, OffloadLane
from ecorl.runtime.overhead import HookClock
from ecorl.runtime.snapshot import GpuReadings, IterationProgress, StateReader
from ecorl.runtime.stage_energy import StageAccounts
from ecorl.runtime.training import FrozenModel, TrainingSide
from ecorl.scheduler import CostModel, Guards, build_policy, place
from ecorl.telemetry.sampling.sampler import Sampler

__all__ = ["CARD_ID", "ExactRows", "LocalRuntime", "StageRun"]

logger = logging.getLogger(__name__)

ExactRows = Callable[[Sequence[int]], Sequence[Float32]]
"""Answers the given rows on the exact path: one float32 scalar or vector a row."""


class LocalRuntime:
    """Measures and places the stages of one training process, and records what they cost.

    Args:
        config: the run's configuration.
        ledger: the run's record; the caller closes it.
        training: what the framework's adapter says of its process.
        edi: a matrix to go on with (a resumed run).

    Raises:
        UserError: for a profile, policy, engine or checkpoint that cannot be used.
    """

    def __init__(
        self,
        config: cfg.Config,
        ledger: Ledger,
        training: TrainingSide,
        *,
        edi: EdiMatrix | None = None,
    ) -> None:
        self.config, self.ledger, self.training = config, ledger, training
        self.clock = HookClock()
        self._progress = IterationProgress()
        self._gpu = gpu_path(config, training)
        card = named_profile("devices.fpga", config.devices.fpga, DeviceKind.FPGA)
        costs = CostModel(self._gpu.profile, card, config.devices, training.models)
        self._guards = Guards.from_config(config.placement, costs)
        self._policy = build_policy(
            config.placement, self._gpu.profile, card, config.devices, training.models
        )
        cards = card_power(config)
        self._sampler = Sampler(
            [self._gpu.source, *([cards] if cards else [])],
            tau_s=config.telemetry.tau_s,
            stale_after_s=config.telemetry.stale_after_s,
            sink=self._on_samples,
            on_fault=self._on_power_fault,
        )
        self._lanes: dict[Stage, OffloadLane] = {}
        self._gpu_readings = GpuReadings(self._sampler, self._gpu.profile.get("tdp_w"))
        self._states = StateReader(config.algorithm_enum, self._gpu_readings, self._lanes)
        self._accounts = StageAccounts(
            ledger,
            edi or EdiMatrix(config.placement.edi_alpha, config.placement.n_profiling),
            self._sampler.history,
            self._gpu_readings.device_ids,
        )
        self._recorder = Recorder(config, ledger, self._accounts, self._gpu.profile, card)
        self._started = self._closed = False

    # ------------------------------------------------------------ life

    @property
    def iteration(self) -> int:
        """The iteration under way, 1-based; 0 before the first."""
        return self._progress.number

    @property
    def edi(self) -> EdiMatrix:
        """The EDI matrix so far."""
        return self._accounts.edi

    def edi_json(self) -> str:
        """The EDI matrix as JSON, whole even while readings come in."""
        return self._accounts.edi_json()

    def offloads(self, stage: Stage) -> bool:
        """Whether an engine for this stage is loaded and not retired."""
        return stage in self._lanes and not self._lanes[stage].retired

    def checkpoint(self, stage: Stage) -> Path | None:
        """Checkpoint folder that a stage's engine was loaded from, or None without an engine."""
        frozen = self.training.frozen.get(stage)
        return frozen.folder if frozen is not None and self._may_offload(stage) else None

    def start(self) -> None:
        """Load the engines and start sampling.

        Raises:
            UserError: when an engine's checkpoint, tool or library is missing.
            EngineError: when an engine does not start.
        """
        if self._started:
            return
        self._started = True
        try:
            for stage, frozen in self.training.frozen.items():
                if self._may_offload(stage):
                    engine = self._engine(stage, frozen)
                    self._lanes[stage] = OffloadLane(engine, self.config.placement.max_faults)
            self._recorder.check_card_memory(lane.engine for lane in self._lanes.values())
            self.ledger.hold_readings(self._sampler.history.hold_s)
            self._sampler.start()
        except BaseException:  # whatever it was, no process or thread may be left behind
            self.close()
            raise
        # An exception that ends the training must not lose the last executions.
        atexit.register(self.close)
        self._recorder.record_devices(
            self._sampler.devices, (lane.engine for lane in self._lanes.values())
        )
        self.ledger.event(EventKind.GPU_PATH, self._gpu.note)

    def close(self) -> None:
        """Record what waits for readings, stop sampling, end the engines; safe to call twice."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        if self._started:
            # The sampler still runs: the last executions wait for its next readings.
            self._accounts.close(patience_s=3 * self._gpu.source.interval_s + 0.2)
            self.ledger.edi(self.edi_json())
            self.ledger.event(
                EventKind.HOOK_CLOCK, f"{self.clock.hook_s:.6f} s in {self.clock.n_events} events"
            )
            self._sampler.stop()
        # Before the engines are closed: their ends from here on are wanted, and no fault.
        self._record_engine_ends()
        for lane in self._lanes.values():
            lane.close()
        self.ledger.flush()

    def begin_iteration(self, iteration: int, batch: int | None = None) -> None:
        """Say which iteration the next events belong to.

        Args:
            iteration: 1-based, as the trainer's step.
            batch: 0-based number of the rollout batch that is generated in it; by default one
                batch an iteration.
        """
        paths = self._progress.paths
        batch = iteration - 1 if batch is None else batch
        if batch >= self.config.placement.n_profiling:
            # Not before: the first executions are slower than all that follow.
            paths = self._accounts.path_costs(self._gpu.profile.name)
        self._progress = IterationProgress(iteration, batch, paths)

    # ------------------------------------------------------------ event path

    def on_stage_start(self, work: StageWork, *, may_offload: bool = True) -> StageRun:
        """Decide where a stage runs and start its clock.

        Args:
            work: what is to be done, as far as it is known.
            may_offload: False when only the GPU path can take this call of the stage.
        """
        with self.clock:
            self._record_engine_ends()
            # Snapshot and state: devices, engines and costs as they are now.
            state = self._states.state(self._progress, work, may_offload=may_offload)
            # Placement: the policy's proposal, and what the guards make of it.
            placement = place(state, self._policy, self._guards)
            self._progress.decided[work.stage] = placement.action
            # Ledger: the decision.
            self.ledger.placement(placement)
        # What the device still has to do is the previous stage's; after it this one's time begins.
        self.training.fence()
        return StageRun(self.iteration, work, placement, time.monotonic())

    def on_stage_end(self, run: StageRun, work: StageWork | None = None) -> None:
        """Record a stage that ran on the GPU path.

        Args:
            run: from `on_stage_start`.
            work: the work as it turned out, when it was not known before (generation).
        """
        # Its kernels may still be queued: the stage ends when the device has run them.
        self.training.fence()
        t_end_s = time.monotonic()
        with self.clock:
            # Result: it waits for the power readings that follow its end.
            device_ids = tuple(self._gpu_readings.device_ids()) or ("gpu",)
            self._recorder.record_gpu_path(run, work or run.work, t_end_s, device_ids)
            # Energy, EDI and ledger: of earlier results whose readings have come in by now.
            self._accounts.settle()

    def submit(self, run: StageRun, batch: ScoreBatch) -> None:
        """Send a placed inference batch to its engine; returns at once.

        Args:
            run: from `on_stage_start`.
            batch: the rows to score.

        Raises:
            EngineError: when the stage has no engine (the placement was to the GPU), or the
                batch's ids repeat.
        """
        with self.clock:
            lane = self._lanes.get(run.work.stage)
            if lane is None:
                raise EngineError(f"no engine is loaded for the {run.work.stage} stage")
            run.pending = lane.submit(batch)

    def join(self, run: StageRun, exact: ExactRows) -> list[Float32]:
        """Wait for a submitted batch at the completion barrier and fill what did not arrive.

        Args:
            run: a run that was submitted.
            exact: answers rows on the exact path.

        Returns:
            One float32 scalar array or vector a row, in the order of the batch.

        Raises:
            EngineError: when the run was not submitted.
        """
        pending = run.pending
        if pending is None:
            raise EngineError(f"the {run.work.stage} stage was not submitted")
        lane = self._lanes[run.work.stage]
        # Barrier: the only wait of the training thread for an engine, so it is not in the clock.
        outcome = lane.join(pending, self._progress.time_left_s(self.config.placement.deadline_s))
        with self.clock:
            # Ledger: the wait, a fault, and the engine's execution with its energy.
            self._recorder.record_outcome(run, pending, outcome, lane.engine)
        values = dict(outcome.values)
        if outcome.bad_rows:
            # The exact path's own execution: its time and energy are the GPU path's.
            work = rows_of(pending, outcome.bad_rows, run.work)
            self.training.fence()
            again = StageRun(run.iteration, work, run.placement, time.monotonic())
            answers = exact(outcome.bad_rows)
            self.on_stage_end(again)
            values |= dict(zip(outcome.bad_rows, answers, strict=True))
        return [values[i] for i in range(len(pending.batch))]

    def forget(self, run: StageRun) -> None:
        """Give up a submitted batch that is not waited for: an exception ended its iteration."""
        if run.pending is not None:
            self._lanes[run.work.stage].forget(run.pending)

    def refuse(self, run: StageRun, error: Exception) -> None:
        """Record a batch that could not be sent; the caller answers it on the GPU path.

        Args:
            run: the stage execution that was to be submitted.
            error: why it could not be sent.
        """
        self._progress.decided[run.work.stage] = Action.GPU
        detail = f"the batch could not be sent ({error})"
        self._record_fault(type(error).__name__, str(run.work.stage), detail, run.work.n_sequences)
        logger.warning("%s: the batch could not be sent: %s", run.work.stage, error)

    def retire(self, stage: Stage, why: str) -> None:
        """Take a stage back to the GPU path for the rest of the run.

        Args:
            stage: the stage.
            why: one sentence for the record.
        """
        lane = self._lanes.get(stage)
        if lane is not None and not lane.retired:
            lane.retire()
            self._record_fault(FaultKind.ENGINE_RETIRED, str(stage), why)
            logger.warning("%s stays on the GPU path from here on: %s", stage, why)

    def refreshing(self, stage: Stage) -> bool:
        """Whether a stage's engine is taking over weights just now."""
        lane = self._lanes.get(stage)
        return lane is not None and lane.refreshing

    def refresh(self, stage: Stage, checkpoint: Path) -> None:
        """Give a stage's engine the weights of its refreshed model; returns at once.

        Until the engine has them the stage runs on the GPU path, and for good if it fails.

        Args:
            stage: whose model was refreshed.
            checkpoint: the model as it is now; it must stay where it is.
        """
        lane = self._lanes.get(stage)
        if lane is None or lane.retired:
            return
        iteration = self.iteration

        # The engine's thread calls this, long after `refresh` has returned: the step that the
        # weights come from was noted above.
        def done(future: Future[Result]) -> None:
            error = CancelledError() if future.cancelled() else future.exception()
            if self._closed:
                return  # the run has ended: the weights are not needed any more
            if error is None:
                found = future.result()
                digest = found.digest if isinstance(found, Refreshed) else "unknown"
                self.ledger.event(
                    EventKind.WEIGHTS, f"{stage}: sha256:{digest} from step {iteration}"
                )
                return
            why = f"refreshed weights were not taken over ({error or 'cancelled'})"
            self.ledger.fault(FaultEvent(iteration, FaultKind.ENGINE_RETIRED, str(stage), why))
            logger.warning("%s stays on the GPU path from here on: %s", stage, why)

        with self.clock:
            lane.refresh(checkpoint, done)

    def tick(self) -> None:
        """Record executions whose power readings have come in; call between iterations."""
        with self.clock:
            self._accounts.settle()

    # ------------------------------------------------------------ inside

    def _engine(self, stage: Stage, frozen: FrozenModel) -> AsyncEngine:
        config, card = self.config.engine, self.config.devices.fpga
        try:
            return build_engine(config, frozen.folder, stage, card, dtype=frozen.dtype)
        except CheckpointError as error:
            raise CheckpointError(
                f"the {stage} model: {error}; it stays on the GPU path with "
                'placement.policy.type = "static"'
            ) from error

    def _may_offload(self, stage: Stage) -> bool:
        """Whether a stage needs an engine: a fixed policy may keep it on the GPU."""
        return not stays_on_gpu(self.config.placement.policy, stage)

    def _record_engine_ends(self) -> None:
        """Record the ends of engines that no batch shows: they were idle, or are given up."""
        for stage, lane in self._lanes.items():
            for end in lane.engine.take_ends():
                self._record_fault(end.kind, str(stage), end.reason)

    def _on_samples(self, samples: tuple[PowerSample, ...]) -> None:
        """Record power readings; runs in the sampler's thread."""
        self.ledger.samples(samples)
        self._accounts.settle()

    def _on_power_fault(self, device_id: str, error: str | None, t_s: float) -> None:
        """Record that a device's readings are missing, or are back; in the sampler's thread."""
        kind = FaultKind.POWER_RESTORED if error is None else error
        detail = "readings are back" if error is None else "readings are missing from here on"
        self._record_fault(kind, device_id, detail)

    def _record_fault(
        self, kind: FaultKind | str, where: str, detail: str, n_rows: int = 0
    ) -> None:
        self.ledger.fault(FaultEvent(self.iteration, kind, where, detail, n_rows))
