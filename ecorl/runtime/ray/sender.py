"""`Sender`: the thread that calls the scheduler for a training thread that has no time for it."""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable

from ray.exceptions import RayError

from ecorl.engines.validate import EngineBoundary

logger = logging.getLogger(__name__)

_AFTER_ERROR_S = 1.0
"""Pause after a round that has failed, s. Invented: so that no error fills the log."""

_STOP_S = 2.0
"""Longest wait for the end of the thread, s. Invented: a call of Ray takes a millisecond."""


class Sender:
    """Calls a function on a thread of its own, soon after it was woken.

    The thread begins when it is woken for the first time, and keeps no process alive. What wakes
    it in quick succession is one round: each round takes the interpreter from the training thread.

    Args:
        work: one round; answers after how many seconds the next one is due if nothing wakes the
            thread before that, or None.
        gather_s: how long the thread waits for more once it was woken, s.
        at_exit: called when the process ends, if the thread has begun and was not stopped.
    """

    def __init__(
        self, work: Callable[[], float | None], gather_s: float, at_exit: Callable[[], None]
    ) -> None:
        self._work, self._gather_s, self._at_exit = work, gather_s, at_exit
        self._woken, self._stopped = threading.Event(), threading.Event()
        self._urgent = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._cpu_s = self._taken_s = 0.0

    def take_cpu_s(self) -> float:
        """Time that the thread has needed on a processor since this was last asked, s."""
        since_s, self._taken_s = self._cpu_s - self._taken_s, self._cpu_s
        return since_s

    def wake(self, *, at_once: bool = False) -> None:
        """Have a round done soon; takes microseconds.

        Args:
            at_once: whether it must not wait for more.
        """
        if at_once:
            self._urgent.set()
        if not self._woken.is_set():
            self._woken.set()
            if self._thread is None:
                self._begin()

    def stop(self) -> None:
        """End the thread, for good; safe to call twice."""
        self._stopped.set()
        self._urgent.set()
        self._woken.set()
        atexit.unregister(self._at_exit)
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_STOP_S)

    def _begin(self) -> None:
        with self._lock:
            if self._thread is not None or self._stopped.is_set():
                return
            thread = threading.Thread(target=self._run, name="ecorl-sender", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                # The interpreter is about to end: whoever drains sends what waits.
                self._woken.clear()
                return
            self._thread = thread
            atexit.register(self._at_exit)

    def _run(self) -> None:
        pause_s: float | None = None
        while True:
            if self._woken.wait(pause_s):
                self._urgent.wait(self._gather_s)
                # Before the round: what is told during it wakes the thread once more.
                self._urgent.clear()
                self._woken.clear()
            if self._stopped.is_set():
                return
            pause_s = self._round()
            self._cpu_s = time.thread_time()

    def _round(self) -> float | None:
        why: Exception | None = None
        try:
            with EngineBoundary() as boundary:
                return self._work()
            why = boundary.error
        except RayError as error:
            why = error
        logger.warning("what was told waits for the scheduler: %s: %s", type(why).__name__, why)
        return _AFTER_ERROR_S
