"""One runtime for several training processes: one decision a stage, one engine a model.

Rank 0 holds the runtime that decides, keeps the record and talks to the engines. What concerns all
processes goes through collective calls (`ecorl.runtime.processes.ranks`):

    on_stage_start   a role with an engine: the parts of the work are put together, rank 0 decides
    submit           the rows of all processes become one batch of rank 0
    land             each process gets its own rows back, and computes its own bad rows
    settle           once a step: what each process has executed is put together, stage by stage

A stage that nobody can take from the GPU path costs no exchange. A stage of the record is that of
all processes together: its rows and tokens are their sums, and its energy is that of each process's
devices for the time in which it held them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from ecorl.control import AS_IT_IS, GearChoice, TrainingStage
from ecorl.engines.lanes.threaded import error_of, fault_of
from ecorl.engines.protocol import ScoreBatch
from ecorl.engines.validate import EngineBoundary
from ecorl.errors import EngineError
from ecorl.records import Action, Placement, Role, StageWork
from ecorl.runtime.control.governor import ungoverned
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
from ecorl.runtime.overhead import HookClock
from ecorl.runtime.processes.head import HeadProcess, ProcessPart, RunFacts, repetition_of, sum_of
from ecorl.runtime.processes.ranks import Ranks
from ecorl.runtime.protocol import NoRecord, RecordWriter, Runtime
from ecorl.runtime.training import TrainingSide, this_node

_Kept = TypeVar("_Kept")


@dataclass(frozen=True, slots=True)
class _Wish:
    """What one process brings to a decision.

    Attributes:
        work: its part of the work.
        may_offload: whether it can take the answers of an engine.
        retired: roles that it has taken back to the GPU path since the last decision, and why.
    """

    work: StageWork
    may_offload: bool
    retired: tuple[tuple[Role, str], ...]


class RankedRuntime(StageHooks):
    """The runtime of one of several training processes; see `Runtime`.

    Args:
        ranks: the processes.
        training: facts of this one.
        head: on rank 0 the runtime that decides; None elsewhere.
        device_ids: devices that this process holds; None: all of its machine's GPU path.
    """

    def __init__(
        self,
        ranks: Ranks,
        training: TrainingSide,
        head: Runtime | None,
        device_ids: tuple[str, ...] | None = None,
    ) -> None:
        super().__init__(training, head.clock if head is not None else HookClock(), device_ids)
        self._ranks = ranks
        self._head = HeadProcess(head) if head is not None else None
        self._engines: Mapping[Role, Path] = {}
        self._retired: dict[Role, str] = {}
        self._news: list[tuple[Role, str]] = []
        # Every process makes the same calls, so the same numbers mean the same on all of them.
        self._n_iterations = self._n_stages = 0
        self._parts: dict[int, ProcessPart] = {}
        self._is_governed = False

    # ------------------------------------------------------------ life

    @property
    def is_head(self) -> bool:
        """Whether this process keeps the record."""
        return self._head is not None

    @property
    def is_governed(self) -> bool:
        """Whether `tick` ever asks for anything but to go on."""
        return self._is_governed

    @property
    def record(self) -> RecordWriter:
        """The run's record; on all ranks but 0 one that keeps nothing."""
        return self._head.runtime.record if self._head is not None else NoRecord()

    @property
    def head(self) -> Runtime | None:
        """The runtime that decides, on rank 0; None elsewhere."""
        return None if self._head is None else self._head.runtime

    def start(self) -> None:
        """Start rank 0's runtime and tell all processes which roles have an engine."""
        head, training = self._head, self.training
        own = together(self._ranks, lambda: head.start(training) if head is not None else None)
        facts: RunFacts = self._ranks.broadcast(own)
        self._engines, self._is_governed = facts.engines, facts.is_governed
        # The record may know this machine by another name.
        self.training = replace(training, node=facts.machines.get(this_node(), training.node))

    def close(self) -> None:
        """End rank 0's runtime; not collective, so that it is safe when other processes are gone.

        What they have executed since the last `settle` is missing from the record.
        """
        if self._head is not None:
            self._head.account([self._parts])
            self._head.runtime.close()
        self._parts = {}

    # ------------------------------------------------------------ event path

    def begin_iteration(self, number: int, batch: int | None = None) -> Iteration:
        """Open an iteration. See `Runtime`."""
        self._n_iterations += 1
        handle = Iteration(number, number - 1 if batch is None else batch, self._n_iterations)
        if self._head is not None:
            self._head.begin_iteration(handle)
        return handle

    def _place(self, iteration: Iteration, work: StageWork, may_offload: bool) -> PlacedStage:
        self._n_stages += 1
        number = self._n_stages
        placement = undecided(iteration, work)
        if work.role in self._engines:
            placement = self._decide_together(number, iteration, work, may_offload)
        elif self._head is not None:
            placement = self._head.start_stage(number, iteration, work, may_offload=False)
        return PlacedStage(number, iteration, work, placement)

    def _hold(self, stage: PlacedStage, spans: Sequence[Span]) -> None:
        """Do nothing: what overlaps is known once all processes have told their parts."""

    def _repetition_serial(self, stage: PlacedStage) -> int:
        return repetition_of(stage.serial)

    def _decide_together(
        self, number: int, iteration: Iteration, work: StageWork, may_offload: bool
    ) -> Placement:
        news, self._news = tuple(self._news), []
        wishes = self._ranks.gather(_Wish(work, may_offload, news))
        decided: Placement | None = None
        if self._head is not None and wishes is not None:
            for role, why in dict(r for wish in wishes for r in wish.retired).items():
                self._head.runtime.retire(role, why)
            whole = sum_of([wish.work for wish in wishes])
            everybody = all(wish.may_offload for wish in wishes)
            decided = self._head.start_stage(number, iteration, whole, may_offload=everybody)
        placement: Placement = self._ranks.broadcast(decided)
        return placement

    def account(self, stage: PlacedStage, spans: Sequence[Span], node: str) -> None:
        """Keep what this process has executed until the next `settle`. See `Runtime`."""
        self._parts[stage.serial] = ProcessPart(node, stage.work, tuple(spans))

    def submit(self, run: StageRun, batch: Callable[[], ScoreBatch]) -> bool:
        """Send the rows of all processes as one batch of rank 0. See `Runtime`."""
        rows: ScoreBatch | None = None
        with EngineBoundary() as boundary, self.clock:
            rows = batch()
        with self.clock:
            # Also without rows: the others wait for this process.
            parts = self._ranks.gather((rows, str(boundary.error or "")))
            told = False
            if self._head is not None and parts is not None:
                told = self._head.submit(run.stage.serial, parts)
            sent = bool(self._ranks.broadcast(told))
        if sent:
            run.batch = rows
        else:
            on_gpu = replace(run.placement, action=Action.GPU)
            run.stage = replace(run.stage, placement=on_gpu)
        return sent

    def land(self, run: StageRun) -> Landed:
        """Wait for the rows of all processes; each gets its own. See `Runtime`."""
        if run.batch is None:
            raise EngineError(f"the rows of {run.work.role} were not submitted")
        shares = self._head.land(run.stage.serial) if self._head is not None else None
        landed: Landed = self._ranks.scatter(shares)
        return landed

    def forget(self, run: StageRun) -> None:
        """Give up a stage that will not end. See `Runtime`."""
        if self._head is not None:
            self._head.forget(run.stage.serial)

    # ------------------------------------------------------------ engines

    def offloads(self, role: Role) -> bool:
        """Whether an engine for this role is loaded, and this process has not given it up."""
        return role in self._engines and role not in self._retired

    def checkpoint(self, role: Role) -> Path | None:
        """Checkpoint folder that a role's engine was loaded from, or None without an engine."""
        return self._engines.get(role)

    def retire(self, role: Role, why: str) -> None:
        """Take a role back to the GPU path, on all processes from its next stage on."""
        if role in self._engines and role not in self._retired:
            self._retired[role] = why
            self._news.append((role, why))

    def refreshing(self, role: Role) -> bool:
        """Whether a role's engine is taking over weights just now, as far as rank 0 knows."""
        return self._head is not None and self._head.runtime.refreshing(role)

    def refresh(self, role: Role, checkpoint: Path) -> None:
        """Give a role's engine refreshed weights; rank 0 does. See `Runtime`."""
        if self._head is not None:
            self._head.runtime.refresh(role, checkpoint)

    # ------------------------------------------------------------ between iterations

    def settle(self) -> None:
        """Put together what all processes have executed since the last time; collective."""
        with self.clock:
            parts, self._parts = self._parts, {}
            told = self._ranks.all_gather(parts)
            if self._head is not None:
                self._head.account(told)
                self._head.runtime.settle()

    def tick(
        self,
        now_s: float,
        *,
        steps_left: int | None = None,
        is_stopping: bool = False,
        stage: TrainingStage = AS_IT_IS,
    ) -> GearChoice:
        """Tell what rank 0's control path asks for; collective where it ever asks. See `Runtime`.

        All processes stand still together: each has the same answer to its n-th question.
        """
        if not self._is_governed:
            return ungoverned(time.time())
        head = None if self._head is None else self._head.runtime
        own = None
        if head is not None:
            own = head.tick(now_s, steps_left=steps_left, is_stopping=is_stopping, stage=stage)
        choice: GearChoice = self._ranks.broadcast(own)
        return choice

    def edi_json(self) -> str:
        """The EDI matrix as JSON; on all ranks but 0 an empty object."""
        return self._head.runtime.edi_json() if self._head is not None else "{}"

    def totals(self) -> RunTotals:
        """Energy of the run so far; on all ranks but 0 nothing is known."""
        return self._head.runtime.totals() if self._head is not None else RunTotals()


def together(ranks: Ranks, prepare: Callable[[], _Kept]) -> _Kept:
    """Do something on each process; where it fails on rank 0 it fails on all, with its error.

    Otherwise the others would wait for a process that has ended.

    Args:
        ranks: the processes.
        prepare: what to do.

    Returns:
        What it returned on this process.

    Raises:
        EcorlError: what rank 0 raised.
    """
    found: list[_Kept] = []
    with EngineBoundary() as boundary:
        found.append(prepare())
    fault = None if boundary.error is None else fault_of(boundary.error)
    told = ranks.broadcast(fault)
    if boundary.error is not None:
        raise boundary.error
    if told is not None:
        raise error_of(told)
    return found[0]
