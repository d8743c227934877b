"""Measures the time that ecorl itself needs on the threads of the training process."""

from __future__ import annotations

import threading
import time


class HookClock:
    """Counts the time that ecorl's own code needed, on every thread that calls it.

    Blocks may nest: the time of an inner one is counted once, with the outermost. Blocks on
    several threads add up, as their times do on the processor.
    """

    def __init__(self) -> None:
        self._own = threading.local()
        self._lock = threading.Lock()
        self._hook_s, self._n_events = 0.0, 0

    @property
    def hook_s(self) -> float:
        """Time inside ecorl so far, s.

        Without the framework's work, without waits for the device to finish what was launched and
        without barrier waits.
        """
        return self._hook_s

    @property
    def n_events(self) -> int:
        """Stage starts, ends, submissions and joins so far, on all threads."""
        return self._n_events

    def add(self, hook_s: float, n_events: int) -> None:
        """Count what another process of the training needed.

        Args:
            hook_s: its `hook_s`.
            n_events: its `n_events`.
        """
        with self._lock:
            self._hook_s += hook_s
            self._n_events += n_events

    def __enter__(self) -> HookClock:
        depth = getattr(self._own, "depth", 0)
        self._own.depth = depth + 1
        if depth == 0:
            self._own.t_s = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self._own.depth -= 1
        if self._own.depth == 0:
            spent_s = time.perf_counter() - self._own.t_s
            with self._lock:
                self._hook_s += spent_s
                self._n_events += 1
