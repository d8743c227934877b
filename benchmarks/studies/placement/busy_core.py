"""Keeps one core busy on demand: ``python -m benchmarks.studies.placement.busy_core CORE LIMIT_S``.

The process spins or sleeps as its standard input says (``1`` or ``0``). It ends when that is
closed, so with whoever started it, and after its limit in any case.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence

_ON, _OFF = b"1", b"0"
_SPINS = 20_000
"""Loops between two looks at the input: about a millisecond."""

_END_S = 5.0
"""How long the process may take to end, s. Invented: it looks at its input every millisecond."""


class BusyCore:
    """A process that competes for one core, from time to time.

    Args:
        core: number of the core.
        limit_s: longest life of the process, s.
    """

    def __init__(self, core: int, limit_s: float) -> None:
        self._is_on = False
        command = [sys.executable, "-m", "benchmarks.studies.placement.busy_core"]
        command += [str(core), str(limit_s)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE)

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def switch(self, on: bool) -> None:
        """Let it spin or sleep from now on.

        Args:
            on: whether it spins.

        Raises:
            OSError: when the process has ended.
        """
        if on != self._is_on and self._process.stdin is not None:
            self._process.stdin.write(_ON if on else _OFF)
            self._process.stdin.flush()
            self._is_on = on

    def close(self) -> None:
        """End the process; safe to call twice."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def main(argv: Sequence[str]) -> None:
    """Spin and sleep as the input says.

    Args:
        argv: number of the core, and the limit in s.
    """
    os.sched_setaffinity(0, {int(argv[0])})
    end_s = time.monotonic() + float(argv[1])
    is_on = False
    while (left_s := end_s - time.monotonic()) > 0:
        ready, _, _ = select.select([0], [], [], 0.0 if is_on else left_s)
        if ready:
            told = os.read(0, 64)
            if not told:
                return
            is_on = told.endswith(_ON)
        if is_on:
            for _ in range(_SPINS):
                pass


if __name__ == "__main__":
    main(sys.argv[1:])
