"""The INT8 decoder forward as C-simulation: one C call a batch.

The arithmetic is in ``hls_kernels`` (NUMERICS.md says what each operation computes); this module
loads a model into it and returns results. ctypes releases the GIL for the length of a call.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ecorl.engines.fpga.csim.library import CsimLibrary
from ecorl.engines.fpga.csim.structs import Batch, DecoderMemory
from ecorl.engines.fpga.int8_decoder import (
    LOGPROB_BITS,
    MAX_ROW,
    REWARD_BITS,
    Decoder,
    DecodeRequest,
    Int32,
    fixed_results,
)
from ecorl.engines.fpga.numerics.formats import (
    IntegerDecoder,
    Tensors,
    decoder_digest,
    integer_decoder,
    rope_tables,
)
from ecorl.engines.fpga.prefix_sharing import segments_of
from ecorl.engines.protocol import Float32, Int64
from ecorl.errors import BuildError, EngineError

__all__ = ["LOGPROB_BITS", "MAX_ROW", "REWARD_BITS", "Int8Decoder"]

_FIRST_POSITIONS = 512
_FAULTS = {
    1: "the host ran out of memory in the C-simulation",
    2: "the kernels do not take this model: they need head_dim a multiple of 16 of at most 128, "
    "hidden_size of at most 8192, intermediate_size a multiple of 16 (on each card) of at most "
    "32768, 256 heads and a vocabulary of 262144 at most",
}
"""Error codes of the library's calls, in words."""

_INT = ctypes.c_int32


class Int8Decoder(Decoder):
    """A frozen decoder that runs as C-simulation.

    Results do not depend on the number of threads and cards, on the build, or on the CPU.

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
        self._weight_bits, self._n_cards = weight_bits, n_cards
        self._growing = threading.Lock()
        self._set_weights(integer_decoder(tensors, weight_bits=weight_bits))

    def load(self, tensors: Tensors) -> str:
        """See `Decoder.load`."""
        self._check_shape(tensors)
        decoder = integer_decoder(tensors, weight_bits=self._weight_bits)
        self._set_weights(decoder)
        return decoder_digest(decoder)

    def _set_weights(self, decoder: IntegerDecoder) -> None:
        memory = DecoderMemory(decoder, self._library, self._n_cards)
        with self._growing:
            self.fraction_bits = decoder.fraction_bits
            self._memory, self._n_positions = memory, 0

    def hidden(self, rows: Sequence[Int64]) -> Float32:
        """Residual stream before the final norm, rows concatenated: ``[n_tokens, hidden]``.

        Raises:
            EngineError: when the host ran out of memory.
        """
        segments = segments_of(rows)
        asked = [segments.tokens(i, np.arange(len(row))) for i, row in enumerate(rows)]
        width = self.config.shape.hidden_size
        out, marks = self._request("hidden", rows, segments, asked, width=width)
        values = fixed_results(out, np.repeat(marks, width), self.fraction_bits)
        return values.reshape(-1, width)

    def _run(self, request: DecodeRequest) -> tuple[Int32, Int32]:
        n, segments = len(request.tokens), request.segments
        out, marks = np.zeros(n * request.width, np.int32), np.zeros(n, np.int32)
        self._ensure_positions(request.longest)
        targets, gates = request.targets, request.gates
        batch = Batch(
            segments.ids.ctypes.data,
            segments.begin.ctypes.data,
            segments.parent.ctypes.data,
            len(segments.parent),
            request.tokens.ctypes.data,
            None if targets is None else targets.ctypes.data,
            n,
            None if gates is None else gates.ctypes.data,
        )
        call = getattr(self._library.handle, f"decoder_{request.kind}")
        model = ctypes.byref(self._memory.model)
        scale = () if request.by is None else (request.by.m, request.by.e)
        results = (out.ctypes.data, marks.ctypes.data)
        if code := call(model, ctypes.byref(batch), *scale, *results, self.threads):
            self._library.check(code)
            raise EngineError(_FAULTS[code])
        return out, marks

    def _ensure_positions(self, length: int) -> None:
        """Make the tables of all positions up to `length`.

        Another thread may be in a call: former tables stay in memory, their values are the
        beginning of the new ones, and the new length is set last.
        """
        with self._growing:
            if length <= self._n_positions:
                return
            n = max(_FIRST_POSITIONS, 1 << (length - 1).bit_length())
            self._memory.set_positions(*rope_tables(self.config, n))
            self._n_positions = n


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
