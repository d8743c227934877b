"""Submits a stage's batches to its engine and joins the results at the completion barrier.

A fault of the engine is never raised here: `OffloadLane.join` returns the rows that arrived and
names those that the exact path has to compute.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ecorl.config import Config, TorchEngineConfig
from ecorl.engines.lanes.threaded import AsyncEngine, Result
from ecorl.engines.protocol import CardLoad, EngineReport, ScoreBatch
from ecorl.engines.torch.loading import HOST
from ecorl.engines.validate import check_result
from ecorl.errors import InvalidResult
from ecorl.records import FaultKind, Stage
from ecorl.runtime.equipment.accelerator import AcceleratorPlace
from ecorl.runtime.equipment.hardware import real_card_ids
from ecorl.scheduler import CompletionBarrier, Quarantine, Ticket
from ecorl.telemetry.sources.specs import card_id

Float32 = npt.NDArray[np.float32]


HOST_PROCESS_ID = "host_process"
"""An engine that computes on the host: its time is measured, nothing meters its energy."""

REAL_HOST = "xrt"
"""An engine whose kernels run on real cards."""


@dataclass(slots=True)
class PendingBatch:
    """A submitted batch without its outcome yet; the engine's thread fills it.

    Attributes:
        batch: the rows.
        ticket: its registration at the completion barrier.
        t_submit_s: when it was submitted, monotonic s.
        t_done_s: when the engine answered or failed, monotonic s; None until then.
        report: the engine's own figures, or None.
        detail: text of the fault, one line; empty without one.
        answered: set once the engine has answered or failed.
    """

    batch: ScoreBatch
    ticket: Ticket
    t_submit_s: float
    t_done_s: float | None = None
    report: EngineReport | None = None
    detail: str = ""
    answered: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """The outcome of a batch at the completion barrier.

    Attributes:
        values: by row index of the batch: a float32 scalar, or ``[n_completion] float32``.
        bad_rows: row indices that the exact path has to compute, ascending.
        wait_s: how long the training thread waited, s, measured.
        n_missing: number of rows without a result before the deadline.
        n_late: number of rows that came too late and were dropped since the last join.
        n_duplicates: number of answers beyond the first for a row.
        n_unknown: number of answers for rows that were never sent.
        report: the engine's own figures, or None when it gave none.
        t_done_s: when the engine answered, monotonic s; the end of the wait when it did not.
        fault: a `FaultKind`, the class name of a foreign exception, or None.
        detail: text of the fault, one line.
    """

    values: dict[int, Float32]
    bad_rows: tuple[int, ...]
    wait_s: float
    n_missing: int
    n_late: int
    report: EngineReport | None
    t_done_s: float
    fault: FaultKind | str | None
    detail: str
    n_duplicates: int = 0
    n_unknown: int = 0


@dataclass(frozen=True, slots=True)
class LanePlace:
    """Where an engine computes.

    Attributes:
        node: name of the machine.
        device_ids: the devices, by their names on that machine.
        is_metered: whether their power is read; else the engine reports its energy itself.
    """

    node: str
    device_ids: tuple[str, ...]
    is_metered: bool = False


class OffloadLane:
    """Submits batches to one engine and joins them by sample id.

    Args:
        engine: the engine; the lane closes it.
        max_faults: consecutive faults after which the engine is quarantined.
        place: where it computes.

    Attributes:
        retired: whether the engine gets no batches any more.
        cards: load of the real cards at the engine's last result.
        cards_at_s: when that was, monotonic s.
    """

    def __init__(self, engine: AsyncEngine, max_faults: int, place: LanePlace) -> None:
        self.engine, self.place = engine, place
        self._quarantine = Quarantine(max_faults)
        self._barrier = CompletionBarrier()
        self._n_late_seen = 0
        self._n_refreshing = 0
        self.retired = False
        self.cards: tuple[CardLoad, ...] = ()
        self.cards_at_s = float("-inf")

    @property
    def stage(self) -> Stage:
        """The stage that the engine serves."""
        return self.engine.stage

    @property
    def n_open(self) -> int:
        """Number of batches that were submitted and not joined yet."""
        return self._barrier.n_open

    @property
    def available(self) -> bool:
        """Whether a batch may be submitted now."""
        ready = not self.retired and self._n_refreshing == 0
        return ready and self.engine.available and self._quarantine.available()

    def retire(self) -> None:
        """Submit nothing any more, because the engine's model is no longer the trainer's."""
        self.retired = True

    @property
    def refreshing(self) -> bool:
        """Whether the engine is loading other weights."""
        return self._n_refreshing > 0

    def refresh(self, checkpoint: Path, done: Callable[[Future[Result]], None]) -> None:
        """Load other weights into the engine; until then no batch is submitted.

        Args:
            checkpoint: checkpoint folder of a model of the same shape.
            done: called in the engine's thread with the finished future; after a failure the lane
                has been retired.
        """
        self._n_refreshing += 1

        def end(future: Future[Result]) -> None:
            if future.cancelled() or future.exception() is not None:
                self.retire()  # it may hold the old weights, or some of each
            self._n_refreshing -= 1
            done(future)

        self.engine.load_weights(checkpoint).add_done_callback(end)

    def forget(self, pending: PendingBatch) -> None:
        """Abandon a batch that will not be joined; its results will be dropped."""
        self._barrier.drop(pending.ticket)

    def submit(self, batch: ScoreBatch) -> PendingBatch:
        """Submit a batch; never blocks, and never raises for a fault of the engine."""
        n_values = batch.n_completion if self.stage is Stage.REFERENCE else None
        ticket = self._barrier.register(batch.sample_ids, n_values)
        pending = PendingBatch(batch, ticket, time.monotonic())
        if not self._quarantine.begin():
            pending.detail = "the engine is in quarantine"
            self._barrier.fail(ticket, FaultKind.ENGINE_QUARANTINED)
            pending.answered.set()
            return pending
        self.engine.submit(batch).add_done_callback(lambda future: self._on_answer(pending, future))
        return pending

    def join(self, pending: PendingBatch, deadline_s: float) -> BatchOutcome:
        """Wait for a batch at the completion barrier.

        Args:
            pending: the batch from `submit`.
            deadline_s: longest wait, s; a slower engine is restarted.

        Returns:
            The rows that arrived, and those that the exact path has to compute.
        """
        outcome = self._barrier.wait(pending.ticket, deadline_s)
        fault: FaultKind | str | None
        fault, detail = outcome.fault, pending.detail
        if outcome.timed_out:
            fault = FaultKind.ENGINE_TIMEOUT
            detail = f"no answer within {deadline_s:g} s; the engine is restarted"
            # The engine may hang for good, and batches behind this one would wait for it too.
            self.engine.cancel_and_restart()
        elif fault is None and outcome.invalid:
            fault = FaultKind.INVALID_RESULT
            reasons = sorted(set(outcome.invalid.values()))
            detail = f"{len(outcome.invalid)} rows: {'; '.join(reasons)}"
        self._count(fault, len(outcome.arrived), len(pending.batch))
        n_late, self._n_late_seen = self._barrier.n_late - self._n_late_seen, self._barrier.n_late
        ids = pending.batch.sample_ids
        values = {i: outcome.arrived[key] for i, key in enumerate(ids) if key in outcome.arrived}
        return BatchOutcome(
            values=values,
            bad_rows=tuple(i for i in range(len(ids)) if i not in values),
            wait_s=outcome.wait_s,
            n_missing=len(outcome.missing),
            n_late=n_late,
            report=pending.report,
            t_done_s=pending.t_done_s or time.monotonic(),
            fault=fault,
            detail=detail,
            n_duplicates=outcome.n_duplicates,
            n_unknown=len(outcome.unknown_ids),
        )

    def _count(self, fault: FaultKind | str | None, n_good: int, n_rows: int) -> None:
        """Count a batch for or against the engine, which too many faults in a row quarantine."""
        if fault == FaultKind.ENGINE_QUARANTINED:
            return  # the batch was never sent: it says nothing of the engine
        # Where most rows can be used the engine works: a few rows do not fit its formats.
        mostly_good = fault == FaultKind.INVALID_RESULT and 2 * n_good > n_rows
        if fault is None or mostly_good:
            self._quarantine.succeeded()
        else:
            self._quarantine.failed(fault)

    def close(self) -> None:
        """End the engine."""
        self.engine.close()

    def _on_answer(self, pending: PendingBatch, future: Future[Result]) -> None:
        """Note a result or failure; runs in the engine's thread."""
        # Before the barrier is told: it ends the wait of the training thread, which reads the time.
        pending.t_done_s = time.monotonic()
        error = future.exception() if not future.cancelled() else None
        if future.cancelled() or error is not None:
            pending.detail = str(error) if error else "cancelled"
            self._barrier.fail(pending.ticket, type(error).__name__ if error else "Cancelled")
        else:
            self._deliver(pending, future.result())
        pending.answered.set()

    def _deliver(self, pending: PendingBatch, result: Result) -> None:
        """Check a result and hand its rows to the barrier."""
        try:
            checked = check_result(pending.batch, result, self.stage)
        except InvalidResult as error:
            pending.detail = str(error)
            self._barrier.fail(pending.ticket, FaultKind.INVALID_RESULT)
            return
        # The report comes before the rows: they end the wait of the training thread, which reads
        # the report at once.
        pending.report = checked.report
        if checked.report is not None and checked.report.cards:
            self.cards, self.cards_at_s = checked.report.cards, time.monotonic()
        self._barrier.deliver(pending.ticket, pending.batch.sample_ids, checked.values)


def lane_place(
    config: Config,
    node: str,
    engine: AsyncEngine,
    number: int,
    accelerator: AcceleratorPlace | None = None,
) -> LanePlace:
    """Say where an engine computes.

    Args:
        config: the run's configuration.
        node: name of its machine.
        engine: the engine.
        number: of its simulated card on that machine.
        accelerator: the GPU on which torch computes there, where its power is looked for.
    """
    if engine.host == REAL_HOST:
        return LanePlace(node, real_card_ids(config), is_metered=True)
    offload = config.engine.offload
    if not isinstance(offload, TorchEngineConfig):
        return LanePlace(node, (card_id(number),))
    if accelerator is not None and accelerator.device_ids:
        return LanePlace(node, accelerator.device_ids, is_metered=True)
    unread = HOST_PROCESS_ID if offload.device == HOST else offload.device.replace(":", "")
    return LanePlace(node, (unread,))
