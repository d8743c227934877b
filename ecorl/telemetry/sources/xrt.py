"""Board power of Alveo cards."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import ModuleType

from ecorl.drivers.xrt.power import XrtCard, XrtDriver
from ecorl.errors import DeviceLost, DriverError, NotSupported
from ecorl.records import DeviceKind, PowerSample, Provenance
from ecorl.telemetry.sources.specs import DeviceInfo, card_id


class XrtSource:
    """Cards as ``fpga0``, ``fpga1``, ... by XRT's index. There is no energy counter.

    Args:
        interval_s: polling interval, s; the card refreshes about every 120 ms at best.
        module: stands in for ``pyxrt``.
        cards: XRT's numbers of those to read; None reads all. What other cards draw is not this
            run's.
    """

    name = "xrt"
    provenance = Provenance.MEASURED

    def __init__(
        self,
        interval_s: float = 0.05,
        module: ModuleType | None = None,
        cards: Sequence[int] | None = None,
    ) -> None:
        self.interval_s, self._wanted = interval_s, cards
        self._driver = XrtDriver(module)
        self._cards: tuple[XrtCard, ...] = ()

    def open(self) -> None:
        """Open the cards.

        Raises:
            DriverError: no binding, no card, no permission, or a wanted card that does not open.
        """
        self._driver.open()
        found = self._driver.cards()
        if self._wanted is not None:
            missing = set(self._wanted) - {card.index for card in found}
            if missing:
                raise DeviceLost(f"card {min(missing)} does not open")
            found = tuple(card for card in found if card.index in self._wanted)
        self._cards = found

    def describe(self) -> tuple[DeviceInfo, ...]:
        """The cards with shell name and PCIe address."""
        return tuple(
            DeviceInfo(
                card_id(card.index),
                DeviceKind.FPGA,
                self.provenance,
                "xrt:electrical",
                f"{card.name} {card.bdf}",
            )
            for card in self._cards
        )

    def read(self) -> tuple[PowerSample, ...]:
        """One sample a card."""
        return tuple(self._read_card(card) for card in self._cards)

    def close(self) -> None:
        """Release the cards."""
        self._cards = ()
        self._driver.close()

    def _read_card(self, card: XrtCard) -> PowerSample:
        power_w, error = None, None
        before_s = time.monotonic()
        try:
            power_w = self._driver.power_w(card)
            if power_w is None:
                error = NotSupported.__name__
        except DriverError as fault:
            error = type(fault).__name__
        now_s = 0.5 * (before_s + time.monotonic())
        figures, device_id = (power_w, None, None), card_id(card.index)
        return PowerSample(device_id, now_s, *figures, self.provenance, "xrt:electrical", error)
