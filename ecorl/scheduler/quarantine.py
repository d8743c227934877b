"""Quarantine of an engine that keeps failing.

After ``max_faults`` faults in a row the engine is unavailable for a back-off. Then one batch is
let through as a probe: if it succeeds the engine is available again, if it fails the back-off
doubles.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

log = logging.getLogger(__name__)


class Quarantine:
    """Counts an engine's faults and says whether it may be used; thread-safe.

    `available` may be asked at any time. Call `begin` when a batch is really sent, and then
    `succeeded` or `failed`. A probe without either for a whole back-off counts as failed, so that
    an engine is not lost to a report that never comes.

    Args:
        max_faults: faults in a row that quarantine the engine, 1 or more.
        backoff_s: first back-off, above 0 and at most the longest, s. The default is invented:
            about one RLHF iteration.
        max_backoff_s: longest back-off, s.
        clock: monotonic time in s.
    """

    def __init__(
        self,
        max_faults: int = 3,
        backoff_s: float = 30.0,
        max_backoff_s: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_faults = max_faults
        self._first_backoff_s, self._max_backoff_s = backoff_s, max_backoff_s
        self._clock = clock
        self._lock = threading.Lock()
        self._faults_in_row = 0
        self._backoff_s = backoff_s
        self._until_s: float | None = None
        self._probing = False

    def available(self) -> bool:
        """Whether a batch may be sent now: not in quarantine, or due for a probe."""
        with self._lock:
            return self._available()

    def _available(self) -> bool:
        if self._until_s is None:
            return True
        if self._clock() < self._until_s:
            return False
        if self._probing:
            self._fail("NoAnswerToProbe")
            return False
        return True

    def begin(self) -> bool:
        """Announce a batch that is about to be sent; False when it must not be.

        In quarantine one caller gets True after each back-off: its batch is the probe.
        """
        with self._lock:
            if not self._available():
                return False
            if self._until_s is not None:
                self._probing = True
                self._until_s = self._clock() + self._backoff_s
            return True

    def succeeded(self) -> None:
        """Report a success: the count of faults in a row starts anew, and quarantine ends.

        A success of a batch that was sent before the quarantine says nothing of the engine since,
        so it leaves the quarantine as it is.
        """
        with self._lock:
            if self._until_s is not None and not self._probing:
                return
            if self._until_s is not None:
                log.info("the engine answered its probe and is back")
            self._faults_in_row = 0
            self._until_s, self._probing = None, False
            self._backoff_s = self._first_backoff_s

    def failed(self, fault: str) -> None:
        """Report the fault of a batch.

        Args:
            fault: name of the fault, e.g. ``EngineTimeout``.
        """
        with self._lock:
            self._fail(fault)

    def _fail(self, fault: str) -> None:
        self._faults_in_row += 1
        if self._until_s is not None and not self._probing:
            return
        if self._probing:
            self._probing = False
            self._backoff_s = min(2 * self._backoff_s, self._max_backoff_s)
        elif self._faults_in_row < self.max_faults:
            return
        self._until_s = self._clock() + self._backoff_s
        log.warning("engine quarantined for %.0f s after %s", self._backoff_s, fault)
