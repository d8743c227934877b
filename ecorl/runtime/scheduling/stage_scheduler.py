"""What a run has once: policy and guards, engines and their barriers, EDI matrix, and its record.

A run in one process calls it directly (`LocalRuntime`); on a Ray cluster it lives in an actor, and
the training processes call it through that (`ecorl.runtime.ray`). All that its methods take and
return can be pickled, and they may be called from several threads.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, replace
from pathlib import Path

from ecorl import config as cfg
from ecorl.control import AS_IT_IS, GearChoice, TrainingStage
from ecorl.devices import DeviceProfile
from ecorl.edi import EdiMatrix
from ecorl.engines.lanes.threaded import Result
from ecorl.engines.protocol import Refreshed, ScoreBatch
from ecorl.errors import EngineError
from ecorl.ledger import Ledger
from ecorl.records import (
    EVALUATION_ROLE,
    Abilities,
    Action,
    DeviceKind,
    EventKind,
    FaultEvent,
    FaultKind,
    PathCost,
    Role,
    StageResult,
    StageWork,
    place_name,
    weakest,
)
from ecorl.runtime.control.governor import Governor
from ecorl.runtime.energy.run_energy import RunEnergy
from ecorl.runtime.equipment.hardware import GpuPath
from ecorl.runtime.handles import Iteration, Landed, PlacedStage, RunTotals, Span, undecided
from ecorl.runtime.kept_models import ModelsWithoutEngine
from ecorl.runtime.monitor import Monitor, added_up
from ecorl.runtime.scheduling.accounting import Recorder
from ecorl.runtime.scheduling.charges import DeviceCharges
from ecorl.runtime.scheduling.iterations import OpenIterations, StateReader
from ecorl.runtime.scheduling.offload import OffloadLane, PendingBatch
from ecorl.runtime.training import KeptModel, TrainingSide, models_by_stage
from ecorl.scheduler import CostModel, Guards, RoleDevices, build_policy, place

logger = logging.getLogger(__name__)

UNTIMED = nullcontext()
"""Stands for a clock where nobody counts."""


class StageScheduler:
    """Decides where stages run, sends their rows to engines, and has what came of it accounted.

    Args:
        config: the run's configuration.
        ledger: the head's part of the run's record; the caller closes it.
        training: what the framework's adapter says of its processes.
        gpu: the GPU path.
        card: profile of the cards, or of the device in their place.
        edi: a matrix to go on with (a resumed run).
        before: what earlier attempts of the run have drawn.
    """

    def __init__(
        self,
        config: cfg.Config,
        ledger: Ledger,
        training: TrainingSide,
        gpu: GpuPath,
        card: DeviceProfile,
        edi: EdiMatrix | None = None,
        before: RunTotals | None = None,
    ) -> None:  # fmt: skip
        self.config, self.ledger, self._training = config, ledger, training
        self._gpu, self._place = gpu, place_name(gpu.profile.kind)
        models = models_by_stage(training.models)
        by_role = {role: RoleDevices(*found) for role, found in gpu.roles.devices.items()}
        costs = CostModel(gpu.profile, card, config.devices, models, by_role)
        self._abilities = abilities = training.abilities
        self._guards = Guards.from_config(config.placement, costs, abilities)
        # A policy prices whole iterations: devices of which nothing is known would leave it none.
        priced = {r: d for r, d in by_role.items() if d.gpu.figures}
        self._policy = build_policy(
            config.placement, gpu.profile, card, config.devices, models, abilities, priced
        )
        placement = config.placement
        self._energy = RunEnergy(
            edi or EdiMatrix(placement.edi_alpha, placement.n_profiling),
            before,
            {gpu.profile.name, *gpu.roles.profile_names.values()},
        )
        self._monitors: dict[str, Monitor] = {}
        self._lanes: dict[Role, OffloadLane] = {}
        self._kept = ModelsWithoutEngine(gpu.profile)
        self._charges = DeviceCharges(gpu, self._monitors, training.home)
        self._states = StateReader(
            config.algorithm_enum, self._charges.own_power, gpu.profile.get("tdp_w"), self._lanes,
            gpu.profile.kind,
        )  # fmt: skip
        self._recorder = Recorder(ledger, self._monitors, card)
        self._profiles = {
            DeviceKind.GPU: gpu.profile,
            DeviceKind.CPU: gpu.profile,
            DeviceKind.FPGA: card,
        }
        self._lock = threading.Lock()
        self._iterations = OpenIterations()
        # Not from 1: a scheduler that is started anew gives no number twice.
        self._serials = itertools.count(time.monotonic_ns())
        self._pending: dict[int, PendingBatch] = {}
        self._placed: dict[Role, Action] = {}
        self._closed = False
        self._governor = Governor(config, ledger, self.record_fault, before)

    # ------------------------------------------------------------ life

    @property
    def profiles(self) -> Mapping[DeviceKind, DeviceProfile]:
        """The profile that stands for each kind of metered device."""
        return self._profiles

    @property
    def edi(self) -> EdiMatrix:
        """The EDI matrix so far."""
        return self._energy.edi

    def equip(
        self,
        monitors: Mapping[str, Monitor],
        lanes: Mapping[Role, OffloadLane],
        kept: Mapping[Role, KeptModel] | None = None,
    ) -> dict[Role, KeptModel]:
        """Take over the machines' monitors and the engines, before the first stage.

        Args:
            monitors: by the name of the machine; one is of the trainer's machine.
            lanes: engines by role; the scheduler closes them.
            kept: models that have no engine, by role.

        Returns:
            These, and those whose engine found no room on the card that it shares: it is closed.
        """
        self._monitors.update(monitors)
        self._kept.by_role.update(kept or {})
        beyond = self._recorder.beyond_memory(lanes)
        for role, lane in lanes.items():
            if role not in beyond:
                self._lanes[role] = lane
                continue
            lane.close()
            frozen, why = self._training.frozen.get(role), beyond[role]
            self._kept.by_role[role] = frozen.kept(why) if frozen else KeptModel(why)
        return dict(self._kept.by_role)

    def record_start(self) -> None:
        """Record devices that are simulated, the GPU path and abilities; begin to ask the feeds."""
        self._recorder.record_cards(self._lanes.values())
        self.ledger.event(EventKind.GPU_PATH, self._gpu.note)
        able = [field.name for field in fields(Abilities) if getattr(self._abilities, field.name)]
        self.ledger.event(EventKind.ABILITIES, ", ".join(able) or "none")
        for gap in self._gpu.gaps:
            self.ledger.event(EventKind.POWER_UNREAD, gap)
        self._governor.start()

    def record_kept(self) -> None:
        """Record the models that have no engine, once a run."""
        self._kept.record(self.ledger)

    def close_engines(self) -> None:
        """Record how the engines fared and end them; safe to call twice."""
        self._closed = True
        self._governor.close()
        # Before the engines are closed: their ends from here on are wanted, and no fault.
        self._record_engine_ends()
        for lane in self._lanes.values():
            lane.close()

    # ------------------------------------------------------------ event path

    def start_stage(
        self,
        iteration: Iteration,
        work: StageWork,
        may_offload: bool = True,
        serial: int | None = None,
    ) -> PlacedStage:
        """Decide where a stage runs.

        Args:
            iteration: that it belongs to.
            work: what is to be done, as far as it is known.
            may_offload: False when only the GPU path can take this call of the stage.
            serial: number of the execution, where the caller has given it one already.
        """
        self._record_engine_ends()
        if work.role == EVALUATION_ROLE:
            serial = next(self._serials) if serial is None else serial
            self._energy.begin(serial, iteration.number)
            return PlacedStage(serial, iteration, work, undecided(iteration, work))
        with self._lock:
            of = self._iterations.of(iteration, self._paths)
            # Snapshot and state: devices, engines and costs as they are now.
            state = self._states.state(of, work, may_offload=may_offload)
            # Placement: the policy's proposal, and what the guards make of it.
            kept = self._kept.placement(iteration.number, work, self._policy.name)
            placement = kept or place(state, self._policy, self._guards)
            of.decided[work.role] = self._placed[work.role] = placement.action
            serial = next(self._serials) if serial is None else serial
        self._energy.begin(serial, iteration.number)
        # Ledger: the decision.
        self.ledger.placement(placement)
        return PlacedStage(serial, iteration, work, placement)

    def hold(self, stage: PlacedStage, spans: Sequence[Span]) -> None:
        """Note which devices a stage of the GPU path has held so far, and holds now.

        Args:
            stage: the execution.
            spans: all of them, on the trainer's machine.
        """
        for part in self._charges.charged(stage.work, spans):
            self._monitors[part.node].hold(stage.serial, part.spans, stage.work.role)

    def end_stage(
        self, stage: PlacedStage, spans: Sequence[Span], node: str, *, is_timed: bool = True
    ) -> None:
        """Record a stage that ran on the GPU path; its energy follows with the power readings.

        Args:
            stage: the execution, with its work as it turned out.
            spans: which devices it held when.
            node: the machine that they are of.
            is_timed: whether its end is known; else it has neither a time nor an energy.
        """
        for part in self._charges.charged(stage.work, spans, node):
            own = replace(stage, work=part.work)
            self._energy.expect(stage.serial, stage.iteration.number)
            self._recorder.record_gpu_path(
                own, part.node, part.spans, part.device, is_timed=is_timed
            )

    def submit(self, stage: PlacedStage, batch: ScoreBatch) -> None:
        """Send a placed inference batch to its engine; returns at once.

        Args:
            stage: the execution.
            batch: the rows to score.

        Raises:
            EngineError: when the role has no engine (the placement was to the GPU), or the batch's
                ids repeat.
        """
        lane = self._lanes.get(stage.work.role)
        if lane is None:
            raise EngineError(f"no engine is loaded for {stage.work.role}")
        pending = lane.submit(batch)
        self._pending[stage.serial] = pending
        if lane.place.is_metered:
            monitor = self._monitors[lane.place.node]
            t_start_s = pending.t_submit_s + monitor.ahead_s
            span = Span(t_start_s, math.inf, lane.place.device_ids)
            monitor.hold(stage.serial, [span], stage.work.role)

    def land(self, stage: PlacedStage, clock: AbstractContextManager[object] = UNTIMED) -> Landed:
        """Wait for a batch at the completion barrier, and record what came.

        Args:
            stage: the execution; the deadline of its iteration limits the wait.
            clock: counts the time of everything but the wait.

        Raises:
            EngineError: when nothing was submitted for it.
        """
        pending = self._pending.pop(stage.serial, None)
        if pending is None:
            raise EngineError(f"the rows of {stage.work.role} were not submitted")
        lane = self._lanes[stage.work.role]
        with self._lock:
            state = self._iterations.of(stage.iteration, self._paths)
            left_s = state.time_left_s(self.config.placement.deadline_s)
        # Barrier: the only wait for an engine.
        outcome = lane.join(pending, left_s)
        # Ledger: the wait, a fault, and the engine's execution with its energy.
        with clock:
            self._energy.expect(stage.serial, stage.iteration.number)
            self._recorder.record_outcome(stage, pending, outcome, lane)
        packing = None if outcome.report is None else outcome.report.packing
        return Landed(outcome.values, outcome.bad_rows, packing)

    def forget(self, stage: PlacedStage) -> None:
        """Give up a stage that will not end: an exception has cut its iteration short.

        Args:
            stage: the execution.
        """
        self._energy.drop(stage.serial)
        nodes = self._charges.nodes(stage.work.role)
        pending = self._pending.pop(stage.serial, None)
        if pending is not None:
            lane = self._lanes[stage.work.role]
            lane.forget(pending)
            nodes = [lane.place.node]
        for node in nodes:
            self._monitors[node].drop(stage.serial)

    def refuse(self, stage: PlacedStage, kind: str, reason: str) -> PlacedStage:
        """Record a batch that could not be sent, and place it on the GPU path.

        Args:
            stage: the execution.
            kind: name of the error.
            reason: its text.
        """
        work = stage.work
        with self._lock:
            of = self._iterations.of(stage.iteration, self._paths)
            of.decided[work.role] = Action.GPU
            self._placed[work.role] = Action.GPU
        detail = f"the batch could not be sent ({reason})"
        self.record_fault(kind, work.role, detail, work.n_sequences, stage.iteration)
        logger.warning("%s: the batch could not be sent: %s", work.role, reason)
        return replace(stage, placement=replace(stage.placement, action=Action.GPU))

    def settle(self) -> None:
        """Account executions whose power readings have come in."""
        for monitor in self._monitors.values():
            monitor.settle()

    def tick(
        self,
        steps_left: int | None = None,
        is_stopping: bool = False,
        stage: TrainingStage = AS_IT_IS,
    ) -> GearChoice:
        """Decide what the trainer is to do. See `Governor.tick`."""
        if self.config.accounting.budget_g is not None:
            self._governor.emitted(self._energy.totals(self._monitors.values()).drawn_j)
        return self._governor.tick(steps_left, is_stopping=is_stopping, stage=stage)

    # ------------------------------------------------------------ engines

    def offloads(self, role: Role) -> bool:
        """Whether an engine for this role is loaded and not retired."""
        return role in self._lanes and not self._lanes[role].retired

    def offloadable(self) -> tuple[Role, ...]:
        """The roles that have an engine, whether or not it is retired."""
        return tuple(self._lanes)

    def retire(self, role: Role, why: str) -> None:
        """Take a role back to the GPU path for the rest of the run.

        Args:
            role: the role.
            why: one sentence for the record.
        """
        lane = self._lanes.get(role)
        if lane is not None and not lane.retired:
            lane.retire()
            self.record_fault(FaultKind.ENGINE_RETIRED, role, why)
            logger.warning("%s stays on the %s from here on: %s", role, self._place, why)

    def refreshing(self, role: Role) -> bool:
        """Whether a role's engine is taking over weights just now."""
        lane = self._lanes.get(role)
        return lane is not None and lane.refreshing

    def refresh(self, role: Role, checkpoint: Path) -> None:
        """Give a role's engine the weights of its refreshed model; returns at once.

        Args:
            role: whose model was refreshed.
            checkpoint: the model as it is now; it must stay where it is.
        """
        lane = self._lanes.get(role)
        if lane is None or lane.retired:
            return
        iteration = self._iterations.newest.number

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
                    EventKind.WEIGHTS, f"{role}: sha256:{digest} from step {iteration}"
                )
                return
            why = f"refreshed weights were not taken over ({error or 'cancelled'})"
            self.ledger.fault(FaultEvent(iteration, FaultKind.ENGINE_RETIRED, role, why))
            logger.warning("%s stays on the %s from here on: %s", role, self._place, why)

        lane.refresh(checkpoint, done)

    # ------------------------------------------------------------ energy and faults

    def edi_json(self) -> str:
        """The EDI matrix as JSON, whole even while readings come in."""
        return self._energy.edi_json()

    def totals(self) -> RunTotals:
        """Energy of the run so far."""
        sums, now = self._energy.totals(self._monitors.values()), self._charges.own_power()
        own = [
            smoothed
            for device, smoothed in zip(now.devices, now.smoothed, strict=True)
            if device.kind is not DeviceKind.FPGA
        ]
        power_w = added_up(s.power_w for s in own) if own else None
        found = [sums.provenance] if sums.provenance is not None else []
        found += [s.provenance for s in own] if power_w is not None else []
        so_far = self._governor.emitted(sums.drawn_j)
        return replace(
            sums,
            carbon_g=so_far.carbon_g,
            unknown_j=so_far.unknown_j,
            g_per_kwh=self._governor.g_per_kwh,
            placed=dict(self._placed),
            gpu_power_w=power_w,
            provenance=weakest(*found) if found else None,
        )

    def on_settled(self, result: StageResult) -> None:
        """Take over an execution that has its energy; monitors call it."""
        batch = self._iterations.batch(result.iteration)
        self._energy.add(result, self._charges.share(result), batch)

    def on_power_fault(self, device_id: str, error: str | None, t_s: float) -> None:
        """Record that a device's readings are missing, or are back; monitors call it.

        Args:
            device_id: the device.
            error: name of the error; None when readings are back.
            t_s: when, monotonic s.
        """
        kind = FaultKind.POWER_RESTORED if error is None else error
        detail = "readings are back" if error is None else "readings are missing from here on"
        self.record_fault(kind, device_id, detail)

    def record_fault(
        self,
        kind: FaultKind | str,
        where: str,
        detail: str,
        n_rows: int = 0,
        iteration: Iteration | None = None,
    ) -> None:
        """Record something that went wrong.

        Args:
            kind: of the fault.
            where: the role, device or part.
            detail: one sentence.
            n_rows: rows that it affected.
            iteration: that it belongs to; None: what is no stage's, while the newest was open.
        """
        number = (iteration or self._iterations.newest).number
        self.ledger.fault(FaultEvent(number, kind, where, detail, n_rows))

    # ------------------------------------------------------------ inside

    def _paths(self, batch: int) -> tuple[PathCost, ...]:
        """What the roles have cost on both paths, for an iteration that begins now."""
        # From the first batch on: each cell leaves its own first execution, which is slower than
        # all that follow, out of the recent figures.
        card = self._profiles[DeviceKind.FPGA].name
        gpu, roles = self._gpu.profile.name, self._gpu.roles.profile_names
        return self._energy.path_costs(gpu, roles, card, batch)

    def _record_engine_ends(self) -> None:
        """Record the ends of engines that no batch shows: they were idle, or are given up."""
        for role, lane in self._lanes.items():
            for end in lane.engine.take_ends():
                self.record_fault(end.kind, role, end.reason)
