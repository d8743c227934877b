"""Micro-batches: rows of many requests go through one engine together.

One loop takes rows in the order in which they came, hands them to the engine's lane (a thread or
process of its own) and gives each request its rows back. While the engine works the next rows
gather, so that a busy service batches without any delay. Everything here runs on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from ecorl.engines.lanes.threaded import AsyncEngine, Result
from ecorl.engines.protocol import EngineReport, Float32, Int64, ScoreBatch
from ecorl.engines.validate import check_result
from ecorl.errors import EcorlError, EngineTimeout, InvalidResult
from ecorl.serve.answers import UNKNOWN, Answer, Effort, share_of
from ecorl.serve.bodies import ScoreRows
from ecorl.serve.meters import Meters
from ecorl.serve.refusals import Refused, draining
from ecorl.serve.settings import ServeSettings

logger = logging.getLogger(__name__)

_LONGEST_RETRY_S = 60
"""A full queue is never announced for longer: the estimate rests on one micro-batch. Assumed."""


@dataclass(eq=False, slots=True)
class Pending:
    """A request that was accepted: its future is answered, fails, or is withdrawn."""

    rows: ScoreRows
    number: int
    future: asyncio.Future[Answer]
    values: list[Float32 | None]
    n_left: int
    effort: Effort | None = None

    def add_effort(self, effort: Effort) -> None:
        """Add the share of one micro-batch."""
        self.effort = effort if self.effort is None else self.effort + effort


@dataclass(frozen=True, slots=True)
class _Waiting:
    """One row in the queue."""

    pending: Pending
    index: int
    since_s: float

    @property
    def token_ids(self) -> Int64:
        return self.pending.rows.token_ids[self.index]

    @property
    def temperature(self) -> float:
        return self.pending.rows.temperature


@dataclass(slots=True)
class Faults:
    """How the engine has failed.

    Attributes:
        n: micro-batches that it failed on.
        in_a_row: of the last ones, without an answer between them.
        last: what it said.
    """

    n: int = 0
    in_a_row: int = 0
    last: str | None = None


@dataclass(slots=True)
class _Queue:
    """Rows that wait, in order, and their tokens."""

    rows: deque[_Waiting] = field(default_factory=deque)
    n_tokens: int = 0

    def add(self, row: _Waiting) -> None:
        self.rows.append(row)
        self.n_tokens += len(row.token_ids)

    def take(self, max_rows: int, max_tokens: int) -> list[_Waiting]:
        """The next micro-batch: rows with the temperature of the oldest, at least one of them."""
        taken: list[_Waiting] = []
        kept: list[_Waiting] = []
        n_tokens = 0
        while self.rows and len(taken) < max_rows:
            row = self.rows.popleft()
            if row.temperature != (taken[0] if taken else row).temperature:
                kept.append(row)
                continue
            if taken and n_tokens + len(row.token_ids) > max_tokens:
                kept.append(row)
                break
            taken.append(row)
            n_tokens += len(row.token_ids)
        self.rows.extendleft(reversed(kept))
        self.n_tokens -= n_tokens
        return taken

    def drop(self, pending: Pending) -> int:
        """Take a request's rows out; returns how many there were."""
        kept = deque(row for row in self.rows if row.pending is not pending)
        n_dropped = len(self.rows) - len(kept)
        self.rows = kept
        self.n_tokens = sum(len(row.token_ids) for row in kept)
        return n_dropped


class MicroBatcher:
    """Gathers rows, asks the engine, gives results back.

    Args:
        lane: the engine; one micro-batch at a time is submitted to it.
        settings: limits.
        meters: what is counted.

    Attributes:
        faults: how the engine has failed.
        n_accepted: requests that were accepted.
        n_withdrawn: of these, whose clients went away before the answer.
        n_failed: of these, that were refused afterwards, since the engine failed.
    """

    def __init__(self, lane: AsyncEngine, settings: ServeSettings, meters: Meters) -> None:
        self.faults = Faults()
        self._lane, self._settings, self._meters = lane, settings, meters
        self._queue = _Queue()
        self._pending: set[Pending] = set()
        self._changed, self._idle = asyncio.Event(), asyncio.Event()
        self._idle.set()
        self._draining = False
        self.n_accepted = 0
        self.n_withdrawn = 0
        self.n_failed = 0
        self._last_batch_s = 0.0

    @property
    def n_waiting(self) -> int:
        """Rows in the queue, without those in the engine."""
        return len(self._queue.rows)

    @property
    def n_unanswered(self) -> int:
        """Requests that were accepted and have no answer yet."""
        return len(self._pending)

    @property
    def draining(self) -> bool:
        """Whether further requests are refused."""
        return self._draining

    def submit(self, rows: ScoreRows) -> Pending:
        """Accept all rows of a request, or none.

        Raises:
            Refused: 429 when the queue has no room for them, 503 when the service is stopping.
        """
        if self._draining:
            raise draining()
        if self.n_waiting >= self._settings.queue_rows:
            # The size does not matter: a large request gets in as often as a small one.
            raise Refused(
                429, f"the queue is full: {self.n_waiting} rows wait",
                "queue_full", self._retry_after_s(),
            )  # fmt: skip
        self.n_accepted += 1
        future = asyncio.get_running_loop().create_future()
        pending = Pending(rows, self.n_accepted, future, [None] * len(rows), len(rows))
        self._pending.add(pending)
        self._idle.clear()
        now_s = time.monotonic()
        for index in range(len(rows)):
            self._queue.add(_Waiting(pending, index, now_s))
        self._queue_changed()
        return pending

    def withdraw(self, pending: Pending) -> None:
        """Forget a request whose client is gone; the rows of others stay as they are."""
        if pending.future.done():
            return
        pending.future.cancel()
        self.n_withdrawn += 1
        self._meters.rows.labels("withdrawn").inc(pending.n_left)
        self._settle(pending)

    def drain(self) -> None:
        """Accept nothing more; what was accepted is answered without further delay."""
        self._draining = True
        self._meters.draining.set(1)
        self._changed.set()

    async def idle(self) -> None:
        """Return when every accepted request has its answer."""
        await self._idle.wait()

    async def run(self) -> None:
        """Work until cancelled; what is unanswered at the end is refused, never left to hang."""
        limits = self._settings
        try:
            while True:
                await self._gather()
                batch = self._queue.take(limits.max_batch_rows, limits.max_batch_tokens)
                self._meters.queue_rows.set(self.n_waiting)
                if batch:
                    await self._answer(batch)
        finally:
            self.drain()
            for pending in tuple(self._pending):
                self._refuse(pending, Refused(503, "the service has stopped", "stopped"))

    async def _gather(self) -> None:
        """Wait for a row, then for its batch-mates as long as it may."""
        while True:
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
        """How long the oldest row may still wait; None: there is none."""
        queue = self._queue
        if not queue.rows:
            return None
        full = (
            len(queue.rows) >= self._settings.max_batch_rows
            or queue.n_tokens >= self._settings.max_batch_tokens
        )
        if full or self._draining:
            return 0.0
        return queue.rows[0].since_s + self._settings.batch_delay_s - time.monotonic()

    async def _answer(self, rows: Sequence[_Waiting]) -> None:
        batch = _batch_of(rows)
        self._meters.batch_rows.observe(len(batch))
        self._meters.batch_tokens.observe(batch.n_tokens)
        self._meters.tokens.inc(batch.n_tokens)
        start_s = time.monotonic()
        try:
            values, report = await self._ask(batch)
        except EcorlError as error:  # a lane passes on what an engine's process raised
            self._failed(rows, error)
            return
        finally:
            self._last_batch_s = time.monotonic() - start_s
            self._meters.engine_s.observe(self._last_batch_s)
        self.faults.in_a_row = 0
        self._meters.device(report)
        self._deliver(rows, values, report)

    async def _ask(self, batch: ScoreBatch) -> tuple[Sequence[Float32 | None], EngineReport]:
        """Results of a micro-batch, None for each row that cannot be used.

        Raises:
            EcorlError: when the engine failed, gave no answer in time, or none that fits.
        """
        future = asyncio.wrap_future(self._lane.submit(batch))
        limit_s = self._settings.engine_timeout_s
        done, _ = await asyncio.wait({future}, timeout=limit_s)
        if not done:
            self._lane.cancel_and_restart()
            future.add_done_callback(_look_at)
            raise EngineTimeout(f"the engine gave no answer within {limit_s:g} s")
        result = future.result()
        checked = check_result(batch, result, self._lane.stage)
        if checked.report is None:
            raise InvalidResult("the engine gave no usable report of its device")
        return checked.values, checked.report

    def _deliver(
        self, rows: Sequence[_Waiting], values: Sequence[Float32 | None], report: EngineReport
    ) -> None:
        shares = _shares(rows, values)
        for row, value, share in zip(rows, values, shares, strict=True):
            pending = row.pending
            if pending.future.done():
                continue  # withdrawn
            self._meters.rows.labels("without_answer" if value is None else "answered").inc()
            pending.values[row.index] = value
            pending.n_left -= 1
            if share is not None:
                pending.add_effort(share_of(report, share))
            if pending.n_left == 0:
                pending.future.set_result(Answer(pending.values, pending.effort or UNKNOWN))
                self._settle(pending)

    def _failed(self, rows: Sequence[_Waiting], error: EcorlError) -> None:
        """Answer the requests of a micro-batch that the engine failed on."""
        self.faults.n += 1
        self.faults.in_a_row += 1
        self.faults.last = f"{type(error).__name__}: {error}"
        self._meters.faults.inc()
        affected = {row.pending.number: row.pending for row in rows}
        logger.warning("the engine failed on %d requests: %s", len(affected), self.faults.last)
        for pending in affected.values():
            told = " ".join(f"the engine failed: {self.faults.last}".split())
            self._refuse(pending, Refused(503, told, "engine_fault", retry_after_s=1))

    def _refuse(self, pending: Pending, refusal: Refused) -> None:
        if pending.future.done():
            return
        pending.future.set_exception(refusal)
        self.n_failed += 1
        self._meters.rows.labels("failed").inc(pending.n_left)
        self._settle(pending)

    def _settle(self, pending: Pending) -> None:
        self._pending.discard(pending)
        if pending.n_left and self._queue.drop(pending):
            self._queue_changed()
        if not self._pending:
            self._idle.set()

    def _queue_changed(self) -> None:
        self._meters.queue_rows.set(self.n_waiting)
        self._changed.set()

    def _retry_after_s(self) -> int:
        """When the rows that wait now will be through, by the time of the last micro-batch."""
        n_batches = math.ceil(self.n_waiting / self._settings.max_batch_rows)
        return min(_LONGEST_RETRY_S, max(1, math.ceil(n_batches * self._last_batch_s)))


def _batch_of(rows: Sequence[_Waiting]) -> ScoreBatch:
    return ScoreBatch(
        sample_ids=tuple(f"{row.pending.number}.{row.index}" for row in rows),
        token_ids=tuple(row.token_ids for row in rows),
        n_completion=tuple(row.pending.rows.n_completion[row.index] for row in rows),
        temperature=rows[0].temperature,
    )


def _shares(rows: Sequence[_Waiting], values: Sequence[Float32 | None]) -> list[float | None]:
    """Each row's part of the effort, by tokens; rows without a value have none."""
    tokens = [
        0 if value is None else len(row.token_ids) for row, value in zip(rows, values, strict=True)
    ]
    total = sum(tokens)
    return [n / total if n else None for n in tokens]


def _look_at(future: asyncio.Future[Result]) -> None:
    """Take a late failure off a future that nobody waits for any more."""
    if not future.cancelled():
        future.exception()
