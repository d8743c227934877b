"""Run a command in a session of its own, and leave none of its processes behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO

import psutil

GRACE_S = 10.0
"""How long processes may take to end after SIGTERM, s. Invented: a training writes its state."""

_POLL_S = 0.1
_KILL_S = 5.0
"""How long processes are looked for after SIGKILL, s; the kernel may be slow to end them."""


def run_to_end(
    command: Sequence[str],
    *,
    cwd: Path,
    limit_s: float | None = None,
    grace_s: float = GRACE_S,
    env: Mapping[str, str] | None = None,
    stderr: IO[bytes] | None = None,
) -> int | None:
    """Run a command, and end everything that it started when it ends or is cut off.

    What the command started ends with it in every case: at its own end, at the limit, and when
    this process gets Ctrl-C or raises otherwise meanwhile. SIGTERM comes first, SIGKILL after the
    grace time.

    Args:
        command: program and arguments.
        cwd: its working folder.
        limit_s: longest time, s; None for no limit.
        grace_s: time between SIGTERM and SIGKILL, s.
        env: its environment; None: that of this process.
        stderr: file for what it says on stderr; None: where this process says it.

    Returns:
        The exit code; None when the command was cut off at the limit.

    Raises:
        OSError: when the command cannot be started.
    """
    deadline_s = None if limit_s is None else time.monotonic() + limit_s
    process = subprocess.Popen(command, cwd=cwd, env=env, stderr=stderr, start_new_session=True)
    try:
        # It is not reaped: until then no other process can get its id, which is the session's too.
        while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if deadline_s is not None and time.monotonic() >= deadline_s:
                return None
            time.sleep(_POLL_S)
    finally:
        _end_all(process, grace_s)
    return process.returncode


@contextlib.contextmanager
def sigterm_as_exit() -> Iterator[None]:
    """Let SIGTERM raise `SystemExit` within the block, so that ``finally`` clauses are run."""

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end_all(process: subprocess.Popen[bytes], grace_s: float) -> None:
    """End a session leader and all that it started, then reap it."""
    found: dict[int, psutil.Process] = {}
    try:
        _signal_until_gone(process, found, signal.SIGTERM, grace_s)
    finally:  # also when a second Ctrl-C cuts the grace time short
        _signal_until_gone(process, found, signal.SIGKILL, _KILL_S)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_KILL_S)


def _signal_until_gone(
    process: subprocess.Popen[bytes],
    found: dict[int, psutil.Process],
    number: signal.Signals,
    limit_s: float,
) -> None:
    """Signal each live process of a session once, until none is left or the time is up.

    Args:
        process: the leader of the session, not reaped yet.
        found: processes by id; those that are started meanwhile are added.
        number: the signal.
        limit_s: longest wait, s.
    """
    told: set[int] = set()
    deadline_s = time.monotonic() + limit_s
    while True:
        # Those that were found before count on: a process in a session of its own has no tie to
        # the leader any more once its parent is gone.
        found |= {one.pid: one for one in _members(process)}
        alive = [one for one in found.values() if _is_alive(one)]
        for one in alive:
            if one.pid not in told:
                # psutil compares the start time: an id that was given anew gets no signal.
                with contextlib.suppress(psutil.Error):
                    one.send_signal(number)
        told |= {one.pid for one in alive}
        if not alive or time.monotonic() >= deadline_s:
            return
        time.sleep(_POLL_S)


def _members(process: subprocess.Popen[bytes]) -> Iterator[psutil.Process]:
    """Members of a leader's session, and their descendants in sessions of their own."""
    for one in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, PermissionError, psutil.Error):
            if os.getsid(one.pid) == process.pid:
                yield from (one, *one.children(recursive=True))


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
