"""Asynchronous engines: an in-order queue, called a lane, in front of an engine.

`AsyncEngine` is the protocol that callers use. `ThreadedEngine` runs an engine on a thread of this
process; `ecorl.engines.lanes.isolated.IsolatedEngine` runs it in a separate process.

The messages between the process of an engine and its parent are here too::

    parent                 engine process
    StartEngine      ->
                     <-    EngineFacts | Fault
    ScoreBatch       ->
                     <-    ScoreResult | LogprobResult | Fault
    Refresh          ->
                     <-    Refreshed | Fault
    (connection closed)    closes the engine and ends
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from ecorl import errors
from ecorl.config import FaultInjection
from ecorl.engines.fpga.card.backend import is_emulated
from ecorl.engines.protocol import (
    InferenceEngine,
    LogprobResult,
    Refresh,
    Refreshed,
    ScoreBatch,
    ScoreResult,
)
from ecorl.engines.validate import EngineBoundary
from ecorl.errors import EcorlError, EngineCrashed, EngineError, EngineTimeout
from ecorl.records import FaultKind, ModelShape, Stage


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """Describes an engine so that any process can load it.

    Attributes:
        kind: built-in ``torch`` or ``fpga``, or ``plugin``.
        name: the entry point's name for a plugin, else equal to `kind`.
        checkpoint: Hugging Face checkpoint folder.
        device: name of the device profile that the engine stands for.
        options: keyword arguments of the engine's factory.
        threads: threads of numeric libraries in the engine's process.
        faults: faults to inject.
    """

    kind: Literal["torch", "fpga", "plugin"]
    name: str
    checkpoint: Path
    stage: Stage
    device: str
    options: Mapping[str, Any] = field(default_factory=dict)
    threads: int = 1
    faults: tuple[FaultInjection, ...] = ()

    @property
    def simulates_card(self) -> bool:
        """Whether its process only stands for a card, whose time and energy are modelled."""
        backend = self.options.get("backend")
        return self.kind == "fpga" and is_emulated(None if backend is None else backend.bitstream)


@dataclass(frozen=True, slots=True)
class StartEngine:
    """First message to the engine process.

    Attributes:
        calls_done: calls made to earlier processes of this engine.
        import_path: the parent's ``sys.path``, so that plug-ins are found as in the parent.
    """

    spec: EngineSpec
    calls_done: int
    import_path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fault:
    """An error as it is sent to the parent: the name of its class, its text and its attributes."""

    kind: str
    message: str
    attributes: Mapping[str, Any]


def fault_of(error: BaseException) -> Fault:
    """Describe an error so that it can be sent, whatever arguments its constructor has.

    An error from outside ecorl's tree arrives as `EngineCrashed`, with its class in the text.
    """
    if isinstance(error, errors.EcorlError):
        attributes = {
            key: value if isinstance(value, str | int | float | Path | None) else repr(value)
            for key, value in vars(error).items()
        }
        # A subclass that another module defines (a missing figure) arrives as its public base.
        public = next(c for c in type(error).__mro__ if vars(errors).get(c.__name__) is c)
        return Fault(public.__name__, str(error), attributes)
    return Fault(FaultKind.ENGINE_CRASHED, f"{type(error).__name__}: {error}", {})


def error_of(fault: Fault) -> errors.EcorlError:
    """The error that a `Fault` describes; an unknown class becomes `EngineCrashed`."""
    kind = getattr(errors, fault.kind, None)
    if not (isinstance(kind, type) and issubclass(kind, errors.EcorlError)):
        return errors.EngineCrashed(f"{fault.kind}: {fault.message}")
    # Not by the constructor: ConfigError, for one, takes other arguments than its message.
    error = kind.__new__(kind, fault.message)
    error.__dict__.update(fault.attributes)
    return error


logger = logging.getLogger(__name__)

Result: TypeAlias = ScoreResult | LogprobResult | Refreshed


@dataclass(frozen=True, slots=True)
class EngineEnd:
    """The end of an engine between two batches, where no batch's future could report it.

    Attributes:
        kind: `FaultKind.ENGINE_CRASHED` when it is started again, `FaultKind.ENGINE_GIVEN_UP` when
            it is not.
        reason: one line.
    """

    kind: FaultKind
    reason: str


@runtime_checkable
class AsyncEngine(Protocol):
    """An engine behind an in-order lane.

    Its stage determines what is computed: log-probs for the reference stage, else rewards.
    """

    name: str
    device: str
    stage: Stage
    model: ModelShape
    row_invariant: bool
    card_bytes: int | None
    """Bytes that the model occupies in its card's memory; None without a card, or where the engine
    does not say. Engines on one card share its memory."""
    host: str | None
    """What runs the kernels: ``csim``, ``xrt (noop)`` or ``xrt``; None without kernels."""
    card_banks: Mapping[str, int] | None
    """Bytes of the weights in each memory bank of a card; None where no card holds them."""

    @property
    def available(self) -> bool:
        """Whether a batch submitted now would be computed."""
        ...

    def submit(self, batch: ScoreBatch) -> Future[Result]:
        """Queue a batch; never blocks. A failure is the future's `EngineError`."""
        ...

    def load_weights(self, checkpoint: Path) -> Future[Result]:
        """Load other weights once all earlier batches are done; never blocks.

        The future's result is a `Refreshed`. A failure is its `EcorlError`; the engine must not be
        used after it.
        """
        ...

    def cancel_and_restart(self) -> None:
        """Fail all pending work with `EngineTimeout`, and restart. Does nothing when idle."""
        ...

    def take_ends(self) -> tuple[EngineEnd, ...]:
        """Return the ends of the engine since the last call that no batch has reported."""
        ...

    def close(self) -> None:
        """Release all resources; pending work fails. May be called more than once."""
        ...


@dataclass(eq=False, repr=False)
class EngineFacts:
    """What an engine tells of itself, as in `InferenceEngine`, and what it may tell beyond that.

    Attributes:
        card_bytes: bytes that its model occupies in the card's memory, or None. This and what
            follows are no part of the protocol: engines of other packages work without them.
        host: what runs its kernels, or None.
        card_banks: bytes of its weights by memory bank, or None.
    """

    name: str
    device: str
    stage: Stage
    model: ModelShape
    row_invariant: bool
    card_bytes: int | None
    host: str | None
    card_banks: Mapping[str, int] | None

    @classmethod
    def of(cls, engine: InferenceEngine) -> EngineFacts:
        """Ask an engine."""
        n_bytes, host = getattr(engine, "card_bytes", None), getattr(engine, "host", None)
        return EngineFacts(
            engine.name,
            engine.device,
            engine.stage,
            engine.model,
            engine.row_invariant,
            n_bytes if isinstance(n_bytes, int) else None,
            host if isinstance(host, str) else None,
            getattr(engine, "card_banks", None),
        )

    def take_over(self, told: EngineFacts) -> None:
        """Tell the same as another one."""
        vars(self).update(vars(told))


def answer(engine: InferenceEngine, request: ScoreBatch | Refresh) -> Result:
    """Call the method of an engine that a request is for.

    Args:
        engine: the engine.
        request: rows to compute, or weights to load.

    Returns:
        Log-probs for the reference stage, else rewards; `Refreshed` for weights.

    Raises:
        EngineError: when the engine failed, or cannot load other weights.
    """
    if isinstance(request, Refresh):
        load = getattr(engine, "load_weights", None)
        if load is None:
            raise EngineError(f"engine {engine.name} cannot take over refreshed weights")
        return Refreshed(str(load(request.checkpoint)))
    if engine.stage is Stage.REFERENCE:
        return engine.logprobs(request)
    return engine.score(request)


@dataclass(eq=False, slots=True)
class LaneJob:
    """A batch or a request to load weights, and the future of its result."""

    request: ScoreBatch | Refresh
    future: Future[Result] = field(default_factory=Future)


class JobQueue:
    """Unfinished jobs in order. A job stays until it is finished."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: deque[LaneJob] = deque()

    def add(self, job: LaneJob) -> None:
        """Append a job."""
        with self._lock:
            self._jobs.append(job)

    def head(self) -> LaneJob | None:
        """Return the oldest job, or None; jobs that their callers have cancelled are dropped."""
        with self._lock:
            while self._jobs:
                job = self._jobs[0]
                # From here on its caller cannot cancel it; a job that runs already is returned
                # again after a restart.
                if job.future.running() or job.future.set_running_or_notify_cancel():
                    return job
                self._jobs.popleft()
        return None

    def finish(self, job: LaneJob, outcome: Result | EcorlError) -> bool:
        """Set a job's result or error and remove it.

        Args:
            job: the oldest job.
            outcome: its result, or its error.

        Returns:
            False, with nothing done, when the job has been removed meanwhile.
        """
        with self._lock:
            # `take_all` may have failed it while the engine computed: its future is set already.
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
    """Fail jobs, each with a separate error: waiters would share, and extend, one traceback.

    Args:
        jobs: the jobs; those that their callers have cancelled are skipped.
        error: the error to copy, by class and text.
    """
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


class ThreadedEngine(EngineFacts):
    """Runs an engine on one worker thread of this process.

    A thread cannot be killed: after `cancel_and_restart` the engine is unavailable until the
    stuck call returns, and its result is discarded.

    Args:
        inner: the engine; this object closes it.
    """

    def __init__(self, inner: InferenceEngine) -> None:
        self.take_over(EngineFacts.of(inner))
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
    def available(self) -> bool:
        """Whether a batch submitted now would be computed."""
        return not (self._closed or self._is_stuck()) and self._thread.is_alive()

    def submit(self, batch: ScoreBatch) -> Future[Result]:
        """Queue a batch; never blocks. A failure is the future's `EngineError`."""
        if not self.available:
            state = "closed" if self._closed else "stuck in a call that was given up"
            return failed_future(EngineCrashed(f"engine {self.name} is {state}"))
        return self._queued(LaneJob(batch))

    def load_weights(self, checkpoint: Path) -> Future[Result]:
        """Load other weights once all earlier batches are done. See `AsyncEngine`."""
        if not self.available:
            return failed_future(EngineCrashed(f"engine {self.name} is not available"))
        return self._queued(LaneJob(Refresh(checkpoint)))

    def take_ends(self) -> tuple[EngineEnd, ...]:
        """Return nothing, because a thread does not end by itself. See `AsyncEngine`."""
        return ()

    def cancel_and_restart(self) -> None:
        """Fail all pending work with `EngineTimeout`. Does nothing when idle."""
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
            # With a time limit: a stuck call must not hold up the end of the run.
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
