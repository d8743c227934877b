"""SIGINT and SIGTERM as a wish to end the training in good order."""

from __future__ import annotations

import logging
import signal
import threading
from types import FrameType
from typing import Any

from ecorl.errors import ConfigError

logger = logging.getLogger(__name__)


class StopSignals:
    """Remembers whether a signal has asked the training to stop.

    Attributes:
        by: name of the signal that asked; None while none did.
    """

    def __init__(self) -> None:
        self.by: str | None = None
        self._before: dict[int, Any] = {}

    @property
    def is_asked(self) -> bool:
        """Whether a signal has come."""
        return self.by is not None

    def listen(self) -> None:
        """Take the two signals over until one comes; the next one acts as it did before.

        Raises:
            ConfigError: outside of the main thread, where Python lets nobody do so.
        """
        if threading.current_thread() is not threading.main_thread():
            raise ConfigError("handle_signals", True, "False outside of the main thread")
        for which in (signal.SIGINT, signal.SIGTERM):
            self._before[which] = signal.signal(which, self._ask)

    def leave(self) -> None:
        """Give the signals back; safe to call twice."""
        for which, handler in self._before.items():
            # None: a handler that was not set from Python, which it cannot put back.
            signal.signal(which, signal.SIG_DFL if handler is None else handler)
        self._before.clear()

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.by = signal.Signals(number).name
        self.leave()
        logger.warning("%s: training stops after this step; once more to stop at once", self.by)
