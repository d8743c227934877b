"""One card with a queue of groups and a thread that runs them, and its recovery from faults.

A fault fails the group in which it happened, and no other. After a few in a row, or at once when a
kernel did not end (it may still write into the buffers), the card is reset: closed, reset, opened,
and its weights are uploaded again. A card that fails again after that is out of service for a
while, twice as long each time. Every future gets a result or an error in any case.
"""

from __future__ import annotations

import logging
import queue
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field

from ecorl.engines.fpga.card.health import CardHealth, CardSetup, CardState, Occupancy
from ecorl.engines.fpga.card.image import Weights
from ecorl.engines.fpga.card.plan import KernelPlan
from ecorl.engines.fpga.card.runner import GroupResult
from ecorl.engines.fpga.kernels.banks import SLOTS
from ecorl.errors import DriverError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CardStatus:
    """State and load of a card, for the scheduler.

    Attributes:
        index: XRT's number.
        state: whether it accepts groups.
        depth: groups waiting or running.
        backlog_tokens: their tokens.
        occupancy: share of time in which it was busy, over about the last 10 s.
        n_groups: groups that it finished.
        n_faults: groups and changes of weights that failed.
        n_resets: resets.
        transfer_s: time of all transfers but those of weights, s.
        hidden_s: of them, during a running kernel.
        run_s: time from the first start of groups to the end of their last, s.
        weights_digest: SHA-256 of the weights as read back from it; empty while out of service.
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
    run_s: float
    weights_digest: str


@dataclass(eq=False, slots=True)
class _Job:
    """A group in the queue; `error` is the fault of its transfer, if that failed early."""

    plan: KernelPlan
    future: Future[GroupResult] = field(default_factory=Future)
    slot: int = 0
    is_sent: bool = False
    error: DriverError | None = None


@dataclass(eq=False, slots=True)
class _Revival:
    """A request to bring the card back when its quarantine is over."""


@dataclass(eq=False, slots=True)
class _Load:
    """A request to change the weights."""

    weights: Weights
    future: Future[str] = field(default_factory=Future)


class Card:
    """A card with a queue and a thread.

    Args:
        setup: how to open, reset and time out the card.
        weights: of the model.

    Raises:
        DriverError: when the card cannot be opened and loaded.
    """

    def __init__(self, setup: CardSetup, weights: Weights) -> None:
        self._setup, self._weights, self.index = setup, weights, setup.index
        self._queue: queue.SimpleQueue[_Job | _Load | _Revival | None] = queue.SimpleQueue()
        self._next: _Job | _Load | _Revival | None = None
        self._lock = threading.Lock()
        self._open: set[_Job | _Load] = set()  # not answered yet; guarded by the lock
        self._service = CardHealth(setup)
        self._occupancy = Occupancy()
        self._n_groups = 0
        self._is_reset_due = self._is_reviving = False
        self._service.open(weights)
        self._thread = threading.Thread(
            target=self._run_thread, name=f"ecorl-card{setup.index}", daemon=True
        )
        self._thread.start()

    @property
    def available(self) -> bool:
        """Whether it accepts groups."""
        return self._service.available and not self._service.ended.is_set()

    @property
    def backlog_tokens(self) -> int:
        """Tokens of the groups waiting or running."""
        return sum(job.plan.n_tokens for job in self._jobs())

    def submit(self, plan: KernelPlan) -> Future[GroupResult]:
        """Queue a group; never blocks. A failure is the future's `DriverError`."""
        job = _Job(plan)
        self._put(job)
        return job.future

    def withdraw(self, future: Future[GroupResult]) -> bool:
        """Withdraw a group; a group that is running goes on, and its results are dropped.

        Returns:
            False when its future is done already, with a result or an error.
        """
        with self._lock:
            job = next((item for item in self._open if item.future is future), None)
            self._open.discard(job)
        return job is not None

    def revive(self) -> None:
        """Bring the card back if its quarantine is over; returns at once."""
        with self._lock:
            if self._service.is_due and not self._is_reviving:
                self._is_reviving = True
                self._queue.put(_Revival())

    def out_of_service(self) -> DriverError:
        """The error for a group that the card cannot accept now."""
        return self._service.out_of_service()

    def load(self, weights: Weights) -> Future[str]:
        """Change the weights once the groups before have been answered.

        The future holds their SHA-256 as read back from the card. A card that fails meanwhile is
        reset and opened with them; when that fails as well, or it is out of service, the future has
        a `DriverError`, and the card comes back with them later.
        """
        item = _Load(weights)
        self._put(item)
        return item.future

    def status(self) -> CardStatus:
        """Its state and load now."""
        service, jobs = self._service, self._jobs()
        times = service.times()
        return CardStatus(
            self._setup.index,
            service.state,
            len(jobs),
            sum(job.plan.n_tokens for job in jobs),
            self._occupancy.share(self._setup.clock()),
            self._n_groups,
            service.n_faults,
            service.n_resets,
            times.total_s,
            times.hidden_s,
            times.run_s,
            service.digest,
        )

    def close(self) -> None:
        """End the thread after the kernel that runs; groups that are not finished fail."""
        with self._lock:
            self._service.ended.set()
        self._queue.put(None)
        self._thread.join(timeout=self._setup.limits.start_s + 1.0)
        self._fail_open()  # a thread that hangs resolves no future

    def _put(self, item: _Job | _Load) -> None:
        with self._lock:
            is_open = not self._service.ended.is_set()
            if is_open:
                self._open.add(item)
                self._queue.put(item)
        if not is_open:
            item.future.set_exception(self._closed())

    def _jobs(self) -> list[_Job]:
        with self._lock:
            return [item for item in self._open if isinstance(item, _Job)]

    def _closed(self) -> DriverError:
        return DriverError(f"card {self.index} was closed")

    # ---- the thread ---------------------------------------------------------------------------

    def _run_thread(self) -> None:
        try:
            self._serve_all()
        finally:
            with self._lock:
                self._service.ended.set()
            self._fail_open()
            self._service.close()

    def _serve_all(self) -> None:
        last: _Job | None = None  # its kernels are done, its results still on the card
        while (item := self._next_item()) is not None and not self._service.ended.is_set():
            if isinstance(item, _Load):
                self._reload(item)
            elif isinstance(item, _Revival):
                self._is_reviving = False
                if self._service.is_due:
                    self._service.recover(self._weights)
            elif self._is_open(item):
                last = self._serve(item, last)
            elif last is not None:  # its results waited for the run of the group that was withdrawn
                self._fetch(last)
                last = None

    def _next_item(self) -> _Job | _Load | _Revival | None:
        item, self._next = self._next, None
        return self._queue.get() if item is None else item

    def _serve(self, job: _Job, last: _Job | None) -> _Job | None:
        """Run one group.

        Args:
            job: the group.
            last: the group before, when its results are still on the card; they are downloaded
                while this one runs.

        Returns:
            The group, when its results stay on the card until the next one runs; else None.
        """
        self._occupancy.set(True, self._setup.clock())
        error = self._attempt(job, last)
        if error is not None:
            if self._service.in_service:  # else it was logged before
                logger.warning("card %d: %s", self.index, error)
            if last is not None:
                self._fetch(last)  # its results do not depend on what failed
            self._failed(job, error)
        elif isinstance(self._next, _Job) and not self._is_reset_due:
            return job
        else:
            self._fetch(job)
        if isinstance(self._next, _Job):
            self._next.is_sent, self._next.error = False, None
        if self._is_reset_due and not self._service.ended.is_set():
            self._service.recover(self._weights)
        self._is_reset_due = False
        self._occupancy.set(False, self._setup.clock())
        return None

    def _attempt(self, job: _Job, last: _Job | None) -> DriverError | None:
        """Run a group; return its fault, or None."""
        if job.error is not None:
            return job.error
        try:
            runner = self._service.runner()
            if not job.is_sent:
                job.slot = 0 if last is None else other_slot(last.slot)
                self._send(job)
            beside = [lambda: self._prefetch(other_slot(job.slot))]
            if last is not None:
                beside.insert(0, lambda: self._fetch(last))
            runner.run(job.plan, job.slot, beside)
        except DriverError as error:
            return without_traceback(error)
        return None

    def _send(self, job: _Job) -> None:
        if job.plan.model is not self._weights.model:
            raise DriverError(f"card {self.index}: the group was planned for other weights")
        self._service.runner().send(job.plan, job.slot)
        job.is_sent = True

    def _prefetch(self, slot: int) -> bool:
        """Send the next group's inputs during a kernel of the one that runs.

        Returns:
            False while there is no next group.
        """
        try:
            item = self._queue.get_nowait()
        except queue.Empty:
            return False
        if item is None:
            self._queue.put(None)  # so that the main loop ends too
            return True
        self._next = item
        if isinstance(item, _Job):
            item.slot = slot
            try:
                self._send(item)
            except DriverError as error:  # a fault of that group, not of the one that runs
                item.error = without_traceback(error)
        return True

    def _fetch(self, job: _Job) -> bool:
        """Download a finished group's results into its future; always done at the first try."""
        if job.future.done():
            return True
        try:
            result = self._service.runner().receive(job.plan, job.slot)
        except DriverError as error:
            logger.warning("card %d: %s", self.index, error)
            self._failed(job, without_traceback(error))
            return True
        self._service.succeeded()
        self._n_groups += 1
        if self._settle(job):
            job.future.set_result(result)
        return True

    def _failed(self, job: _Job, error: DriverError) -> None:
        if self._service.failed(error):
            self._is_reset_due = True
        if self._settle(job):
            job.future.set_exception(error)

    def _reload(self, item: _Load) -> None:
        self._weights = item.weights
        error = self._attempt_load(item.weights)
        if error is not None:
            logger.warning("card %d: %s", self.index, error)
            if self._service.in_service and not self._service.ended.is_set():
                self._service.failed(error)
                self._service.recover(item.weights)
                if self._service.in_service:
                    error = None
        if not self._settle(item):
            return
        if error is None:
            item.future.set_result(self._service.digest)
        else:
            item.future.set_exception(error)

    def _attempt_load(self, weights: Weights) -> DriverError | None:
        try:
            self._service.load(weights)
        except DriverError as error:
            return without_traceback(error)
        return None

    def _settle(self, item: _Job | _Load) -> bool:
        """Mark an item as answered; whether it was open, so that the caller sets its future."""
        with self._lock:
            is_open = item in self._open
            self._open.discard(item)
        return is_open

    def _is_open(self, job: _Job) -> bool:
        with self._lock:
            return job in self._open

    def _fail_open(self) -> None:
        """Fail all groups and loads that are still open."""
        with self._lock:
            left, self._open = self._open, set()
        for item in left:
            item.future.set_exception(self._closed())


def without_traceback(error: DriverError) -> DriverError:
    """Copy an error without its traceback.

    The frames of the traceback hold buffers and runs, which must be freed before a card is reset.
    """
    return type(error)(str(error))


def other_slot(slot: int) -> int:
    """The slot that a running group leaves free."""
    return SLOTS - 1 - slot
