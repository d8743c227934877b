"""Run a tool that takes hours, so that none of it outlives the build that started it."""

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
    """Run a tool and what it starts in a session of its own, and wait for its end.

    All of it is ended when this process gets SIGINT, SIGTERM or SIGHUP, unless the signal is
    ignored (as under ``nohup``), and when this process is killed.

    Args:
        command: program and arguments.
        out: file for all that it prints.
        folder: where it runs.

    Returns:
        The exit code as a shell has it; 127 when it cannot be run, with a line in `out`.

    Raises:
        ToolStopped: SIGTERM or SIGHUP came; the tool has ended.
        KeyboardInterrupt: SIGINT came; the tool has ended.
        OSError: Python cannot be run.
    """
    watched = [sys.executable, "-I", tool_main.__file__, str(os.getpid()), *command]
    with _listening() as ear:
        process = subprocess.Popen(
            watched, cwd=folder, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            ear.arm()
            code = process.wait()
            ear.is_armed = False
        except BaseException:
            end_group(process, _PATIENCE_S)
            raise
        if code < 0:  # who would have ended the session is gone
            end_group(process, _PATIENCE_S)
    return code if code >= 0 else 128 - code


class _Ear:
    """Notes the first signal, and raises it once, where that is safe.

    Attributes:
        is_armed: whether a signal may raise. Before that a process may have been started whose id
            is not known yet; afterwards its end is under way.
    """

    def __init__(self) -> None:
        self.is_armed = False
        self.heard: signal.Signals | None = None

    def arm(self) -> None:
        """From now on a signal raises; at once where one came before."""
        self.is_armed = True
        self.check()

    def check(self) -> None:
        """Raise the signal that came, if one did."""
        if self.heard is not None:
            self.is_armed = False
            if self.heard is signal.SIGINT:
                raise KeyboardInterrupt
            raise ToolStopped(self.heard)

    def hear(self, number: int, _frame: FrameType | None) -> None:
        """The signal handler."""
        self.heard = self.heard or signal.Signals(number)
        if self.is_armed:
            self.check()


@contextlib.contextmanager
def _listening() -> Iterator[_Ear]:
    """Hear the signals within the block, then raise the one that came and was not raised yet."""
    ear = _Ear()
    if threading.current_thread() is not threading.main_thread():
        yield ear  # Python lets the main thread alone hear signals
        return
    kept = {which: signal.getsignal(which) for which in _SIGNALS}
    # None: the handler is not Python's, and could not be put back.
    kept = {which: old for which, old in kept.items() if old not in (signal.SIG_IGN, None)}
    try:
        for which in kept:
            signal.signal(which, ear.hear)
        yield ear
    finally:
        for which, old in kept.items():
            signal.signal(which, old)
    ear.check()
