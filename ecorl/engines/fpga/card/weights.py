"""A model's weights on their way to a card, and what proves that they arrived."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ecorl.drivers.xrt.card import CardBuffer
from ecorl.engines.fpga.card.image import REGIONS, Bytes, digest_of, fill, place_model
from ecorl.engines.fpga.card.plan import CardModel
from ecorl.engines.fpga.csim.library import CsimLibrary
from ecorl.engines.fpga.numerics.formats import IntegerDecoder
from ecorl.errors import DriverError

_CHUNK_BYTES = 64 << 20  # read back at a time: a model has gigabytes, and the host mirrors them


@dataclass(frozen=True, slots=True)
class Weights:
    """One version of a model's weights.

    Attributes:
        model: constants and places.
        write: writes the bytes of each of `REGIONS` into arrays of the sizes that the model says.
    """

    model: CardModel
    write: Callable[[Mapping[str, Bytes]], None]

    @classmethod
    def of(cls, decoder: IntegerDecoder, library: CsimLibrary, n_positions: int) -> Weights:
        """Weights of a model for rows of up to `n_positions` tokens."""
        placed = place_model(decoder, n_positions)
        return cls(
            CardModel.of(decoder, placed), lambda image: fill(image, placed, decoder, library)
        )


def upload(weights: Weights, buffers: Mapping[str, CardBuffer]) -> str:
    """Bring weights onto a card, and read them back to compare.

    Returns:
        SHA-256 of what lies on the card.

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
    """SHA-256 of the weights as they lie on the card, which the mirrors hold afterwards.

    Raises:
        DriverError: when a transfer fails.
    """
    digest = hashlib.sha256()
    for name in REGIONS:
        buffer = buffers[name]
        for at in range(0, buffer.n_bytes, _CHUNK_BYTES):
            n_bytes = min(_CHUNK_BYTES, buffer.n_bytes - at)
            part = buffer.part(at, n_bytes)
            np.invert(part.host, out=part.host)  # the mirror must not answer for the card
            digest.update(np.ascontiguousarray(part.download()).data)
    return digest.hexdigest()
