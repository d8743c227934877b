"""Alveo cards through XRT: board power, read only.

XRT answers the electrical report as JSON text whose figures are strings. It caches the report for
1 s by default and the card refreshes about every 120 ms, so a fast poll sees repeated values.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from ecorl.drivers.xrt.card import load_pyxrt, told_of, translated
from ecorl.errors import DriverError, DriverNotLoaded, NoPermission, NotSupported

BOARD_RAILS = ("12v_pex", "12v_aux", "3v3_pex")
"""The rails that feed the board; all others are derived from these."""

MAX_CARDS = 64

MAX_POWER_W = 1_000.0
"""No board power above this is believed, W: the largest Alveo cards are fed with 225 W."""


def parse_electrical(text: str) -> float | None:
    """Board power in W from XRT's electrical report, or None when it holds none.

    The figure ``power_consumption_watts`` is used where it is a positive number. Otherwise (it is
    ``N/A``, empty or 0) the rails 12V_PEX, 12V_AUX and 3V3_PEX are summed as volts x amps. All
    three must be listed. An auxiliary or 3.3 V rail that is marked as not present, without an
    error message, is not fitted or unused and adds nothing; a rail that failed to answer makes
    the sum unknown, and so does 12V_PEX without a positive power, which no running board lacks.

    Raises:
        DriverError: the text is not a JSON object, or a figure in it is malformed.
        NotSupported: the power is above `MAX_POWER_W`, which no card draws.
    """
    power_w = _board_power_w(text)
    if power_w is not None and power_w > MAX_POWER_W:
        raise NotSupported(f"XRT answered {power_w:.0f} W; no card draws above {MAX_POWER_W:.0f}")
    return power_w


def _board_power_w(text: str) -> float | None:
    try:
        report = json.loads(text)
    except ValueError as error:
        raise DriverError(f"the electrical report is not JSON: {error}") from error
    if not isinstance(report, dict):
        raise DriverError("the electrical report is not a JSON object")
    total_w = _number(report.get("power_consumption_watts"), "power_consumption_watts")
    if total_w is not None and total_w > 0:
        return total_w
    rails = report.get("power_rails")
    # XRT's writer (boost) puts an empty list as an empty string.
    if rails is None or rails == "":
        return None
    if not isinstance(rails, list) or not all(isinstance(rail, dict) for rail in rails):
        raise DriverError("power_rails is not a list of objects")
    by_id = {str(rail.get("id", "")).lower(): rail for rail in rails}
    powers = [_rail_power_w(by_id[name]) if name in by_id else None for name in BOARD_RAILS]
    known = [power for power in powers if power is not None]
    if len(known) < len(BOARD_RAILS) or known[0] <= 0:
        return None
    return sum(known)


def _rail_power_w(rail: Mapping[str, Any]) -> float | None:
    voltage, current = rail.get("voltage"), rail.get("current")
    if not isinstance(voltage, dict) or not isinstance(current, dict):
        return None
    if "error_msg" in voltage or "error_msg" in current:
        return None
    if not _present(voltage) or not _present(current):
        return 0.0
    volts = _number(voltage.get("volts"), f"{rail.get('id')}.voltage.volts")
    amps = _number(current.get("amps"), f"{rail.get('id')}.current.amps")
    return None if volts is None or amps is None else volts * amps


def _present(quantity: Mapping[str, Any]) -> bool:
    return str(quantity.get("is_present", "true")).lower() != "false"


def _number(value: object, what: str) -> float | None:
    """A figure of the report; None for ``N/A``, ``NA``, empty text and null."""
    if value is None or (isinstance(value, str) and value.strip().upper() in ("N/A", "NA", "")):
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise DriverError(f"{what} = {value!r} is not a number")
    try:
        number = float(value)
    except ValueError as error:
        raise DriverError(f"{what} = {value!r} is not a number") from error
    if not math.isfinite(number) or number < 0:
        raise DriverError(f"{what} = {value!r} is not a finite, non-negative number")
    return number


@dataclass(frozen=True, slots=True)
class XrtCard:
    """A card: its XRT index, name (shell), PCIe address, and XRT's device object."""

    index: int
    name: str
    bdf: str
    device: Any


class XrtDriver:
    """XRT's Python binding between `open` and `close`. Methods may raise a `DriverError`.

    Args:
        module: stands in for ``pyxrt``; None imports the real one in `open`.
    """

    def __init__(self, module: ModuleType | None = None) -> None:
        self._given = module
        self._xrt: Any = None

    def open(self) -> None:
        """Import the binding.

        Raises:
            LibraryNotFound: ``pyxrt`` cannot be imported; it comes with AMD's XRT, not from PyPI.
        """
        self._xrt = load_pyxrt() if self._given is None else self._given

    def close(self) -> None:
        """Forget the binding; card objects release their handles when collected."""
        self._xrt = None

    def cards(self) -> tuple[XrtCard, ...]:
        """The cards that open.

        Raises:
            DriverNotLoaded: XRT is there, but no card opens.
            NoPermission: a card is there and may not be opened.
        """
        found: list[XrtCard] = []
        for index in range(self._n_cards()):
            try:
                with translated(f"device({index})"):
                    device = self._module().device(index)
            except NoPermission:
                raise
            except DriverError:
                if self._counts():
                    continue
                break
            name, bdf = (told_of(self._xrt, device, key) for key in ("name", "bdf"))
            found.append(XrtCard(index, name, bdf, device))
        if not found:
            raise DriverNotLoaded("XRT is installed, but no card opens")
        return tuple(found)

    def power_w(self, card: XrtCard) -> float | None:
        """Board power in W, or None when the card tells none; see `parse_electrical`."""
        with translated(f"get_info(electrical) of card {card.index}"):
            text = card.device.get_info(self._module().xrt_info_device.electrical)
        return parse_electrical(str(text))

    def _module(self) -> Any:
        if self._xrt is None:
            raise DriverError("XRT is not open")
        return self._xrt

    def _counts(self) -> bool:
        """Whether this XRT can say how many cards there are (2.17 and later)."""
        return hasattr(self._module(), "enumerate_devices")

    def _n_cards(self) -> int:
        if not self._counts():
            return MAX_CARDS
        with translated("enumerate_devices"):
            return int(self._module().enumerate_devices())
