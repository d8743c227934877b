"""Converts a decoder's weights to the integer formats of the kernels (hls_kernels/NUMERICS.md).

Only here do floats become integers, once, when a model is loaded. The results are plain arrays; the
C-simulation, the golden model of the tests and a card's memory use the same ones.

Weights are quantised per channel and symmetrically. For output channel n of a matrix W ``[n, k]``,
with L = 127 (8 bits) or 7 (4 bits)::

    scale[n] = max_k |W[n, k]| / L            (float32)
    q[n, k]  = round_half_to_even(W[n, k] * (L / max_k |W[n, k]|))

so that ``|W - scale * q| <= scale / 2`` up to float32 rounding, and q stays within +-L. A channel
of zeros (largest magnitude below 1e-30) has scale 0 and q 0. The paper quantises activations per
tensor (section 3.3); here each token row has its own scale, which the forward computes: so a row's
result cannot depend on its batch.

INT4 serves to study the precision of weights alone: its values are stored and multiplied as INT8 by
the same kernels, activations stay INT8, and nothing becomes smaller or faster.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ecorl.engines.models.decoder_config import DecoderConfig
from ecorl.engines.models.gating import LOGIT_SCALE, TRANSFORM, Gating, bias_name, layer_name
from ecorl.engines.protocol import Float32
from ecorl.errors import CheckpointError

Int8 = npt.NDArray[np.int8]
Int16 = npt.NDArray[np.int16]
Int32 = npt.NDArray[np.int32]

TINY = np.float32(1e-30)
LEVELS = {8: 127, 4: 7}
"""Largest quantised magnitude by bits; symmetric, so -128 and -8 are not used."""

_ROWS_AT_A_TIME = 4096  # bounds the temporaries of a large vocabulary


@dataclass(frozen=True, slots=True)
class QuantisedWeight:
    """A quantised matrix: ``q`` is ``[n, k] int8``, ``scale`` is ``[n] float32``."""

    q: Int8
    scale: Float32


def quantise_weight(weight: Float32, bits: int = 8) -> QuantisedWeight:
    """Quantise a matrix ``[n, k] float32`` per output channel; see the module's formulas.

    Args:
        weight: ``[n, k] float32``.
        bits: 8, or 4; either way ``q`` is int8.

    Raises:
        ValueError: for any other number of bits.
    """
    if bits not in LEVELS:
        raise ValueError(f"weights of {bits} bits: allowed is one of {sorted(LEVELS)}")
    level = np.float32(LEVELS[bits])
    n, k = weight.shape
    q, scale = np.empty((n, k), np.int8), np.empty(n, np.float32)
    for at in range(0, n, _ROWS_AT_A_TIME):
        rows = weight[at : at + _ROWS_AT_A_TIME]
        largest = np.abs(rows).max(axis=1)
        used = largest >= TINY
        factor = np.divide(level, largest, out=np.zeros_like(largest), where=used)
        scale[at : at + len(rows)] = np.where(used, largest / level, np.float32(0))
        q[at : at + len(rows)] = np.rint(rows * factor[:, None])
    return QuantisedWeight(q, scale)


MANTISSA_BITS = 31
LOG2_E = math.log2(math.e)
ROPE_BITS = 14
_DEFAULT_BITS = 16
_MOST_HEAD_DIM = 256
_MOST_SHIFT = 31
_VALUE_BITS = 30  # residual stream, biases
_GATE_BITS = 16  # fraction bits of a gate's values and biases


@dataclass(frozen=True, slots=True)
class Scale:
    """``m * 2**e`` with ``2**30 <= m < 2**31``, or zero."""

    m: int
    e: int

    @classmethod
    def of(cls, value: float) -> Scale:
        """The nearest scale to a value that is not negative; exact for a float32."""
        if value == 0:
            return cls(0, 0)
        fraction, exponent = math.frexp(value)
        m = round(fraction * 2**MANTISSA_BITS)
        if m == 2**MANTISSA_BITS:
            m, exponent = m // 2, exponent + 1
        return cls(m, exponent - MANTISSA_BITS)


@dataclass(frozen=True, slots=True)
class IntegerNorm:
    """Weights of an RMSNorm: ``[n] int32`` times ``2**exponent``."""

    weight: Int32
    exponent: int


@dataclass(frozen=True, slots=True)
class IntegerLinear:
    """A linear map ``[n, k]``: INT8 codes and one scale an output channel.

    Attributes:
        codes: ``[n, k] int8`` within +-127.
        mantissa: ``[n] int32``, 0 for a channel of zeros.
        shift: ``[n] int32``, how much smaller a channel's exponent is than its segment's, at most
            31.
        exponents: ``[n / segment] int32``, the largest channel exponent of each segment.
        segment: channels of a segment (a head; the gate; ...).
        bias: ``[n] int32`` in the residual stream's fraction bits (of a gate: 16), or None.
    """

    codes: Int8
    mantissa: Int32
    shift: Int32
    exponents: Int32
    segment: int
    bias: Int32 | None = None

    @property
    def input_shift(self) -> int:
        """Left shift that lets the largest possible sum over k fill 30 bits."""
        return 16 - math.ceil(math.log2(self.codes.shape[1]))


@dataclass(frozen=True, slots=True)
class IntegerLayer:
    """One decoder block. ``qkv`` stacks q, k, v (segments: heads), ``gate_up`` gate and up."""

    attention_norm: IntegerNorm
    mlp_norm: IntegerNorm
    qkv: IntegerLinear
    output: IntegerLinear
    gate_up: IntegerLinear
    down: IntegerLinear


@dataclass(frozen=True, slots=True)
class IntegerGate:
    """The gate of a reward with several objectives.

    Attributes:
        layers: its linear maps in order; biases have 16 fraction bits, the last one's is in units
            of log2 and over the temperature.
        scale: ``log2(e) / temperature``.
    """

    layers: tuple[IntegerLinear, ...]
    scale: Scale


@dataclass(frozen=True, slots=True)
class IntegerDecoder:
    """A decoder in integers: all that a forward needs.

    Attributes:
        config: the model.
        fraction_bits: of the residual stream and of biases.
        eps: of the norms.
        score_scale: ``log2(e) / sqrt(head_dim)``.
        embedding: ``[vocabulary, hidden] int16`` codes.
        embedding_exponent: ``[vocabulary] int32``.
        layers: the decoder blocks.
        final_norm: before the head.
        head: its outputs are the vocabulary's logits, or rewards. With a gate the transform of the
            rewards and the scale of the gates are multiplied into it.
        gate: of a reward with several objectives, else None.
    """

    config: DecoderConfig
    fraction_bits: int
    eps: Scale
    score_scale: Scale
    embedding: Int16
    embedding_exponent: Int32
    layers: tuple[IntegerLayer, ...]
    final_norm: IntegerNorm
    head: IntegerLinear
    gate: IntegerGate | None = None


class Tensors(Protocol):
    """A source of a model's tensors: a `DecoderCheckpoint`, or an equalised one."""

    @property
    def config(self) -> DecoderConfig:
        """The model."""
        ...

    @property
    def head_name(self) -> str:
        """Name of the head's tensor."""
        ...

    def tensor(self, name: str) -> Float32:
        """One tensor as float32."""
        ...


def integer_decoder(tensors: Tensors, *, weight_bits: int = 8) -> IntegerDecoder:
    """Convert a checkpoint to the kernels' formats.

    Args:
        tensors: the checkpoint.
        weight_bits: 8, or 4 for the precision study (INT4 codes run on the INT8 kernels).

    Raises:
        CheckpointError: when a tensor cannot be read, or a bias, a gate's rewards or the head's
            size does not fit.
    """
    config = tensors.config
    if config.shape.head_dim > _MOST_HEAD_DIM:
        raise CheckpointError(
            f"head_dim = {config.shape.head_dim}: the kernels take at most {_MOST_HEAD_DIM}"
        )
    codes, exponents, fraction_bits = _embedding(tensors.tensor("model.embed_tokens.weight"))
    convert = _Converter(tensors, fraction_bits, weight_bits)
    return IntegerDecoder(
        config=config,
        fraction_bits=fraction_bits,
        eps=Scale.of(config.rms_norm_eps),
        score_scale=Scale.of(LOG2_E / math.sqrt(config.shape.head_dim)),
        embedding=codes,
        embedding_exponent=exponents,
        layers=tuple(convert.layer(i) for i in range(config.shape.n_layers)),
        final_norm=integer_norm(tensors.tensor("model.norm.weight")),
        head=convert.head(),
        gate=None if config.gating is None else convert.gate(config.gating),
    )


def decoder_digest(decoder: IntegerDecoder) -> str:
    """SHA-256 of all integers of a model, hexadecimal: equal for equal weights and formats."""
    digest = hashlib.sha256()
    for name in (f.name for f in fields(decoder) if f.name != "config"):
        _add_to(digest, getattr(decoder, name))
    return digest.hexdigest()


def rope_tables(config: DecoderConfig, n_positions: int) -> tuple[Int16, Int16]:
    """Cosines and sines of the rotary embedding.

    Args:
        config: of the model.
        n_positions: entries.

    Returns:
        Cosines and sines, each ``[n_positions, head_dim / 2] int16`` with 14 fraction bits.
    """
    frequencies = config.rope.frequencies(config.shape.head_dim)
    angles = np.arange(n_positions, dtype=np.float64)[:, None] * frequencies[None, :]
    one = 2.0**ROPE_BITS
    return np.rint(np.cos(angles) * one).astype(np.int16), np.rint(np.sin(angles) * one).astype(
        np.int16
    )


def integer_norm(weight: Float32) -> IntegerNorm:
    """Convert a norm's weights, with one exponent for all: the largest fills 31 bits."""
    largest = float(np.abs(weight).max(initial=0.0))
    exponent = math.frexp(largest)[1] - MANTISSA_BITS if largest else 0
    scaled = np.rint(np.ldexp(weight.astype(np.float64), -exponent))
    limit = 2.0**MANTISSA_BITS - 1
    return IntegerNorm(np.clip(scaled, -limit, limit).astype(np.int32), exponent)


def integer_linear(
    codes: Int8, scale: Float32, segment: int, bias: Int32 | None = None
) -> IntegerLinear:
    """Make a linear map of codes and channel scales.

    Args:
        codes: ``[n, k] int8``.
        scale: ``[n] float32``, of each output channel.
        segment: channels that share an exponent.
        bias: ``[n] int32``, or None.
    """
    fraction, exponent = np.frexp(scale.astype(np.float64))
    mantissa = np.rint(fraction * 2.0**MANTISSA_BITS).astype(np.int64)
    used = mantissa > 0
    exponent = exponent.astype(np.int64) - MANTISSA_BITS
    by_segment = np.where(used, exponent, np.iinfo(np.int32).min).reshape(-1, segment)
    largest = by_segment.max(axis=1)
    largest[~used.reshape(-1, segment).any(axis=1)] = 0
    shift = np.where(used, np.repeat(largest, segment) - exponent, 0)
    return IntegerLinear(
        codes=codes,
        mantissa=mantissa.astype(np.int32),
        shift=np.minimum(shift, _MOST_SHIFT).astype(np.int32),
        exponents=largest.astype(np.int32),
        segment=segment,
        bias=bias,
    )


def _add_to(digest: hashlib._Hash, value: object) -> None:
    if isinstance(value, np.ndarray):
        digest.update(f"{value.dtype} {value.shape};".encode())
        digest.update(np.ascontiguousarray(value).data)
    elif isinstance(value, tuple):
        digest.update(f"{len(value)} parts;".encode())
        for part in value:
            _add_to(digest, part)
    elif is_dataclass(value):
        for each in fields(value):
            _add_to(digest, getattr(value, each.name))
    else:
        digest.update(f"{value!r};".encode())


def _embedding(weight: Float32) -> tuple[Int16, Int32, int]:
    """Convert the embedding; returns codes, exponents and the residual stream's fraction bits."""
    largest = np.abs(weight).max(axis=1).astype(np.float64)
    exponent = np.where(largest > 0, np.frexp(largest)[1] - 15, 0)
    codes = np.rint(np.ldexp(weight.astype(np.float64), -exponent[:, None]))
    used = largest[largest > 0]
    # The median, not the largest: one outlier must not cost all other tokens their fraction bits.
    # Such a token is marked where it occurs.
    bits = 12 - math.ceil(math.log2(float(np.median(used)))) if len(used) else _DEFAULT_BITS
    return (
        np.clip(codes, -32767, 32767).astype(np.int16),
        exponent.astype(np.int32),
        min(max(bits, 0), 24),
    )


@dataclass(frozen=True, slots=True)
class _Converter:
    """Converts the parts of a checkpoint."""

    tensors: Tensors
    fraction_bits: int
    weight_bits: int

    def layer(self, index: int) -> IntegerLayer:
        config = self.tensors.config
        at = f"model.layers.{index}"
        attention = [f"{at}.self_attn.{part}_proj" for part in ("q", "k", "v")]
        mlp = [f"{at}.mlp.gate_proj", f"{at}.mlp.up_proj"]
        return IntegerLayer(
            attention_norm=integer_norm(self.tensors.tensor(f"{at}.input_layernorm.weight")),
            mlp_norm=integer_norm(self.tensors.tensor(f"{at}.post_attention_layernorm.weight")),
            qkv=self._projection(attention, config.shape.head_dim, config.qkv_bias),
            output=self._projection([f"{at}.self_attn.o_proj"], 0, config.output_bias),
            gate_up=self._projection(mlp, config.shape.intermediate_size, False),
            down=self._projection([f"{at}.mlp.down_proj"], 0, False),
        )

    def _projection(self, names: Sequence[str], segment: int, bias: bool) -> IntegerLinear:
        biases = [self._bias(f"{name}.bias", self.fraction_bits) for name in names if bias]
        weights = (self.tensors.tensor(f"{name}.weight") for name in names)  # one at a time
        return self._whole(weights, segment, np.concatenate(biases) if biases else None)

    def head(self) -> IntegerLinear:
        weight = self.tensors.tensor(self.tensors.head_name)
        if self.tensors.config.gating is not None:
            weight = _folded(self.tensors, weight)
        return self._whole([weight], 0, None)

    def gate(self, gating: Gating) -> IntegerGate:
        by = LOG2_E / gating.temperature
        layers = []
        for i, biased in enumerate(gating.biased):
            factor = by if i == gating.n_hidden else 1.0
            bias = self._bias(bias_name(i), _GATE_BITS, factor) if biased else None
            layers.append(self._whole([self.tensors.tensor(layer_name(i))], 0, bias))
        return IntegerGate(tuple(layers), Scale.of(by))

    def linear(
        self, names: Sequence[str], segment: int, biases: Sequence[str] = ()
    ) -> IntegerLinear:
        """One product for maps of the same input; segment 0 means one segment for all channels."""
        parts = [self._bias(name, self.fraction_bits) for name in biases]
        weights = (self.tensors.tensor(name) for name in names)  # floats of one at a time
        return self._whole(weights, segment, np.concatenate(parts) if parts else None)

    def _whole(self, weights: Iterable[Float32], segment: int, bias: Int32 | None) -> IntegerLinear:
        parts = [quantise_weight(weight, self.weight_bits) for weight in weights]
        codes = np.concatenate([part.q for part in parts])
        scale = np.concatenate([part.scale for part in parts])
        return integer_linear(codes, scale, segment or len(codes), bias)

    def _bias(self, name: str, fraction_bits: int, factor: float = 1.0) -> Int32:
        exact = self.tensors.tensor(name).astype(np.float64) * factor
        scaled = np.rint(np.ldexp(exact, fraction_bits))
        if np.abs(scaled).max(initial=0.0) >= 2.0**_VALUE_BITS:
            limit = 2.0 ** (_VALUE_BITS - fraction_bits) / factor
            raise CheckpointError(f"{name} reaches {limit:g}, beyond the kernels' fixed point")
        return scaled.astype(np.int32)


def _folded(tensors: Tensors, weight: Float32) -> Float32:
    """Weights of the transformed rewards times the gates' scale: ``c T^T W`` in float64."""
    transform = tensors.tensor(TRANSFORM).astype(np.float64)
    gate_scale = float(tensors.tensor(LOGIT_SCALE)[0])
    folded = gate_scale * (transform.T @ weight.astype(np.float64))
    if np.abs(folded).max(initial=0.0) > np.finfo(np.float32).max:
        raise CheckpointError(f"{tensors.head_name} times {TRANSFORM} does not fit float32")
    return folded.astype(np.float32)
