"""Processor power from RAPL energy counters."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from ecorl.drivers import rapl
from ecorl.errors import DriverError
from ecorl.records import PowerSample, Provenance
from ecorl.telemetry.specs import DeviceInfo

MIN_STEP_S = 0.005
"""Shortest time over which power is taken from the counter, s: RAPL updates every 1 ms or so."""


class RaplSource:
    """CPU packages (``cpu0``, ...) and their memory (``dram0``, ...).

    RAPL has no power reading: ``power_w`` is the rise of the counter since the last reading over
    the time that passed, so it lags by one interval. ``energy_j`` is the counter itself.

    Args:
        root: powercap folder.
        interval_s: polling interval, s.
    """

    name = "rapl"
    provenance = Provenance.MEASURED

    def __init__(self, root: Path = rapl.POWERCAP_ROOT, interval_s: float = 0.1) -> None:
        self.interval_s = interval_s
        self._root = root
        self._clock: Callable[[], float] = time.monotonic
        self._zones: tuple[rapl.RaplZone, ...] = ()
        self._counters: dict[str, rapl.UnwrappedCounter] = {}
        self._last: dict[str, tuple[float, float]] = {}
        self._power_w: dict[str, float] = {}

    def open(self) -> None:
        """Find the zones and take the first counter values.

        Raises:
            DriverError: see `ecorl.drivers.rapl.find_zones`.
        """
        self._zones = rapl.find_zones(self._root)
        for zone in self._zones:
            counter = self._counters[zone.zone_id] = rapl.UnwrappedCounter(zone.range_j)
            self._last[zone.zone_id] = (
                self._clock(),
                counter.update(rapl.read_counter_j(zone)),
            )

    def device_ids(self) -> tuple[str, ...]:
        """Packages first, then their memory."""
        return tuple(zone.zone_id for zone in self._zones)

    def describe(self) -> tuple[DeviceInfo, ...]:
        """The zones with the kernel's names."""
        return tuple(
            DeviceInfo(z.zone_id, self.provenance, f"rapl:{z.name}", f"RAPL {z.name}")
            for z in self._zones
        )

    def read(self) -> tuple[PowerSample, ...]:
        """One sample a zone; a zone that cannot be read yields a missing reading."""
        return tuple(self._read_zone(zone) for zone in self._zones)

    def close(self) -> None:
        """Forget the zones; there is nothing to release."""
        self._last.clear()
        self._power_w.clear()

    def _read_zone(self, zone: rapl.RaplZone) -> PowerSample:
        source, zone_id = f"rapl:{zone.name}", zone.zone_id
        now_s = self._clock()
        try:
            energy_j = self._counters[zone_id].update(rapl.read_counter_j(zone))
        except DriverError as error:
            self._last.pop(zone_id, None)
            self._power_w.pop(zone_id, None)
            name = type(error).__name__
            return PowerSample(zone_id, now_s, None, None, None, self.provenance, source, name)
        last = self._last.get(zone_id)
        if last is None or now_s - last[0] >= MIN_STEP_S:
            if last is not None:
                self._power_w[zone_id] = (energy_j - last[1]) / (now_s - last[0])
            self._last[zone_id] = (now_s, energy_j)
        power_w = self._power_w.get(zone_id)
        return PowerSample(zone_id, now_s, power_w, energy_j, None, self.provenance, source)
