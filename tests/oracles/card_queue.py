"""The cards as a server with a queue, for `tests.oracles.events`."""

from __future__ import annotations

import heapq
from dataclasses import dataclass


@dataclass(slots=True)
class Parcel:
    """Work that came to the cards at one moment.

    Attributes:
        left_s: card time that is still to be done, s.
        stage: number of the stage that sent it; None for other jobs.
    """

    left_s: float
    stage: int | None


class CardQueue:
    """A server that works on one parcel at a time: by rank, and by arrival within a rank.

    Attributes:
        missing: parcels of each stage that are not done; set by who sends them.
        version: number of the present service; an end foreseen for an earlier one is void.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, Parcel]] = []
        self._serving: tuple[int, int, Parcel] | None = None
        self._n_arrived = 0
        self.missing: dict[int, int] = {}
        self.version = 0

    @property
    def serving(self) -> Parcel | None:
        """What is worked on."""
        return self._serving[2] if self._serving is not None else None

    @property
    def left_s(self) -> float:
        """Card time of all that is still to be done, s."""
        served_s = self.serving.left_s if self.serving is not None else 0.0
        return sum(parcel.left_s for _, _, parcel in self._waiting) + served_s

    def arrive(self, rank: int, parcel: Parcel) -> None:
        """Take a parcel in; one of a lower rank goes before what is worked on."""
        heapq.heappush(self._waiting, (rank, self._n_arrived, parcel))
        self._n_arrived += 1
        if self._serving is not None and rank < self._serving[0]:
            heapq.heappush(self._waiting, self._serving)
            self._serving = None

    def start(self) -> float | None:
        """Start on the next parcel; returns how long it takes, s, or None without one."""
        if self._serving is not None or not self._waiting:
            return None
        self._serving = heapq.heappop(self._waiting)
        self.version += 1
        return self._serving[2].left_s

    def end(self) -> None:
        """What is worked on is done."""
        stage = self.serving.stage if self.serving is not None else None
        if stage is not None:
            self.missing[stage] -= 1
        self._serving = None
