"""The sampling process: ``python -m ecorl.telemetry.sampling.sampler_main FD PARENT_PID``.

It reads its specs as one JSON line from standard input, opens the sources, answers with a ready
line on the file descriptor FD and then writes a line for every read. A byte on standard input
stands for the edge of a stage: sources that gain by it are read at once. Each source is read in a
separate thread, so that a driver that hangs delays only the readings of its devices.

It ends when standard input closes or its parent changes. Both are watched: a process forked from
the parent inherits the other end of standard input and would keep it open, and the kernel's
parent-death signal follows the *thread* that started the child, which may end long before the run.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import sys
import threading
import time
from collections.abc import Sequence

from ecorl.telemetry.sampling.messages import decode_specs, encode_ready, encode_samples
from ecorl.telemetry.sources.registry import open_source
from ecorl.telemetry.sources.specs import EdgeSource, PowerSource

JITTER = 0.5
"""Each step is scaled by 1 +- this share, so that polling does not lock to a periodic load.

A tenth is not enough: at 10 Hz it needs some 75 readings to drift through a load of 0.2 s period,
and on such a load integrals over 12 s were found wrong by more than a third.
"""

SHORTEST_STEP_S = 0.05
"""Jitter shortens no step below this, s: NVML polled faster is known to answer zeros."""

PARENT_CHECK_S = 1.0
"""Interval at which the parent is looked for, s."""


class Outlet:
    """Writes whole lines to the parent from several threads."""

    def __init__(self, fd: int) -> None:
        self._fd, self._lock = fd, threading.Lock()

    def write(self, line: str) -> bool:
        """Write one line; False when the parent has gone."""
        data = line.encode()
        with self._lock:
            while data:
                try:
                    data = data[os.write(self._fd, data) :]
                except OSError:
                    return False
        return True


def step_s(interval_s: float, jitter: random.Random) -> float:
    """Time until the next reading, s: the interval with jitter; see `SHORTEST_STEP_S`.

    Args:
        interval_s: the source's polling interval, s.
        jitter: a source of randomness.
    """
    step = interval_s * (1.0 + jitter.uniform(-JITTER, JITTER))
    return max(step, min(interval_s, SHORTEST_STEP_S))


class Edge:
    """Wakes the thread of a source where a stage begins or ends.

    A wait takes half of the processor time of one for a `threading.Event`, ten times a second.
    """

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_NONBLOCK)

    def set(self) -> None:
        """Wake the thread; where it does not wait now, its next wait ends at once."""
        os.eventfd_write(self._fd, 1)

    def wait(self, timeout_s: float) -> bool:
        """Wait for `set`; False when it did not come in time.

        Args:
            timeout_s: longest wait, s.
        """
        readable, _, _ = select.select([self._fd], [], [], timeout_s)
        if readable:
            os.eventfd_read(self._fd)
        return bool(readable)


def poll(source: PowerSource, outlet: Outlet, stop: threading.Event, edge: Edge) -> None:
    """Read a source at its interval, with jitter, on the monotonic clock, until told to stop.

    Args:
        source: an open source.
        outlet: where its samples go.
        stop: ends the polling; set here when the parent has gone.
        edge: set where a stage begins or ends; an `EdgeSource` is read at once then.
    """
    jitter = random.Random()
    due_s = time.monotonic()
    while not stop.is_set():
        if edge.wait(max(0.0, due_s - time.monotonic())):
            samples = source.read_edge() if isinstance(source, EdgeSource) else ()
            if samples and not outlet.write(encode_samples(samples)):
                stop.set()
            due_s = max(due_s, time.monotonic() + min(source.interval_s, SHORTEST_STEP_S))
            continue
        if not outlet.write(encode_samples(source.read())):
            stop.set()
        due_s += step_s(source.interval_s, jitter)
        # After a late read the pace goes on from now; missed readings are not made up in a burst.
        due_s = max(due_s, time.monotonic())


def watch_parent(parent_pid: int, stop: threading.Event, edges: Sequence[Edge]) -> None:
    """Return when standard input ends, the parent has changed, or `stop` is set.

    Args:
        parent_pid: process id of the parent at the start.
        stop: set when the sampling ends.
        edges: set at each message of the parent.
    """
    while not stop.is_set() and os.getppid() == parent_pid:
        readable, _, _ = select.select([0], [], [], PARENT_CHECK_S)
        if not readable:
            continue
        if not os.read(0, 4096):
            return
        for edge in edges:
            edge.set()


def _die(args: threading.ExceptHookArgs) -> None:
    """End the process when a thread fails: the parent sees that and starts it anew."""
    threading.__excepthook__(args)
    sys.stderr.flush()
    os._exit(1)


def main(argv: list[str]) -> int:
    """Run until the parent goes; returns the exit code."""
    # Both often go to the whole group; the parent decides when the sampling ends.
    with contextlib.suppress(ValueError):
        for which in (signal.SIGINT, signal.SIGTERM):
            signal.signal(which, signal.SIG_IGN)
    threading.excepthook = _die
    outlet, parent_pid = Outlet(int(argv[1])), int(argv[2])
    line = b""
    while b"\n" not in line:  # an edge may follow at once
        chunk = os.read(0, 65536)
        if not chunk:
            return 0
        line += chunk
    opened = [open_source(spec) for spec in decode_specs(line.partition(b"\n")[0].decode())]
    sources = [source for source, _ in opened if source is not None]
    reports = [report for _, report in opened]
    stop = threading.Event()
    if outlet.write(encode_ready(reports)) and sources:
        edges = [Edge() for source in sources]
        for source, edge in zip(sources, edges, strict=True):
            threading.Thread(target=poll, args=(source, outlet, stop, edge), daemon=True).start()
        at_edges = [e for s, e in zip(sources, edges, strict=True) if isinstance(s, EdgeSource)]
        watch_parent(parent_pid, stop, at_edges)
    stop.set()
    # A thread may hang in a driver: neither wait for it nor release what it is using.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
