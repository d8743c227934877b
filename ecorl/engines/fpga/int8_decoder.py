"""The interface of an INT8 decoder: rewards and log-probs of rows of tokens.

The C-simulation (`ecorl.engines.fpga.csim.decoder`) and cards (`ecorl.engines.fpga.card.decoder`)
implement it. Both return fixed-point numbers and marks; this module turns them into floats.

Rows with the same prompt, as the rows of a GRPO group, compute its tokens once: its keys, values
and all other values are the same in each row, bit for bit, and the completions continue from there.
A result does not depend on whether a prompt was shared.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ecorl.engines.fpga.cycles.kernel_calls import BatchShape
from ecorl.engines.fpga.numerics.formats import LOG2_E, Scale, Tensors
from ecorl.engines.models.decoder_config import DecoderConfig
from ecorl.engines.models.gating import Gating
from ecorl.engines.protocol import Float32, Int64
from ecorl.errors import CheckpointError

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Segments:
    """A batch as runs of tokens, each of which continues its parent or begins a sequence.

    Attributes:
        ids: ``[n_tokens] int32``, the tokens that are computed.
        begin: ``[n_segments + 1] int64``, first token of each segment.
        parent: ``[n_segments] int32``, the segment that each continues, or -1. Parents have no
            parent, and their children come right behind them.
        rows: for each row of the batch its segments, parent first.
    """

    ids: Int32
    begin: Int64
    parent: Int32
    rows: tuple[tuple[int, ...], ...]

    @property
    def n_tokens(self) -> int:
        """Tokens that are computed."""
        return len(self.ids)

    def tokens(self, row: int, positions: Int64) -> Int64:
        """Places in `ids` of a row's tokens.

        Args:
            row: index in the batch.
            positions: ``[n] int64``, of the tokens in the row, from 0.

        Returns:
            ``[n] int64``.
        """
        first = self.rows[row][0]
        length = int(self.begin[first + 1] - self.begin[first])
        own = int(self.begin[self.rows[row][-1]]) - length
        shared = int(self.begin[first])
        offset = np.where(positions < length, shared, own if len(self.rows[row]) > 1 else shared)
        return np.asarray(positions + offset, np.int64)

    def shape(self, n_wanted: Sequence[int], head_rows: int) -> BatchShape:
        """The batch as the cycle model sees it.

        Args:
            n_wanted: results of each row: 1, or its completion tokens.
            head_rows: outputs of the head.
        """
        lengths = np.diff(self.begin).tolist()
        firsts = [0 if p < 0 else lengths[p] for p in self.parent]
        wanted = [0] * len(lengths)
        for row, n in zip(self.rows, n_wanted, strict=True):
            # A log-prob is read at the token before: one of them at the end of a shared prompt.
            own = n if head_rows == 1 or len(row) == 1 else max(n - 1, 0)
            wanted[row[-1]] = max(wanted[row[-1]], own)
            if head_rows != 1 and len(row) > 1:
                wanted[row[0]] = 1
        return BatchShape(tuple(lengths), tuple(wanted), head_rows, tuple(firsts), sum(n_wanted))

    def shape_at(self, tokens: Sequence[Int64], n_results: int) -> BatchShape:
        """The same for rewards read at given tokens, each of which is computed once.

        In the attention of the last layer the cycle model assumes that they end their segment.

        Args:
            tokens: tokens whose last hidden state is needed, in any order.
            n_results: rewards.
        """
        lengths = np.diff(self.begin).tolist()
        distinct = np.unique(np.concatenate(tokens)) if tokens else np.empty(0, np.int64)
        owners = np.searchsorted(self.begin, distinct, side="right") - 1
        wanted = np.bincount(owners, minlength=len(lengths)).tolist()
        firsts = [0 if p < 0 else lengths[p] for p in self.parent]
        return BatchShape(tuple(lengths), tuple(wanted), 1, tuple(firsts), n_results)


MAX_FAMILY_TOKENS = 8192
"""Tokens of the largest family (rows that share a prompt). A family passes the layers as one, so
this bounds the memory of a call. A larger group is cut into parts that each compute the prompt."""


def segments_of(rows: Sequence[Int64], n_completion: Sequence[int] | None = None) -> Segments:
    """Cut rows into segments; rows with the same prompt share it.

    Args:
        rows: token ids of each row, without padding, at least one token each.
        n_completion: completion tokens at the end of each row; without it nothing is shared.
    """
    parts: list[Int64] = []
    parents: list[int] = []
    where: list[tuple[int, ...]] = [()] * len(rows)

    def add(part: Int64, parent: int) -> int:
        parts.append(part)
        parents.append(parent)
        return len(parts) - 1

    for length, members in _families(rows, n_completion):
        if len(members) == 1 or length == 0:
            for index in members:
                where[index] = (add(rows[index], -1),)
            continue
        head = add(rows[members[0]][:length], -1)
        for index in members:
            rest = rows[index][length:]
            where[index] = (head, add(rest, head)) if len(rest) else (head,)
    begin = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([len(part) for part in parts], out=begin[1:])
    ids = np.concatenate(parts).astype(np.int32) if parts else np.empty(0, np.int32)
    return Segments(ids, begin, np.asarray(parents, np.int32), tuple(where))


def _families(
    rows: Sequence[Int64], n_completion: Sequence[int] | None
) -> list[tuple[int, list[int]]]:
    """Lengths of prompts with the rows that share each, in parts of at most MAX_FAMILY_TOKENS."""
    counts = n_completion if n_completion is not None else [len(row) for row in rows]
    groups: dict[bytes, list[int]] = {}
    for index, (row, n) in enumerate(zip(rows, counts, strict=True)):
        groups.setdefault(row[: len(row) - n].tobytes(), []).append(index)
    families: list[tuple[int, list[int]]] = []
    for members in groups.values():
        length = len(rows[members[0]]) - counts[members[0]]
        n_tokens = 0
        for index in members:
            rest = len(rows[index]) - length
            if n_tokens == 0 or n_tokens + rest > MAX_FAMILY_TOKENS:
                families.append((length, []))
                n_tokens = length
            families[-1][1].append(index)
            n_tokens += rest
    return families


MAX_ROW = 1 << 16
"""Longest row, tokens: the sums of attention weights over all keys of a row are INT32."""

REWARD_BITS, LOGPROB_BITS = 16, 20
"""Fraction bits of results."""

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
