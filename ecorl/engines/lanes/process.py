"""Starts one engine process, exchanges messages with it and reaps it."""

from __future__ import annotations

import pickle
import socket
import sys
from multiprocessing.connection import Connection

from ecorl.child_process import start_module, wait_or_kill
from ecorl.engines.lanes.messages import EngineSpec, Fault, Ready, StartEngine, error_of
from ecorl.engines.lanes.threaded import Result
from ecorl.engines.protocol import (
    LogprobResult,
    Refresh,
    Refreshed,
    ScoreBatch,
    ScoreResult,
)
from ecorl.errors import EcorlError, EngineCrashed, EngineTimeout

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
        self.link: Connection = Connection(ours.detach())

    @property
    def pid(self) -> int:
        """Process id."""
        return self._popen.pid

    def start(self, spec: EngineSpec, calls_done: int, start_s: float) -> Ready:
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
            self.link.send(StartEngine(spec, calls_done, tuple(sys.path)))
            if not self.link.poll(start_s):
                raise EngineTimeout(f"the engine process was not ready after {start_s:g} s")
            reply = self.link.recv()
        except _LINK_ERRORS as error:
            raise EngineCrashed(f"the engine process {self.fate()} while starting") from error
        if isinstance(reply, Fault):
            raise error_of(reply)
        if not isinstance(reply, Ready):
            raise EngineCrashed(f"the engine process answered {type(reply).__name__}, not Ready")
        return reply

    def exchange(self, request: ScoreBatch | Refresh) -> Result | EcorlError:
        """Make one call and return its result, or the error that the engine raised.

        Raises:
            EngineCrashed: when the process is gone.
        """
        try:
            self.link.send(request)
            reply = self.link.recv()
        except _LINK_ERRORS as error:
            raise EngineCrashed(f"the engine process {self.fate()} during a call") from error
        if isinstance(reply, Fault):
            return error_of(reply)
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
