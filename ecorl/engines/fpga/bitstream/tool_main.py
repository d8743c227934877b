"""Watches one tool of a build: ``python tool_main.py PARENT_PID COMMAND...``.

It leads the session in which the tool runs, and ends all of that session on SIGTERM or when the
build's process ends: after a SIGKILL of the build no other process could. Only
`ecorl.engines.fpga.bitstream.vitis` starts it, as a file, so it imports nothing of ecorl.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType

PATIENCE_S = 10.0
"""Time for the tools to finish their logs, s. Assumed: Vivado needs a few seconds."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.05


def main(argv: Sequence[str]) -> int:
    """Run a command to its end; returns its exit code as a shell does."""
    parent_pid, command = int(argv[0]), argv[1:]
    signal.signal(signal.SIGTERM, _end_session)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)  # v++ may end before what it started
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent_pid:  # it ended before it could be watched
        return 1
    try:
        process = subprocess.Popen(command)
    except OSError as error:
        print(f"ERROR: {command[0]} cannot be run: {error.strerror}", flush=True)
        return 127
    code = process.wait()
    return code if code >= 0 else 128 - code


def _end_session(_number: int, _frame: FrameType | None) -> None:
    """End the process group that this process leads, itself last."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until and _others():
        time.sleep(_POLL_S)
    os.killpg(0, signal.SIGKILL)


def _others() -> bool:
    """Whether a child process is left; those that ended are reaped."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
