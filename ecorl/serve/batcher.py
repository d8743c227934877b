"""Gathers the rows of many requests into micro-batches for one engine.

One loop takes waiting rows in the order of their arrival, submits them to the engine's lane (a
separate thread or process) and hands the results back to the requests. The next rows gather while
the engine computes, so that a busy service batches without delay. All code here runs on the event
loop.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Sequence

from ecorl.engines.lanes.threaded import AsyncEngine, Result
from ecorl.engines.protocol import EngineReport, Float32, ScoreBatch
from ecorl.engines.validate import check_result
from ecorl.errors import EcorlError, EngineTimeout, InvalidResult
from ecorl.serve.http_errors import HttpError, draining
from ecorl.serve.metrics import ServiceMetrics
from ecorl.serve.parsing import ScoreRows
from ecorl.serve.responses import UNKNOWN, Answer, PendingRequest, RowQueue, WaitingRow, share_of
from ecorl.serve.settings import ServeSettings

logger = logging.getLogger(__name__)

_PAUSES_S = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Pauses after which a patient request whose micro-batch failed goes to the engine again, s: about
16 s in all, which a reset of a card takes. Then its client gets the error. Assumed."""

_UNAVAILABLE_S = 0.5
"""Pause after which patient requests ask again whether the engine is available, s. Assumed."""

_LONGEST_RETRY_S = 60
"""Upper bound of the retry time, s: the estimate rests on a single micro-batch. Assumed."""


class MicroBatcher:
    """Gathers rows into micro-batches, submits them to the engine and hands the results back.

    Args:
        lane: the engine; one micro-batch at a time is submitted to it.
        settings: limits of the service.
        metrics: the counters to update.

    Attributes:
        n_faults: micro-batches on which the engine failed.
        n_faults_in_a_row: failures since the last good micro-batch.
        last_fault: class and text of the last error.
        n_accepted: accepted requests.
        n_withdrawn: accepted requests whose clients went away before the response.
        n_failed: accepted requests that got an error because the engine failed or took too long.
    """

    def __init__(self, lane: AsyncEngine, settings: ServeSettings, metrics: ServiceMetrics) -> None:
        self.n_faults = self.n_faults_in_a_row = 0
        self.last_fault: str | None = None
        self._lane, self._settings, self._metrics = lane, settings, metrics
        self._queue = RowQueue()
        self._pending: set[PendingRequest] = set()
        self._paused: dict[PendingRequest, list[WaitingRow]] = {}
        self._n_paused = 0
        self._changed, self._idle = asyncio.Event(), asyncio.Event()
        self._idle.set()
        self._draining = False
        self.n_accepted = 0
        self.n_withdrawn = 0
        self.n_failed = 0
        self._last_batch_s = 0.0

    @property
    def n_waiting(self) -> int:
        """Number of rows that wait, without those in the engine."""
        return len(self._queue.rows) + self._n_paused

    @property
    def n_unanswered(self) -> int:
        """Number of accepted requests without a response yet."""
        return len(self._pending)

    @property
    def draining(self) -> bool:
        """Whether further requests are refused."""
        return self._draining

    def submit(self, rows: ScoreRows, *, patient: bool = False) -> PendingRequest:
        """Accept all rows of a request, or none.

        Args:
            rows: the request.
            patient: whether it also waits where the queue is full, and until a failed engine works
                again; its caller limits the time (`give_up`).

        Raises:
            HttpError: 429 when the queue is full, 503 when the service is stopping, or when so many
                patient requests wait that another one would not fit into the memory for them.
        """
        if self._draining:
            raise draining()
        self._check_room(patient)
        self.n_accepted += 1
        future = asyncio.get_running_loop().create_future()
        pending = PendingRequest(
            rows, self.n_accepted, future, [None] * len(rows), len(rows), patient=patient
        )
        self._pending.add(pending)
        self._idle.clear()
        now_s = time.monotonic()
        for index in range(len(rows)):
            self._queue.add(WaitingRow(pending, index, now_s))
        self._queue_changed()
        return pending

    def _check_room(self, patient: bool) -> None:
        """Refuse a request without room; its own size does not matter, so that none starves."""
        limits = self._settings
        told = f"the queue is full: {self.n_waiting} rows wait"
        if not patient and self.n_waiting >= limits.queue_rows:
            raise HttpError(429, told, "queue_full", self._retry_after_s())
        if (
            self.n_waiting >= limits.queue_rows + limits.waiting_rows
            or self._n_tokens() >= limits.waiting_tokens
        ):
            raise HttpError(503, told, "waiting_full", self._retry_after_s())

    def _n_tokens(self) -> int:
        paused = (len(row.token_ids) for rows in self._paused.values() for row in rows)
        return self._queue.n_tokens + sum(paused)

    def withdraw(self, pending: PendingRequest) -> None:
        """Cancel a request whose client has gone away; other requests are not affected."""
        if pending.future.done():
            return
        pending.future.cancel()
        self.n_withdrawn += 1
        self._metrics.rows.labels("withdrawn").inc(pending.n_left)
        self._settle(pending)

    def give_up(self, pending: PendingRequest, refusal: HttpError) -> None:
        """Send an error to a request that is not waited for any longer.

        Args:
            pending: the request; nothing happens when it has been answered.
            refusal: what its client is told.
        """
        if pending.future.done():
            return
        pending.future.set_exception(refusal)
        self.n_failed += 1
        self._metrics.rows.labels("failed").inc(pending.n_left)
        self._settle(pending)

    def drain(self) -> None:
        """Refuse further requests, and answer the accepted ones without waiting for batch-mates."""
        self._draining = True
        self._metrics.draining.set(1)
        self._changed.set()

    async def idle(self) -> None:
        """Return when every accepted request has been answered."""
        await self._idle.wait()

    async def run(self) -> None:
        """Process micro-batches until cancelled; requests left over then get an error."""
        limits = self._settings
        try:
            while True:
                await self._gather()
                batch = self._queue.next_batch(limits.max_batch_rows, limits.max_batch_tokens)
                if not self._lane.available:
                    batch = self._kept_back(batch)
                self._metrics.queue_rows.set(self.n_waiting)
                if batch:
                    await self._answer(batch)
        finally:
            self.drain()
            for pending in tuple(self._pending):
                self.give_up(pending, HttpError(503, "the service has stopped", "stopped"))

    async def _gather(self) -> None:
        """Wait for a row, then for its batch-mates until its delay is over."""
        while True:
            # Cleared before the queue is looked at, so that no change in between is missed.
            self._changed.clear()
            wait_s = self._wait_s()
            if wait_s is not None and wait_s <= 0:
                return
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                return

    def _wait_s(self) -> float | None:
        """How long the oldest row may still wait, s; None when no row waits."""
        queue = self._queue
        if not queue.rows:
            return None
        # Counted over all temperatures, so that a batch may turn out smaller than these limits.
        full = (
            len(queue.rows) >= self._settings.max_batch_rows
            or queue.n_tokens >= self._settings.max_batch_tokens
        )
        if full or self._draining:
            return 0.0
        return queue.rows[0].since_s + self._settings.batch_delay_s - time.monotonic()

    async def _answer(self, rows: Sequence[WaitingRow]) -> None:
        batch = _batch_of(rows)
        self._metrics.batch_rows.observe(len(batch))
        self._metrics.batch_tokens.observe(batch.n_tokens)
        self._metrics.tokens.inc(batch.n_tokens)
        start_s = time.monotonic()
        try:
            values, report = await self._ask(batch)
        except EcorlError as error:  # a lane passes on what an engine's process raised
            self._failed(rows, error)
            return
        finally:
            self._last_batch_s = time.monotonic() - start_s
            self._metrics.engine_s.observe(self._last_batch_s)
        self.n_faults_in_a_row = 0
        self._metrics.device(report)
        self._deliver(rows, values, report)

    async def _ask(self, batch: ScoreBatch) -> tuple[Sequence[Float32 | None], EngineReport]:
        """Compute a micro-batch: a result for each row, None where it cannot be used.

        Raises:
            EcorlError: when the engine failed, did not answer in time, or answered something else.
        """
        future = asyncio.wrap_future(self._lane.submit(batch))
        limit_s = self._settings.engine_timeout_s
        done, _ = await asyncio.wait({future}, timeout=limit_s)
        if not done:
            # The late result would have no reader: asyncio would log its error as unhandled.
            self._lane.cancel_and_restart()
            future.add_done_callback(_discard_failure)
            raise EngineTimeout(f"the engine gave no answer within {limit_s:g} s")
        result = future.result()
        checked = check_result(batch, result, self._lane.stage)
        if checked.report is None:
            raise InvalidResult("the engine gave no usable report of its device")
        return checked.values, checked.report

    def _deliver(
        self, rows: Sequence[WaitingRow], values: Sequence[Float32 | None], report: EngineReport
    ) -> None:
        shares = _shares(rows, values)
        for row, value, share in zip(rows, values, shares, strict=True):
            pending = row.pending
            if pending.future.done():
                continue  # withdrawn
            self._metrics.rows.labels("without_answer" if value is None else "answered").inc()
            pending.values[row.index] = value
            pending.n_left -= 1
            if share is not None:
                pending.add_effort(share_of(report, share))
            if pending.n_left == 0:
                pending.future.set_result(Answer(pending.values, pending.effort or UNKNOWN))
                self._settle(pending)

    def _kept_back(self, rows: Sequence[WaitingRow]) -> list[WaitingRow]:
        """Pause the rows that wait for an engine to be available again; returns the others."""
        self._pause([row for row in rows if row.pending.patient], _UNAVAILABLE_S)
        return [row for row in rows if not row.pending.patient]

    def _failed(self, rows: Sequence[WaitingRow], error: EcorlError) -> None:
        """Send an error to the requests of a micro-batch on which the engine failed, or pause them.

        Where the engine is not available any more, that was not the fault of any row.
        """
        self.n_faults += 1
        self.n_faults_in_a_row += 1
        self.last_fault = f"{type(error).__name__}: {error}"
        self._metrics.faults.inc()
        affected: dict[PendingRequest, list[WaitingRow]] = {}
        for row in rows:
            if not row.pending.future.done():  # else withdrawn
                affected.setdefault(row.pending, []).append(row)
        logger.warning("the engine failed on %d requests: %s", len(affected), self.last_fault)
        message = " ".join(f"the engine failed: {self.last_fault}".split())
        for pending, its_rows in affected.items():
            if pending.patient and not self._lane.available:
                self._pause(its_rows, _UNAVAILABLE_S)
            elif pending.patient and pending.n_faults < len(_PAUSES_S):
                self._pause(its_rows, _PAUSES_S[pending.n_faults])
                pending.n_faults += 1
            else:
                self.give_up(pending, HttpError(503, message, "engine_fault", retry_after_s=1))

    def _pause(self, rows: Sequence[WaitingRow], pause_s: float) -> None:
        """Take rows back into the queue after a pause."""
        loop = asyncio.get_running_loop()
        for row in rows:
            if row.pending not in self._paused:
                loop.call_later(pause_s, self._resume, row.pending)
            self._paused.setdefault(row.pending, []).append(row)
        self._n_paused += len(rows)
        self._queue_changed()

    def _resume(self, pending: PendingRequest) -> None:
        rows = self._paused.pop(pending, [])  # none where it was withdrawn
        self._n_paused -= len(rows)
        self._queue.put_back(rows)
        self._queue_changed()

    def _settle(self, pending: PendingRequest) -> None:
        self._pending.discard(pending)
        paused = self._paused.pop(pending, [])
        self._n_paused -= len(paused)
        if pending.n_left and (self._queue.drop(pending) or paused):
            self._queue_changed()
        if not self._pending:
            self._idle.set()

    def _queue_changed(self) -> None:
        self._metrics.queue_rows.set(self.n_waiting)
        self._changed.set()

    def _retry_after_s(self) -> int:
        """Time until the waiting rows will be done, s, at the pace of the last micro-batch."""
        n_batches = math.ceil(self.n_waiting / self._settings.max_batch_rows)
        return min(_LONGEST_RETRY_S, max(1, math.ceil(n_batches * self._last_batch_s)))


def _batch_of(rows: Sequence[WaitingRow]) -> ScoreBatch:
    return ScoreBatch(
        sample_ids=tuple(f"{row.pending.number}.{row.index}" for row in rows),
        token_ids=tuple(row.token_ids for row in rows),
        n_completion=tuple(row.pending.rows.n_completion[row.index] for row in rows),
        temperature=rows[0].temperature,
    )


def _shares(rows: Sequence[WaitingRow], values: Sequence[Float32 | None]) -> list[float | None]:
    """Each row's share of a batch's time and energy, by tokens; None for a row without a value."""
    tokens = [
        0 if value is None else len(row.token_ids) for row, value in zip(rows, values, strict=True)
    ]
    total = sum(tokens)
    return [n / total if n else None for n in tokens]


def _discard_failure(future: asyncio.Future[Result]) -> None:
    """Read the error of an abandoned future, so that asyncio does not report it as unhandled."""
    if not future.cancelled():
        future.exception()
