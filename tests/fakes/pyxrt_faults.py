"""Faults that the pure-Python card injects, and counts of the events on it."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

KINDS = {
    # kind: the event that it strikes
    "hang": "start",  # the run never ends
    "error": "start",  # ends as ERROR; so the next three
    "abort": "start",
    "noresponse": "start",
    "skcrashed": "start",
    "refuse": "start",  # start raises
    "stale": "start",  # COMPLETED, and nothing was computed
    "lost_device": "start",  # start raises "no such device"
    "upload_fails": "upload",
    "upload_lost": "upload",  # sync returns, and nothing was moved
    "flip": "upload",  # one bit arrives wrong
    "download_fails": "download",
    "download_lost": "download",
    "no_device": "download",  # sync raises "no such device"
    "short_read": "read",
    "no_open": "open",
    "no_memory": "allocate",
    "no_reset": "reset",
}


@dataclass
class Fault:
    """One line of a script of faults.

    Attributes:
        kind: of `KINDS`.
        card: the card; None: each.
        after: events of its kind, on its card, that pass before it strikes.
        times: how often it strikes.
        kernel: only starts of this kernel, by its name in hls_kernels.
        n_bytes: only transfers of this size.
    """

    kind: str
    card: int | None = 0
    after: int = 0
    times: int = 1
    kernel: str | None = None
    n_bytes: int | None = None
    seen: int = field(default=0, init=False)
    struck: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        assert self.kind in KINDS, self.kind

    def strikes(self, event: str, card: int, facts: dict[str, Any]) -> bool:
        if KINDS[self.kind] != event or self.card not in (None, card):
            return False
        if self.kernel is not None and facts.get("kernel") != f"{self.kernel}_krnl":
            return False
        if self.n_bytes is not None and facts.get("n_bytes") != self.n_bytes:
            return False
        self.seen += 1
        hits = self.after < self.seen <= self.after + self.times
        self.struck += hits
        return hits


class Script:
    """Faults to inject, and counts of events; used from several threads."""

    def __init__(self, *faults: Fault) -> None:
        self._faults = list(faults)
        self._lock = threading.Lock()
        self.events: list[tuple[str, int, dict[str, Any]]] = []

    def add(self, *faults: Fault) -> None:
        """Set the faults from now on; their counts begin here."""
        with self._lock:
            self._faults.extend(faults)

    def clear(self) -> None:
        """Drop all faults and events."""
        with self._lock:
            self._faults, self.events = [], []

    def fault(self, event: str, card: int, **facts: Any) -> str | None:
        """Count an event; returns the kind of fault to inject there, if any."""
        with self._lock:
            self.events.append((event, card, facts))
            struck = [f.kind for f in self._faults if f.strikes(event, card, facts)]
        return struck[0] if struck else None

    def count(self, event: str, card: int | None = None) -> int:
        """Number of events of a kind."""
        with self._lock:
            return sum(e == event and card in (None, c) for e, c, _ in self.events)

    def sizes(self, event: str) -> Counter[int]:
        """Sizes of transfers so far."""
        with self._lock:
            return Counter(facts["n_bytes"] for e, _, facts in self.events if e == event)
