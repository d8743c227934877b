"""Runs a tool that takes hours, and ends all its processes when the build ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import IO

from ecorl.child_process import end_group
from ecorl.engines.fpga.bitstream import tool_main

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PATIENCE_S = tool_main.PATIENCE_S + 5.0  # it ends its session by itself within the first part


class ToolStopped(Exception):
    """A signal asked this process to end while a tool ran.

    Attributes:
        number: the signal.
    """

    def __init__(self, number: signal.Signals) -> None:
        self.number = number
        super().__init__(f"stopped by {number.name}")


def run_tool(command: Sequence[str], out: IO[str], folder: Path) -> int:
    """Run a tool with its child processes in a new session, and wait for its end.

    The whole session is ended when this process gets SIGINT, SIGTERM or SIGHUP, unless the signal
    is ignored (as under ``nohup``), and when this process is killed.

    Args:
        command: program and arguments.
        out: file for its output.
        folder: its working directory.

    Returns:
        The exit code as a shell returns it; 127 when it cannot be run, with a line in `out`.

    Raises:
        ToolStopped: SIGTERM or SIGHUP came; the tool has ended.
        KeyboardInterrupt: SIGINT came; the tool has ended.
        OSError: Python cannot be run.
    """
    watched = [sys.executable, "-I", tool_main.__file__, str(os.getpid()), *command]
    with _signals_deferred() as deferred:
        process = subprocess.Popen(
            watched, cwd=folder, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            deferred.arm()
            code = process.wait()
            deferred.is_armed = False
        except BaseException:
            end_group(process, _PATIENCE_S)
            raise
        if code < 0:  # the watching process was killed and did not end the session
            end_group(process, _PATIENCE_S)
    return code if code >= 0 else 128 - code


class _DeferredSignal:
    """Stores the first signal, and raises it once, where that is safe.

    Attributes:
        is_armed: whether a signal may raise. Before, a process may have been started whose id is
            not known yet; afterwards its end is under way.
        received: the first signal, or None.
    """

    def __init__(self) -> None:
        self.is_armed = False
        self.received: signal.Signals | None = None

    def arm(self) -> None:
        """Let signals raise from now on; raise at once if one was received before."""
        self.is_armed = True
        self.check()

    def check(self) -> None:
        """Raise the signal that was received, if any."""
        if self.received is not None:
            self.is_armed = False
            if self.received is signal.SIGINT:
                raise KeyboardInterrupt
            raise ToolStopped(self.received)

    def handle(self, number: int, _frame: FrameType | None) -> None:
        """The signal handler."""
        self.received = self.received or signal.Signals(number)
        if self.is_armed:
            self.check()


@contextlib.contextmanager
def _signals_deferred() -> Iterator[_DeferredSignal]:
    """Handle the signals within the block, then raise one that was received and not raised yet."""
    deferred = _DeferredSignal()
    if threading.current_thread() is not threading.main_thread():
        yield deferred  # Python handles signals in the main thread only
        return
    handlers = {which: signal.getsignal(which) for which in _SIGNALS}
    # None: the handler is not Python's and could not be restored; ignored signals stay ignored.
    handlers = {which: old for which, old in handlers.items() if old not in (signal.SIG_IGN, None)}
    try:
        for which in handlers:
            signal.signal(which, deferred.handle)
        yield deferred
    finally:
        for which, old in handlers.items():
            signal.signal(which, old)
    deferred.check()
