"""The source without readings: every figure of its devices is missing, by choice."""

from __future__ import annotations

import time

from ecorl.records import PowerSample, Provenance
from ecorl.telemetry.sources.specs import DeviceInfo, MeteredDevice


class NullSource:
    """Reports a device and never a figure.

    Args:
        device: the device to report, so that it appears as missing and not as absent.
        interval_s: polling interval, s.
    """

    name = "null"
    provenance = Provenance.MEASURED

    def __init__(self, device: MeteredDevice, interval_s: float = 1.0) -> None:
        self.interval_s = interval_s
        self._device = device

    def open(self) -> None:
        """Nothing to open."""

    def device_ids(self) -> tuple[str, ...]:
        """The device given."""
        return (self._device.device_id,)

    def describe(self) -> tuple[DeviceInfo, ...]:
        """The device given, without an instrument."""
        given = self._device
        info = DeviceInfo(given.device_id, given.kind, self.provenance, "null", "no power source")
        return (info,)

    def read(self) -> tuple[PowerSample, ...]:
        """One empty sample; no error, because nothing failed."""
        now_s, device_id = time.monotonic(), self._device.device_id
        return (PowerSample(device_id, now_s, None, None, None, self.provenance, "null"),)

    def close(self) -> None:
        """Nothing to close."""
