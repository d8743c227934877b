"""One card as a worker: a queue of groups, two slots, and what happens when the card fails.

A fault fails the group in which it happened, and no other. After a few in a row, or at once when a
kernel did not end (it may still write into the buffers), the card is reset: closed, reset, opened,
loaded, its weights brought anew. A card that fails again after that is out of service for a while,
twice as long each time.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field

from ecorl.engines.fpga.card.memory import SLOTS
from ecorl.engines.fpga.card.plan import Plan
from ecorl.engines.fpga.card.runner import GroupResult
from ecorl.engines.fpga.card.service import CardSetup, CardState, Occupancy, Service
from ecorl.engines.fpga.card.weights import Weights
from ecorl.errors import DriverError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CardStatus:
    """A card as the scheduler sees it.

    Attributes:
        index: XRT's number.
        state: whether it takes work.
        depth: groups waiting or running.
        backlog_tokens: their tokens.
        occupancy: share of time in which it worked, over about the last 10 s.
        n_groups: groups that it has finished.
        n_faults: groups that it has failed.
        n_resets: resets.
        transfer_s: time of all transfers, s, weights left out.
        hidden_s: of them, beside a running kernel.
        weights_digest: SHA-256 of the weights as read back from it.
    """

    index: int
    state: CardState
    depth: int
    backlog_tokens: int
    occupancy: float
    n_groups: int
    n_faults: int
    n_resets: int
    transfer_s: float
    hidden_s: float
    weights_digest: str


@dataclass(eq=False, slots=True)
class _Job:
    plan: Plan
    future: Future[GroupResult] = field(default_factory=Future)
    slot: int = 0
    is_sent: bool = False
    error: DriverError | None = None


@dataclass(eq=False, slots=True)
class _Load:
    weights: Weights
    future: Future[str] = field(default_factory=Future)


class Card:
    """A card with a queue and a thread of its own.

    Args:
        setup: how to bring it into service.
        weights: what it is loaded with.

    Raises:
        DriverError: when it does not come into service at first.
    """

    def __init__(self, setup: CardSetup, weights: Weights) -> None:
        self._setup, self._weights = setup, weights
        self._queue: queue.SimpleQueue[_Job | _Load | None] = queue.SimpleQueue()
        self._next: _Job | _Load | None = None
        self._lock = threading.Lock()
        self._depth = self._backlog = 0
        self._service = Service(setup)
        self._occupancy = Occupancy()
        self._n_groups = 0
        self._service.open(weights)
        self._thread = threading.Thread(
            target=self._work, name=f"ecorl-card{setup.index}", daemon=True
        )
        self._thread.start()

    @property
    def index(self) -> int:
        """XRT's number."""
        return self._setup.index

    @property
    def available(self) -> bool:
        """Whether it takes work; a quarantine that is over ends with the next group."""
        return self._service.available and self._thread.is_alive()

    @property
    def backlog_tokens(self) -> int:
        """Tokens of the groups waiting or running."""
        return self._backlog

    def submit(self, plan: Plan) -> Future[GroupResult]:
        """Queue a group; never blocks. A failure is the future's `DriverError`."""
        job = _Job(plan)
        with self._lock:
            self._depth += 1
            self._backlog += plan.n_tokens
        self._queue.put(job)
        return job.future

    def load(self, weights: Weights) -> Future[str]:
        """Change the weights once the groups before have been answered.

        The future holds their SHA-256 as read back from the card. After a failure, which is its
        `DriverError`, the card is brought into service anew with them.
        """
        job = _Load(weights)
        self._queue.put(job)
        return job.future

    def status(self) -> CardStatus:
        """How it stands now."""
        service = self._service
        times = service.times()
        with self._lock:
            return CardStatus(
                self._setup.index,
                service.state,
                self._depth,
                self._backlog,
                self._occupancy.share(time.monotonic()),
                self._n_groups,
                service.n_faults,
                service.n_resets,
                times.total_s,
                times.hidden_s,
                service.digest,
            )

    def close(self) -> None:
        """End the thread after the group at work; what waits fails."""
        self._queue.put(None)
        self._thread.join(timeout=self._setup.limits.start_s + 1.0)

    # ---- the thread ---------------------------------------------------------------------------

    def _work(self) -> None:
        last: _Job | None = None  # done on the card, its results still there
        while (item := self._take()) is not None:
            if isinstance(item, _Load):
                self._reload(item)
            else:
                last = self._serve(item, last)
        if last is not None:
            self._fetch(last)
        self._service.close()
        while not self._queue.empty():
            left = self._queue.get()
            if left is not None:
                left.future.set_exception(DriverError(f"card {self.index} was closed"))

    def _take(self) -> _Job | _Load | None:
        item, self._next = self._next, None
        return self._queue.get() if item is None else item

    def _serve(self, job: _Job, last: _Job | None) -> _Job | None:
        """One group. Returns it when its results stay on the card until the next one runs."""
        self._occupancy.set(True, time.monotonic())
        try:
            runner = self._service.runner(self._weights)
            if job.error is not None:
                raise job.error
            if not job.is_sent:
                job.slot = 0 if last is None else other(last.slot)
                self._send(job)
            if last is not None:
                runner.later(lambda: self._fetch(last))
            runner.later(lambda: self._prefetch(other(job.slot)))
            runner.run(job.plan, job.slot)
            runner.catch_up()
        except DriverError as error:
            self._fail(job, last, error)
            return None
        self._service.succeeded()
        if isinstance(self._next, _Job):
            return job
        self._fetch(job)
        self._occupancy.set(False, time.monotonic())
        return None

    def _send(self, job: _Job) -> None:
        if job.plan.model is not self._weights.model:
            raise DriverError(f"card {self.index}: the group was planned for other weights")
        self._service.runner(self._weights).send(job.plan, job.slot)
        job.is_sent = True

    def _prefetch(self, slot: int) -> None:
        """The next group's inputs, if there is one; beside a kernel of the one at work."""
        try:
            self._next = self._queue.get_nowait()
        except queue.Empty:
            return
        if self._next is None:
            self._queue.put(None)  # found again by the main loop
        elif isinstance(self._next, _Job):
            self._next.slot = slot
            try:
                self._send(self._next)
            except DriverError as error:  # its own fault, not that of the group at work
                self._next.error = error

    def _fetch(self, job: _Job) -> None:
        """A finished group's results to whoever waits for them."""
        if job.future.done():
            return
        try:
            result = self._service.runner(self._weights).receive(job.plan, job.slot)
        except DriverError as error:
            self._service.failed(error)
            self._end(job, error)
            return
        self._n_groups += 1
        self._end(job, result)

    def _fail(self, job: _Job, last: _Job | None, error: DriverError) -> None:
        logger.warning("card %d: %s", self.index, error)
        if last is not None:
            self._fetch(last)  # its results do not depend on what failed
        needs_reset = self._service.failed(error)
        self._end(job, error)
        if isinstance(self._next, _Job):
            self._next.is_sent, self._next.error = False, None
        if needs_reset:
            self._service.recover(self._weights)
        self._occupancy.set(False, time.monotonic())

    def _end(self, job: _Job, outcome: GroupResult | DriverError) -> None:
        with self._lock:
            self._depth -= 1
            self._backlog -= job.plan.n_tokens
        if isinstance(outcome, DriverError):
            job.future.set_exception(outcome)
        else:
            job.future.set_result(outcome)

    def _reload(self, item: _Load) -> None:
        self._weights = item.weights
        try:
            self._service.load(item.weights)
        except DriverError as error:
            logger.warning("card %d: %s", self.index, error)
            self._service.failed(error)
            self._service.recover(item.weights)
            item.future.set_exception(error)
            return
        item.future.set_result(self._service.digest)


def other(slot: int) -> int:
    """The slot that a group at work leaves free."""
    return SLOTS - 1 - slot
