"""A group of rows as starts of kernels on a card's buffers: pure data.

The host says once what is to happen and then only starts kernels, one after the other. What crosses
PCIe is one record of 64 bytes a token (its id and position in it), the lists of pages and queries,
a task of 64 bytes for each start, and the results. In between everything stays on the card, with
one exception: beside the last layer's attention the records come back once, so that a token whose
number did not fit marks the tokens after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ecorl.engines.fpga.card.image import Bytes, PlacedModel
from ecorl.engines.fpga.card.tokens import TokenLayout
from ecorl.engines.fpga.numerics.formats import IntegerDecoder, Scale
from ecorl.engines.models.decoder_config import DecoderConfig
from ecorl.engines.protocol import Int64

UNWRITTEN = np.int32(-(1 << 31))
"""What rewards, and marks of log-probs, hold before the card writes them. It writes no such mark,
and no such reward but where a number did not fit."""


@dataclass(frozen=True, slots=True)
class At:
    """A place in a buffer: its name and the offset, bytes.

    The offset is a multiple of 64: Vitis HLS takes every address that a kernel is given for one
    (``m_axi_alignment_byte_size``), and reads another one wrongly.
    """

    buffer: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class KernelStart:
    """One start of a kernel: its name in `hls_kernels`, and its arguments by name."""

    kernel: str
    arguments: Mapping[str, At | int]


@dataclass(frozen=True, slots=True)
class CardModel:
    """What a plan must know of a model: constants, and where the others lie."""

    config: DecoderConfig
    fraction_bits: int
    eps: Scale
    score_scale: Scale
    placed: PlacedModel

    @classmethod
    def of(cls, decoder: IntegerDecoder, placed: PlacedModel) -> CardModel:
        """From a model and its places."""
        return cls(decoder.config, decoder.fraction_bits, decoder.eps, decoder.score_scale, placed)


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """All that a card does for a group.

    Attributes:
        model: the model that it was made for; other weights have other constants.
        layout: where its tokens stand.
        inputs: bytes of the buffers of `INPUTS`.
        before: starts up to the last layer's keys and values.
        attend: the last layer's attention, which neither reads nor writes the rows' records: their
            marks are spread beside it.
        after: starts once the marks have been spread.
        sizes: bytes of each buffer that are used.
        result: the buffer that holds the results, ``values`` or ``outputs``.
        output_at: ``[n_outputs] int64``, where each output stands in it: a row, or a result.
        n_tokens: rows that are computed.
    """

    model: CardModel
    layout: TokenLayout
    inputs: Mapping[str, Bytes]
    before: tuple[KernelStart, ...]
    attend: tuple[KernelStart, ...]
    after: tuple[KernelStart, ...]
    sizes: Mapping[str, int]
    result: str
    output_at: Int64
    n_tokens: int
