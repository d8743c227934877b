"""One machine of a run: reads its devices' power and accounts the executions that held them.

A run in one process has one `NodeMonitor`; a run on a Ray cluster has one a machine, in an actor of
its own. Each writes the file of its machine in the run's record.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ecorl.config import TelemetryConfig
from ecorl.devices import DeviceProfile
from ecorl.ledger import DeviceRecord, Ledger
from ecorl.records import (
    DeviceKind,
    EventKind,
    PowerSample,
    Provenance,
    Role,
    SmoothedPower,
    StageResult,
    weakest,
)
from ecorl.runtime.energy.held_devices import DeviceWindow, StageEdges
from ecorl.runtime.energy.stage_energy import PATIENCE_S, StageAccounts
from ecorl.runtime.handles import Span
from ecorl.telemetry.sampling.sampler import Sampler
from ecorl.telemetry.sources.nvml import EDGE_APART_S
from ecorl.telemetry.sources.specs import DeviceInfo, SourceSpec

_JUDGED_AGAIN_S = 3600.0
"""Over how long a counter that is not its device's is compared with the power readings, s: within
what a history keeps."""

_SUMMED_EVERY_S = 1.0
"""How often what the devices drew is added up, s: summing is not worth it more often."""

_IDLE_EVERY_S = 0.25
"""How old the sum beside all executions may be when it is asked for, s: it costs a look at each gap
between two stages, and trainers of small models log ten times a second."""


@dataclass(frozen=True, slots=True)
class NodePower:
    """What a machine's devices draw now.

    Attributes:
        devices: the metered devices.
        smoothed: their smoothed power, in the same order.
    """

    devices: tuple[DeviceInfo, ...] = ()
    smoothed: tuple[SmoothedPower, ...] = ()

    def without(self, device_ids: Collection[str]) -> NodePower:
        """The same without some devices.

        Args:
            device_ids: of the devices to leave out.
        """
        if not device_ids:
            return self
        both = zip(self.devices, self.smoothed, strict=True)
        kept = [(device, now) for device, now in both if device.device_id not in device_ids]
        return NodePower(tuple(d for d, _ in kept), tuple(now for _, now in kept))


@dataclass(frozen=True, slots=True)
class NodeEnergy:
    """What a machine's devices have drawn since its monitor started.

    Attributes:
        drawn_j: energy of all metered devices together, J; None when readings are missing.
        beside_j: the part of it beside all executions, J; None likewise, and until the monitor is
            told for the first time that all executions so far are noted (`Monitor.settle`).
        provenance: the weakest of its devices, or None where none is metered.
    """

    drawn_j: float | None = None
    beside_j: float | None = None
    provenance: Provenance | None = None


@dataclass(slots=True)
class _Meter:
    """What one device has drawn since its first readings, J.

    Attributes:
        drawn_j: whatever it did, up to `drawn_to_s`.
        beside_j: while no execution held it, up to `beside_to_s`.
        has_begun: whether there were readings yet; the time before is not counted.
        is_short: whether the readings since are too few for a sum, so that the next one tries.
        is_lost: whether they were too few for too long: there is no sum any more.
        began_s: when the sum began, monotonic s.
        has_counter: whether the device's counter is its own, as far as that is known.
    """

    drawn_to_s: float
    beside_to_s: float
    began_s: float
    has_counter: bool = True
    drawn_j: float = 0.0
    beside_j: float = 0.0
    has_begun: bool = False
    is_short: bool = False
    is_lost: bool = False

    @property
    def is_known(self) -> bool:
        """Whether all that the device drew is in the sums."""
        return self.has_begun and not self.is_short and not self.is_lost


class Monitor(Protocol):
    """The part of a machine's monitor that a run's scheduler calls; nothing in it waits."""

    @property
    def node(self) -> str:
        """Name of the machine."""

    @property
    def ahead_s(self) -> float:
        """How far the machine's monotonic clock is ahead of the scheduler's, s."""

    def power(self) -> NodePower:
        """What the machine's devices draw now, as far as it is known here."""

    def drawn(self) -> NodeEnergy:
        """What they have drawn so far, as far as it is known here."""

    def gpu_path_ids(self) -> tuple[str, ...]:
        """Ids of the machine's metered devices of the GPU path, as far as they are known."""

    def device(self, record: DeviceRecord) -> None:
        """Record a device whose power is not read.

        Args:
            record: the device.
        """

    def hold(self, serial: int, spans: Sequence[Span], role: Role | None = None) -> None:
        """Note which devices an execution that is under way has held so far, and holds now.

        Args:
            serial: of the execution.
            spans: all of them; those that are under way end at infinity.
            role: what is executed; None where that is not known.
        """

    def add(self, serial: int, result: StageResult, spans: Sequence[Span]) -> None:
        """Account a finished execution.

        Args:
            serial: of the execution.
            result: the execution; without an energy it gets that of its spans.
            spans: which devices it held when; empty where nothing meters it.
        """

    def drop(self, serial: int) -> None:
        """Note that an execution will never be accounted.

        Args:
            serial: of the execution.
        """

    def settle(self) -> None:
        """Account the executions whose readings have come in."""


class NodeMonitor:
    """Reads the power of one machine's devices and accounts the executions that held them.

    Args:
        node: name of the machine, on which it runs.
        sources: where power is read.
        telemetry: how readings are smoothed, and when they are stale.
        ledger: of the machine; the caller closes it.
        on_settled: called with each execution once it has its energy.
        on_fault: called with device, error and time when readings go missing or come back.
        others: ids of devices that are neither cards nor of the GPU path.
    """

    def __init__(
        self,
        node: str,
        sources: Sequence[SourceSpec],
        telemetry: TelemetryConfig,
        ledger: Ledger,
        on_settled: Callable[[StageResult], None],
        on_fault: Callable[[str, str | None, float], None],
        others: frozenset[str] = frozenset(),
    ) -> None:  # fmt: skip
        self.node, self._ledger, self._others = node, ledger, others
        # The sampler's devices, and the GPU path's among them.
        self._own: tuple[tuple[DeviceInfo, ...], tuple[str, ...]] = ((), ())
        self.ahead_s = 0.0
        self._has_meters = bool(sources)
        self._longest_s = max((spec.interval_s for spec in sources), default=0.1)
        self.sampler = Sampler(
            list(sources),
            tau_s=telemetry.tau_s,
            stale_after_s=telemetry.stale_after_s,
            sink=self._on_samples,
            on_fault=on_fault,
        )
        self.accounts = StageAccounts(ledger, self.sampler.history, on_settled)
        self._lock = threading.Lock()
        self._late: list[tuple[int, StageResult, Sequence[Span]]] = []
        self._meters: dict[str, _Meter] = {}
        self._edges = StageEdges()
        # Whether somebody says when all executions so far are noted here (`settle`).
        self._is_told = False

    # ------------------------------------------------------------ life

    def start(self) -> None:
        """Start sampling.

        Raises:
            UserError: when an option or a recording is not acceptable.
        """
        if self._has_meters:
            self._ledger.hold_readings(self.sampler.history.hold_s)
            self.sampler.start()

    def close(self) -> None:
        """Account what waits for readings, and stop sampling."""
        # The sampler still runs: the last executions wait for its next reading of the counter.
        self._place_late(at_any_price=True)
        time.sleep(EDGE_APART_S)  # an edge just behind another is not read
        self.sampler.mark_edge()
        self.accounts.close(patience_s=3 * self._longest_s + 0.2)
        self.sampler.stop()

    def record_devices(
        self,
        profiles: Mapping[DeviceKind, DeviceProfile],
        by_id: Mapping[str, DeviceProfile] | None = None,
    ) -> None:
        """Record the devices whose power is read, and what could not be read of them.

        Args:
            profiles: by kind of device.
            by_id: of devices that are not what their kind says, by their ids.
        """
        for device in self.sampler.devices:
            profile = (by_id or {}).get(device.device_id, profiles[device.kind])
            source = f"{device.source} ({device.name})" if device.name else device.source
            self._ledger.device(
                DeviceRecord(
                    device.device_id,
                    profile.name,
                    device.provenance,
                    source,
                    profile.get("idle_w"),
                    kind=profile.kind,
                )
            )
        for line in self.sampler.unread:
            self._ledger.event(EventKind.POWER_UNREAD, line)

    # ------------------------------------------------------------ Monitor

    def gpu_path_ids(self) -> tuple[str, ...]:
        """Ids of the GPU path's metered devices; the sampler may learn of them late."""
        devices = self.sampler.devices
        if devices is not self._own[0]:
            own = [d.device_id for d in devices if d.kind is not DeviceKind.FPGA]
            self._own = (devices, tuple(name for name in own if name not in self._others))
        return self._own[1]

    def power(self) -> NodePower:
        """What the machine's devices draw now."""
        devices = self.sampler.devices
        return NodePower(devices, tuple(self.sampler.smoothed(d.device_id) for d in devices))

    def drawn(self, *, all_noted: bool = True) -> NodeEnergy:
        """What they have drawn so far.

        Args:
            all_noted: whether all executions so far are noted here, as after `settle`; without
                that the energy beside them is that of the newest `settle`.
        """
        self._add_up(at_once=True)
        if self._is_told and all_noted:
            self._add_free(every_s=_IDLE_EVERY_S)
        devices = self.sampler.devices
        if not devices:
            return NodeEnergy()
        with self._lock:
            meters = [self._meters.get(device.device_id) for device in devices]
            known = [m for m in meters if m is not None and m.is_known]
            drawn_j, beside_j = sum(m.drawn_j for m in known), sum(m.beside_j for m in known)
        provenance = weakest(*(d.provenance for d in devices))
        if len(known) < len(devices):
            return NodeEnergy(None, None, provenance)
        return NodeEnergy(drawn_j, beside_j if self._is_told else None, provenance)

    def device(self, record: DeviceRecord) -> None:
        """Record a device whose power is not read. See `Monitor`."""
        self._ledger.device(record)

    def hold(self, serial: int, spans: Sequence[Span], role: Role | None = None) -> None:
        """Note which devices an execution under way has held so far. See `Monitor`."""
        if self._edges.is_edge(spans, role):
            self.sampler.mark_edge()
        self.accounts.hold(serial, self._windows(spans))

    def add(self, serial: int, result: StageResult, spans: Sequence[Span]) -> None:
        """Account a finished execution. See `Monitor`."""
        if self._edges.is_edge(spans, result.role):
            self.sampler.mark_edge()
        self._edges.ended(spans, result.role)
        unnamed = any(s.device_ids is None for s in spans) and not self.gpu_path_ids()
        if unnamed and self._has_meters:
            with self._lock:
                self._late.append((serial, result, spans))
            return
        self._account(serial, result, spans)

    def drop(self, serial: int) -> None:
        """Note that an execution will never be accounted. See `Monitor`."""
        self.accounts.drop(serial)

    def settle(self, noted_to_s: float = math.inf) -> None:
        """Account the executions whose readings have come in.

        Args:
            noted_to_s: all executions that began before are noted here, monotonic s.
        """
        self._is_told = True
        # First: executions that were noted just now are needed until their times are taken.
        self._add_free(noted_to_s)
        self._place_late()
        self.accounts.settle()
        self._add_up()

    # ------------------------------------------------------------ inside

    def _windows(self, spans: Sequence[Span]) -> list[DeviceWindow]:
        return [
            DeviceWindow(device_id, span.t_start_s, span.t_end_s)
            for span in spans
            for device_id in (self.gpu_path_ids() if span.device_ids is None else span.device_ids)
        ]

    def _account(self, serial: int, result: StageResult, spans: Sequence[Span]) -> None:
        self.accounts.add(result, self._windows(spans), serial)

    def _place_late(self, *, at_any_price: bool = False) -> None:
        """Account the executions that ended before the sampler had named the devices."""
        if not self._late:
            return
        given_up_s = time.monotonic() - PATIENCE_S
        now = at_any_price or bool(self.gpu_path_ids())
        with self._lock:
            ready = [late for late in self._late if now or late[1].t_end_s < given_up_s]
            self._late = [late for late in self._late if late not in ready]
        for late in ready:
            self._account(*late)

    def _on_samples(self, samples: tuple[PowerSample, ...]) -> None:
        """Record power readings; runs in the sampler's thread."""
        self._ledger.samples(samples)
        self._place_late()
        self.accounts.settle()
        self._add_up()

    def _add_up(self, *, at_once: bool = False) -> None:
        """Add what each device drew since the last sum."""
        foreign = self.sampler.history.foreign_counters
        with self._lock:
            for name, now_s in self._read_to_s():
                meter = self._meters.setdefault(name, _Meter(now_s, now_s, now_s))
                if meter.has_counter and name in foreign:
                    self._book_anew(name, meter)
                length_s = now_s - meter.drawn_to_s
                if meter.is_lost or length_s <= 0 or not (at_once or length_s >= _SUMMED_EVERY_S):
                    continue
                energy_j = self._energy_j(name, meter.drawn_to_s, now_s)
                if energy_j is None:
                    # One reading that failed is made up for by those behind it.
                    meter.is_short, meter.is_lost = True, length_s > PATIENCE_S and meter.has_begun
                    if not meter.has_begun:
                        meter.drawn_to_s = meter.began_s = now_s
                    continue
                if not meter.has_begun:
                    # The count of what lies beside executions begins at the same time.
                    self.accounts.take_free(name, meter.drawn_to_s)
                    meter.has_begun, meter.beside_to_s = True, meter.drawn_to_s
                meter.is_short = False
                meter.drawn_j += energy_j
                meter.drawn_to_s = now_s

    def _book_anew(self, name: str, meter: _Meter) -> None:
        """Scale the sums of a device whose counter does not count it alone.

        The factor is the energy by the power readings over that by the counter, in the last hour.
        """
        meter.has_counter = False
        if not meter.has_begun:
            return
        start_s = max(meter.began_s, meter.drawn_to_s - _JUDGED_AGAIN_S)
        again = self.sampler.history.energy(name, start_s, meter.drawn_to_s)
        counter_j, integral_j = again.counter_energy_j, again.integral_energy_j
        if not counter_j or integral_j is None or not again.coverage:
            meter.is_lost = meter.drawn_to_s > meter.began_s
            return
        # What executions and the gaps between them drew is not kept one by one.
        share = integral_j / again.coverage / counter_j
        meter.drawn_j *= share
        meter.beside_j *= share

    def _add_free(self, noted_to_s: float = math.inf, *, every_s: float = _SUMMED_EVERY_S) -> None:
        """Add what each device drew beside all executions since the last sum.

        Only where the training thread calls: an execution of another process is noted after its
        end, and its times would count as free before that.
        """
        with self._lock:
            for name, read_to_s in self._read_to_s():
                meter = self._meters.get(name)
                if meter is None or not meter.has_begun or meter.is_lost:
                    continue
                to_s = min(read_to_s, noted_to_s)
                length_s = to_s - meter.beside_to_s
                if length_s < every_s:
                    continue
                whole_j = self._energy_j(name, meter.beside_to_s, to_s)
                if whole_j is None:
                    continue
                for start_s, end_s in self.accounts.take_free(name, to_s):
                    energy_j = self._energy_j(name, start_s, end_s)
                    # Between two readings the mean power of all this time has to do.
                    mean_j = whole_j * (end_s - start_s) / length_s
                    meter.beside_j += mean_j if energy_j is None else energy_j
                meter.beside_to_s = to_s

    def _read_to_s(self) -> list[tuple[str, float]]:
        """The devices with readings, and the time up to which the energy of each is final."""
        names = [device.device_id for device in self.sampler.devices]
        marks = [(name, self.sampler.watermark_s(name)) for name in names]
        return [(name, mark_s) for name, mark_s in marks if mark_s is not None]

    def _energy_j(self, name: str, start_s: float, end_s: float) -> float | None:
        return self.sampler.history.energy(name, start_s, end_s).energy_j


def added_up(parts: Iterable[float | None]) -> float | None:
    """The sum of some energies; None when one of them is missing.

    Args:
        parts: J.
    """
    found = list(parts)
    known = [part for part in found if part is not None]
    return math.fsum(known) if len(known) == len(found) else None
