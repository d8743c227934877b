"""`RemoteRuntime`: the runtime of a process whose decisions are made in the scheduler's actor.

What has to be decided is asked for and waited for; everything else is told, in order, by a thread
of its own. A scheduler that does not answer costs energy at most: until it is back all stages run
on the GPU path, rows that were with it are computed there, and what was told meanwhile is told
again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ecorl.config import Config
from ecorl.control import AS_IT_IS, GearChoice, TrainingStage
from ecorl.edi import EdiMatrix
from ecorl.engines.lanes.threaded import Fault, error_of
from ecorl.engines.protocol import ScoreBatch
from ecorl.engines.validate import EngineBoundary
from ecorl.errors import EngineError
from ecorl.records import Action, EventKind, FaultEvent, FaultKind, GuardRefusal, Role, StageWork
from ecorl.runtime.control.governor import governs, ungoverned, unheard
from ecorl.runtime.handles import (
    Iteration,
    Landed,
    PlacedStage,
    RunTotals,
    Span,
    StageRun,
    undecided,
)
from ecorl.runtime.hooks import StageHooks
from ecorl.runtime.overhead import HookClock, HookTime
from ecorl.runtime.protocol import RecordWriter
from ecorl.runtime.ray.link import ANSWER_S, SchedulerLink
from ecorl.runtime.ray.outbox import Call
from ecorl.runtime.scheduling.iterations import new_iteration
from ecorl.runtime.training import TrainingSide


class RemoteRecord:
    """The run's record as a training process writes to it; see `RecordWriter`.

    Args:
        link: to the scheduler, which keeps it.
        close: ends the record.
    """

    def __init__(self, link: SchedulerLink, close: Callable[[], None]) -> None:
        self._link, self._close = link, close

    def event(self, kind: EventKind, detail: str) -> None:
        """Note something about the course of the run."""
        self._link.tell("event", kind, detail)

    def fault(self, f: FaultEvent) -> None:
        """Record something that went wrong and was survived."""
        self._link.tell("fault", f)

    def metric(self, iteration: int, name: str, value: float | None) -> None:
        """Record one scalar of the trainer."""
        self._link.tell("metric", iteration, name, value)

    def evaluation(self, name: str, phase: str, values: Sequence[float | None]) -> None:
        """Record per-item values of one evaluation."""
        self._link.tell("evaluation", name, phase, tuple(values))

    def checkpoint(self, iteration: int, path: str) -> None:
        """Record a checkpoint of the trainer."""
        self._link.tell("checkpoint", iteration, path)

    def edi(self, json: str) -> None:
        """Record the EDI matrix."""
        self._link.tell("edi", json)

    def flush(self, timeout_s: float = 30.0) -> bool:
        """Wait until all that was recorded before is on disk."""
        self._link.drain(timeout_s)
        return bool(self._link.ask("ask", "flush", timeout_s, timeout_s=timeout_s + ANSWER_S))

    def close(self) -> None:
        """End the record; safe to call twice."""
        self._close()


logger = logging.getLogger(__name__)

_MARGIN_S = 10.0
"""What the scheduler is given beyond the barrier's deadline, s: it keeps the deadline itself."""

_MAX_SENT = 256
"""Batches whose answers are kept until they land, invented: more than are ever on their way."""

_ABSENT = "not offloaded: the process that decides does not answer"


@dataclass(frozen=True, slots=True)
class _Expected:
    """A decision that was asked for before its stage starts."""

    iteration: Iteration
    work: StageWork
    call: Call

    def is_of(self, iteration: Iteration, work: StageWork) -> bool:
        """Whether it is about this stage, as it is now."""
        return self.iteration == iteration and self.work == work


class RemoteRuntime(StageHooks):
    """Takes part in a run whose scheduler another process has made; see `Runtime`.

    It owns nothing: to close it ends neither the run nor its record.

    Args:
        config: the run's configuration.
        training: what the framework's adapter says of this process.
        link: to the scheduler.
        engines: checkpoint folder of each role that has an engine.
    """

    def __init__(
        self,
        config: Config,
        training: TrainingSide,
        link: SchedulerLink,
        engines: Mapping[Role, Path],
    ) -> None:
        super().__init__(training, HookClock())
        self.config = config
        self._link, self._engines = link, dict(engines)
        self._retired: set[Role] = set()
        # Rows that were sent and have not landed, by the stage's number: a handle to a stage can
        # be pickled, and the reference of an answer is this process's.
        self._sent: dict[int, Call] = {}
        self._totals: Call | None = None
        self._expected: dict[Role, _Expected] = {}

    # ------------------------------------------------------------ life

    @property
    def is_head(self) -> bool:
        """Whether this process keeps the record: the one that made the scheduler does."""
        return False

    @property
    def is_governed(self) -> bool:
        """Whether `tick` ever asks for anything but to go on."""
        return governs(self.config)

    @property
    def record(self) -> RecordWriter:
        """The run's record; to close it here does nothing but wait until all has arrived."""
        return RemoteRecord(self._link, self.close)

    def start(self) -> None:
        """Do nothing: the run is under way. See `Runtime`."""

    def close(self) -> None:
        """Wait until the scheduler has all that it was told; the run goes on. See `Runtime`."""
        self._link.drain(ANSWER_S)
        self._count_sender()

    def _count_sender(self) -> None:
        """Count what the thread that sends has needed: it takes the interpreter from the others."""
        self.clock.add(HookTime(beside_s=self._link.take_sender_s()))

    # ------------------------------------------------------------ event path

    def begin_iteration(self, number: int, batch: int | None = None) -> Iteration:
        """Open an iteration; those that were opened before stay open. See `Runtime`."""
        return new_iteration(number, batch)

    def expect_stages(self, iteration: Iteration, works: Sequence[StageWork]) -> None:
        """Have it decided now where stages run, so that their starts need not wait for it.

        A stage that then starts otherwise than described here is decided anew. What never starts
        is forgotten with the next call.

        Args:
            iteration: that they belong to.
            works: one a role, in the order in which they will start.
        """
        with self.clock:
            for role in tuple(self._expected):
                self._drop_expected(role)
            for work in works:
                if work.role in self._engines and work.role not in self._retired:
                    call = self._link.call_soon("start_stage", iteration, work, True)
                    self._expected[work.role] = _Expected(iteration, work, call)

    def _drop_expected(self, role: Role) -> None:
        expected = self._expected.pop(role, None)
        if expected is not None:
            decided = self._link.answer(expected.call)
            if isinstance(decided, PlacedStage):
                self._link.tell("forget", decided)

    def _decided(self, iteration: Iteration, work: StageWork, may_offload: bool) -> Any:
        """Where the scheduler puts a stage; something else when it does not answer."""
        may = may_offload and work.role not in self._retired
        expected = self._expected.get(work.role)
        if expected is not None and may and expected.is_of(iteration, work):
            del self._expected[work.role]
            decided = self._link.answer(expected.call)
            if isinstance(decided, PlacedStage):
                return decided
        self._drop_expected(work.role)
        return self._link.ask("start_stage", iteration, work, may)

    def _place(self, iteration: Iteration, work: StageWork, may_offload: bool) -> PlacedStage:
        placement = undecided(iteration, work)
        if work.role in self._engines:
            decided = self._decided(iteration, work, may_offload)
            if isinstance(decided, PlacedStage):
                return decided
            placement = replace(placement, reason=_ABSENT, refusal=GuardRefusal.UNAVAILABLE)
        # Nothing to decide: the scheduler is told, and not waited for.
        stage = PlacedStage(time.monotonic_ns(), iteration, work, placement)
        self._link.tell("start_stage", iteration, work, False, stage.serial)
        return stage

    def _hold(self, stage: PlacedStage, spans: Sequence[Span]) -> None:
        self._link.tell("hold", stage, list(spans))

    def end_when_ready(
        self, run: StageRun, refs: Sequence[Any], work: StageWork | None = None
    ) -> None:
        """Record a stage that runs as tasks of Ray: it ends when their objects are there.

        Returns at once; the scheduler waits, up to eight stages beside each other, and takes the
        time. Tasks that fail end their stage too.

        Args:
            run: from `on_stage_start`, on the GPU path.
            refs: references of the objects, at least one.
            work: the work as it turned out, when it was not known before.
        """
        started_s = time.monotonic() if run.t_start_s is None else run.t_start_s
        spans = [*run.spans(), Span(started_s, float("inf"))]
        run.t_start_s = None
        stage = replace(run.stage, work=work or run.work)
        with self.clock:
            self._link.end_when_ready(stage, spans, self.training.home, list(refs))

    def account(self, stage: PlacedStage, spans: Sequence[Span], node: str) -> None:
        """Record a stage of the GPU path that is over. See `Runtime`."""
        with self.clock:
            self._link.tell("end_stage", stage, list(spans), node)

    def submit(
        self, run: StageRun, batch: Callable[[], ScoreBatch], *, lands_here: bool = False
    ) -> bool:
        """Send the rows of a placed stage to its worker. See `Runtime`.

        The scheduler's answer is not waited for: `land` looks at it.

        Args:
            run: from `on_stage_start`.
            batch: makes the rows.
            lands_here: whether this process itself will wait for the rows; then a thread sends
                them, and this call takes microseconds.
        """
        with EngineBoundary() as boundary, self.clock:
            rows = batch()
            if not self._link.is_up:
                raise EngineError(_ABSENT)
            send = self._link.call_soon if lands_here else self._link.call
            sent = send("submit", run.stage, rows)
            if sent.ref is None and not lands_here:
                raise EngineError(_ABSENT)
            self._sent[run.stage.serial] = sent
            while len(self._sent) > _MAX_SENT:
                del self._sent[next(iter(self._sent))]
            run.batch = rows
        if boundary.error is not None:
            self._refuse(run, type(boundary.error).__name__, str(boundary.error))
            placement = replace(run.placement, action=Action.GPU)
            run.stage = replace(run.stage, placement=placement)
        return run.sent

    def _refuse(self, run: StageRun, kind: str, reason: str) -> None:
        self._link.tell("refuse", run.stage, kind, reason)
        logger.warning("%s: the batch could not be sent: %s", run.work.role, reason)

    def land(self, run: StageRun) -> Landed:
        """Wait for a submitted batch at the completion barrier. See `Runtime`."""
        if run.batch is None:
            raise EngineError(f"the rows of {run.work.role} were not submitted")
        # Waits at the barrier pass by the scheduler's other calls: first the rows must be there.
        told = self._answer_of_submit(run)
        n_rows = len(run.batch)
        nothing = Landed({}, tuple(range(n_rows)))
        if isinstance(told, Fault):
            error = error_of(told)
            self._refuse(run, type(error).__name__, str(error))
            return nothing
        if told is not None:
            limit_s = self.config.placement.deadline_s + _MARGIN_S
            landed = self._link.ask("land", run.stage, timeout_s=limit_s)
            if isinstance(landed, Landed):
                return landed
        # The scheduler is gone, and with it what had arrived; or it was started anew meanwhile.
        detail = "the scheduler that it was submitted to is gone"
        number = run.stage.iteration.number
        lost = FaultEvent(number, FaultKind.SCHEDULER_LOST, run.work.role, detail, n_rows)
        self._link.tell("fault", lost)
        # It may have sent them all the same.
        self._link.tell("forget", run.stage)
        return nothing

    def _answer_of_submit(self, run: StageRun) -> Any:
        """What the scheduler says of rows that were sent; None when it does not answer."""
        sent = self._sent.pop(run.stage.serial, None)
        if sent is not None:
            return self._link.answer(sent)
        # Another process has sent them: what is answered now was asked behind that.
        return self._link.ask("ask", "offloads", run.work.role)

    def forget(self, run: StageRun) -> None:
        """Give up a stage that will not end. See `Runtime`."""
        self._sent.pop(run.stage.serial, None)
        self._link.tell("forget", run.stage)

    # ------------------------------------------------------------ engines

    def offloads(self, role: Role) -> bool:
        """Whether an engine for this role is loaded and not retired."""
        if role not in self._engines or role in self._retired:
            return False
        # A scheduler that does not answer is started anew, and loads the engine again.
        return self._link.ask("ask", "offloads", role) is not False

    def checkpoint(self, role: Role) -> Path | None:
        """Checkpoint folder that a role's engine was loaded from, or None without an engine."""
        return self._engines.get(role)

    def retire(self, role: Role, why: str) -> None:
        """Take a role back to the GPU path for the rest of the run. See `Runtime`."""
        self._retired.add(role)
        self._link.tell("retire", role, why)

    def refreshing(self, role: Role) -> bool:
        """Whether a role's engine is taking over weights just now."""
        return bool(self._link.ask("ask", "refreshing", role))

    def refresh(self, role: Role, checkpoint: Path) -> None:
        """Give a role's engine the weights of its refreshed model. See `Runtime`."""
        self._link.tell("refresh", role, checkpoint)

    # ------------------------------------------------------------ between iterations

    def settle(self) -> None:
        """Record executions whose power readings have come in; call between iterations."""
        with self.clock:
            if self._link.is_up:
                self._link.tell("settle")

    def tick(
        self,
        now_s: float,
        *,
        steps_left: int | None = None,
        is_stopping: bool = False,
        stage: TrainingStage = AS_IT_IS,
    ) -> GearChoice:
        """Ask the control path what the trainer is to do. See `Runtime`.

        A scheduler that does not answer keeps nobody waiting.
        """
        if not governs(self.config):
            return ungoverned(time.time())
        told = self._link.ask("ask", "tick", steps_left, is_stopping, stage)
        return told if isinstance(told, GearChoice) else unheard(time.time())

    def edi_json(self) -> str:
        """The EDI matrix as JSON; an empty one when the scheduler does not answer."""
        told = self._link.ask("ask", "edi_json")
        if isinstance(told, str):
            return told
        placement = self.config.placement
        return EdiMatrix(placement.edi_alpha, placement.n_profiling).to_json()

    def expect_totals(self) -> None:
        """Have the next `totals` asked for now, so that it need not wait: it tells as of now."""
        with self.clock:
            self._totals = self._link.call_soon("ask", "totals")

    def totals(self) -> RunTotals:
        """Energy of the run so far; nothing is known when the scheduler does not answer.

        After `expect_totals` it is the energy as of that call, once.
        """
        call, self._totals = self._totals or self._link.call("ask", "totals"), None
        told = self._link.answer(call)
        return told if isinstance(told, RunTotals) else RunTotals()
