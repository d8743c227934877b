"""The source without readings: every figure of its devices is missing, by choice."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ecorl.records import PowerSample, Provenance
from ecorl.telemetry.sources.specs import DeviceInfo


class NullSource:
    """Reports devices and never a figure.

    Args:
        device_ids: devices to report, so that they appear as missing and not as absent.
        interval_s: polling interval, s.
    """

    name = "null"
    provenance = Provenance.MEASURED

    def __init__(self, device_ids: Sequence[str] = ("gpu0",), interval_s: float = 1.0) -> None:
        self.interval_s = interval_s
        self._ids = tuple(device_ids)

    def open(self) -> None:
        """Nothing to open."""

    def device_ids(self) -> tuple[str, ...]:
        """The devices given."""
        return self._ids

    def describe(self) -> tuple[DeviceInfo, ...]:
        """The devices given, without an instrument."""
        return tuple(DeviceInfo(i, self.provenance, "null", "no power source") for i in self._ids)

    def read(self) -> tuple[PowerSample, ...]:
        """One empty sample a device; no error, because nothing failed."""
        now_s = time.monotonic()
        return tuple(
            PowerSample(i, now_s, None, None, None, self.provenance, "null") for i in self._ids
        )

    def close(self) -> None:
        """Nothing to close."""
