"""Asks a chain of feeds again and again, on a thread of its own: nobody waits for a feed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic

from ecorl.carbon.chain import FeedAnswer, FeedChain, Kind

SILENT_FOR = 3
"""After so many intervals without an answer of the chain itself, what it last said is not believed
any more: its thread hangs in a feed. Invented; one late answer is no reason to forget a value that
still holds."""


@dataclass(frozen=True, slots=True)
class Heard(Generic[Kind]):
    """What is known of the intensity at a time.

    Attributes:
        value: the intensity that counts; None: unknown.
        why: why nothing is known, one line; None where something is.
    """

    value: Kind | None
    why: str | None = None


class Listener(Generic[Kind]):
    """Keeps the newest answer of a chain.

    Args:
        chain: of the feeds; this thread alone asks it from `start` on.
        interval_s: time between two questions, s.
        tell: called with each answer, on the listener's thread; must not raise.
        wall: the wall clock, s since 1970.
        steady: a clock that never jumps, s.
    """

    def __init__(
        self,
        chain: FeedChain[Kind],
        interval_s: float,
        tell: Callable[[FeedAnswer[Kind]], None] = lambda _: None,
        *,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._chain, self._interval_s, self._tell = chain, interval_s, tell
        self._wall, self._steady = wall, steady
        self._lock = threading.Lock()
        self._newest: FeedAnswer[Kind] | None = None
        self._answered_at_s = steady()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="ecorl-carbon", daemon=True)

    def start(self) -> None:
        """Start to ask; the first answer comes when the feeds give it."""
        self._thread.start()

    def heard(self) -> Heard[Kind]:
        """What is known now; returns at once."""
        with self._lock:
            answer, at_s = self._newest, self._answered_at_s
        silent_s = self._steady() - at_s
        if answer is None:
            return Heard(None, "no feed has answered yet")
        if silent_s > SILENT_FOR * self._interval_s:
            return Heard(None, f"no feed has answered for {silent_s:.0f} s")
        if answer.value is None:
            told = "; ".join(f"{r.feed}: {r.detail}" for r in answer.refusals)
            return Heard(None, told or "there is no feed")
        if not self._chain.still_counts(answer.value, self._wall()):
            return Heard(None, f"the newest value of {answer.value.feed} is too old by now")
        return Heard(answer.value)

    def close(self, timeout_s: float = 2.0) -> None:
        """End the thread; one that hangs in a feed is left to itself.

        Args:
            timeout_s: longest wait, s.
        """
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _listen(self) -> None:
        self._chain.recall(self._wall())
        while not self._ended.is_set():
            answer = self._chain.ask(self._wall())
            with self._lock:
                self._newest, self._answered_at_s = answer, self._steady()
            self._tell(answer)
            self._ended.wait(self._interval_s)
