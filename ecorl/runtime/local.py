"""The event path in one process: what happens when a stage starts and when it ends.

    on_stage_start   snapshot -> state -> placement            (ledger: decision)
    submit           batch -> engine                            (inference that leaves the GPU)
    join             barrier -> rows, exact path for the rest   (ledger: wait, faults)
    on_stage_end     result -> energy -> EDI                    (ledger: execution)

Nothing in here raises into the training run for a fault of a device, a driver or an engine: the
affected rows are answered by the exact path and the fault goes into the ledger.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ecorl import config as cfg
from ecorl.devices import DeviceProfile, check_throughput, load_profile
from ecorl.devices.work import forward_ops
from ecorl.edi import EdiMatrix
from ecorl.engines.protocol import ScoreBatch
from ecorl.engines.registry import build_engine
from ecorl.errors import EngineError, PhysicalBoundError
from ecorl.ledger import Ledger
from ecorl.records import (
    Action,
    ModelShape,
    Placement,
    Provenance,
    SchedulerState,
    Stage,
    StageResult,
    StageWork,
)
from ecorl.runtime.accounts import StageAccounts, card_energy
from ecorl.runtime.hardware import TrainerDevice, gpu_path
from ecorl.runtime.offload import Flight, Float32, Landing, OffloadLane
from ecorl.scheduler import CostModel, Guards, build_policy, place
from ecorl.telemetry.sampler import Sampler

logger = logging.getLogger(__name__)

CARD_ID = "fpga0"
"""The simulated card; one array serves all offloaded stages."""

ExactRows = Callable[[Sequence[int]], Sequence[Float32]]
"""Answers the given rows on the exact path: one float32 scalar or vector a row."""


@dataclass(slots=True)
class StageRun:
    """One stage execution under way."""

    iteration: int
    work: StageWork
    placement: Placement
    t_start_s: float
    flight: Flight | None = None


@dataclass(slots=True)
class HookClock:
    """Time that ecorl's own code took on the training thread, by counters.

    Attributes:
        hook_s: time inside ecorl, without the framework's work and without barrier waits, s.
        n_events: stage starts, ends, submissions and joins.
    """

    hook_s: float = 0.0
    n_events: int = 0
    _t_s: float = field(default=0.0, repr=False)

    def __enter__(self) -> HookClock:
        self._t_s = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.hook_s += time.perf_counter() - self._t_s
        self.n_events += 1


class LocalRuntime:
    """Measures, places and accounts for the stages of one training process.

    Args:
        config: the run's configuration.
        ledger: the run's record; the caller closes it.
        checkpoints: checkpoint folder of each frozen model that may leave the GPU, by stage.
        models: shape of every stage's model, for the cost model; unknown ones may be absent.
        trainer_device: where the framework trains.
        edi: a matrix to go on with (a resumed run).

    Raises:
        UserError: for a profile, policy, engine or checkpoint that cannot be used.
    """

    def __init__(
        self,
        config: cfg.Config,
        ledger: Ledger,
        *,
        checkpoints: Mapping[Stage, Path],
        models: Mapping[Stage, ModelShape],
        trainer_device: TrainerDevice = "cpu",
        edi: EdiMatrix | None = None,
    ) -> None:
        self.config, self.ledger, self.models = config, ledger, dict(models)
        self.clock = HookClock()
        self.iteration = 0
        self._t_barrier_s: float | None = None
        self._gpu = gpu_path(config, trainer_device)
        self._card = load_profile(config.devices.fpga)
        costs = CostModel(self._gpu.profile, self._card, config.devices, self.models)
        self._guards = Guards.from_config(config.placement, costs)
        self._policy = build_policy(
            config.placement, self._gpu.profile, self._card, config.devices, self.models
        )
        self._sampler = Sampler(
            [self._gpu.source],
            tau_s=config.telemetry.tau_s,
            stale_after_s=config.telemetry.stale_after_s,
            sink=ledger.samples,
            on_fault=self._on_power_fault,
        )
        self._accounts = StageAccounts(
            ledger,
            edi or EdiMatrix(config.placement.edi_alpha, config.placement.n_profiling),
            self._sampler.history,
            lambda: [d.device_id for d in self._sampler.devices],
        )
        self._checkpoints = {s: Path(p) for s, p in checkpoints.items() if self._may_offload(s)}
        self._lanes: dict[Stage, OffloadLane] = {}
        self._started = self._closed = False

    # ------------------------------------------------------------ life

    @property
    def gpu_profile(self) -> DeviceProfile:
        """Profile of the device on which the framework trains."""
        return self._gpu.profile

    @property
    def edi(self) -> EdiMatrix:
        """The EDI matrix so far."""
        return self._accounts.edi

    def offloads(self, stage: Stage) -> bool:
        """Whether an engine for this stage is loaded."""
        return stage in self._lanes

    def checkpoint(self, stage: Stage) -> Path | None:
        """Checkpoint folder that a stage's engine was loaded from, or None without an engine."""
        return self._checkpoints.get(stage)

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
            for stage, checkpoint in self._checkpoints.items():
                engine = build_engine(
                    self.config.engine, checkpoint, stage, self.config.devices.fpga
                )
                self._lanes[stage] = OffloadLane(engine, self.config.placement.max_faults)
            self._sampler.start()
        except BaseException:  # whatever it was, no process or thread may be left behind
            self.close()
            raise
        self._record_devices()
        self.ledger.event("gpu_path", self._gpu.note)

    def close(self) -> None:
        """Settle what is open, stop sampling, end the engines; safe to call twice."""
        if self._closed:
            return
        self._closed = True
        if self._started:
            interval_s = float(str(self._gpu.source.options.get("interval_s", 0.1)))
            self._accounts.close(patience_s=3 * interval_s + 0.2)
            self.ledger.edi(self.edi.to_json())
            self.ledger.event(
                "hook_clock", f"{self.clock.hook_s:.6f} s in {self.clock.n_events} events"
            )
            self._sampler.stop()
        for lane in self._lanes.values():
            lane.close()
        self.ledger.flush()

    def begin_iteration(self, iteration: int) -> None:
        """Say which iteration the next events belong to (1-based, as the trainer's step)."""
        self.iteration = iteration
        self._t_barrier_s = None

    # ------------------------------------------------------------ event path

    def on_stage_start(self, work: StageWork) -> StageRun:
        """Decide where a stage runs and start its clock."""
        with self.clock:
            placement = place(self._state(work), self._policy, self._guards)
            self.ledger.placement(placement)
        return StageRun(self.iteration, work, placement, time.monotonic())

    def on_stage_end(self, run: StageRun, work: StageWork | None = None) -> None:
        """Book a stage that ran on the GPU path.

        Args:
            run: from `on_stage_start`.
            work: the work as it turned out, when it was not known before (generation).
        """
        t_end_s = time.monotonic()
        with self.clock:
            done = work or run.work
            self._accounts.add(
                self._result(run, done, Action.GPU, t_end_s, t_end_s - run.t_start_s)
            )

    def submit(self, run: StageRun, batch: ScoreBatch) -> None:
        """Send a placed inference batch to its engine; returns at once.

        Raises:
            EngineError: when the stage has no engine (the placement was to the GPU).
        """
        with self.clock:
            lane = self._lanes.get(run.work.stage)
            if lane is None:
                raise EngineError(f"no engine is loaded for the {run.work.stage} stage")
            run.flight = lane.submit(batch)

    def join(self, run: StageRun, exact: ExactRows) -> list[Float32]:
        """Wait for a submitted batch at the completion barrier and fill what did not arrive.

        Args:
            run: a run that was submitted.
            exact: answers rows on the exact path.

        Returns:
            One float32 scalar array or vector a row, in the order of the batch.
        """
        flight = run.flight
        if flight is None:
            raise EngineError(f"the {run.work.stage} stage was not submitted")
        landing = self._lanes[run.work.stage].join(flight, self._time_left_s())
        with self.clock:
            self._book_landing(run, flight, landing)
        values = dict(landing.values)
        if landing.bad_rows:
            t_start_s = time.monotonic()
            answers = exact(landing.bad_rows)
            self._book_fallback(run, landing, t_start_s)
            values |= dict(zip(landing.bad_rows, answers, strict=True))
        return [values[i] for i in range(len(flight.batch))]

    def tick(self) -> None:
        """Settle energies whose samples have come in; call between iterations."""
        with self.clock:
            self._accounts.settle()

    # ------------------------------------------------------------ inside

    def _time_left_s(self) -> float:
        """What is left of the iteration's deadline, which runs from its first wait.

        Stages that run beside each other are waited for one after the other; two hung engines
        must not cost two deadlines.
        """
        now_s = time.monotonic()
        if self._t_barrier_s is None:
            self._t_barrier_s = now_s
        return max(0.0, self._t_barrier_s + self.config.placement.deadline_s - now_s)

    def _may_offload(self, stage: Stage) -> bool:
        """A static policy that keeps a stage on the GPU needs no engine for it."""
        policy = self.config.placement.policy
        if isinstance(policy, cfg.StaticPolicy):
            fixed = {Stage.REWARD: policy.reward, Stage.REFERENCE: policy.reference}
            return fixed.get(stage, Action.GPU) is not Action.GPU
        return True

    def _state(self, work: StageWork) -> SchedulerState:
        lane = self._lanes.get(work.stage)
        power, utilisation = [], []
        tdp_w = self._gpu.profile.get("tdp_w")
        for device in self._sampler.devices:
            now = self._sampler.smoothed(device.device_id)
            share = now.power_w / tdp_w if now.power_w is not None and tdp_w else None
            power.append(share)
            utilisation.append(now.utilisation)
        return SchedulerState(
            iteration=self.iteration,
            algorithm=self.config.algorithm_enum,
            stage=work.stage,
            gpu_power_share=tuple(power),
            gpu_utilisation=tuple(utilisation),
            fpga_queue=sum(lane.queue_depth for lane in self._lanes.values()),
            fpga_available=lane is not None and lane.available,
            work=work,
        )

    def _result(
        self, run: StageRun, work: StageWork, action: Action, t_end_s: float, host_time_s: float
    ) -> StageResult:
        return StageResult(
            iteration=run.iteration,
            stage=work.stage,
            action=action,
            device_id="+".join(d.device_id for d in self._sampler.devices) or "gpu",
            device=self._gpu.profile.name,
            t_start_s=run.t_start_s,
            t_end_s=t_end_s,
            time_s=t_end_s - run.t_start_s,
            time_provenance=Provenance.MEASURED,
            host_time_s=host_time_s,
            wait_s=0.0,
            n_sequences=work.n_sequences,
            n_tokens=work.n_tokens,
            n_output_tokens=work.n_output_tokens,
            energy=None,
        )

    def _book_landing(self, run: StageRun, flight: Flight, landing: Landing) -> None:
        work, report, fault = run.work, landing.report, landing.fault
        lane = self._lanes[work.stage]
        self.ledger.barrier(
            run.iteration,
            work.stage,
            landing.wait_s,
            work.n_sequences,
            landing.n_missing,
            landing.n_late,
        )
        if fault is not None:
            n_bad = len(landing.bad_rows)
            self.ledger.fault(run.iteration, fault, str(work.stage), landing.detail, n_bad)
            logger.warning(
                "%s: %s (%s); %d rows go to the exact path",
                work.stage, fault, landing.detail, n_bad,
            )  # fmt: skip
        time_s = report.device_time_s if report else None
        energy_j = report.device_energy_j if report else None
        provenance = report.provenance if report else Provenance.MODELLED
        simulated = lane.engine.device == self._card.name
        if simulated and time_s is not None:
            beyond = self._beyond_physics(work, time_s, provenance)
            if beyond:
                fault, time_s, energy_j = "PhysicalBoundError", None, None
                self.ledger.fault(run.iteration, fault, str(work.stage), beyond)
        # An exact engine in another process: its time is measured, nothing meters its energy.
        device_id = CARD_ID if simulated else "host_process"
        self._accounts.add(
            StageResult(
                iteration=run.iteration,
                stage=work.stage,
                action=run.placement.action,
                device_id=device_id,
                device=lane.engine.device,
                t_start_s=flight.t_submit_s,
                t_end_s=landing.t_done_s,
                time_s=time_s,
                time_provenance=provenance,
                host_time_s=report.host_time_s if report else landing.t_done_s - flight.t_submit_s,
                wait_s=landing.wait_s,
                n_sequences=work.n_sequences,
                n_tokens=work.n_tokens,
                n_output_tokens=work.n_output_tokens,
                energy=card_energy(device_id, flight.t_submit_s, time_s, energy_j, provenance),
                n_rows_fallback=len(landing.bad_rows),
                fault=fault,
            )
        )

    def _book_fallback(self, run: StageRun, landing: Landing, t_start_s: float) -> None:
        """The exact path's own execution: its time and energy are the GPU path's."""
        t_end_s = time.monotonic()
        with self.clock:
            share = len(landing.bad_rows) / max(1, run.work.n_sequences)
            work = StageWork(
                stage=run.work.stage,
                n_sequences=len(landing.bad_rows),
                n_tokens=round(share * run.work.n_tokens),
                n_output_tokens=round(share * run.work.n_output_tokens),
                max_length=run.work.max_length,
                model=run.work.model,
            )
            again = StageRun(run.iteration, work, run.placement, t_start_s)
            self._accounts.add(self._result(again, work, Action.GPU, t_end_s, t_end_s - t_start_s))

    def _beyond_physics(self, work: StageWork, time_s: float, provenance: Provenance) -> str | None:
        """Why a card's figure cannot be true, or None."""
        if work.model is None:
            return None
        ops = forward_ops(work.model, work.n_tokens, work.mean_length)
        try:
            check_throughput(self._card, ops, None, time_s, provenance, self.config.devices.n_fpgas)
        except PhysicalBoundError as error:
            return str(error)
        return None

    def _record_devices(self) -> None:
        for device in self._sampler.devices:
            self.ledger.device(
                device.device_id,
                self._gpu.profile.name,
                device.provenance,
                device.source,
                self._gpu.profile.get("idle_w"),
            )
        if any(lane.engine.device == self._card.name for lane in self._lanes.values()):
            self.ledger.device(
                CARD_ID,
                self._card.name,
                Provenance.MODELLED,
                "cycle model; computed by C-simulation on this host",
                self._card.get("idle_w"),
            )

    def _on_power_fault(self, device_id: str, error: str | None, t_s: float) -> None:
        kind = "power_restored" if error is None else error
        detail = "readings are back" if error is None else "readings are missing from here on"
        self.ledger.fault(self.iteration, kind, device_id, detail)
