"""Requests that wait for the engine, and the queue of their rows in the order of arrival."""

from __future__ import annotations

import asyncio
import bisect
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from ecorl.engines.protocol import Float32, Int64
from ecorl.serve.parsing import ScoreRows
from ecorl.serve.responses import Answer, Effort


@dataclass(eq=False, slots=True)
class PendingRequest:
    """An accepted request: its future gets the results or an error, or is cancelled.

    Attributes:
        rows: the rows of the request.
        number: serial number of the request, from which the ids of its rows in a batch are made.
        future: the results, for the endpoint that waits for them.
        values: results so far, in the order of the rows.
        n_left: rows without a result yet.
        effort: device time and energy so far.
        patient: whether it waits beyond the queue's limit, and for an engine that has failed.
        n_faults: micro-batches with its rows on which the engine failed.
    """

    rows: ScoreRows
    number: int
    future: asyncio.Future[Answer]
    values: list[Float32 | None]
    n_left: int
    effort: Effort | None = None
    patient: bool = False
    n_faults: int = 0

    def add_effort(self, effort: Effort) -> None:
        """Add this request's share of one micro-batch's time and energy."""
        self.effort = effort if self.effort is None else self.effort + effort


@dataclass(frozen=True, slots=True)
class WaitingRow:
    """One row in the queue, with its time of arrival (monotonic, s)."""

    pending: PendingRequest
    index: int
    since_s: float

    @property
    def place(self) -> tuple[int, int]:
        """Where it stands in the order of arrival."""
        return self.pending.number, self.index

    @property
    def kind(self) -> tuple[float, int | None]:
        """What the rows of a micro-batch have in common.

        One forward has one temperature. The rows of a request that was in a failed micro-batch go
        without others, so that a request on which the engine always fails harms no other twice.
        """
        return self.pending.rows.temperature, self.pending.number if self.pending.n_faults else None

    @property
    def token_ids(self) -> Int64:
        """Token ids ``[length] int64``."""
        return self.pending.rows.token_ids[self.index]

    @property
    def temperature(self) -> float:
        """The logits are divided by it."""
        return self.pending.rows.temperature


@dataclass(slots=True)
class RowQueue:
    """Waiting rows in the order of their arrival, and the number of their tokens."""

    rows: deque[WaitingRow] = field(default_factory=deque)
    n_tokens: int = 0

    def add(self, row: WaitingRow) -> None:
        """Append a row."""
        self.rows.append(row)
        self.n_tokens += len(row.token_ids)

    def next_batch(self, max_rows: int, max_tokens: int) -> list[WaitingRow]:
        """Remove and return the next rows that are of the oldest row's kind; at least one."""
        taken: list[WaitingRow] = []
        kept: list[WaitingRow] = []
        n_tokens = 0
        while self.rows and len(taken) < max_rows:
            row = self.rows.popleft()
            # Rows of another kind keep their place in the queue.
            if taken and row.kind != taken[0].kind:
                kept.append(row)
                continue
            # The batch ends here, even if a later row would fit: a long row must not be overtaken
            # for ever. A row above the limit by itself goes alone.
            if taken and n_tokens + len(row.token_ids) > max_tokens:
                kept.append(row)
                break
            taken.append(row)
            n_tokens += len(row.token_ids)
        self.rows.extendleft(reversed(kept))
        self.n_tokens -= n_tokens
        return taken

    def put_back(self, rows: Sequence[WaitingRow]) -> None:
        """Return rows that were taken out to their places in the order of arrival."""
        for row in rows:
            at = bisect.bisect(self.rows, row.place, key=lambda other: other.place)
            self.rows.insert(at, row)
            self.n_tokens += len(row.token_ids)

    def drop(self, pending: PendingRequest) -> int:
        """Take a request's rows out; returns how many there were."""
        kept = deque(row for row in self.rows if row.pending is not pending)
        n_dropped = len(self.rows) - len(kept)
        self.rows = kept
        self.n_tokens = sum(len(row.token_ids) for row in kept)
        return n_dropped
