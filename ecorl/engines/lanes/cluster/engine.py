"""`RayEngine`: an engine in a worker of a Ray cluster, behind the interface of all engines.

Ray keeps the queue: an actor takes its calls in their order. What Ray raises becomes an
`EngineError` here, and nothing behind this module knows of it.
"""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnschedulableError, RayActorError, RayError

from ecorl.engines.lanes.cluster.worker import (
    CheckpointManifest,
    WorkerAnswer,
    WorkerLife,
    files_of,
    manifest_of,
)
from ecorl.engines.lanes.threaded import (
    EngineEnd,
    EngineFacts,
    Fault,
    LaneJob,
    Result,
    error_of,
    fail,
    failed_future,
)
from ecorl.engines.protocol import LogprobResult, Refresh, ScoreBatch, ScoreResult
from ecorl.errors import EcorlError, EngineCrashed, EngineError, EngineTimeout
from ecorl.records import FaultKind, Stage

logger = logging.getLogger(__name__)

MAX_RESTARTS = 3
"""Ends of the worker without a good answer in between, before it is given up; invented, as for an
engine in a process of this machine."""

_PATIENCE_S = 60.0
"""How long a worker that ended may be out of reach before it is given up, s. Invented: Ray starts a
process within seconds, on a busy machine within a minute."""

_ASKED_EVERY_S = 0.5
"""How often a worker that is out of reach is asked again, s. Ray refuses calls at once between the
end of a worker and the moment in which it has noticed it."""

_MOVED = "its worker came back on another machine, whose devices the run does not know"

_DEAD = (ActorDiedError, ActorUnschedulableError)
"""What Ray raises for a worker that it will not start again, or has no machine for."""


class RayEngine(EngineFacts):
    """Sends batches to one accelerator worker; see `ecorl.engines.lanes.threaded.AsyncEngine`.

    The constructor returns when the worker has loaded the model.

    Args:
        worker: handle of the actor; this object ends it.
        stage: the stage that it serves.
        checkpoint: folder of the model on this machine.
        start_s: longest wait for the worker and its model, s.

    Raises:
        UserError: as raised in the worker, e.g. `CheckpointError`.
        EngineError: when the worker could not be started in time.
    """

    def __init__(self, worker: Any, stage: Stage, checkpoint: Path, start_s: float) -> None:
        self.stage = stage
        self._worker, self._start_s = worker, start_s
        self._manifest = manifest_of(checkpoint)
        self._lock = threading.Lock()
        self._jobs: list[LaneJob] = []
        self._ends: list[EngineEnd] = []
        self._n_calls = self._failures = 0
        self._ready = self._given_up = self._closed = self._expects_end = False
        try:
            self._bring(self._manifest)
            told: WorkerAnswer = ray.get(worker.load.remote(self._manifest, 0), timeout=start_s)
        except RayError as error:
            raise engine_error(error, "the accelerator worker did not start") from error
        if isinstance(told.outcome, Fault):
            raise error_of(told.outcome)
        self._life = told.life
        self._adopt(told)

    # ------------------------------------------------------------ AsyncEngine

    @property
    def available(self) -> bool:
        """Whether the worker is up; False while it restarts and after it was given up."""
        return self._ready and not self._closed

    def submit(self, batch: ScoreBatch) -> Future[Result]:
        """Send a batch; never blocks. A failure is the future's `EngineError`."""
        with self._lock:
            if not self.available:
                return failed_future(self._unavailable())
            job = LaneJob(batch)
            job.future.set_running_or_notify_cancel()
            self._jobs.append(job)
            call = self._n_calls
            self._n_calls += 1
        self._send(job, lambda: self._worker.answer.remote(batch, self._manifest, call))
        return job.future

    def load_weights(self, checkpoint: Path) -> Future[Result]:
        """Load other weights once all earlier batches are done. See `AsyncEngine`."""
        with self._lock:
            if not self.available:
                return failed_future(self._unavailable())
            job = LaneJob(Refresh(checkpoint))
            job.future.set_running_or_notify_cancel()
            self._jobs.append(job)
        # In a thread: hashing and sending a large checkpoint takes its time.
        threading.Thread(
            target=self._refresh, args=(job, checkpoint), name="ecorl-weights", daemon=True
        ).start()
        return job.future

    def cancel_and_restart(self) -> None:
        """End the worker over a hung call; Ray starts another. Does nothing when idle."""
        with self._lock:
            jobs, self._jobs = self._jobs, []
            if not jobs:
                return
            self._ready, self._expects_end = False, True
        ray.kill(self._worker, no_restart=False)
        fail(jobs, EngineTimeout(f"engine {self.name} gave no answer in time"))
        self._await_restart()

    def take_ends(self) -> tuple[EngineEnd, ...]:
        """Return the ends of the worker since the last call that no batch has reported."""
        with self._lock:
            ends, self._ends = tuple(self._ends), []
        return ends

    def close(self) -> None:
        """End the worker; pending work fails. May be called more than once."""
        with self._lock:
            jobs, self._jobs = self._jobs, []
            was_closed, self._closed = self._closed, True
        fail(jobs, EngineCrashed(f"engine {self.name} was closed"))
        if not was_closed and ray.is_initialized():
            # Ray ends an actor by SIGKILL, so that nothing in it runs at its exit.
            try:
                ray.get(self._worker.close.remote(), timeout=5.0)
            except RayError as error:
                logger.debug("the worker could not close its engine: %s", error)
            ray.kill(self._worker)

    # ------------------------------------------------------------ inside

    def _refresh(self, job: LaneJob, checkpoint: Path) -> None:
        try:
            manifest = manifest_of(checkpoint)
            self._bring(manifest)
        except (RayError, EcorlError) as error:
            self._finish(job, engine_error(error, "the weights did not reach the worker"))
            return
        with self._lock:
            self._manifest, call = manifest, self._n_calls
        self._send(job, lambda: self._worker.refresh.remote(manifest, call))

    def _bring(self, manifest: CheckpointManifest) -> None:
        """Bring a checkpoint to the worker's machine, unless it is there."""
        if ray.get(self._worker.has.remote(manifest), timeout=self._start_s):
            return
        # Through the object store, once: workers on one machine share the copy.
        files = ray.put(dict(files_of(manifest)))
        fault = ray.get(self._worker.receive.remote(manifest, files), timeout=self._start_s)
        if fault is not None:
            raise error_of(fault)

    def _adopt(self, told: WorkerAnswer) -> None:
        """Take over what a worker that has loaded its engine tells of it."""
        if isinstance(told.outcome, EngineFacts):
            # The stage is the one that was asked for: answers are checked against it.
            self.take_over(replace(told.outcome, stage=self.stage))
        self._life, self._ready = told.life, True

    def _send(self, job: LaneJob, call: Any) -> None:
        """Make a call to the worker; its answer or error sets the job's future."""
        try:
            call().future().add_done_callback(lambda done: self._on_answer(job, done))
        except RayError as error:
            self._on_error(job, error)

    def _on_answer(self, job: LaneJob, done: Future[Any]) -> None:
        """Take over what the worker answered; runs in a thread of Ray."""
        error = done.exception()
        if error is not None:
            self._on_error(job, error)
            return
        told: WorkerAnswer = done.result()
        if not self._meet(told.life):
            self._finish(job, EngineCrashed(_MOVED))
            return
        outcome = told.outcome
        if isinstance(outcome, ScoreResult | LogprobResult):
            self._failures = 0
            own = outcome.report.span_s or told.span_s
            report = replace(outcome.report, span_s=own)
            outcome = replace(outcome, report=report)
        if isinstance(outcome, EngineFacts):
            outcome = Fault(FaultKind.ENGINE_CRASHED, "the worker gave no answer to a batch", {})
        self._finish(job, error_of(outcome) if isinstance(outcome, Fault) else outcome)

    def _meet(self, life: WorkerLife) -> bool:
        """Note the life in which the worker answers; whether its answer can be used."""
        with self._lock:
            before, self._life = self._life, life
            if life == before:
                return True
            if life.machine != before.machine:
                self._life = before
                self._give_up(_MOVED)
                return False
            if not self._expects_end:
                why = f"its worker (process {before.pid}) ended while it was idle"
                self._ends.append(EngineEnd(FaultKind.ENGINE_CRASHED, why))
            self._expects_end = False
        return True

    def _give_up(self, why: str) -> None:
        """Ask the worker nothing any more; the caller holds the lock."""
        if not self._given_up:
            logger.error("engine %s is given up: %s", self.name, why)
            self._ends.append(EngineEnd(FaultKind.ENGINE_GIVEN_UP, why))
        self._given_up, self._ready = True, False

    def _on_error(self, job: LaneJob, error: BaseException) -> None:
        """The worker has ended, or is out of reach: fail the job, and await its restart."""
        self._finish(job, engine_error(error, f"the worker of engine {self.name} ended"))
        if isinstance(error, RayActorError | ActorUnschedulableError):
            with self._lock:
                first, self._ready, self._expects_end = self._ready, False, True
            if first:
                self._await_restart(dead=isinstance(error, _DEAD))

    def _finish(self, job: LaneJob, outcome: Result | EcorlError) -> None:
        with self._lock:
            if job not in self._jobs:  # given up meanwhile
                return
            self._jobs.remove(job)
        if isinstance(outcome, EcorlError):
            fail([job], outcome if isinstance(outcome, EngineError) else _crashed(outcome))
        else:
            job.future.set_result(outcome)

    def _await_restart(self, *, dead: bool = False) -> None:
        """Take the worker back once Ray has started it anew and it has loaded its model."""
        with self._lock:
            self._failures += 1
            if dead or self._failures > MAX_RESTARTS:
                self._give_up("its worker ended and does not come back")
        self._ask_to_load(time.monotonic() + _PATIENCE_S)

    def _ask_to_load(self, limit_s: float) -> None:
        """Ask the worker to load its model, now and then until it is back or the time is over."""
        with self._lock:
            if self._closed or self._given_up:
                return
        try:
            ref = self._worker.load.remote(self._manifest, self._n_calls)
            ref.future().add_done_callback(lambda done: self._on_restart(done, limit_s))
        except RayError as error:
            self._ask_later(error, limit_s)

    def _on_restart(self, done: Future[Any], limit_s: float) -> None:
        error = done.exception()
        if error is not None:
            self._ask_later(error, limit_s)
            return
        told: WorkerAnswer = done.result()
        if not isinstance(told.outcome, EngineFacts):
            self._await_restart()  # it is there, and cannot load its model
        elif self._meet(told.life):
            with self._lock:
                self._adopt(told)

    def _ask_later(self, error: BaseException, limit_s: float) -> None:
        if isinstance(error, _DEAD) or time.monotonic() > limit_s:
            with self._lock:
                self._give_up("its worker ended and does not come back")
            return
        later = threading.Timer(_ASKED_EVERY_S, self._ask_to_load, (limit_s,))
        later.daemon = True
        later.start()

    def _unavailable(self) -> EngineCrashed:
        state = "given up" if self._given_up else "closed" if self._closed else "restarting"
        return EngineCrashed(f"engine {self.name} is {state}")


def engine_error(error: BaseException, what: str) -> EcorlError:
    """An error of Ray as one of ecorl's; errors of ecorl stay as they are.

    Args:
        error: what was raised.
        what: what failed, in words.
    """
    if isinstance(error, EcorlError):
        return error
    if isinstance(error, TimeoutError):  # also Ray's GetTimeoutError
        return EngineTimeout(f"{what} in time")
    lines = str(error).strip().splitlines()
    return EngineCrashed(f"{what} ({type(error).__name__}: {lines[0] if lines else 'no reason'})")


def _crashed(error: EcorlError) -> EngineError:
    return EngineCrashed(f"{type(error).__name__}: {error}")
