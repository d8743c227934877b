"""The protocol of an inference engine, and the batches and results that pass through it.

Third parties register an `InferenceEngine` factory under the entry-point group ``ecorl.engines``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from ecorl.engines.packing import PackedTokens
from ecorl.records import ModelShape, Provenance, Stage

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]


def reward_position(row: Int64, pad_token_id: int | None) -> int:
    """Find the token at which transformers' sequence classifiers read the reward of a row.

    It is the last token that is not the pad token, the first one of a row of pad tokens alone, and
    the last one where the model names no pad token. Token ids alone decide, not the attention
    mask: where pad and end of text are one token, a row that ends with it is read before it.

    Args:
        row: token ids ``[length]``.
        pad_token_id: that of the model's config.json; None where it names none.

    Returns:
        The position, from 0.
    """
    if pad_token_id is None:
        return len(row) - 1
    return int(np.flatnonzero(row != pad_token_id).max(initial=0))


@dataclass(frozen=True, slots=True)
class ScoreBatch:
    """Rows to score, without padding: each row holds its real tokens only.

    Attributes:
        sample_ids: one id for each row, unique within the run, by which results are joined.
        token_ids: one ``[length] int64`` array for each row, prompt and completion.
        n_completion: number of completion tokens at the end of each row (for log-probs).
        temperature: the logits are divided by it before the log-softmax.
        micro_batch: rows per forward on the exact path; None means all at once. Row-invariant
            engines ignore it.
        token_budget: tokens per forward on the exact path, padding included, where rows of like
            length are packed together; None means that they stay as they are. Row-invariant
            engines ignore it: they compute no padding.
        reads_last: whether rewards are read at the last token of each row, whatever token that is,
            as the class that the trainer itself would run reads them; else where transformers'
            class reads them for the engine's checkpoint (`reward_position`).
    """

    sample_ids: tuple[str, ...]
    token_ids: tuple[Int64, ...]
    n_completion: tuple[int, ...]
    temperature: float = 1.0
    micro_batch: int | None = None
    token_budget: int | None = None
    reads_last: bool = False

    def __len__(self) -> int:
        return len(self.sample_ids)

    @property
    def n_tokens(self) -> int:
        """Number of tokens in all rows."""
        return sum(len(row) for row in self.token_ids)

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickled as one array instead of one for each row: ten times faster between processes, and
        # the training thread waits for it.
        rest = (self.n_completion, self.temperature, self.micro_batch, self.token_budget)
        ids = _packed(self.token_ids, np.int64)
        return _unpack, (ScoreBatch, self.sample_ids, *ids, *rest, self.reads_last)

    def reward_positions(self, pad_token_id: int | None) -> tuple[int, ...]:
        """Find the token of each row at which its reward is read.

        Args:
            pad_token_id: that of the config.json of the engine's checkpoint; None without one.
        """
        pad = None if self.reads_last else pad_token_id
        return tuple(reward_position(row, pad) for row in self.token_ids)

    def rows(self, indices: Sequence[int]) -> ScoreBatch:
        """Return the sub-batch of the given row indices, in their order."""
        return replace(
            self,
            sample_ids=tuple(self.sample_ids[i] for i in indices),
            token_ids=tuple(self.token_ids[i] for i in indices),
            n_completion=tuple(self.n_completion[i] for i in indices),
        )


@dataclass(frozen=True, slots=True)
class CardLoad:
    """Load of a card at the end of a batch.

    Attributes:
        index: number of the card.
        in_service: whether it accepts work.
        occupancy: recent share of time in which it computed for this engine, 0 to 1.
    """

    index: int
    in_service: bool
    occupancy: float


@dataclass(frozen=True, slots=True)
class EngineReport:
    """Time and energy of one batch, as the engine reports them.

    Attributes:
        device_time_s: time on the device, s, or None when it is unknown.
        device_energy_j: energy of the device over that time, J, or None when it is unknown.
        provenance: provenance of the two figures above.
        host_time_s: measured wall-clock time of the call in the engine's process, s.
        cards: load of the real cards; empty without cards, or where they are emulated.
        span_s: begin and end of the call in monotonic s of the engine's machine, where that is
            another one than its caller's, or where the engine did something else behind its call;
            None where the caller's own times count.
        packing: what packing made of the rows; None where they were not packed.
    """

    device_time_s: float | None
    device_energy_j: float | None
    provenance: Provenance
    host_time_s: float
    cards: tuple[CardLoad, ...] = ()
    span_s: tuple[float, float] | None = None
    packing: PackedTokens | None = None


@dataclass(frozen=True, slots=True)
class ScoreResult:
    """Rewards of a batch: ``values`` is ``[n_rows] float32``, joined by ``sample_ids``."""

    sample_ids: tuple[str, ...]
    values: Float32
    report: EngineReport


@dataclass(frozen=True, slots=True)
class StepResult:
    """Process rewards of a batch: row i of ``values`` is ``[n positions of row i] float32``."""

    sample_ids: tuple[str, ...]
    values: tuple[Float32, ...]
    report: EngineReport


@dataclass(frozen=True, slots=True)
class LogprobResult:
    """Log-probs of a batch: row i of ``values`` is ``[n_completion[i]] float32``."""

    sample_ids: tuple[str, ...]
    values: tuple[Float32, ...]
    report: EngineReport

    def __reduce__(self) -> tuple[Any, ...]:
        if all(_is_row(v, np.float32) for v in self.values):
            packed = _packed(self.values, np.float32)
            return _unpack, (LogprobResult, self.sample_ids, *packed, self.report)
        # The values of a faulty engine must arrive unchanged, for the receiver to check them.
        return LogprobResult, (self.sample_ids, self.values, self.report)


def _is_row(value: object, dtype: type) -> bool:
    return isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype == dtype


def _packed(rows: Sequence[npt.NDArray[Any]], dtype: type) -> tuple[npt.NDArray[Any], list[int]]:
    """Concatenated rows, and the index at which each but the first begins."""
    flat = np.concatenate(rows) if rows else np.empty(0, dtype)
    return flat, np.cumsum([len(row) for row in rows])[:-1].tolist()


def _unpack(
    kind: type[Any], ids: tuple[str, ...], flat: npt.NDArray[Any], starts: list[int], *rest: Any
) -> Any:
    """A record whose first fields are ids and rows, from the rows as `_packed` has them."""
    return kind(ids, tuple(np.split(flat, starts)) if ids else (), *rest)


@dataclass(frozen=True, slots=True)
class Refresh:
    """A request to load the weights of a checkpoint of the same shape."""

    checkpoint: Path


@dataclass(frozen=True, slots=True)
class Refreshed:
    """The answer to `Refresh`; `digest` is the SHA-256 of the weights in the engine's formats."""

    digest: str


@runtime_checkable
class InferenceEngine(Protocol):
    """Scores rows with one frozen model loaded from a Hugging Face checkpoint.

    An engine whose model may be refreshed during training also has a method
    ``load_weights(checkpoint: Path) -> str``. It returns the digest of the new weights, or raises
    and leaves either the old weights in place or none. Only such engines serve such models.

    A call either returns a result for all rows, in the order of the batch, or raises
    `ecorl.errors.EngineError`. An engine serves the stage that it was made for: a reward engine
    implements `score`, a reference engine `logprobs`.
    """

    name: str
    device: str
    stage: Stage
    model: ModelShape
    row_invariant: bool
    """Whether a row's result has the same bits in every batch."""

    def score(self, batch: ScoreBatch) -> ScoreResult:
        """Compute the scalar reward of each row, read at `ScoreBatch.reward_positions`."""
        ...

    def logprobs(self, batch: ScoreBatch) -> LogprobResult:
        """Compute the log-probability of each completion token given all earlier ones, nats."""
        ...

    def close(self) -> None:
        """Release what the engine holds; further calls raise `EngineError`."""
        ...
