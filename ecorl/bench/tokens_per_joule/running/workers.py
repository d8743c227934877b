"""The benchmark's side of the process that runs jobs."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from ecorl.child_process import start_module, wait_or_kill
from ecorl.config import Config, config_toml
from ecorl.errors import EcorlError, RunError, UserError

JobKind = Literal["preload", "check", "task", "processors", "run", "supervised"]


@dataclass(frozen=True, slots=True)
class WorkerJob:
    """Something to do with a config.

    Attributes:
        kind: ``preload``: import what all others need, in the process itself, so that those that
            are forked from it need not. The others are done in a process of their own:
            ``check`` a config, make the files of its ``task``, tell on which ``processors``
            training computes and in which formats, ``run`` it, or train ``supervised``.
        adapter: name of the framework's adapter.
        config: the config as TOML; not used to preload.
        folder: of the run or of the files.
        log: file that takes all that is printed; empty: nothing is kept.
    """

    kind: JobKind
    adapter: str
    config: str = ""
    folder: str = ""
    log: str = ""


@dataclass(frozen=True, slots=True)
class JobAnswer:
    """What came of a job.

    Attributes:
        value: what it gave, plain data.
        error: the class of the error that ended it; empty where none did.
        text: what the error says, one line; of a process that died, how.
        is_users: whether the error is a mistake of the user's.
    """

    value: Any = None
    error: str = ""
    text: str = ""
    is_users: bool = False


STOP = "stop"
"""What a benchmark sends in place of a job: the job under way is to end in good order."""


def encoded(message: WorkerJob | JobAnswer | str) -> bytes:
    """Write a message as a line."""
    plain = message if isinstance(message, str) else asdict(message)
    return json.dumps(plain).encode() + b"\n"


def decoded_job(line: bytes) -> WorkerJob | str:
    """Read what a benchmark sent.

    Args:
        line: of JSON.
    """
    plain = json.loads(line)
    return plain if isinstance(plain, str) else WorkerJob(**plain)


def decoded_answer(line: bytes) -> JobAnswer:
    """Read what a job's process sent.

    Args:
        line: of JSON.
    """
    return JobAnswer(**json.loads(line))


_MODULE = "ecorl.bench.tokens_per_joule.running.worker_main"
_PATIENCE_S = 60.0
"""How long a job that is asked to stop may take, s. Invented: training ends its step and saves."""
_POLL_S = 0.2


class JobWorker:
    """Runs jobs one after the other, each in a process of its own.

    Args:
        adapter: name of the framework's adapter.
        is_forked: whether jobs are forked from a process that has imported the framework; not
            where they use a GPU, which a forked process cannot.
        log: file for what a job prints that has none of its own.
    """

    def __init__(self, adapter: str, *, is_forked: bool, log: Path) -> None:
        self._adapter, self._is_forked, self._log = adapter, is_forked, log
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None

    def __enter__(self) -> JobWorker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def call(self, kind: JobKind, config: Config, folder: Path) -> Any:
        """Do a job and return what it gives.

        Args:
            kind: which.
            config: for it.
            folder: of the run or the files.

        Raises:
            UserError: for a mistake of the user's that it met.
            RunError: when it failed otherwise, or its process died.
            KeyboardInterrupt: when Ctrl-C came; the job was then ended in good order.
        """
        answer = self.ask(kind, config, folder)
        if answer.error:
            raise _as_error(answer)
        return answer.value

    def ask(
        self, kind: JobKind, config: Config, folder: Path, log: Path | None = None
    ) -> JobAnswer:
        """Do a job and return its answer, whatever came of it.

        Args:
            kind: which.
            config: for it.
            folder: of the run or the files.
            log: file for what it prints; None: that of the worker.
        """
        connection = self._connected()
        text = config_toml(config.anchored())
        job = WorkerJob(kind, self._adapter, text, str(folder.absolute()), str(log or self._log))
        try:
            connection.sendall(encoded(job))
            return self._answer(connection)
        except OSError as error:  # it died between two jobs; the next one gets a new process
            self.close()
            return JobAnswer(None, "JobDied", f"the process that starts the runs is gone ({error})")
        except KeyboardInterrupt:
            with contextlib.suppress(OSError):
                connection.sendall(encoded(STOP))
                self._answer(connection, _PATIENCE_S)
            raise

    def close(self) -> None:
        """End the process and the job under way, if any; safe to call twice."""
        process, connection = self._process, self._connection
        self._process = self._connection = None
        if connection is not None:
            connection.close()
        if process is not None:
            wait_or_kill(process, _PATIENCE_S)

    def _connected(self) -> socket.socket:
        if self._connection is not None:
            return self._connection
        own, theirs = socket.socketpair()
        with theirs, self._log.open("ab") as log:
            # Ctrl-C on the terminal is for the benchmark, which then asks the job to end.
            self._process = start_module(
                _MODULE, theirs.fileno(), _variables(), output=log, own_session=True
            )
        self._connection = own
        if self._is_forked:
            own.sendall(encoded(WorkerJob("preload", self._adapter)))
            answer = self._answer(own)
            if answer.error:
                raise _as_error(answer)
        return own

    def _answer(self, connection: socket.socket, patience_s: float | None = None) -> JobAnswer:
        until_s = None if patience_s is None else time.monotonic() + patience_s
        told = b""
        while not told.endswith(b"\n"):
            readable, _, _ = select.select([connection], [], [], _POLL_S)
            if readable:
                chunk = connection.recv(65536)
                if not chunk:
                    self.close()  # the next job gets a new one
                    return JobAnswer(None, "JobDied", "the process that starts the runs has died")
                told += chunk
            elif until_s is not None and time.monotonic() > until_s:
                self.close()
                break
        return (
            decoded_answer(told) if told else JobAnswer(None, "JobDied", "it did not end in time")
        )


_USUAL = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
"""What `ecorl run` sets where the environment does not. With threads of its own a process could not
be forked either."""


def _variables() -> dict[str, str]:
    return {name: os.environ.get(name, value) for name, value in _USUAL.items()}


def _as_error(answer: JobAnswer) -> EcorlError:
    if answer.is_users:
        return UserError(answer.text)
    return RunError(f"{answer.error}: {answer.text}")
