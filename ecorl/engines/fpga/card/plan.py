"""The plan of a group of rows: kernel starts on a card's buffers, as pure data.

The host builds a plan once and then only starts kernels, one after the other. PCIe carries one
record of 64 bytes a token (with its id and position), the lists of pages and queries, a task of 64
bytes for each start, and the results. All else stays on the card, with one exception: during the
last layer's attention the records are read back once, so that a token with a number beyond its
format marks the tokens after it.
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
"""Value of rewards, and of marks of log-probs, before the card writes them. The card never writes
such a mark, and such a reward only beside a mark."""


@dataclass(frozen=True, slots=True)
class At:
    """A place in a buffer: its name and the offset, bytes.

    The offset is a multiple of 64: Vitis HLS assumes that of every address that a kernel gets
    (``m_axi_alignment_byte_size``), and a kernel reads from a wrong place otherwise.
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
    """Constants of a model that kernel starts carry, and the places of those on the card."""

    config: DecoderConfig
    fraction_bits: int
    eps: Scale
    score_scale: Scale
    placed: PlacedModel

    @classmethod
    def of(cls, decoder: IntegerDecoder, placed: PlacedModel) -> CardModel:
        """Collect them.

        Args:
            decoder: the model in integers.
            placed: where its constants lie on the card.
        """
        return cls(decoder.config, decoder.fraction_bits, decoder.eps, decoder.score_scale, placed)


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """All that a card computes for a group of rows.

    Attributes:
        model: the model that it was built for; other weights have other constants.
        layout: where its tokens stand.
        inputs: bytes of the buffers of `INPUTS`.
        before: starts up to the last layer's keys and values.
        attend: the last layer's attention, which neither reads nor writes the rows' records: the
            host spreads their marks meanwhile.
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
