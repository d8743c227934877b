"""Processor power from RAPL energy counters."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ecorl.drivers import rapl
from ecorl.errors import DriverError
from ecorl.records import DeviceKind, PowerSample, Provenance
from ecorl.telemetry.sources.specs import COUNTER_RESET, COUNTER_STOPPED, DeviceInfo

MIN_STEP_S = 0.005
"""Shortest time over which power is taken from the counter, s: RAPL updates every 1 ms or so."""

STOPPED_AFTER_S = 0.5
"""A counter that stands still for this long has stopped, s: no package and no memory draws 0 W, and
RAPL refreshes hundreds of times within it."""


@dataclass
class _Zone:
    """A zone with what is known of its counter; times in s, energies in J.

    Attributes:
        moved: the newest reading that differed from the one before.
        since: the reading from which the next power is taken.
    """

    zone: rapl.RaplZone
    counter: rapl.UnwrappedCounter
    moved: tuple[float, float] | None = None
    since: tuple[float, float] | None = None
    power_w: float | None = None

    def forget(self) -> None:
        """Forget earlier readings after a missing one: nothing is concluded across it."""
        self.moved = self.since = self.power_w = None

    def note(self, now_s: float, energy_j: float) -> bool:
        """Note a reading; False when the counter has stopped."""
        if self.moved is None or energy_j > self.moved[1]:
            self.moved = (now_s, energy_j)
        elif now_s - self.moved[0] >= STOPPED_AFTER_S:
            self.since = self.power_w = None
            return False
        elif self.since is not None:
            # Between two refreshes; the power stands until the counter moves.
            return True
        if self.since is None or now_s - self.since[0] >= MIN_STEP_S:
            if self.since is not None:
                self.power_w = (energy_j - self.since[1]) / (now_s - self.since[0])
            self.since = (now_s, energy_j)
        return True


class RaplSource:
    """CPU packages (``cpu0``, ...) and their memory (``dram0``, ...), each counter once.

    RAPL has no power reading: ``power_w`` is the rise of the counter since the last reading over
    the time that passed, so it lags by one interval. ``energy_j`` is the counter itself. A counter
    that started again (``CounterReset``) or stands still (``CounterStopped``) gives a missing
    reading, across which no energy is summed.

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
        self._zones: tuple[_Zone, ...] = ()

    def open(self) -> None:
        """Find the zones and take the first counter values.

        Raises:
            DriverError: see `ecorl.drivers.rapl.find_zones`.
        """
        zones = rapl.distinct(rapl.find_zones(self._root))
        self._zones = tuple(_Zone(zone, rapl.UnwrappedCounter(zone.range_j)) for zone in zones)
        self.read()

    def describe(self) -> tuple[DeviceInfo, ...]:
        """The zones with the kernel's names."""
        return tuple(
            DeviceInfo(
                z.zone_id, DeviceKind.CPU, self.provenance, f"rapl:{z.name}", f"RAPL {z.label}"
            )
            for z in (state.zone for state in self._zones)
        )

    def read(self) -> tuple[PowerSample, ...]:
        """One sample a zone; a zone that cannot be read yields a missing reading."""
        return tuple(self._read_zone(state) for state in self._zones)

    def close(self) -> None:
        """Forget the counters; there is nothing to release."""
        for state in self._zones:
            state.forget()

    def _read_zone(self, state: _Zone) -> PowerSample:
        now_s = self._clock()
        energy_j: float | None = None
        error: str | None = None
        try:
            energy_j = state.counter.update(rapl.read_counter_j(state.zone), now_s)
            if energy_j is None:
                error = COUNTER_RESET
        except DriverError as fault:
            error = type(fault).__name__
        if energy_j is None:
            state.forget()
        elif not state.note(now_s, energy_j):
            energy_j, error = None, COUNTER_STOPPED
        figures, source = (state.power_w, energy_j, None), f"rapl:{state.zone.name}"
        return PowerSample(state.zone.zone_id, now_s, *figures, self.provenance, source, error)
