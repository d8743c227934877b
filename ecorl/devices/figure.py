"""One figure of a device, with its provenance."""

from __future__ import annotations

from dataclasses import dataclass

from ecorl.records import Provenance


@dataclass(frozen=True, slots=True)
class DeviceFigure:
    """One figure of a device.

    Attributes:
        value: in the unit.
        unit: of the value.
        provenance: of the value.
        source: where it comes from, in words.
        low, high: ends of the interval in which the figure is taken to lie; None where the value
            stands alone.
    """

    value: float
    unit: str
    provenance: Provenance
    source: str
    low: float | None = None
    high: float | None = None
