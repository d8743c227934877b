"""Asynchronous engines: one in-order lane in front of an engine.

`AsyncEngine` is what the dispatcher sees. `ThreadedEngine` runs an engine on a thread of this
process; `ecorl.engines.lanes.isolated.IsolatedEngine` gives it a process of its own.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable

from ecorl.engines.containment import EngineBoundary
from ecorl.engines.protocol import (
    InferenceEngine,
    LogprobResult,
    Refresh,
    Refreshed,
    ScoreBatch,
    ScoreResult,
)
from ecorl.errors import EcorlError, EngineCrashed, EngineError, EngineTimeout
from ecorl.records import ModelShape, Stage

logger = logging.getLogger(__name__)

Result: TypeAlias = ScoreResult | LogprobResult | Refreshed


@dataclass(frozen=True, slots=True)
class EngineEnd:
    """An engine ended between two batches (``EngineCrashed``) or for good (``EngineGivenUp``)."""

    kind: str
    reason: str


@runtime_checkable
class AsyncEngine(Protocol):
    """An engine behind an in-order lane; the dispatcher's view of it.

    Its stage decides what is computed: a reference engine answers log-probs, any other rewards.
    """

    name: str
    device: str
    stage: Stage
    model: ModelShape
    row_invariant: bool
    card_bytes: int | None
    """Bytes that the model occupies in its card's memory; None for an engine without a card, or
    one that cannot tell. Engines on one card share its memory."""
    host: str | None
    """Who runs the kernels: ``csim``, ``xrt (noop)`` or ``xrt``; None where there are none."""
    card_banks: Mapping[str, int] | None
    """Bytes of the weights in each memory bank of a card; None where XRT does not run them."""

    @property
    def queue_depth(self) -> int:
        """Batches waiting or running."""
        ...

    @property
    def available(self) -> bool:
        """Whether a batch submitted now would be worked on."""
        ...

    def submit(self, batch: ScoreBatch) -> Future[Result]:
        """Queue a batch; never blocks. A failure is the future's `EngineError`."""
        ...

    def load_weights(self, checkpoint: Path) -> Future[Result]:
        """Change the weights after all batches before; never blocks.

        The future's result is a `Refreshed`; a failure is its `EcorlError`, and the engine must not
        be asked again then.
        """
        ...

    def cancel_and_restart(self) -> None:
        """Give up on all that is pending: it fails with `EngineTimeout`; nothing if idle."""
        ...

    def take_ends(self) -> tuple[EngineEnd, ...]:
        """How the engine ended since the last call, where no batch could tell of it."""
        ...

    def close(self) -> None:
        """Release everything; pending work fails. May be called more than once."""
        ...


def card_bytes_of(engine: InferenceEngine) -> int | None:
    """Bytes that an engine's model occupies in a card's memory, or None where it does not say.

    An attribute ``card_bytes`` is no part of the protocol, so that an engine without one, from
    elsewhere, goes on working.
    """
    n_bytes = getattr(engine, "card_bytes", None)
    return n_bytes if isinstance(n_bytes, int) else None


def host_of(engine: InferenceEngine) -> str | None:
    """Who runs an engine's kernels, or None where it does not say."""
    host = getattr(engine, "host", None)
    return host if isinstance(host, str) else None


def told_of(
    engine: InferenceEngine,
) -> tuple[int | None, str | None, Mapping[str, int] | None]:
    """`AsyncEngine.card_bytes`, ``host`` and ``card_banks`` of an engine, as far as it tells."""
    return card_bytes_of(engine), host_of(engine), getattr(engine, "card_banks", None)


def answer(engine: InferenceEngine, request: ScoreBatch | Refresh) -> Result:
    """Ask the engine for what its stage computes, or to take over weights."""
    if isinstance(request, Refresh):
        take = getattr(engine, "load_weights", None)
        if take is None:
            raise EngineError(f"engine {engine.name} cannot take over refreshed weights")
        return Refreshed(str(take(request.checkpoint)))
    if engine.stage is Stage.REFERENCE:
        return engine.logprobs(request)
    return engine.score(request)


@dataclass(eq=False, slots=True)
class LaneJob:
    """A batch, or a request to change the weights, and the promise of its result."""

    request: ScoreBatch | Refresh
    future: Future[Result] = field(default_factory=Future)


class JobQueue:
    """Unanswered jobs in order. A job stays until it is finished, so the length is the depth."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: deque[LaneJob] = deque()

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: LaneJob) -> None:
        """Append a job."""
        with self._lock:
            self._jobs.append(job)

    def head(self) -> LaneJob | None:
        """The oldest job that still wants an answer, or None; jobs cancelled by the caller go."""
        with self._lock:
            while self._jobs:
                job = self._jobs[0]
                if job.future.running() or job.future.set_running_or_notify_cancel():
                    return job
                self._jobs.popleft()
        return None

    def finish(self, job: LaneJob, outcome: Result | EcorlError) -> bool:
        """Answer a job. False, and nothing done, when it has been given up meanwhile."""
        with self._lock:
            if not (self._jobs and self._jobs[0] is job):
                return False
            self._jobs.popleft()
        # Outside the lock: callbacks of the future may submit again.
        if isinstance(outcome, EcorlError):
            job.future.set_exception(outcome)
        else:
            job.future.set_result(outcome)
        return True

    def take_all(self) -> list[LaneJob]:
        """Remove and return all jobs."""
        with self._lock:
            jobs = list(self._jobs)
            self._jobs.clear()
        return jobs


def fail(jobs: Iterable[LaneJob], error: EngineError) -> None:
    """Fail each job with an error of its own, of the same class and text."""
    for job in jobs:
        if job.future.cancelled():
            continue
        try:
            job.future.set_exception(type(error)(str(error)))
        except InvalidStateError:
            # The caller cancelled it between the two lines above.
            logger.debug("a failed batch had been cancelled by its caller")


def failed_future(error: EngineError) -> Future[Result]:
    """A future that has failed already."""
    job = LaneJob(ScoreBatch((), (), ()))
    fail([job], error)
    return job.future


class ThreadedEngine:
    """Runs an in-process engine on one worker thread, behind the asynchronous interface.

    A thread cannot be killed: after `cancel_and_restart` the engine is unavailable until the
    stuck call returns, and what it returns is thrown away.

    Args:
        inner: the engine; this object owns it and closes it.
    """

    def __init__(self, inner: InferenceEngine) -> None:
        self.name = inner.name
        self.device = inner.device
        self.stage = inner.stage
        self.model = inner.model
        self.row_invariant = inner.row_invariant
        self.card_bytes, self.host, self.card_banks = told_of(inner)
        self._inner = inner
        self._jobs = JobQueue()
        self._wake = threading.Semaphore(0)
        self._current: LaneJob | None = None
        self._abandoned: LaneJob | None = None
        self._closed = False
        self._thread = threading.Thread(
            target=self._run, name=f"ecorl-{self.name}-{self.stage}", daemon=True
        )
        self._thread.start()

    @property
    def queue_depth(self) -> int:
        """Batches waiting or running."""
        return len(self._jobs)

    @property
    def available(self) -> bool:
        """Whether a batch submitted now would be worked on."""
        return not (self._closed or self._is_stuck()) and self._thread.is_alive()

    def submit(self, batch: ScoreBatch) -> Future[Result]:
        """Queue a batch; never blocks. A failure is the future's `EngineError`."""
        if not self.available:
            state = "closed" if self._closed else "stuck in a call that was given up"
            return failed_future(EngineCrashed(f"engine {self.name} is {state}"))
        return self._queued(LaneJob(batch))

    def load_weights(self, checkpoint: Path) -> Future[Result]:
        """Change the weights after all batches before. See `AsyncEngine`."""
        if not self.available:
            return failed_future(EngineCrashed(f"engine {self.name} is not available"))
        return self._queued(LaneJob(Refresh(checkpoint)))

    def take_ends(self) -> tuple[EngineEnd, ...]:
        """None: a thread does not end by itself. See `AsyncEngine`."""
        return ()

    def cancel_and_restart(self) -> None:
        """Give up on all that is pending: it fails with `EngineTimeout`; nothing if idle."""
        jobs = self._jobs.take_all()
        if jobs:
            self._abandoned = jobs[0]
            fail(jobs, EngineTimeout(f"engine {self.name} gave no answer in time"))

    def close(self) -> None:
        """Close the engine after the call in progress; pending work fails."""
        if self._closed:
            return
        self._closed = True
        fail(self._jobs.take_all(), EngineCrashed(f"engine {self.name} was closed"))
        self._wake.release()
        if threading.current_thread() is not self._thread:
            # Not for ever: a stuck call must not hold up the end of the run.
            self._thread.join(timeout=0.0 if self._is_stuck() else 5.0)

    def _queued(self, job: LaneJob) -> Future[Result]:
        self._jobs.add(job)
        self._wake.release()
        return job.future

    def _is_stuck(self) -> bool:
        current = self._current
        return current is not None and current is self._abandoned

    def _run(self) -> None:
        try:
            while not self._closed:
                self._wake.acquire()
                job = None if self._closed else self._jobs.head()
                if job is not None:
                    self._current = job
                    self._jobs.finish(job, self._call(job.request))
                    self._current = None
        finally:
            fail(self._jobs.take_all(), EngineCrashed(f"engine {self.name} has stopped"))
            self._inner.close()

    def _call(self, request: ScoreBatch | Refresh) -> Result | EcorlError:
        with EngineBoundary() as boundary:
            return answer(self._inner, request)
        if not isinstance(boundary.error, EngineError):
            logger.warning("engine %s failed on a batch", self.name, exc_info=boundary.error)
        return boundary.engine_error()
