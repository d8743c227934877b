"""The protocol of power sources, their specifications, and the devices that they report."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Protocol, runtime_checkable

from pydantic import Field

from ecorl import config as cfg
from ecorl.records import DeviceKind, PowerSample, Provenance

COUNTER_RESET = "CounterReset"
"""Fault name of a reading at which an energy counter began anew: no sum may cross it."""

COUNTER_STOPPED = "CounterStopped"
"""Fault name of readings that are missing because the energy counter behind them stands still."""

SAMPLER_LOST = "SamplerLost"
"""Fault name of readings that are missing because the sampling process is not there."""


SourceConfig = Annotated[
    cfg.NvmlSourceConfig
    | cfg.RaplSourceConfig
    | cfg.XrtSourceConfig
    | cfg.ModelledSourceConfig
    | cfg.ReplaySourceConfig
    | cfg.NullSourceConfig,
    Field(discriminator="type"),
]
"""The configuration of one power source."""


@dataclass(frozen=True, slots=True)
class PowerModel:
    """The figures of a model of power over utilisation: a straight line from idle to active.

    Attributes:
        idle_w: power at utilisation 0, W.
        active_w: power at utilisation 1, W.
        pids: the processes whose CPU time tells the utilisation; on a processor what descends from
            them counts as they do.
        n_threads: threads that count as full use.
    """

    idle_w: float
    active_w: float
    pids: tuple[int, ...]
    n_threads: int


@dataclass(frozen=True, slots=True)
class MeteredDevice:
    """The run's knowledge of the devices that a source is to read; a source uses what it needs.

    Attributes:
        device_id: name of the device, for a source that does not find its devices by itself.
        kind: its kind, likewise.
        gpus: GPUs by any name that `NvmlDriver.find` knows; empty: ``CUDA_VISIBLE_DEVICES``, else
            all.
        n_gpus: how many GPUs are in use, where `gpus` does not name them.
        cards: XRT's numbers of the cards; empty: all that open.
        model: figures to model its power from, or None when they are not known.
    """

    device_id: str = "gpu0"
    kind: DeviceKind = DeviceKind.GPU
    gpus: tuple[str, ...] = ()
    n_gpus: int = 1
    cards: tuple[int, ...] = ()
    model: PowerModel | None = None


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """The source of a device's power, or several of which the first that opens is used.

    Attributes:
        candidates: sources in the order in which they are tried; the first that opens is kept.
        device: the device.
        asked: the type that the configuration names, for messages; empty: that of the first.
        started_s: monotonic time at which a recording begins to play, s; the sampler sets it, so
            that a restart of its process does not play the recording anew. None: when it opens.
    """

    candidates: tuple[SourceConfig, ...]
    device: MeteredDevice = MeteredDevice()
    asked: str = ""
    started_s: float | None = None

    @property
    def type(self) -> str:
        """The type that was asked for, e.g. ``auto`` or ``nvml``."""
        return self.asked or self.candidates[0].type

    @property
    def interval_s(self) -> float:
        """Longest polling interval of the candidates, s."""
        return max(candidate.interval_s for candidate in self.candidates)

    def only(self, chosen: str) -> SourceSpec:
        """The same with the candidates of one type alone."""
        return replace(self, candidates=tuple(c for c in self.candidates if c.type == chosen))


def card_id(number: int) -> str:
    """The device id of an accelerator card, by XRT's number of it: ``fpga0``, ``fpga1``, ..."""
    return f"fpga{number}"


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A device that a source reports.

    Attributes:
        device_id: the name in every sample, e.g. ``gpu0``.
        kind: what kind of machine it is.
        provenance: of its figures.
        source: the instrument behind it, e.g. ``nvml:field186:gpu``.
        name: what the vendor calls it, with the remark that the power is that of a whole GPU where
            it is shared by MIG instances.
    """

    device_id: str
    kind: DeviceKind
    provenance: Provenance
    source: str
    name: str


@runtime_checkable
class PowerSource(Protocol):
    """Reads the power of one or more devices.

    `read` never raises for a device fault: a failed reading is a `PowerSample` whose figures are
    None and whose ``error`` names the fault. `open` raises `ecorl.errors.DriverError` when the
    source cannot work at all on this machine.
    """

    name: str
    provenance: Provenance
    interval_s: float

    def open(self) -> None:
        """Initialise the driver; called once, in the process that will read."""
        ...

    def describe(self) -> tuple[DeviceInfo, ...]:
        """Devices that `read` reports, in order; stable after `open`."""
        ...

    def read(self) -> tuple[PowerSample, ...]:
        """One sample a device, now."""
        ...

    def close(self) -> None:
        """Release the driver; safe to call twice."""
        ...


@runtime_checkable
class PartialSource(Protocol):
    """A source that can be open while some of its devices give no readings."""

    def unread(self) -> tuple[tuple[str, str], ...]:
        """Devices that gave none when it was opened, each with the reason in words."""
        ...


@runtime_checkable
class EdgeSource(Protocol):
    """A source that gains by a reading right where a stage begins or ends."""

    def read_edge(self) -> tuple[PowerSample, ...]:
        """One sample a device, now; none for a device that was read a moment ago."""
        ...
