"""Measures the time that ecorl itself needs on the training thread."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class HookClock:
    """Counts the time that ecorl's own code needed on the training thread.

    Attributes:
        hook_s: time inside ecorl, without the framework's work, without waits for the device to
            finish what was launched and without barrier waits, s.
        n_events: stage starts, ends, submissions and joins.
    """

    hook_s: float = 0.0
    n_events: int = 0
    _t_s: float = field(default=0.0, repr=False)

    def __enter__(self) -> HookClock:
        self._t_s = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.hook_s += time.perf_counter() - self._t_s
        self.n_events += 1
