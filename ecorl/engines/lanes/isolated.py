"""An engine in a separate process, so that its crashes and hangs cannot hurt the training run.

One thread per engine starts the process, exchanges messages with it and reaps it. It must be one
and the same thread: the process asks the kernel to die with its parent (PR_SET_PDEATHSIG), and for
the kernel the parent is the thread that started it.
"""

from __future__ import annotations

import atexit
import logging
import os
import pickle
import socket
import sys
import threading
from concurrent.futures import Future
from dataclasses import dataclass, replace
from enum import StrEnum
from multiprocessing.connection import Connection, wait
from pathlib import Path

from ecorl.child_process import start_module, wait_or_kill
from ecorl.engines.lanes import threaded
from ecorl.engines.protocol import LogprobResult, Refresh, Refreshed, ScoreBatch, ScoreResult
from ecorl.errors import EcorlError, EngineCrashed, EngineTimeout, UserError
from ecorl.records import FaultKind

_LINK_ERRORS = (EOFError, OSError, pickle.UnpicklingError)
"""Errors of a connection whose other end dies, between two messages or within one."""


class EngineProcess:
    """One process with one engine. All methods belong to one thread, except `kill`.

    Args:
        threads: number of threads of numeric libraries in the process.

    Raises:
        EngineCrashed: when the system refuses another process.
    """

    def __init__(self, threads: int) -> None:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._popen = start_module(
                    "ecorl.engines.host_main", theirs.fileno(), _variables(threads)
                )
        except OSError as error:
            ours.close()
            raise EngineCrashed(f"the engine process could not be started: {error}") from error
        self.link, self.pid = Connection(ours.detach()), self._popen.pid

    def start(
        self, spec: threaded.EngineSpec, calls_done: int, start_s: float
    ) -> threaded.EngineFacts:
        """Send the spec and wait until the engine is loaded.

        Args:
            spec: the engine to load.
            calls_done: calls made to earlier processes of this engine.
            start_s: limit, s.

        Returns:
            The attributes of the loaded engine.

        Raises:
            UserError: as raised where the engine was made, e.g. `CheckpointError`.
            EngineTimeout: when it is not loaded after `start_s`.
            EngineCrashed: when the process ended.
        """
        try:
            self.link.send(threaded.StartEngine(spec, calls_done, tuple(sys.path)))
            if not self.link.poll(start_s):
                raise EngineTimeout(f"the engine process was not ready after {start_s:g} s")
            reply = self.link.recv()
        except _LINK_ERRORS as error:
            raise EngineCrashed(f"the engine process {self.fate()} while starting") from error
        if isinstance(reply, threaded.Fault):
            raise threaded.error_of(reply)
        if not isinstance(reply, threaded.EngineFacts):
            raise EngineCrashed(
                f"the engine process answered {type(reply).__name__}, not an engine's facts"
            )
        return reply

    def exchange(self, request: ScoreBatch | Refresh) -> threaded.Result | EcorlError:
        """Make one call and return its result, or the error that the engine raised.

        Raises:
            EngineCrashed: when the process is gone.
        """
        try:
            self.link.send(request)
            reply = self.link.recv()
        except _LINK_ERRORS as error:
            raise EngineCrashed(f"the engine process {self.fate()} during a call") from error
        if isinstance(reply, threaded.Fault):
            return threaded.error_of(reply)
        if isinstance(reply, ScoreResult | LogprobResult | Refreshed):
            return reply
        return EngineCrashed(f"the engine process answered {type(reply).__name__}")

    def fate(self) -> str:
        """Reap a process whose link broke; returns how it ended, in words."""
        if not wait_or_kill(self._popen, 1.0):
            return "closed its link and was killed"
        code = self._popen.returncode
        return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"

    def kill(self) -> None:
        """Send SIGKILL; does nothing when the process has been reaped already."""
        self._popen.kill()

    def stop(self, close_s: float) -> None:
        """End the process by closing the link, and by SIGKILL after `close_s` seconds."""
        self.link.close()
        wait_or_kill(self._popen, close_s)


def _variables(threads: int) -> dict[str, str]:
    """The environment variables of an engine process."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    # Engines read local folders only; without HF_HUB_OFFLINE a loader may wait for a network.
    offline = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return dict.fromkeys(names, str(threads)) | offline


logger = logging.getLogger(__name__)


class _Life(StrEnum):
    """State of the engine: starting -> ready -> starting ... -> failed | closed."""

    STARTING = "starting"  # the process loads the engine, or waits before it is started again
    READY = "ready"  # batches are taken
    FAILED = "failed"  # given up: no process is started any more
    CLOSED = "closed"  # ended by its owner


@dataclass(frozen=True, slots=True)
class HostLimits:
    """Time limits and restarts of an engine process. All values are invented, and generous.

    Attributes:
        start_s: limit for loading the engine, with a first build of the kernels, s.
        max_restarts: restarts without a good result in between, before the engine is given up.
        backoff_s: pause before the first restart, s; doubled for each further one.
        close_s: limit for an orderly end, s; after it the process is killed.
    """

    start_s: float = 600.0
    max_restarts: int = 3
    backoff_s: float = 0.5
    close_s: float = 2.0


class IsolatedEngine(threaded.EngineFacts):
    """Runs any engine in a separate process, behind an asynchronous interface.

    The constructor returns when the engine is loaded.

    Args:
        spec: the engine to load.
        limits: time limits and restarts of the process.

    Raises:
        UserError: as raised in the process, e.g. `CheckpointError` or `MissingToolError`.
        EngineError: when the process ended or was not ready in time.
    """

    def __init__(self, spec: threaded.EngineSpec, limits: HostLimits | None = None) -> None:
        self.stage = spec.stage
        self._spec, self._limits = spec, limits or HostLimits()
        self._owner_pid = os.getpid()
        self._jobs = threaded.JobQueue()
        self._n_calls = 0
        self._process: EngineProcess | None = None
        # One condition guards the state.
        self._state: _Life = _Life.STARTING
        self._reason: EcorlError | None = None
        self._ends: list[threaded.EngineEnd] = []
        self._cut_off = False
        self._changed = threading.Condition()
        # A pipe and not an event: the lane's thread waits for a job and for the end of the process
        # in one call, and the latter is seen on a file descriptor only.
        self._bell_out, self._bell_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._thread = threading.Thread(
            target=self._run, name=f"ecorl-{spec.name}-{spec.stage}", daemon=True
        )
        self._thread.start()
        atexit.register(self.close)
        try:
            with self._changed:
                self._changed.wait_for(lambda: self._state is not _Life.STARTING)
        except BaseException:
            self.close()
            raise
        if self._state is _Life.FAILED:
            self.close()
            raise self._reason or EngineCrashed("the engine did not start")

    # ------------------------------------------------------------ what the dispatcher sees

    @property
    def available(self) -> bool:
        """Whether the process is up; False while it restarts and after it was given up."""
        return self._state is _Life.READY and self._in_owner()

    @property
    def pid(self) -> int | None:
        """Id of the engine process, or None when there is none."""
        process = self._process
        return process.pid if process else None

    def submit(self, batch: ScoreBatch) -> Future[threaded.Result]:
        """Queue a batch; never blocks.

        A failure is the future's `EcorlError`. While the process restarts the future fails at
        once, so that the caller loses no time before it uses the exact path.
        """
        with self._changed:
            if self.available:
                return self._queued(threaded.LaneJob(batch))
        return threaded.failed_future(self._unavailable())

    def load_weights(self, checkpoint: Path) -> Future[threaded.Result]:
        """Load other weights once all earlier batches are done. See `AsyncEngine`.

        A process that is started later loads them at its start.
        """
        with self._changed:
            if self.available:
                self._spec = replace(self._spec, checkpoint=checkpoint)
                return self._queued(threaded.LaneJob(Refresh(checkpoint)))
        return threaded.failed_future(self._unavailable())

    def cancel_and_restart(self) -> None:
        """Kill the process over a hung call and start another in the background.

        All pending futures fail with `EngineTimeout`. Nothing happens when nothing is pending.
        """
        with self._changed:
            jobs = self._jobs.take_all() if self.available else []
            if jobs and self._process:
                self._cut_off = True
                self._enter(_Life.STARTING)
                self._process.kill()
        threaded.fail(jobs, EngineTimeout(f"engine {self._spec.name} gave no answer in time"))

    def take_ends(self) -> tuple[threaded.EngineEnd, ...]:
        """Return the ends of the process since the last call that no batch has reported."""
        with self._changed:
            ends, self._ends = tuple(self._ends), []
        return ends

    def close(self) -> None:
        """End the process; pending work fails. May be called more than once."""
        if not self._in_owner():
            return  # a forked copy of the trainer must not end the original's engine
        with self._changed:
            jobs = self._jobs.take_all()
            # An idle process is asked to end; one that computes or loads is killed at once.
            if self._process and (jobs or self._state is _Life.STARTING):
                self._process.kill()
            if self._state is not _Life.FAILED:
                self._enter(_Life.CLOSED)
            self._ring()
        threaded.fail(jobs, EngineCrashed(f"engine {self._spec.name} was closed"))
        if threading.current_thread() is not self._thread:
            self._thread.join(self._limits.close_s + 5.0)
        atexit.unregister(self.close)

    # ------------------------------------------------------------ the lane's thread

    def _run(self) -> None:
        failures = 0
        try:
            while self._state not in (_Life.CLOSED, _Life.FAILED):
                good_answers, reason = self._live_once()
                # An engine that has computed a batch works in principle: it gets all restarts anew.
                failures = 1 if good_answers else failures + 1
                self._after_end(reason, failures)
        finally:
            # Whatever ended this thread, no caller may be left waiting.
            with self._changed:
                if self._state is not _Life.CLOSED:
                    self._enter(_Life.FAILED)
                os.close(self._bell_in)
                os.close(self._bell_out)
                self._bell_in = -1
                jobs = self._jobs.take_all()
            threaded.fail(jobs, EngineCrashed(f"engine {self._spec.name} has stopped"))

    def _live_once(self) -> tuple[int, EcorlError]:
        """Run one process from start to end; returns its number of good results and its end."""
        good_answers = 0
        try:
            process = EngineProcess(self._spec.threads)
        except EngineCrashed as error:
            return 0, error
        try:
            with self._changed:
                self._process = process
                if self._state is _Life.CLOSED:  # `close` came before it could see this process
                    return 0, EngineCrashed("closed")
            self._adopt(process.start(self._spec, self._n_calls, self._limits.start_s))
            while (job := self._next_job(process)) is not None:
                self._n_calls += isinstance(job.request, ScoreBatch)
                outcome = process.exchange(job.request)
                good_answers += not isinstance(outcome, EcorlError)
                self._jobs.finish(job, outcome)
            return good_answers, EngineCrashed("the engine process ended while idle")
        except EcorlError as error:
            return good_answers, error
        finally:
            with self._changed:
                self._process = None
            process.stop(self._limits.close_s if self._state is _Life.CLOSED else 0.0)

    def _adopt(self, ready: threaded.EngineFacts) -> None:
        # The stage is the one that was asked for: answers are checked against it.
        self.take_over(replace(ready, stage=self.stage))
        with self._changed:
            if self._state is _Life.STARTING:
                self._enter(_Life.READY)

    def _next_job(self, process: EngineProcess) -> threaded.LaneJob | None:
        """Wait for a job; None when the engine is closed or the process has ended."""
        while self._state is _Life.READY:
            job = self._jobs.head()
            if job is not None:
                return job
            if process.link in wait([process.link, self._bell_out]):
                return None  # an idle process sends nothing: the link is readable at its end only
            os.read(self._bell_out, 4096)
        return None

    def _after_end(self, reason: EcorlError, failures: int) -> None:
        """Fail what is pending, then pause before the restart, or give the engine up."""
        with self._changed:
            if self._state is _Life.CLOSED:
                return
            first_start = not hasattr(self, "name")
            # A mistake of the user (a damaged checkpoint) stays one at the next start.
            if first_start or isinstance(reason, UserError) or failures > self._limits.max_restarts:
                self._reason = reason
                self._enter(_Life.FAILED)
            else:
                self._enter(_Life.STARTING)
            jobs = self._jobs.take_all()
            failed = self._state is _Life.FAILED
            # Elsewhere the failed jobs, the caller's time-out or the constructor report the end.
            if not (jobs or self._cut_off or first_start):
                self._ends.append(threaded.EngineEnd(FaultKind.ENGINE_CRASHED, str(reason)))
            if failed and not first_start:
                self._ends.append(threaded.EngineEnd(FaultKind.ENGINE_GIVEN_UP, str(reason)))
            self._cut_off = False
        threaded.fail(jobs, EngineCrashed(str(reason)))
        if failed:
            if not first_start:  # at the first start the constructor raises it
                logger.error("engine %s is given up: %s", self._spec.name, reason)
            return
        pause_s = self._limits.backoff_s * 2.0 ** (failures - 1)
        logger.warning(
            "engine %s: %s; restart %d in %.2g s", self._spec.name, reason, failures, pause_s
        )
        with self._changed:
            self._changed.wait_for(lambda: self._state is _Life.CLOSED, pause_s)

    def _queued(self, job: threaded.LaneJob) -> Future[threaded.Result]:
        """Append a job; the caller holds the condition."""
        self._jobs.add(job)
        self._ring()
        return job.future

    def _enter(self, state: _Life) -> None:
        """Change state; the caller holds the condition."""
        self._state = state
        self._changed.notify_all()

    def _ring(self) -> None:
        """Wake the lane's thread; the caller holds the condition."""
        if self._bell_in >= 0:
            try:
                os.write(self._bell_in, b"\0")
            except BlockingIOError:
                logger.debug("the bell is ringing already")

    def _in_owner(self) -> bool:
        return os.getpid() == self._owner_pid

    def _unavailable(self) -> EngineCrashed:
        why = f": {self._reason}" if self._reason else ""
        state = "restarting" if self._state is _Life.STARTING else self._state
        return EngineCrashed(f"engine {self._spec.name} is {state}{why}")
