"""The cards as a server with a queue, for `tests.oracles.events`."""

from __future__ import annotations

import heapq
from dataclasses import dataclass


@dataclass(slots=True)
class QueuedWork:
    """Work that arrived at the cards at one moment.

    Attributes:
        left_s: card time that is still to be done, s.
        stage: number of the stage that sent it; None for other jobs.
    """

    left_s: float
    stage: int | None


class CardQueue:
    """A server that works on one piece at a time: by rank, and by arrival within a rank.

    Attributes:
        missing: pieces of work of each stage that are not done; set by the sender.
        version: number of the piece of work under way; an end foreseen for an earlier one is void.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, QueuedWork]] = []
        self._serving: tuple[int, int, QueuedWork] | None = None
        self._n_arrived = 0
        self.missing: dict[int, int] = {}
        self.version = 0

    @property
    def serving(self) -> QueuedWork | None:
        """The piece of work under way."""
        return self._serving[2] if self._serving is not None else None

    @property
    def left_s(self) -> float:
        """Card time of all that is still to be done, s."""
        served_s = self.serving.left_s if self.serving is not None else 0.0
        return sum(piece.left_s for _, _, piece in self._waiting) + served_s

    @property
    def own_left_s(self) -> float:
        """Card time of what this job's stages sent that is still to be done, s."""
        pieces = [piece for _, _, piece in self._waiting]
        pieces += [self.serving] if self.serving is not None else []
        return sum(piece.left_s for piece in pieces if piece.stage is not None)

    def arrive(self, rank: int, piece: QueuedWork) -> None:
        """Queue a piece of work; one of a lower rank interrupts the piece under way."""
        heapq.heappush(self._waiting, (rank, self._n_arrived, piece))
        self._n_arrived += 1
        if self._serving is not None and rank < self._serving[0]:
            heapq.heappush(self._waiting, self._serving)
            self._serving = None

    def start(self) -> float | None:
        """Start the next piece; return how long it takes, s, or None without one."""
        if self._serving is not None or not self._waiting:
            return None
        self._serving = heapq.heappop(self._waiting)
        self.version += 1
        return self._serving[2].left_s

    def end(self) -> None:
        """End the piece of work under way."""
        stage = self.serving.stage if self.serving is not None else None
        if stage is not None:
            self.missing[stage] -= 1
        self._serving = None
