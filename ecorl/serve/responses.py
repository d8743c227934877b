"""Requests that wait, row by row, and their JSON responses.

JSON carries each float32 as the float64 of equal value, so that a client that converts it back to
float32 gets identical bits.
"""

from __future__ import annotations

import asyncio
import bisect
import json
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ecorl.engines.protocol import EngineReport, Float32, Int64
from ecorl.records import Provenance, Stage, weakest
from ecorl.serve.http_errors import HttpError
from ecorl.serve.parsing import ScoreRows
from ecorl.serve.settings import ServedModel

NO_NUMBER = (
    "the engine gave no usable number for this row (not finite, or a log-prob above 0): score it "
    "with the model itself"
)
"""Why a row is null. The engine gives no further reason; it may be a number outside its fixed-point
format, or a prompt without the token pattern of a gated reward model."""


@dataclass(frozen=True, slots=True)
class Effort:
    """Device time and energy of some rows: their share, by tokens, of each micro-batch.

    Attributes:
        time_s: device time, s, or None when it is unknown for one of the micro-batches.
        energy_j: device energy, J, or None likewise.
        provenance: the weaker one of the two figures; None where both are missing.
    """

    time_s: float | None
    energy_j: float | None
    provenance: Provenance | None

    def __add__(self, other: Effort) -> Effort:
        known = [p for p in (self.provenance, other.provenance) if p is not None]
        time_s, energy_j = _sum(self.time_s, other.time_s), _sum(self.energy_j, other.energy_j)
        missing = time_s is None and energy_j is None
        return Effort(time_s, energy_j, None if missing else weakest(*known))


def _sum(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a + b


UNKNOWN = Effort(None, None, None)


def share_of(report: EngineReport, share: float) -> Effort:
    """The device time and energy that some rows of a micro-batch account for.

    Args:
        report: the engine's figures for the micro-batch.
        share: tokens of these rows over the tokens of all rows with values, 0 to 1.
    """
    time_s, energy_j = report.device_time_s, report.device_energy_j
    if time_s is None and energy_j is None:
        return UNKNOWN
    return Effort(
        None if time_s is None else time_s * share,
        None if energy_j is None else energy_j * share,
        report.provenance,
    )


@dataclass(frozen=True, slots=True)
class Answer:
    """The results of one request.

    Attributes:
        values: for each row its reward (a float32 scalar) or ``[n_completion] float32``, or None
            where the engine gave no usable number.
        effort: device time and energy of the rows with values; `UNKNOWN` when there is none.
    """

    values: Sequence[Float32 | None]
    effort: Effort


def as_json(rows: ScoreRows, answer: Answer, served: ServedModel, device: str) -> bytes:
    """Encode the results of a request as the body of its response.

    Args:
        rows: the request.
        answer: its results, in the order of the rows.
        served: the model.
        device: name of the device profile that time and energy refer to.

    Returns:
        JSON on one line, ASCII.
    """
    data = {
        "model": served.name,
        "stage": str(served.stage),
        "provenance": str(served.provenance),
        "rows": [
            _row(id, value, served.stage) for id, value in zip(rows.ids, answer.values, strict=True)
        ],
        "device": {"name": device, **asdict(answer.effort)},
    }
    return dump(data)


def _row(id: str | None, value: Float32 | None, stage: Stage) -> dict[str, object]:
    key = "logprobs" if stage is Stage.REFERENCE else "reward"
    if value is None:
        return {"id": id, key: None, "reason": NO_NUMBER}
    return {"id": id, key: value.tolist()}  # float64 of the same value


def dump(data: object) -> bytes:
    """Encode as JSON on one line. NaN and infinity, which JSON lacks, raise `ValueError`."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).encode("ascii")


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


def as_rewards(answer: Answer) -> bytes:
    """Encode rewards the way OpenRLHF's client reads them.

    The client sends one text a request and hands what it gets to ``torch.tensor([rewards])``, for
    an experience whose rewards have the shape (1,). So one text is answered by a plain number: a
    list of one would give the shape (1, 1). Several texts are answered by lists. The values of
    ``extra_logs`` would become tensors too, and every sample needs the same ones: there are none.

    Args:
        answer: the results of the request.

    Raises:
        HttpError: 422 when a text has no reward; null would end the training far from its cause.
    """
    values: list[Any] = []
    for i, value in enumerate(answer.values):
        if value is None:
            raise HttpError(422, f"query[{i}] has no reward: {NO_NUMBER}", "no_number")
        values.append(value.tolist())
    rewards = values[0] if len(values) == 1 else values
    return dump({"rewards": rewards, "scores": rewards, "extra_logs": {}})
