"""The INT8 decoder forward: a model in the kernels' formats, then one C call a batch.

The arithmetic is in ``hls_kernels`` (NUMERICS.md says what each operation computes); this module
loads a model into it and hands out results. ctypes releases the GIL for the length of a call.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ecorl.engines.fpga.formats import (
    LOG2_E,
    IntegerDecoder,
    Scale,
    Tensors,
    integer_decoder,
    rope_tables,
)
from ecorl.engines.fpga.gemm import CsimLibrary
from ecorl.engines.fpga.memory import Batch, DecoderMemory
from ecorl.engines.fpga.segments import Segments, segments_of
from ecorl.engines.gating import Gating
from ecorl.engines.protocol import Float32, Int64
from ecorl.errors import BuildError, EngineError

MAX_ROW = 1 << 16
"""Longest row, tokens: the sums of attention weights over all keys of a row are INT32."""

REWARD_BITS, LOGPROB_BITS = 16, 20
"""Fraction bits of results."""

_FIRST_POSITIONS = 512
_FAULTS = {
    1: "the host ran out of memory in the C-simulation",
    2: "the kernels do not take this model: they need head_dim a multiple of 16 of at most 128, "
    "hidden_size of at most 8192, intermediate_size a multiple of 16 (on each card) of at most "
    "32768, 256 heads and a vocabulary of 262144 at most",
}
"""What the library's calls return."""

_POINTER, _INT = ctypes.c_void_p, ctypes.c_int32
Int32 = npt.NDArray[np.int32]


class Int8Decoder:
    """A frozen decoder, ready to run as C-simulation.

    Rows are arrays of token ids without padding; the caller has checked ids and lengths
    (`MAX_ROW`, `max_positions`, `vocab_size`). A row's result has the same bits in any batch,
    order, number of threads and cards, build and on any CPU, with and without a shared prompt. A
    result that rests on a number which did not fit its format is NaN.

    Args:
        tensors: the model; its tensors are read one by one and not kept as floats.
        library: the C-simulation library, fast or strict.
        threads: host threads of a call.
        weight_bits: 8, or 4 for studies of precision.
        n_cards: cards that the model is split over.

    Raises:
        CheckpointError: when a tensor cannot be read or does not fit its format.
        ConfigError: when the model cannot be split over that many cards.
        BuildError: when the library lacks the decoder.
    """

    def __init__(
        self,
        tensors: Tensors,
        library: CsimLibrary,
        threads: int = 1,
        *,
        weight_bits: int = 8,
        n_cards: int = 1,
    ) -> None:
        self.config = tensors.config
        self.threads = max(1, threads)
        self._library = library
        _declare(library.handle)
        decoder: IntegerDecoder = integer_decoder(tensors, weight_bits=weight_bits)
        self.fraction_bits = decoder.fraction_bits
        self._memory = DecoderMemory(decoder, library, n_cards)
        self._n_positions = 0
        self._growing = threading.Lock()

    def score(self, rows: Sequence[Int64], n_completion: Sequence[int] | None = None) -> Float32:
        """Reward at the last token of each row: ``[n_rows] float32``.

        With a gate it is read where `Gating.positions` says; NaN for a row without such a place.

        Args:
            rows: token ids.
            n_completion: completion tokens of each row; with it, a prompt that rows share is
                computed once.

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

        Raises:
            EngineError: when the host ran out of memory.
        """
        segments = segments_of(rows, n_completion)
        scored = [np.asarray(p, np.int64) for p in positions]
        if self.config.gating is not None:
            return self._gated_at(self.config.gating, rows, scored, n_completion, segments)
        asked = [segments.tokens(i, p) for i, p in enumerate(scored)]
        out, marks = self._call("decoder_rewards", rows, segments, asked)
        return _split(_results(out, marks, REWARD_BITS), asked)

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
        out, marks = self._call("decoder_gated_rewards", rows, segments, asked, gates=gates)
        values = tuple(np.full(len(p), np.nan, np.float32) for p in scored)
        found = _split(_results(out, marks, REWARD_BITS), asked)
        for own, u, answers in zip(values, used, found, strict=True):
            own[u] = answers
        return values

    def logprobs(
        self, rows: Sequence[Int64], n_completion: Sequence[int], temperature: float
    ) -> tuple[Float32, ...]:
        """Log-probs of the last ``n_completion[i]`` tokens of each row, nats, float32.

        The value of token t is ``log_softmax(logits[t - 1] / temperature)[x_t]``.

        Raises:
            EngineError: when the host ran out of memory.
        """
        segments = segments_of(rows, n_completion)
        asked, targets = [], []
        for index, (row, n) in enumerate(zip(rows, n_completion, strict=True)):
            positions = np.arange(len(row) - n - 1, len(row) - 1)
            asked.append(segments.tokens(index, positions))
            targets.append(row[len(row) - n :].astype(np.int32))
        by = Scale.of(LOG2_E / temperature)
        out, marks = self._call(
            "decoder_logprobs", rows, segments, asked, by.m, by.e, targets=targets
        )
        return _split(_results(out, marks, LOGPROB_BITS), asked)

    def hidden(self, rows: Sequence[Int64]) -> Float32:
        """Residual stream before the final norm, rows concatenated: ``[n_tokens, hidden]``.

        Raises:
            EngineError: when the host ran out of memory.
        """
        segments = segments_of(rows)
        asked = [segments.tokens(i, np.arange(len(row))) for i, row in enumerate(rows)]
        width = self.config.shape.hidden_size
        out, marks = self._call("decoder_hidden", rows, segments, asked, width=width)
        values = _results(out, np.repeat(marks, width), self.fraction_bits)
        return values.reshape(-1, width)

    def _call(
        self,
        function: str,
        rows: Sequence[Int64],
        segments: Segments,
        asked: Sequence[Int64],
        *arguments: int,
        targets: Sequence[Int32] | None = None,
        gates: Sequence[Int64] | None = None,
        width: int = 1,
    ) -> tuple[Int32, Int32]:
        """Results and marks in the order of `asked`, with what else belongs to each result."""
        n = sum(len(part) for part in asked)
        out, marks = np.zeros(n * width, np.int32), np.zeros(n, np.int32)
        if n == 0:
            return out, marks
        self._ensure_positions(max(len(row) for row in rows))
        tokens = np.concatenate(asked)
        order = np.argsort(tokens, kind="stable")  # the library takes outputs in order of tokens
        each = [_ordered(part, order) for part in (asked, targets, gates)]
        at_outputs, at_targets, at_gates = (None if e is None else e.ctypes.data for e in each)
        batch = Batch(
            segments.ids.ctypes.data,
            segments.begin.ctypes.data,
            segments.parent.ctypes.data,
            len(segments.parent),
            at_outputs,
            at_targets,
            n,
            at_gates,
        )
        call = getattr(self._library.handle, function)
        model = ctypes.byref(self._memory.model)
        results = (out.ctypes.data, marks.ctypes.data)
        if code := call(model, ctypes.byref(batch), *arguments, *results, self.threads):
            raise EngineError(_FAULTS[code])
        unsorted_out, unsorted_marks = np.empty_like(out), np.empty_like(marks)
        unsorted_out.reshape(n, width)[order] = out.reshape(n, width)
        unsorted_marks[order] = marks
        return unsorted_out, unsorted_marks

    def _ensure_positions(self, length: int) -> None:
        """Tables of every position up to `length`.

        Another thread may be in a call: former tables stay where they are, their values are the
        beginning of the new ones, and the new length is told last.
        """
        with self._growing:
            if length <= self._n_positions:
                return
            n = max(_FIRST_POSITIONS, 1 << (length - 1).bit_length())
            self._memory.set_positions(*rope_tables(self.config, n))
            self._n_positions = n


def _ordered(parts: Sequence[npt.NDArray[Any]] | None, order: Int64) -> npt.NDArray[Any] | None:
    return None if parts is None else np.ascontiguousarray(np.concatenate(parts)[order])


def _results(values: Int32, marks: Int32, fraction_bits: int) -> Float32:
    out = np.ldexp(values.astype(np.float64), -fraction_bits).astype(np.float32)
    out[marks != 0] = np.nan
    return out


def _split(values: Float32, parts: Sequence[Int64]) -> tuple[Float32, ...]:
    return tuple(np.split(values, np.cumsum([len(p) for p in parts])[:-1])) if parts else ()


def _declare(handle: Any) -> None:
    pointer = ctypes.c_void_p
    signatures = {
        "decoder_gated_rewards": [pointer, pointer, pointer, pointer, _INT],
        "decoder_rewards": [pointer, pointer, pointer, pointer, _INT],
        "decoder_logprobs": [pointer, pointer, _INT, _INT, pointer, pointer, _INT],
        "decoder_hidden": [pointer, pointer, pointer, pointer, _INT],
    }
    try:
        for name, arguments in signatures.items():
            function: Callable[..., int] = getattr(handle, name)
            function.restype, function.argtypes = _INT, arguments  # type: ignore[attr-defined]
    except AttributeError as error:
        raise BuildError(f"the C-simulation library lacks the decoder: {error}") from error
