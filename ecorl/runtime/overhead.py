"""Measures the time that ecorl itself needs on the threads of the training process."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import dataclass

_TOLD = re.compile(r"([\d.]+) s in (\d+) events(?:; ([\d.]+) s of processor beside them)?")


@dataclass(frozen=True, slots=True)
class HookTime:
    """Time that ecorl itself needed.

    Attributes:
        hook_s: on the threads of the training, s.
        n_events: how often it took over on them.
        beside_s: of a processor, on threads of its own in the training's processes, s.
    """

    hook_s: float = 0.0
    n_events: int = 0
    beside_s: float = 0.0

    def __add__(self, other: HookTime) -> HookTime:
        return HookTime(
            self.hook_s + other.hook_s,
            self.n_events + other.n_events,
            self.beside_s + other.beside_s,
        )

    def __str__(self) -> str:
        beside = f"; {self.beside_s:.6f} s of processor beside them" if self.beside_s else ""
        return f"{self.hook_s:.6f} s in {self.n_events} events{beside}"

    @classmethod
    def read(cls, text: str) -> HookTime:
        """Read what `str` has written, as the run's record holds it.

        Args:
            text: the detail of the event ``hook_clock``.

        Raises:
            ValueError: when it is something else.
        """
        found = _TOLD.fullmatch(text)
        if found is None:
            raise ValueError(f"no time of hooks: {text!r}")
        return cls(float(found[1]), int(found[2]), float(found[3] or 0.0))


class HookClock:
    """Counts the time that ecorl's own code needed, on every thread that calls it.

    Blocks may nest: the time of an inner one is counted once, with the outermost. Blocks on
    several threads add up, as their times do on the processor.
    """

    def __init__(self) -> None:
        self._own = threading.local()
        self._lock = threading.Lock()
        self._hook_s, self._n_events, self._beside_s = 0.0, 0, 0.0

    @property
    def hook_s(self) -> float:
        """Time inside ecorl so far, s.

        Without the framework's work, without waits for the device to finish what was launched and
        without barrier waits.
        """
        return self._hook_s

    @property
    def time(self) -> HookTime:
        """All that was counted so far, with the threads beside those of the training."""
        return HookTime(self._hook_s, self._n_events, self._beside_s)

    def add(self, other: HookTime) -> None:
        """Count what another process of the training needed, or a thread beside this one's.

        Args:
            other: its time.
        """
        with self._lock:
            self._hook_s += other.hook_s
            self._n_events += other.n_events
            self._beside_s += other.beside_s

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
