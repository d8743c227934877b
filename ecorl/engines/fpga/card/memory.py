"""The buffers of one card: allocated when first needed, then reused for every group.

A group's inputs and results have two slots. While the card computes one group, the next one's
inputs go into the other slot, and the last one's results come from there.
"""

from __future__ import annotations

from collections.abc import Mapping

from ecorl.drivers.xrt.card import CardBuffer, OpenCard
from ecorl.engines.fpga.card.plan import At
from ecorl.engines.fpga.kernels.buffers import PORTS, SLOTTED
from ecorl.engines.fpga.kernels.interfaces import KernelInterface
from ecorl.errors import DriverError

_MOST_PARTS = 8192
_SMALLEST = 4096


class CardMemory:
    """Named buffers of a card.

    Args:
        card: the card.
        interfaces: its kernels by name.
    """

    def __init__(self, card: OpenCard, interfaces: Mapping[str, KernelInterface]) -> None:
        self._card, self._interfaces = card, interfaces
        self._buffers: dict[tuple[str, int], CardBuffer] = {}
        self._parts: dict[tuple[str, int, int], CardBuffer] = {}

    def reserve(self, name: str, n_bytes: int, slot: int = 0) -> CardBuffer:
        """Reserve a buffer of at least `n_bytes`; its content is lost when it must grow.

        Args:
            name: of the buffer.
            n_bytes: needed.
            slot: which copy of a slotted buffer.

        Raises:
            DriverError: when the bank has no headroom, or the bitstream no bank for it.
        """
        key = (name, slot if name in SLOTTED else 0)
        known = self._buffers.get(key)
        if known is not None and known.n_bytes >= n_bytes:
            return known
        size = max(n_bytes, _SMALLEST)
        # Doubled, so that batches that grow slowly do not allocate each time.
        doubled = size if known is None else max(size, 2 * known.n_bytes)
        known = None  # the old one must be freed first, or the bank may have no headroom
        try:
            return self._replace(key, doubled)
        except DriverError:
            if doubled == size:
                raise
        return self._replace(key, size)

    def exact(self, name: str, n_bytes: int) -> CardBuffer:
        """Reserve a buffer of exactly `n_bytes`, for weights.

        Args:
            name: of the buffer.
            n_bytes: needed.

        Raises:
            DriverError: as `reserve`.
        """
        known = self._buffers.get((name, 0))
        if known is None or known.n_bytes != n_bytes:
            known = None
            known = self._replace((name, 0), n_bytes)
        return known

    def at(self, place: At, slot: int) -> CardBuffer:
        """The buffer from a place to its end.

        Args:
            place: buffer and offset.
            slot: which copy of a slotted buffer.

        Raises:
            KeyError: when the buffer was not reserved.
            DriverError: when the place is beyond it.
        """
        slot = slot if place.buffer in SLOTTED else 0
        whole = self._buffers[place.buffer, slot]
        if place.offset == 0:
            return whole
        key = (place.buffer, slot, place.offset)
        part = self._parts.get(key)
        if part is None:
            if len(self._parts) >= _MOST_PARTS:
                self._parts.clear()
            part = self._parts[key] = whole.part(place.offset, whole.n_bytes - place.offset)
        return part

    def _replace(self, key: tuple[str, int], n_bytes: int) -> CardBuffer:
        self._buffers.pop(key, None)
        self._parts = {k: part for k, part in self._parts.items() if k[:2] != key}
        buffer = self._card.allocate(n_bytes, *(self._port(*port) for port in PORTS[key[0]]))
        self._buffers[key] = buffer
        return buffer

    def _port(self, kernel: str, argument: str) -> tuple[str, int]:
        interface = self._interfaces[kernel]
        index = next(a.index for a in interface.arguments if a.name == argument)
        return interface.top, index
