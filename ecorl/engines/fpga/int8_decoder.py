"""The interface of an INT8 decoder: rewards and log-probs of rows of tokens.

The C-simulation (`ecorl.engines.fpga.csim.decoder`) and cards (`ecorl.engines.fpga.card.decoder`)
implement it. Both return fixed-point numbers and marks; this module turns them into floats.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ecorl.engines.fpga.numerics.formats import LOG2_E, Scale, Tensors
from ecorl.engines.fpga.prefix_sharing import Segments, segments_of
from ecorl.engines.models.decoder_config import DecoderConfig
from ecorl.engines.models.gating import Gating
from ecorl.engines.protocol import Float32, Int64
from ecorl.errors import CheckpointError

MAX_ROW = 1 << 16
"""Longest row, tokens: the sums of attention weights over all keys of a row are INT32."""

REWARD_BITS, LOGPROB_BITS = 16, 20
"""Fraction bits of results."""

Int32 = npt.NDArray[np.int32]
ResultKind = Literal["rewards", "gated_rewards", "logprobs", "hidden"]


@dataclass(frozen=True, slots=True)
class DecodeRequest:
    """One forward: its batch, and the tokens at which results are read.

    Attributes:
        kind: rewards, gated rewards, log-probs, or the residual stream.
        segments: the batch.
        tokens: ``[n] int64``, the token at which each result is read, ascending.
        longest: tokens of the longest row.
        targets: ``[n] int32``, the tokens whose log-probs are computed.
        gates: ``[n] int64``, tokens at which the gate of each reward is read.
        by: log2(e) / temperature, for log-probs.
        width: values of one result.
    """

    kind: ResultKind
    segments: Segments
    tokens: Int64
    longest: int
    targets: Int32 | None = None
    gates: Int64 | None = None
    by: Scale | None = None
    width: int = 1


class Decoder(ABC):
    """A frozen decoder, ready to run.

    Rows are arrays of token ids without padding; the caller has checked ids and lengths
    (`MAX_ROW`, `max_positions`, `vocab_size`). A row's result has the same bits in any batch and
    order, on any backend, with and without a shared prompt. A result that depends on a number
    beyond its format is NaN.

    Attributes:
        config: the model.
    """

    config: DecoderConfig

    @abstractmethod
    def load(self, tensors: Tensors) -> str:
        """Load the weights of another model of the same shape, between two forwards.

        Args:
            tensors: the model.

        Returns:
            `decoder_digest` of the model.

        Raises:
            CheckpointError: when the shape differs, or a tensor does not fit its format.
            EngineError: when the weights could not be loaded.
        """

    @abstractmethod
    def _run(self, request: DecodeRequest) -> tuple[Int32, Int32]:
        """Compute results ``[n * width] int32`` in fixed point, and marks ``[n] int32``.

        Raises:
            EngineError: when the forward failed.
        """

    def score(self, rows: Sequence[Int64], n_completion: Sequence[int] | None = None) -> Float32:
        """Reward at the last token of each row: ``[n_rows] float32``.

        A gate is read where `Gating.positions` says; NaN for a row without such a place.

        Args:
            rows: token ids.
            n_completion: completion tokens of each row; given, a prompt that rows share is computed
                once.

        Raises:
            EngineError: when the host ran out of memory.
        """
        positions = [np.asarray([len(row) - 1]) for row in rows]
        values = self.score_at(rows, positions, n_completion)
        return np.concatenate(values) if rows else np.zeros(0, np.float32)

    def score_at(
        self,
        rows: Sequence[Int64],
        positions: Sequence[Int64],
        n_completion: Sequence[int] | None = None,
    ) -> tuple[Float32, ...]:
        """Process rewards: the reward at several positions of each row, one array a row.

        Each is the reward of the row up to that position, also where a gate is read.

        Args:
            rows: token ids.
            positions: of each row, from 0.
            n_completion: as in `score`.

        Raises:
            EngineError: when the host ran out of memory.
        """
        segments = segments_of(rows, n_completion)
        scored = [np.asarray(p, np.int64) for p in positions]
        if self.config.gating is not None:
            return self._gated_at(self.config.gating, rows, scored, n_completion, segments)
        asked = [segments.tokens(i, p) for i, p in enumerate(scored)]
        out, marks = self._request("rewards", rows, segments, asked)
        return _split(fixed_results(out, marks, REWARD_BITS), asked)

    def _gated_at(
        self,
        gating: Gating,
        rows: Sequence[Int64],
        scored: Sequence[Int64],
        n_completion: Sequence[int] | None,
        segments: Segments,
    ) -> tuple[Float32, ...]:
        counts = n_completion if n_completion is not None else (0,) * len(rows)
        read = [gating.positions(*each) for each in zip(rows, scored, counts, strict=True)]
        used = [gate >= 0 for gate in read]
        asked = [segments.tokens(i, scored[i][u]) for i, u in enumerate(used)]
        gates = [segments.tokens(i, read[i][u]) for i, u in enumerate(used)]
        out, marks = self._request("gated_rewards", rows, segments, asked, gates=gates)
        values = tuple(np.full(len(p), np.nan, np.float32) for p in scored)
        found = _split(fixed_results(out, marks, REWARD_BITS), asked)
        for own, u, answers in zip(values, used, found, strict=True):
            own[u] = answers
        return values

    def logprobs(
        self, rows: Sequence[Int64], n_completion: Sequence[int], temperature: float
    ) -> tuple[Float32, ...]:
        """Log-probs of the last ``n_completion[i]`` tokens of each row, nats, float32.

        The value of token t is ``log_softmax(logits[t - 1] / temperature)[x_t]``.

        Args:
            rows: token ids.
            n_completion: completion tokens of each row.
            temperature: of the logits.

        Raises:
            EngineError: when the host ran out of memory.
        """
        segments = segments_of(rows, n_completion)
        asked, targets = [], []
        for index, (row, n) in enumerate(zip(rows, n_completion, strict=True)):
            positions = np.arange(len(row) - n - 1, len(row) - 1)
            asked.append(segments.tokens(index, positions))
            targets.append(row[len(row) - n :].astype(np.int32))
        # Below about 1e-308 the quotient is infinite; the largest scale overflows in the kernel as
        # well, which marks the row.
        by = Scale.of(min(LOG2_E / temperature, sys.float_info.max))
        out, marks = self._request("logprobs", rows, segments, asked, by=by, targets=targets)
        return _split(fixed_results(out, marks, LOGPROB_BITS), asked)

    def _check_shape(self, tensors: Tensors) -> None:
        if tensors.config.shape != self.config.shape:
            raise CheckpointError("the new weights are of another shape than those that are loaded")

    def _request(
        self,
        kind: ResultKind,
        rows: Sequence[Int64],
        segments: Segments,
        asked: Sequence[Int64],
        *,
        by: Scale | None = None,
        targets: Sequence[Int32] | None = None,
        gates: Sequence[Int64] | None = None,
        width: int = 1,
    ) -> tuple[Int32, Int32]:
        """Run a forward and return results and marks in the order of `asked`.

        Args:
            kind: what is computed.
            rows: token ids.
            segments: the same rows, cut where they share a prompt.
            asked: for each row the tokens at which results are read.
            by: log2(e) / temperature.
            targets: for each row the target of each result.
            gates: for each row the token at which each result's gate is read.
            width: values of one result.
        """
        n = sum(len(part) for part in asked)
        if n == 0:
            return np.zeros(0, np.int32), np.zeros(0, np.int32)
        order = np.argsort(np.concatenate(asked), kind="stable")
        tokens, ordered_targets, ordered_gates = (
            _ordered(part, order) for part in (asked, targets, gates)
        )
        longest = max(len(row) for row in rows)
        out, marks = self._run(
            DecodeRequest(
                kind, segments, tokens, longest, ordered_targets, ordered_gates, by, width
            )
        )
        unsorted_out, unsorted_marks = np.empty_like(out), np.empty_like(marks)
        unsorted_out.reshape(n, width)[order] = out.reshape(n, width)
        unsorted_marks[order] = marks
        return unsorted_out, unsorted_marks


def _ordered(parts: Sequence[npt.NDArray[Any]] | None, order: Int64) -> Any:
    return None if parts is None else np.ascontiguousarray(np.concatenate(parts)[order])


def fixed_results(values: Int32, marks: Int32, fraction_bits: int) -> Float32:
    """Convert fixed-point results to floats.

    Args:
        values: ``[n] int32``.
        marks: ``[n] int32``; a result with a mark other than 0 is NaN.
        fraction_bits: of the values.
    """
    # One rounding, to float32; the power of two is exact.
    out = values.astype(np.float32) * np.float32(2.0**-fraction_bits)
    out[marks != 0] = np.nan
    return out


def _split(values: Float32, parts: Sequence[Int64]) -> tuple[Float32, ...]:
    return tuple(np.split(values, np.cumsum([len(p) for p in parts])[:-1])) if parts else ()
