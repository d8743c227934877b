"""The scheduler of a run in an actor: policy, guards, barriers, EDI matrix and head's record."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import ray

from ecorl.config import Config
from ecorl.devices import DeviceProfile
from ecorl.edi import EdiMatrix
from ecorl.engines.lanes.threaded import Fault, fault_of
from ecorl.engines.protocol import ScoreBatch
from ecorl.engines.validate import EngineBoundary
from ecorl.errors import ConfigError
from ecorl.ledger import Ledger
from ecorl.records import EventKind, FaultKind, ModelShape, Role, StageWork
from ecorl.runtime.equipment.hardware import GpuPath
from ecorl.runtime.handles import Iteration, Landed, PlacedStage, RunTotals, Span
from ecorl.runtime.kept_models import reason_of
from ecorl.runtime.ray.monitor import MonitorPlan
from ecorl.runtime.ray.monitor_link import RemoteMonitor
from ecorl.runtime.ray.node_records import LeftOver, NodeRecords
from ecorl.runtime.ray.outbox import Note
from ecorl.runtime.ray.workers import RESTART_S, START_S, ModelChanges, PlacedWorker, make_lanes
from ecorl.runtime.scheduling.stage_scheduler import StageScheduler
from ecorl.runtime.training import KeptModel, TrainingSide

logger = logging.getLogger(__name__)

_ENDED = 4096
"""Stages whose end is remembered. Invented: many more than are under way at once."""

_NOTES_S = 10.0
"""Longest wait for the notes that were told before a stage's end, s. Invented: they were sent
before it, and only a scheduler that was started anew still has to be told them."""


@dataclass(frozen=True, slots=True)
class SchedulerPlan:
    """All that a run's scheduler has to know; it may be started anew from it.

    Attributes:
        config: the run's configuration.
        path: the head's ledger, which exists.
        training: facts of the training processes.
        gpu: the GPU path.
        card: profile of the cards.
        edi_json: a matrix to go on with, or None.
        before: what earlier attempts of the run have drawn, or None.
        workers: the accelerator workers.
        monitors: plan and handle of each machine's monitor; the first is the trainer's machine.
        left_over: machines' records of earlier attempts that were not fetched.
    """

    config: Config
    path: Path
    training: TrainingSide
    gpu: GpuPath
    card: DeviceProfile
    edi_json: str | None
    before: RunTotals | None
    workers: tuple[PlacedWorker, ...]
    monitors: tuple[tuple[MonitorPlan, Any], ...]
    left_over: tuple[LeftOver, ...] = ()


@dataclass(frozen=True, slots=True)
class NotStarted:
    """The answer of a scheduler that Ray has started anew, until it is told to go on."""


@dataclass(frozen=True, slots=True)
class SchedulerFacts:
    """What a process has to know of a run to take part in it.

    Attributes:
        config: the run's configuration.
        engines: checkpoint folder of each role that has an engine.
        nodes: names of the machines that have a monitor, by Ray's ids of them.
        models: shapes of the roles' models.
        kept: models that the policy might offload, and that have no engine.
    """

    config: Config
    engines: Mapping[Role, Path]
    nodes: Mapping[str, str]
    models: Mapping[Role, ModelShape]
    kept: Mapping[Role, KeptModel] = field(default_factory=dict)


class SchedulerActor:
    """The scheduler of a run, in an actor on the machine where the run was started.

    Args:
        plan: what it schedules.
    """

    def __init__(self, plan: SchedulerPlan) -> None:
        self._plan = plan
        self._scheduler: StageScheduler | None = None
        self._ledger: Ledger | None = None
        self._monitors: dict[str, RemoteMonitor] = {}
        self._records: NodeRecords | None = None
        self._changes = ModelChanges()
        self._taken: dict[str, int] = {}
        self._ended: dict[int, object] = {}
        self._notes: dict[str, Callable[..., Any]] = {}
        self._folder = plan.path.parent

    # ------------------------------------------------------------ life

    def start(self, is_anew: bool = True) -> Fault | None:
        """Start, or go on where a scheduler that was killed has left off.

        Args:
            is_anew: whether the run is under way: then it goes on without a machine or a worker
                that is out of reach.

        Returns:
            What went wrong, or None.
        """
        if self._scheduler is not None:
            return None
        with EngineBoundary() as boundary:
            self._start(is_anew)
            return None
        self._end_all()
        return fault_of(boundary.caught())

    def _start(self, is_anew: bool) -> None:
        plan = self._plan
        if not is_anew:
            ModelChanges.remove(self._folder)
        self._changes = ModelChanges.read(self._folder)
        self._ledger = ledger = Ledger.reopen(plan.path, raw_samples=plan.config.ledger.raw_samples)
        edi = None if plan.edi_json is None else EdiMatrix.from_json(plan.edi_json)
        scheduler = StageScheduler(
            plan.config, ledger, plan.training, plan.gpu, plan.card, edi, plan.before
        )
        if not is_anew:
            ledger.begin_now()
        self._start_monitors(scheduler, is_anew)
        self._records = NodeRecords(
            ledger, ledger.attempt, self._monitors, plan.training.home, self._lose_record
        )
        self._records.measure_clocks()
        self._equip(scheduler, is_anew)
        scheduler.record_start()
        self._notes = self._known_notes(scheduler, ledger)
        self._scheduler = scheduler
        for role, why in self._changes.retired.items():
            scheduler.retire(role, why)
        if not is_anew:
            scheduler.record_kept()
            # An actor that takes this one's place is told of them, and does not record them anew.
            ledger.flush()
            self._records.fetch_left_over(plan.left_over)

    def _start_monitors(self, scheduler: StageScheduler, is_anew: bool) -> None:
        """Meet the machines' monitors: matrix and sums go on from what they have recorded."""
        for plan, actor in self._plan.monitors:
            self._monitors[plan.node] = RemoteMonitor(
                plan.node,
                actor,
                scheduler.on_settled,
                scheduler.on_power_fault,
                partial(scheduler.record_fault, FaultKind.MONITOR_LOST, plan.node),
                plan.roles.others,
            )
        for monitor in self._monitors.values():
            monitor.start(must_answer=not is_anew)

    def _equip(self, scheduler: StageScheduler, is_anew: bool) -> None:
        """Load the engines, with their models as they are now."""
        plan, changes = self._plan, self._changes
        workers = [
            replace(w, model=replace(w.model, folder=changes.refreshed.get(w.role, w.model.folder)))
            for w in plan.workers
            if w.role not in changes.kept
        ]
        lanes, failed = make_lanes(workers, plan.config, RESTART_S if is_anew else START_S)
        if is_anew:
            scheduler.equip(self._monitors, lanes, changes.kept)
            for role, error in failed.items():
                scheduler.record_fault(FaultKind.ENGINE_GIVEN_UP, role, str(error))
            return
        kept = dict(plan.training.kept)
        try:
            for role, error in failed.items():
                kept[role] = plan.training.frozen[role].kept(reason_of(error))
        except ConfigError:
            for lane in lanes.values():
                lane.close()
            raise
        for worker in workers:
            if worker.role in failed:
                ray.kill(worker.actor)  # another run may have its card
        changes.kept = scheduler.equip(self._monitors, lanes, kept)
        if changes.kept:
            changes.write(self._folder)

    def finish(self, hook_clock: str) -> None:
        """Account what is left, fetch the machines' records, and end the engines.

        Args:
            hook_clock: what the training processes needed for ecorl, for the record.
        """
        if self._scheduler is None or self._ledger is None or self._records is None:
            return
        self._records.measure_clocks()
        for plan, _ in self._plan.monitors:
            self._records.finish(plan.node, plan.path)
        self._ledger.edi(self._scheduler.edi_json())
        self._ledger.event(EventKind.HOOK_CLOCK, hook_clock)
        self._scheduler.close_engines()
        ModelChanges.remove(self._folder)
        self._ledger.flush()

    def close_record(self) -> None:
        """Close the head's record."""
        if self._ledger is not None:
            self._ledger.close()

    def facts(self) -> SchedulerFacts:
        """What a process has to know to take part in the run."""
        plan = self._plan
        kept = dict(self._changes.kept)
        engines = {w.role: w.model.folder for w in plan.workers if w.role not in kept}
        nodes = {m.node_id: m.node for m, _ in plan.monitors}
        return SchedulerFacts(plan.config, engines, nodes, plan.training.models, kept)

    def _end_all(self) -> None:
        for monitor in self._monitors.values():
            monitor.finish()
        self._monitors.clear()
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None

    def _lose_record(self, node: str, why: str) -> None:
        if self._scheduler is not None:
            detail = f"its record is lost: {why}"
            self._scheduler.record_fault(FaultKind.NODE_RECORD_LOST, node, detail)
        logger.warning("%s: its record is lost: %s", node, why)

    # ------------------------------------------------------------ calls of the training processes

    def start_stage(
        self, iteration: Iteration, work: StageWork, may_offload: bool
    ) -> PlacedStage | NotStarted:
        """Decide where a stage runs. See `StageScheduler.start_stage`."""
        if self._scheduler is None:
            return NotStarted()
        return self._scheduler.start_stage(iteration, work, may_offload)

    def submit(self, stage: PlacedStage, batch: ScoreBatch) -> PlacedStage | Fault | NotStarted:
        """Send the rows of a stage to its worker; the stage, or why they could not be sent."""
        if self._scheduler is None:
            return NotStarted()
        with EngineBoundary() as boundary:
            self._scheduler.submit(stage, batch)
            return stage
        return fault_of(boundary.caught())

    @ray.method(concurrency_group="waits")  # type: ignore[untyped-decorator]
    def land(self, stage: PlacedStage) -> Landed | Fault | NotStarted:
        """Wait for the rows of a stage at the barrier. See `StageScheduler.land`."""
        if self._scheduler is None:
            return NotStarted()
        with EngineBoundary() as boundary:
            landed = self._scheduler.land(stage)
            # Before the caller knows: a kill of this process must not lose the execution.
            self._confirm()
            return landed
        return fault_of(boundary.caught())

    def _confirm(self) -> None:
        """Wait until the monitors have what was accounted."""
        for monitor in self._monitors.values():
            monitor.confirm()

    def ask(self, method: str, *args: Any) -> Any:
        """Call a method of the scheduler that only tells something.

        Args:
            method: ``totals``, ``tick``, ``edi_json``, ``offloads``, ``refreshing`` or ``flush``.
            *args: its arguments.
        """
        scheduler, ledger = self._scheduler, self._ledger
        if scheduler is None or ledger is None:
            return NotStarted()
        asked: dict[str, Callable[..., Any]] = {
            "totals": scheduler.totals,
            "tick": scheduler.tick,
            "edi_json": scheduler.edi_json,
            "offloads": scheduler.offloads,
            "refreshing": scheduler.refreshing,
            "flush": ledger.flush,
        }
        return asked[method](*args)

    def notes(self, teller: str, notes: Sequence[Note], may_skip: bool) -> int | NotStarted:
        """Take over what a training process tells, in its order, each note once.

        A kill in the middle leaves some of them in the record's file, each with all that came of
        it: those are left out when they are told again.

        Args:
            teller: the process.
            notes: what it tells, without a gap.
            may_skip: whether notes before the first one may be missing; else a scheduler that was
                started anew asks for them by its answer.

        Returns:
            Number of the newest note of this process that the record's file holds.
        """
        scheduler, ledger = self._scheduler, self._ledger
        if scheduler is None or ledger is None:
            return NotStarted()
        for note in notes:
            taken = self._taken_of(teller, ledger)
            if note.number > taken + 1 and not may_skip:
                return NotStarted()
            if note.number > taken:
                try:
                    self._take(teller, note, scheduler, ledger)
                finally:
                    self._taken[teller] = note.number
        return ledger.kept(teller)

    def _taken_of(self, teller: str, ledger: Ledger) -> int:
        """Number of the newest note of a process that was taken over."""
        return self._taken.get(teller, ledger.kept(teller))

    def _take(self, teller: str, note: Note, scheduler: StageScheduler, ledger: Ledger) -> None:
        with ledger.note(teller, note.number):
            # A note that cannot be taken must not be told for ever.
            with EngineBoundary() as boundary:
                self._notes[note.method](*note.args)
            if boundary.error is not None:
                kind, reason = type(boundary.error).__name__, str(boundary.error)
                detail = f"{note.method} was not noted ({reason})"
                scheduler.record_fault(kind, "scheduler", detail)
                logger.warning("%s was not noted: %s: %s", note.method, kind, reason)
            if note.method == "end_stage":
                self._confirm()  # the execution is on its machine before the note counts as taken

    def _known_notes(
        self, scheduler: StageScheduler, ledger: Ledger
    ) -> dict[str, Callable[..., Any]]:
        """What can be told, by its name."""
        return {
            "start_stage": scheduler.start_stage,
            "hold": scheduler.hold,
            "end_stage": scheduler.end_stage,
            "refuse": scheduler.refuse,
            "forget": scheduler.forget,
            "retire": self._retire,
            "refresh": self._refresh,
            "record_fault": scheduler.record_fault,
            "settle": scheduler.settle,
            "event": ledger.event,
            "fault": ledger.fault,
            "metric": ledger.metric,
            "evaluation": ledger.evaluation,
            "checkpoint": ledger.checkpoint,
            "edi": ledger.edi,
        }

    def kept(self, teller: str) -> int | NotStarted:
        """Number of the newest note of a process that the record's file holds.

        Args:
            teller: the process.
        """
        return NotStarted() if self._ledger is None else self._ledger.kept(teller)

    @ray.method(concurrency_group="ends")  # type: ignore[untyped-decorator]
    def end_when_ready(
        self, stage: PlacedStage, spans: Sequence[Span], node: str, refs: Sequence[Any],
        teller: str, after: int, is_again: bool,
    ) -> NotStarted | None:  # fmt: skip
        """Record a stage of the GPU path once Ray's objects are there; the time then is its end.

        Args:
            stage: the execution, with its work as it turned out.
            spans: which devices it held when; the last is under way.
            node: the machine that they are of.
            refs: references of the objects, in a list: Ray resolves none in there.
            teller: the process.
            after: number of its last note before.
            is_again: whether a scheduler that was killed had been asked before.
        """
        if self._scheduler is None or self._records is None:
            return NotStarted()
        found = list(refs)
        if is_again and len(ray.wait(found, num_returns=len(found), timeout=0)[0]) == len(found):
            detail = "it ended while the scheduler was away: its time and energy are unknown"
            self._await_note(teller, after)
            if self._is_first_end(stage):
                self._scheduler.record_fault(
                    FaultKind.SCHEDULER_LOST, stage.work.role, detail, iteration=stage.iteration
                )
                self._scheduler.forget(stage)
                # Its rows were answered all the same.
                until_s = time.monotonic() + self._monitors[node].ahead_s
                closed = [replace(s, t_end_s=min(s.t_end_s, until_s)) for s in spans]
                self._scheduler.end_stage(stage, closed, node, is_timed=False)
            return None
        # Where they are computed: bringing them here would take its time.
        ray.wait(found, num_returns=len(found), timeout=None, fetch_local=False)
        t_end_s = time.monotonic() + self._monitors[node].ahead_s
        *earlier, last = spans
        ended = [*earlier, replace(last, t_end_s=max(t_end_s, last.t_start_s))]
        self._await_note(teller, after)
        if self._is_first_end(stage):
            self._scheduler.end_stage(stage, ended, node)
        return None

    def _is_first_end(self, stage: PlacedStage) -> bool:
        """Whether a stage has not ended before."""
        # A process that had no answer in time asks again, though nothing was killed.
        own = object()
        is_first = self._ended.setdefault(stage.serial, own) is own
        while len(self._ended) > _ENDED:
            self._ended.pop(next(iter(self._ended)), None)
        return is_first

    def _await_note(self, teller: str, number: int) -> None:
        """Wait until a note has been taken: notes and ends of stages run beside each other."""
        limit_s = time.monotonic() + _NOTES_S
        while self._ledger is not None and time.monotonic() < limit_s:
            if self._taken_of(teller, self._ledger) >= number:
                return
            time.sleep(0.005)

    # ------------------------------------------------------------ models that change

    def _retire(self, role: Role, why: str) -> None:
        # Kept last: a scheduler that is killed before that is told once more.
        if self._scheduler is not None:
            self._scheduler.retire(role, why)
        self._changes.retired[role] = why
        self._changes.write(self._folder)

    def _refresh(self, role: Role, checkpoint: Path) -> None:
        if self._scheduler is not None:
            self._scheduler.refresh(role, checkpoint)
        self._changes.refreshed[role] = checkpoint
        self._changes.write(self._folder)
