"""Several trainings in one process, of which one goes on for some steps while the others stand.

Each keeps its models, engines and record from its first step to its last. A step that is timed
begins where the training says so, and ends where the next one begins.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise

from ecorl.errors import RunError


class Turns:
    """The turns of one training, which runs in a thread of its own.

    Args:
        train: trains; it calls `step_begins` where a step begins, and ends when that says so.
    """

    def __init__(self, train: Callable[[Turns], object]) -> None:
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._begins_s: list[float] = []
        self._left, self._is_over, self._is_ended = 0, False, False
        self._at_step: Callable[[int], None] = _nothing
        self._pool = ThreadPoolExecutor(1)
        self._trained: Future[object] = self._pool.submit(train, self)
        self._trained.add_done_callback(lambda _: self._done.release())

    def step_begins(self) -> bool:
        """Note that a step begins; waits for the next turn where one is over.

        Returns:
            Whether the training goes on.
        """
        now_s = time.perf_counter()
        while self._left == 0:
            if self._is_over:
                self._begins_s.append(now_s)
                self._is_over = False
                self._done.release()
            self._go.acquire()
            if self._is_ended:
                return False
            now_s = time.perf_counter()
        self._at_step(len(self._begins_s))
        self._begins_s.append(now_s)
        self._left -= 1
        self._is_over = self._left == 0
        return True

    def run(self, n_steps: int, at_step: Callable[[int], None] = lambda _: None) -> list[float]:
        """Let the training go on for some steps.

        Args:
            n_steps: how many, 1 or more.
            at_step: called where each begins, with its number in this turn.

        Returns:
            Wall-clock of each step, s.

        Raises:
            RunError: when the training ends before.
        """
        self._begins_s, self._left, self._at_step = [], n_steps, at_step
        self._go.release()
        self._done.acquire()
        if self._trained.done():
            self._trained.result()
            raise RunError("a training ended before its turn was over")
        return [after - before for before, after in pairwise(self._begins_s)]

    def end(self) -> None:
        """End the training and wait until it has ended; what it raised is raised here."""
        self._is_ended = True
        self._go.release()
        self._pool.shutdown()
        self._trained.result()


def _nothing(step: int) -> None:
    pass
