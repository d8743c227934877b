"""Power sources of RAPL, XRT and none; building any of them from the configuration; choosing."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

from ecorl import config as cfg
from ecorl.drivers import rapl
from ecorl.drivers.xrt.power import XrtCard, XrtDriver
from ecorl.errors import DeviceLost, DriverError, NotSupported, UserError
from ecorl.records import DeviceKind, PowerSample, Provenance
from ecorl.telemetry.sampling.messages import SourceReport
from ecorl.telemetry.sources import specs
from ecorl.telemetry.sources.modelled import ModelledSource
from ecorl.telemetry.sources.nvml import NvmlSource
from ecorl.telemetry.sources.replay import ReplaySource

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

    def describe(self) -> tuple[specs.DeviceInfo, ...]:
        """The zones with the kernel's names."""
        return tuple(
            specs.DeviceInfo(
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
                error = specs.COUNTER_RESET
        except DriverError as fault:
            error = type(fault).__name__
        if energy_j is None:
            state.forget()
        elif not state.note(now_s, energy_j):
            energy_j, error = None, specs.COUNTER_STOPPED
        figures, source = (state.power_w, energy_j, None), f"rapl:{state.zone.name}"
        return PowerSample(state.zone.zone_id, now_s, *figures, self.provenance, source, error)


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

    def describe(self) -> tuple[specs.DeviceInfo, ...]:
        """The cards with shell name and PCIe address."""
        return tuple(
            specs.DeviceInfo(
                specs.card_id(card.index),
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
        figures, device_id = (power_w, None, None), specs.card_id(card.index)
        return PowerSample(device_id, now_s, *figures, self.provenance, "xrt:electrical", error)


class NullSource:
    """Reports a device and never a figure.

    Args:
        device: the device to report, so that it appears as missing and not as absent.
        interval_s: polling interval, s.
    """

    name = "null"
    provenance = Provenance.MEASURED

    def __init__(self, device: specs.MeteredDevice, interval_s: float = 1.0) -> None:
        self.interval_s = interval_s
        self._device = device

    def open(self) -> None:
        """Nothing to open."""

    def describe(self) -> tuple[specs.DeviceInfo, ...]:
        """The device given, without an instrument."""
        given = self._device
        info = specs.DeviceInfo(
            given.device_id, given.kind, self.provenance, "null", "no power source"
        )
        return (info,)

    def read(self) -> tuple[PowerSample, ...]:
        """One empty sample; no error, because nothing failed."""
        now_s, device_id = time.monotonic(), self._device.device_id
        return (PowerSample(device_id, now_s, None, None, None, self.provenance, "null"),)

    def close(self) -> None:
        """Nothing to close."""


def build(config: specs.SourceConfig, spec: specs.SourceSpec) -> specs.PowerSource:
    """Make a power source, not yet open.

    Args:
        config: which source, and how it polls.
        spec: what the run knows of the device.

    Raises:
        ConfigError: the source models power and a figure for that is missing or not acceptable.
    """
    device = spec.device
    match config:
        case cfg.NvmlSourceConfig():
            return NvmlSource(
                device.gpus or None, config.interval_s, config.counter_interval_s, device.n_gpus
            )
        case cfg.RaplSourceConfig():
            return RaplSource(config.root, config.interval_s)
        case cfg.XrtSourceConfig():
            return XrtSource(config.interval_s, cards=device.cards or None)
        case cfg.ModelledSourceConfig():
            return ModelledSource(device, config.interval_s)
        case cfg.ReplaySourceConfig():
            return ReplaySource(config.path, config.interval_s, started_s=spec.started_s)
        case cfg.NullSourceConfig():
            return NullSource(device, config.interval_s)


def open_source(spec: specs.SourceSpec) -> tuple[specs.PowerSource | None, SourceReport]:
    """Build and open the first candidate of a spec that opens.

    Args:
        spec: the candidates and the device.

    Returns:
        The open source, or None when none could be opened, and the report of it.
    """
    refusals: list[tuple[str, str]] = []
    failed, error_name = SourceReport(spec.type, spec.type, (), 1.0), ""
    for config in spec.candidates:
        try:
            source = build(config, spec)
            source.open()
        except UserError as error:
            return None, replace(failed, error=type(error).__name__, user_error=str(error))
        except DriverError as error:
            refusals.append((config.type, f"{type(error).__name__}: {error}"))
            error_name = type(error).__name__
            continue
        unread = source.unread() if isinstance(source, specs.PartialSource) else ()
        return source, SourceReport(
            spec.type,
            config.type,
            source.describe(),
            source.interval_s,
            tuple(refusals),
            unread=unread,
        )
    return None, replace(failed, refusals=tuple(refusals), error=error_name)
