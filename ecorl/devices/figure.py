"""One figure of a device, with its provenance."""

from __future__ import annotations

from dataclasses import dataclass

from ecorl.records import Provenance


@dataclass(frozen=True, slots=True)
class DeviceFigure:
    """One figure of a device: value, unit, provenance, and where it comes from in words."""

    value: float
    unit: str
    provenance: Provenance
    source: str
