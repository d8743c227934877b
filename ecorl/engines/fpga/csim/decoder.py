"""The INT8 decoder forward as C-simulation: one C call a batch.

The arithmetic is in ``hls_kernels`` (NUMERICS.md says what each operation computes); this module
loads a model into it and returns results. ctypes releases the GIL for the length of a call.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ecorl.engines.fpga.csim.library import CsimLibrary, declare
from ecorl.engines.fpga.int8_decoder import (
    Decoder,
    DecodeRequest,
    Int32,
    fixed_results,
    segments_of,
)
from ecorl.engines.fpga.kernels.sequence import HEAD_BLOCK, input_slices
from ecorl.engines.fpga.numerics import formats
from ecorl.engines.protocol import Float32, Int64
from ecorl.errors import BuildError, ConfigError, EngineError

_POINTER, _INT = ctypes.c_void_p, ctypes.c_int32
Indices = npt.NDArray[np.int64]


class _Linear(ctypes.Structure):
    _fields_ = (
        ("packed", ctypes.POINTER(_POINTER)),
        *((name, _POINTER) for name in ("slice", "mantissa", "shift", "exponents", "bias")),
        *((name, _INT) for name in ("n_slices", "n", "k", "segment", "input_shift")),
    )


class _Norm(ctypes.Structure):
    _fields_ = (("weight", _POINTER), ("exponent", _INT))


class _Layer(ctypes.Structure):
    _fields_ = (
        ("attention_norm", _Norm),
        ("mlp_norm", _Norm),
        *((name, _Linear) for name in ("qkv", "output", "gate_up", "down")),
    )


class _Card(ctypes.Structure):
    _fields_ = (
        *((name, _INT) for name in ("n_heads", "n_kv_heads", "intermediate", "n_head_blocks")),
        ("layers", ctypes.POINTER(_Layer)),
        ("head", ctypes.POINTER(_Linear)),
    )


class _Model(ctypes.Structure):
    _fields_ = (
        *((name, _INT) for name in ("n_cards", "n_layers", "hidden", "head_dim")),
        *((name, _INT) for name in ("fraction_bits", "eps_m", "eps_e", "score_m", "score_e")),
        ("cards", ctypes.POINTER(_Card)),
        *((name, _POINTER) for name in ("embedding", "embedding_exponent", "cosine", "sine")),
        ("final_norm", _Norm),
        ("gate", ctypes.POINTER(_Linear)),
        *((name, _INT) for name in ("n_gate_layers", "gate_m", "gate_e")),
    )


class Batch(ctypes.Structure):
    """``decoder_batch`` of hls_kernels/sim/decoder.hpp."""

    _fields_ = (
        *((name, _POINTER) for name in ("ids", "begin", "parent")),
        ("n_segments", _INT),
        ("outputs", _POINTER),
        ("targets", _POINTER),
        ("n_outputs", ctypes.c_int64),
        ("gates", _POINTER),
    )


class DecoderMemory:
    """``decoder_model`` of hls_kernels/sim/decoder.hpp, and the arrays that it points into.

    Args:
        decoder: the model.
        library: packs the weights.
        n_cards: simulated cards that share it.

    Raises:
        ConfigError: when the model cannot be split over that many cards.
    """

    def __init__(
        self, decoder: formats.IntegerDecoder, library: CsimLibrary, n_cards: int = 1
    ) -> None:
        s = decoder.config.shape
        for name, size in (("n_kv_heads", s.n_kv_heads), ("intermediate", s.intermediate_size)):
            if n_cards < 1 or size % n_cards:
                raise ConfigError("n_cards", n_cards, f"a divisor of the model's {name}, {size}")
        self._library = library
        self._keep: list[Any] = []
        cards = (_Card * n_cards)(*(self._card(decoder, c, n_cards) for c in range(n_cards)))
        self.model = _Model(
            n_cards=n_cards,
            n_layers=s.n_layers,
            hidden=s.hidden_size,
            head_dim=s.head_dim,
            fraction_bits=decoder.fraction_bits,
            eps_m=decoder.eps.m,
            eps_e=decoder.eps.e,
            score_m=decoder.score_scale.m,
            score_e=decoder.score_scale.e,
            cards=cards,
            embedding=self._address(decoder.embedding),
            embedding_exponent=self._address(decoder.embedding_exponent),
            final_norm=self._norm(decoder.final_norm),
        )
        if decoder.gate is not None:
            self._set_gate(decoder.gate)

    def set_positions(self, cosine: npt.NDArray[np.int16], sine: npt.NDArray[np.int16]) -> None:
        """Set the tables of positions; former ones stay in memory for running calls.

        Args:
            cosine: ``[positions, head_dim / 2] int16``.
            sine: ``[positions, head_dim / 2] int16``.
        """
        self.model.cosine = self._address(cosine)
        self.model.sine = self._address(sine)

    def _set_gate(self, gate: formats.IntegerGate) -> None:
        layers = [self._whole(layer, np.arange(len(layer.codes))) for layer in gate.layers]
        self.model.gate = (_Linear * len(layers))(*layers)
        self.model.n_gate_layers = len(layers)
        self.model.gate_m, self.model.gate_e = gate.scale.m, gate.scale.e

    def _card(self, decoder: formats.IntegerDecoder, card: int, n_cards: int) -> _Card:
        s = decoder.config.shape
        n_heads, n_kv = s.n_heads // n_cards, s.n_kv_heads // n_cards
        inner = s.intermediate_size // n_cards
        layers = (_Layer * s.n_layers)(
            *(self._layer(layer, decoder, card, n_cards) for layer in decoder.layers)
        )
        n_blocks = -(-len(decoder.head.codes) // HEAD_BLOCK)
        first, last = n_blocks * card // n_cards, n_blocks * (card + 1) // n_cards
        if decoder.config.is_reward:
            first, last = 0, 1 if card == 0 else 0
        blocks = [self._head_block(decoder.head, b) for b in range(first, last)]
        return _Card(
            n_heads, n_kv, inner, len(blocks), layers, (_Linear * max(len(blocks), 1))(*blocks)
        )

    def _layer(
        self, layer: formats.IntegerLayer, decoder: formats.IntegerDecoder, card: int, n_cards: int
    ) -> _Layer:
        s = decoder.config.shape
        heads = _part(s.n_heads, card, n_cards)
        kv = _part(s.n_kv_heads, card, n_cards)
        inner = _part(s.intermediate_size, card, n_cards)
        d = s.head_dim
        n_heads, n_kv = s.n_heads, s.n_kv_heads
        used = np.concatenate([heads, n_heads + kv, n_heads + n_kv + kv])
        every = np.arange(s.hidden_size)
        return _Layer(
            self._norm(layer.attention_norm),
            self._norm(layer.mlp_norm),
            self._linear(layer.qkv, _channels(used, d), every, used, d),
            self._linear(layer.output, every, _channels(heads, d)),
            self._linear(
                layer.gate_up,
                np.concatenate([inner, s.intermediate_size + inner]),
                every,
                np.arange(2),
                len(inner),
            ),
            self._linear(layer.down, every, inner),
        )

    def _head_block(self, head: formats.IntegerLinear, block: int) -> _Linear:
        rows = np.arange(block * HEAD_BLOCK, min((block + 1) * HEAD_BLOCK, len(head.codes)))
        return self._whole(head, rows)

    def _whole(self, linear: formats.IntegerLinear, outputs: Indices) -> _Linear:
        """Some outputs of a map with all of its inputs."""
        return self._linear(linear, outputs, np.arange(linear.codes.shape[1]))

    def _linear(
        self,
        linear: formats.IntegerLinear,
        outputs: Indices,
        inputs: Indices,
        segments: Indices | None = None,
        segment: int = 0,
    ) -> _Linear:
        """A card's part of a map: some outputs and some inputs, with the whole map's constants."""
        codes = linear.codes[outputs]
        if len(inputs) != codes.shape[1]:
            codes = codes[:, inputs]
        slices = input_slices(len(inputs))
        packed = [
            self._library.pack(np.ascontiguousarray(codes[:, first:last])) for first, last in slices
        ]
        self._keep.extend(packed)
        exponents = linear.exponents if segments is None else linear.exponents[segments]
        bias = None if linear.bias is None else self._address(linear.bias[outputs])
        return _Linear(
            packed=(_POINTER * len(packed))(*(p.data.ctypes.data for p in packed)),
            slice=self._address(np.asarray([0, *(last for _, last in slices)], np.int32)),
            mantissa=self._address(linear.mantissa[outputs]),
            shift=self._address(linear.shift[outputs]),
            exponents=self._address(exponents),
            bias=bias,
            n_slices=len(packed),
            n=len(outputs),
            k=len(inputs),
            segment=segment or len(outputs),
            input_shift=linear.input_shift,
        )

    def _norm(self, norm: formats.IntegerNorm) -> _Norm:
        return _Norm(self._address(norm.weight), norm.exponent)

    def _address(self, array: npt.NDArray[Any]) -> int:
        kept = np.ascontiguousarray(array)
        self._keep.append(kept)
        return int(kept.ctypes.data)


def _part(n: int, card: int, n_cards: int) -> Indices:
    return np.arange(n * card // n_cards, n * (card + 1) // n_cards)


def _channels(heads: Sequence[int] | Indices, d: int) -> Indices:
    return (np.asarray(heads, np.int64)[:, None] * d + np.arange(d)).reshape(-1)


_CALL = [_POINTER, _POINTER, _POINTER, _POINTER, _INT]
_SIGNATURES = {
    "decoder_gated_rewards": (_INT, _CALL),
    "decoder_rewards": (_INT, _CALL),
    "decoder_logprobs": (_INT, [_POINTER, _POINTER, _INT, _INT, _POINTER, _POINTER, _INT]),
    "decoder_hidden": (_INT, _CALL),
}

_FIRST_POSITIONS = 512
_FAULTS = {
    1: "the host ran out of memory in the C-simulation",
    2: "the kernels do not take this model: they need head_dim a multiple of 16 of at most 128, "
    "hidden_size of at most 8192, intermediate_size a multiple of 16 (on each card) of at most "
    "32768, 256 heads and a vocabulary of 262144 at most",
}
"""Error codes of the library's calls, in words."""


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
        tensors: formats.Tensors,
        library: CsimLibrary,
        threads: int = 1,
        *,
        weight_bits: int = 8,
        n_cards: int = 1,
    ) -> None:
        self.config = tensors.config
        self.threads = max(1, threads)
        self._library = library
        try:
            declare(library.handle, _SIGNATURES)
        except AttributeError as error:
            raise BuildError(f"the C-simulation library lacks the decoder: {error}") from error
        self._weight_bits, self._n_cards = weight_bits, n_cards
        self._growing = threading.Lock()
        self._set_weights(formats.integer_decoder(tensors, weight_bits=weight_bits))

    def load(self, tensors: formats.Tensors) -> str:
        """See `Decoder.load`."""
        self._check_shape(tensors)
        decoder = formats.integer_decoder(tensors, weight_bits=self._weight_bits)
        self._set_weights(decoder)
        return formats.decoder_digest(decoder)

    def _set_weights(self, decoder: formats.IntegerDecoder) -> None:
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
            self._memory.set_positions(*formats.rope_tables(self.config, n))
            self._n_positions = n
