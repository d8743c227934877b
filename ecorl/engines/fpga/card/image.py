"""A model's constants in the order of the card's memory (layouts: the headers in hls_kernels).

Four regions: the halves of the weight words, which gemm_int8 reads through two ports, the constants
of channels and norms, and the tables of tokens and positions. `place_model` chooses the places,
`fill` writes the constants there, into the host's copy of a card's buffer or any other array.

A model's weights are uploaded with it, and verified by reading them back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ecorl.drivers.xrt.card import CardBuffer
from ecorl.engines.fpga.csim.library import CsimLibrary
from ecorl.engines.fpga.kernels.sequence import HEAD_BLOCK, LAYER_LINEARS, input_slices
from ecorl.engines.fpga.numerics.formats import (
    IntegerDecoder,
    IntegerLinear,
    IntegerNorm,
    Scale,
    rope_tables,
)
from ecorl.engines.models.decoder_config import DecoderConfig
from ecorl.errors import DriverError

WORD = 64
"""Bytes of a 512-bit word."""
LANES = 16
TABLE_LANES = 32
BLOCK_ROWS = 16
STEP_CODES = 4
PANEL_HEADS = 64
ROPE_WORDS = 4
EXACT_BITS = 32
"""Values have the exponent of their codes, plus this, less the shift of their sums."""

LAYER_NORMS = ("attention_norm", "mlp_norm")

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Slice:
    """The weights of some inputs of a linear map.

    Attributes:
        at: where they begin in both halves, bytes.
        n_bytes: of each half.
        k: inputs.
    """

    at: int
    n_bytes: int
    k: int


@dataclass(frozen=True, slots=True)
class PlacedLinear:
    """A linear map on the card.

    Attributes:
        slices: its weights, by slices of the inputs.
        side: where its channel constants lie, bytes.
        n: outputs.
        has_bias: whether it has biases.
        input_shift: left shift of the sums, bits.
        exponents: of the values of each segment of outputs.
    """

    slices: tuple[Slice, ...]
    side: int
    n: int
    has_bias: bool
    input_shift: int
    exponents: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PlacedNorm:
    """A norm on the card: where its weights lie, and their exponent."""

    side: int
    exponent: int


@dataclass(frozen=True, slots=True)
class PlacedLayer:
    """One decoder block on the card: its norms and its linear maps, by name."""

    norms: Mapping[str, PlacedNorm]
    linears: Mapping[str, PlacedLinear]


@dataclass(frozen=True, slots=True)
class PlacedModel:
    """Where the constants of a model lie on the card.

    Attributes:
        layers: the decoder blocks.
        final_norm: before the head.
        head: blocks of the vocabulary, or the one map of rewards.
        rope: where the table of the positions begins; that of the tokens comes before it.
        n_positions: entries of that table.
        sizes: bytes of each region.
    """

    layers: tuple[PlacedLayer, ...]
    final_norm: PlacedNorm
    head: tuple[PlacedLinear, ...]
    rope: int
    n_positions: int
    sizes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class CardModel:
    """Constants of a model that kernel starts carry, and the places of those on the card."""

    config: DecoderConfig
    fraction_bits: int
    eps: Scale
    score_scale: Scale
    placed: PlacedModel

    @classmethod
    def of(cls, decoder: IntegerDecoder, placed: PlacedModel) -> CardModel:
        """Take the constants from a decoder in the kernels' formats."""
        return cls(decoder.config, decoder.fraction_bits, decoder.eps, decoder.score_scale, placed)


REGIONS = ("low", "high", "sides", "tables")
"""Names of the regions, which are buffers of the card."""


def digest_of(parts: Iterable[Bytes]) -> str:
    """SHA-256 of some arrays, one behind the other."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(np.ascontiguousarray(part).data)
    return digest.hexdigest()


def place_model(decoder: IntegerDecoder, n_positions: int) -> PlacedModel:
    """Choose places for the constants of a model.

    Args:
        decoder: the model; without a gate, for which there is no kernel.
        n_positions: longest row, tokens.
    """
    return _Placer(decoder, n_positions).model()


def fill(
    image: Mapping[str, Bytes], placed: PlacedModel, decoder: IntegerDecoder, library: CsimLibrary
) -> None:
    """Write a model's constants to their places.

    Args:
        image: for each of `REGIONS` a writable array of ``placed.sizes`` bytes.
        placed: the places.
        decoder: the model.
        library: packs the weights.
    """
    for region in image.values():
        region[:] = 0
    _Writer(image, library).model(placed, decoder)


def words(n: int) -> int:
    """Words of n values of 32 bits."""
    return -(-n // LANES)


def code_words(m: int, n: int) -> int:
    """Words of INT8 codes in gemm_int8's order of activations.

    Args:
        m: rows.
        n: columns.
    """
    return -(-m // BLOCK_ROWS) * -(-n // STEP_CODES)


def head_blocks(head: IntegerLinear) -> Iterator[IntegerLinear]:
    """Cut the head into parts of HEAD_BLOCK outputs, each with the exponent of the whole."""
    for first in range(0, len(head.codes), HEAD_BLOCK):
        rows = slice(first, first + HEAD_BLOCK)
        bias = None if head.bias is None else head.bias[rows]
        part = head.codes[rows]
        yield IntegerLinear(
            part, head.mantissa[rows], head.shift[rows], head.exponents, len(part), bias
        )


class _Placer:
    def __init__(self, decoder: IntegerDecoder, n_positions: int) -> None:
        self._decoder, self._n_positions = decoder, n_positions
        self._half_bytes = self._side_bytes = 0

    def model(self) -> PlacedModel:
        decoder, shape = self._decoder, self._decoder.config.shape
        rope = len(decoder.embedding) * token_words(shape.hidden_size) * WORD
        layers = tuple(
            PlacedLayer(
                {name: self._norm(getattr(layer, name)) for name in LAYER_NORMS},
                {name: self._linear(getattr(layer, name), name) for name in LAYER_LINEARS},
            )
            for layer in decoder.layers
        )
        final_norm = self._norm(decoder.final_norm)
        head = tuple(self._linear(block) for block in head_blocks(decoder.head))
        sizes = {
            "low": self._half_bytes,
            "high": self._half_bytes,
            "sides": self._side_bytes,
            "tables": rope + self._n_positions * ROPE_WORDS * WORD,
        }
        return PlacedModel(layers, final_norm, head, rope, self._n_positions, sizes)

    def _side(self, n_words: int) -> int:
        at = self._side_bytes
        self._side_bytes += n_words * WORD
        return at

    def _norm(self, norm: IntegerNorm) -> PlacedNorm:
        return PlacedNorm(self._side(words(len(norm.weight))), norm.exponent)

    def _linear(self, linear: IntegerLinear, name: str = "head") -> PlacedLinear:
        n, k = linear.codes.shape
        slices = []
        for first, last in input_slices(k):
            n_bytes = code_words(n, last - first) * WORD // 2
            slices.append(Slice(self._half_bytes, n_bytes, last - first))
            self._half_bytes += n_bytes
        n_side = len(head_side(linear)) if name == "qkv" else 3 * words(n)
        exponents = linear.exponents.astype(np.int64) + EXACT_BITS - linear.input_shift
        return PlacedLinear(
            tuple(slices),
            self._side(n_side),
            n,
            linear.bias is not None,
            linear.input_shift,
            tuple(int(e) for e in exponents),
        )


@dataclass(frozen=True, slots=True)
class _Writer:
    image: Mapping[str, Bytes]
    library: CsimLibrary

    def model(self, placed: PlacedModel, decoder: IntegerDecoder) -> None:
        self._put("tables", 0, token_table(decoder))
        self._put("tables", placed.rope, position_table(decoder, placed.n_positions))
        for at, layer in zip(placed.layers, decoder.layers, strict=True):
            for name, norm in at.norms.items():
                self._put("sides", norm.side, getattr(layer, name).weight)
            for name, linear in at.linears.items():
                self._linear(linear, getattr(layer, name), name)
        self._put("sides", placed.final_norm.side, decoder.final_norm.weight)
        for linear, block in zip(placed.head, head_blocks(decoder.head), strict=True):
            self._linear(linear, block)

    def _linear(self, at: PlacedLinear, linear: IntegerLinear, name: str = "head") -> None:
        side = head_side(linear) if name == "qkv" else channel_words(linear, slice(None))
        self._put("sides", at.side, side)
        first = 0
        for part in at.slices:
            codes = np.ascontiguousarray(linear.codes[:, first : first + part.k])
            packed = self.library.pack(codes).data.view(np.uint8).reshape(-1, 2, WORD // 2)
            for half, region in enumerate((self.image["low"], self.image["high"])):
                region[part.at : part.at + part.n_bytes] = packed[:, half].reshape(-1)
            first += part.k

    def _put(self, region: str, at: int, values: npt.NDArray[Any]) -> None:
        raw = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        self.image[region][at : at + len(raw)] = raw


def channel_words(linear: IntegerLinear, rows: slice) -> Words:
    """Constants of some outputs of a linear map.

    Args:
        linear: the map.
        rows: its outputs.

    Returns:
        ``[words, 3, 16] int32``: mantissas, shifts and biases.
    """
    n = len(linear.mantissa[rows])
    table = np.zeros((3, words(n) * LANES), np.int32)
    table[0, :n], table[1, :n] = linear.mantissa[rows], linear.shift[rows]
    if linear.bias is not None:
        table[2, :n] = linear.bias[rows]
    return np.ascontiguousarray(table.reshape(3, -1, LANES).swapaxes(0, 1))


def head_side(linear: IntegerLinear) -> Words:
    """``[words, 16] int32``: before each panel of heads their exponents, then their channels."""
    d, parts = linear.segment, []
    exponents = linear.exponents.astype(np.int64) + EXACT_BITS - linear.input_shift
    for first in range(0, len(exponents), PANEL_HEADS):
        own = exponents[first : first + PANEL_HEADS]
        panel = np.zeros(PANEL_HEADS, np.int32)
        panel[: len(own)] = own
        parts.append(panel.reshape(-1, LANES))
        channels = channel_words(linear, slice(first * d, (first + len(own)) * d))
        parts.append(channels.reshape(-1, LANES))
    return np.concatenate(parts)


def token_words(hidden: int) -> int:
    """Words of one entry of the embedding's table."""
    return 1 + -(-hidden // TABLE_LANES)


def token_table(decoder: IntegerDecoder) -> npt.NDArray[np.int16]:
    """``[vocabulary, words, 32] int16``: the exponent in the first word, then the codes."""
    vocabulary, hidden = decoder.embedding.shape
    table = np.zeros((vocabulary, token_words(hidden) * TABLE_LANES), np.int16)
    table[:, 0] = decoder.embedding_exponent
    table[:, TABLE_LANES : TABLE_LANES + hidden] = decoder.embedding
    return table


def position_table(decoder: IntegerDecoder, n_positions: int) -> npt.NDArray[np.int16]:
    """Table of the rotary embedding.

    Args:
        decoder: the model.
        n_positions: entries.

    Returns:
        ``[n_positions, 2, 64] int16``: cosines, then sines.
    """
    cosine, sine = rope_tables(decoder.config, n_positions)
    table = np.zeros((n_positions, 2, ROPE_WORDS // 2 * TABLE_LANES), np.int16)
    table[:, 0, : cosine.shape[1]], table[:, 1, : sine.shape[1]] = cosine, sine
    return table


_CHUNK_BYTES = 64 << 20  # read back at a time: a model has gigabytes, and the host mirrors them


@dataclass(frozen=True, slots=True)
class Weights:
    """One version of a model's weights.

    Attributes:
        model: constants and places.
        write: writes the bytes of each of `REGIONS` into arrays of ``model.placed.sizes`` bytes.
    """

    model: CardModel
    write: Callable[[Mapping[str, Bytes]], None]

    @classmethod
    def of(cls, decoder: IntegerDecoder, library: CsimLibrary, n_positions: int) -> Weights:
        """Place the weights of a model.

        Args:
            decoder: the model in integers.
            library: packs the weights.
            n_positions: longest row, tokens.
        """
        placed = place_model(decoder, n_positions)
        model = CardModel.of(decoder, placed)
        return cls(model, lambda image: fill(image, placed, decoder, library))


def upload(weights: Weights, buffers: Mapping[str, CardBuffer]) -> str:
    """Upload weights to a card, read them back and compare.

    Args:
        weights: one version of a model's weights.
        buffers: the card's buffers of `REGIONS`, by name.

    Returns:
        SHA-256 of the bytes that the card holds.

    Raises:
        DriverError: when a transfer fails, or the card holds other bytes than were sent.
    """
    weights.write({name: buffers[name].host for name in REGIONS})
    sent = digest_of(buffers[name].host for name in REGIONS)
    for name in REGIONS:
        buffers[name].upload()
    arrived = digest_on_card(buffers)
    if arrived != sent:
        raise DriverError(f"weights arrived as sha256:{arrived[:12]}, sent were sha256:{sent[:12]}")
    return arrived


def digest_on_card(buffers: Mapping[str, CardBuffer]) -> str:
    """SHA-256 of the weights that the card holds; the host's copies are overwritten with them.

    Raises:
        DriverError: when a transfer fails.
    """
    digest = hashlib.sha256()
    for name in REGIONS:
        buffer = buffers[name]
        for at in range(0, buffer.n_bytes, _CHUNK_BYTES):
            n_bytes = min(_CHUNK_BYTES, buffer.n_bytes - at)
            part = buffer.part(at, n_bytes)
            np.invert(
                part.host, out=part.host
            )  # so that the host's copy cannot pass for the card's
            digest.update(np.ascontiguousarray(part.download()).data)
    return digest.hexdigest()
