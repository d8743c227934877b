"""Upload of a model's weights to a card, verified by reading them back."""

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
        return cls(
            CardModel.of(decoder, placed), lambda image: fill(image, placed, decoder, library)
        )


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
