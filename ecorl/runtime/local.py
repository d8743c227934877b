"""`build_runtime`, and the event path in one process: a stage starts, and ends.

    on_stage_start   snapshot -> state -> placement            (ledger: decision)
    submit           batch -> engine                            (inference that leaves the GPU)
    land, fill       barrier -> rows, exact path for the rest   (ledger: wait, faults)
    on_stage_end     result -> energy -> EDI                    (ledger: execution)

Nothing in here raises into the training run for a fault of a device, a driver or an engine: the
affected rows are answered by the exact path and the fault goes into the ledger.
"""

from __future__ import annotations

import atexit
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ecorl import config as cfg
from ecorl.config import Config, RayRuntimeConfig
from ecorl.control import AS_IT_IS, GearChoice, TrainingStage
from ecorl.edi import EdiMatrix
from ecorl.engines.protocol import ScoreBatch
from ecorl.engines.registry import build_engine, missing_bitstream
from ecorl.engines.validate import EngineBoundary
from ecorl.ledger import Ledger
from ecorl.records import EventKind, FaultEvent, FaultKind, Role, StageWork, place_name, stage_of
from ecorl.runtime.control.governor import governs
from ecorl.runtime.equipment.accelerator import accelerator_profile
from ecorl.runtime.equipment.hardware import card_power, gpu_path, stays_on_gpu
from ecorl.runtime.handles import Iteration, Landed, PlacedStage, RunTotals, Span, StageRun
from ecorl.runtime.hooks import StageHooks
from ecorl.runtime.kept_models import dtype_objection, reason_of, warn
from ecorl.runtime.monitor import NodeMonitor
from ecorl.runtime.overhead import HookClock
from ecorl.runtime.protocol import Runtime
from ecorl.runtime.scheduling.iterations import new_iteration
from ecorl.runtime.scheduling.offload import OffloadLane, lane_place
from ecorl.runtime.scheduling.stage_scheduler import StageScheduler
from ecorl.runtime.training import FrozenModel, KeptModel, TrainingSide, this_node

logger = logging.getLogger(__name__)


class LocalRuntime(StageHooks):
    """Measures and places the stages of one training process, and records what they cost.

    Args:
        config: the run's configuration.
        ledger: the run's record; the caller closes it.
        training: what the framework's adapter says of its process.
        edi: a matrix to go on with (a resumed run).
        before: what earlier attempts of the run have drawn.

    Raises:
        UserError: for a profile, policy or engine that cannot be used. A model that an engine
            cannot run is none: it stays where the framework computes.
    """

    def __init__(
        self,
        config: cfg.Config,
        ledger: Ledger,
        training: TrainingSide,
        *,
        edi: EdiMatrix | None = None,
        before: RunTotals | None = None,
    ) -> None:
        here, training = training.home, replace(training, node=ledger.machine or training.home)
        super().__init__(training, HookClock())
        self.config, self.ledger = config, ledger
        gpu = gpu_path(config, training)
        if here != training.home:
            # A record has one name for its head: a run that is resumed elsewhere keeps it.
            gpu = replace(gpu, note=f"{gpu.note}; on {here}, recorded as {training.home}")
        card = accelerator_profile(config)
        facts = training.without_fence()
        self._scheduler = StageScheduler(config, ledger, facts, gpu, card, edi, before)
        self._gpu = gpu.profile
        self._no_bitstream = missing_bitstream(config.engine)
        cards = None if self._no_bitstream else card_power(config)
        self._monitor = NodeMonitor(
            training.home,
            [*gpu.sources, *([cards] if cards else [])],
            config.telemetry,
            ledger,
            self._scheduler.on_settled,
            self._scheduler.on_power_fault,
            gpu.others,
        )
        self._other_profiles, self._accelerator = gpu.other_profiles, gpu.accelerator
        self._started = self._closed = False

    # ------------------------------------------------------------ life

    @property
    def is_head(self) -> bool:
        """Whether this process keeps the record: it does."""
        return True

    @property
    def is_governed(self) -> bool:
        """Whether `tick` ever asks for anything but to go on."""
        return governs(self.config)

    @property
    def record(self) -> Ledger:
        """The run's record."""
        return self.ledger

    @property
    def edi(self) -> EdiMatrix:
        """The EDI matrix so far."""
        return self._scheduler.edi

    def start(self) -> None:
        """Load the engines and start sampling. See `Runtime`."""
        if self._started:
            return
        self._started = True
        lanes: dict[Role, OffloadLane] = {}
        try:
            kept = self._load_engines(lanes)
            kept = self._scheduler.equip({self.training.home: self._monitor}, lanes, kept)
            self.ledger.begin_now()
            self._monitor.start()
        except BaseException:  # whatever it was, no process or thread may be left behind
            for lane in lanes.values():
                lane.close()
            self.close()
            raise
        # An exception that ends the training must not lose the last executions.
        atexit.register(self.close)
        self._monitor.record_devices(self._scheduler.profiles, self._other_profiles)
        self._scheduler.record_start()
        self._scheduler.record_kept()
        self._tell_missing(kept)

    def close(self) -> None:
        """Record what waits for readings, stop sampling, end the engines. See `Runtime`."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        if self._started:
            self._monitor.close()
            self.ledger.edi(self.edi_json())
            self.ledger.event(EventKind.HOOK_CLOCK, str(self.clock.time))
        self._scheduler.close_engines()
        self.ledger.flush()

    def _load_engines(self, lanes: dict[Role, OffloadLane]) -> dict[Role, KeptModel]:
        """Load the engines that the policy may use; models that stay without one, by role.

        Args:
            lanes: takes the engines as they are loaded.

        Raises:
            ConfigError: for a mistake in the configuration.
        """
        kept = {r: own for r, own in self.training.kept.items() if self._may_offload(r)}
        for role, frozen in self.training.frozen.items():
            if not self._may_offload(role):
                continue
            reason = self._no_bitstream or dtype_objection(self.config.engine, frozen.dtype)
            if reason is None:
                with EngineBoundary() as boundary:
                    lanes[role] = self._lane(role, frozen, number=len(lanes))
                reason = None if boundary.error is None else reason_of(boundary.error)
            if reason is not None:
                kept[role] = frozen.kept(reason)
        return kept

    def _tell_missing(self, kept: Mapping[Role, KeptModel]) -> None:
        """Warn of each model that has no engine, or once of the bitstream that all would need."""
        missing = self._no_bitstream
        if missing is not None:
            where = place_name(self._gpu.kind)
            logger.warning("%s; nothing is offloaded, all stages stay on the %s", missing, where)
            if not kept:  # else the record has it by role
                detail = f"{missing}; nothing is offloaded"
                fault = FaultEvent(None, FaultKind.NO_ENGINE, "engine.offload", detail)
                self.ledger.fault(fault)
        warn({role: own for role, own in kept.items() if own.reason != missing}, self._gpu)

    def _lane(self, role: Role, frozen: FrozenModel, number: int) -> OffloadLane:
        offload, devices = self.config.engine, self.config.devices
        engine = build_engine(
            offload, frozen.folder, stage_of(role), devices.accelerator, dtype=frozen.dtype
        )
        # Cards are given out in turn: one array serves all offloaded roles, several share them.
        card = number % devices.n_accelerators
        place = lane_place(self.config, self.training.home, engine, card, self._accelerator)
        return OffloadLane(engine, self.config.placement.max_faults, place)

    def _may_offload(self, role: Role) -> bool:
        """Whether a role needs an engine: a fixed policy may keep its stage on the GPU."""
        return not stays_on_gpu(self.config.placement.policy, stage_of(role))

    # ------------------------------------------------------------ event path

    def begin_iteration(self, number: int, batch: int | None = None) -> Iteration:
        """Open an iteration; those that were opened before stay open. See `Runtime`."""
        return new_iteration(number, batch)

    def machine_name(self, host: str) -> str:
        """Name of the trainer's machine in device ids and in the record. See `Runtime`."""
        return self.training.home if host == this_node() else host

    def _place(self, iteration: Iteration, work: StageWork, may_offload: bool) -> PlacedStage:
        return self._scheduler.start_stage(iteration, work, may_offload)

    def _hold(self, stage: PlacedStage, spans: Sequence[Span]) -> None:
        self._scheduler.hold(stage, spans)

    def account(self, stage: PlacedStage, spans: Sequence[Span], node: str) -> None:
        """Record a stage of the GPU path that is over. See `Runtime`."""
        with self.clock:
            # Result: it waits for the power readings that follow its end. Energy, EDI and ledger
            # follow on the sampler's thread as they come in.
            self._scheduler.end_stage(stage, spans, node)

    def submit(self, run: StageRun, batch: Callable[[], ScoreBatch]) -> bool:
        """Send the rows of a placed stage to its engine. See `Runtime`."""
        with EngineBoundary() as boundary, self.clock:
            rows = batch()
            self._scheduler.submit(run.stage, rows)
            run.batch = rows
        if boundary.error is not None:
            kind, reason = type(boundary.error).__name__, str(boundary.error)
            run.stage = self._scheduler.refuse(run.stage, kind, reason)
        return run.sent

    def land(self, run: StageRun) -> Landed:
        """Wait for a submitted batch at the completion barrier. See `Runtime`."""
        # The wait itself is not ecorl's own work, so it is not in the clock.
        return self._scheduler.land(run.stage, self.clock)

    def forget(self, run: StageRun) -> None:
        """Give up a stage that will not end. See `Runtime`."""
        self._scheduler.forget(run.stage)

    # ------------------------------------------------------------ engines

    def offloads(self, role: Role) -> bool:
        """Whether an engine for this role is loaded and not retired."""
        return self._scheduler.offloads(role)

    def checkpoint(self, role: Role) -> Path | None:
        """Checkpoint folder that a role's engine was loaded from, or None without an engine."""
        return self.training.frozen[role].folder if role in self._scheduler.offloadable() else None

    def retire(self, role: Role, why: str) -> None:
        """Take a role back to the GPU path for the rest of the run. See `Runtime`."""
        self._scheduler.retire(role, why)

    def refreshing(self, role: Role) -> bool:
        """Whether a role's engine is taking over weights just now."""
        return self._scheduler.refreshing(role)

    def refresh(self, role: Role, checkpoint: Path) -> None:
        """Give a role's engine the weights of its refreshed model. See `Runtime`."""
        with self.clock:
            self._scheduler.refresh(role, checkpoint)

    # ------------------------------------------------------------ between iterations

    def settle(self) -> None:
        """Record executions whose power readings have come in; call between iterations."""
        with self.clock:
            self._scheduler.settle()

    def tick(
        self,
        now_s: float,
        *,
        steps_left: int | None = None,
        is_stopping: bool = False,
        stage: TrainingStage = AS_IT_IS,
    ) -> GearChoice:
        """Ask the control path what the trainer is to do. See `Runtime`."""
        with self.clock:
            return self._scheduler.tick(steps_left, is_stopping, stage)

    def edi_json(self) -> str:
        """The EDI matrix as JSON, whole even while readings come in."""
        return self._scheduler.edi_json()

    def totals(self) -> RunTotals:
        """Energy of the run so far."""
        return self._scheduler.totals()


def build_runtime(
    config: Config,
    ledger: Ledger,
    training: TrainingSide,
    *,
    edi: EdiMatrix | None = None,
    before: RunTotals | None = None,
) -> Runtime:
    """Make the runtime of ``[runtime]``; it is not started yet.

    Args:
        config: the run's configuration.
        ledger: the run's record, open. From here on it is the runtime's: write to its `record`.
        training: what the framework's adapter says of its processes.
        edi: a matrix to go on with (a resumed run).
        before: what earlier attempts of the run have drawn.

    Raises:
        UserError: for a profile, policy or engine that cannot be used, or a cluster that is not
            there.
    """
    if isinstance(config.runtime, RayRuntimeConfig):
        # Imported here: without a cluster no one needs Ray.
        from ecorl.runtime.ray.runtime import RayRuntime

        return RayRuntime(config, ledger, training, edi=edi, before=before)
    return LocalRuntime(config, ledger, training, edi=edi, before=before)
