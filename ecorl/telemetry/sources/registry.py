"""Building power sources from the run's configuration, and choosing among several."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ecorl.config import (
    ModelledSourceConfig,
    NullSourceConfig,
    NvmlSourceConfig,
    RaplSourceConfig,
    ReplaySourceConfig,
    XrtSourceConfig,
)
from ecorl.errors import DriverError
from ecorl.telemetry.sources.modelled import ModelledSource
from ecorl.telemetry.sources.null import NullSource
from ecorl.telemetry.sources.nvml import NvmlSource
from ecorl.telemetry.sources.protocol import PowerSource
from ecorl.telemetry.sources.rapl import RaplSource
from ecorl.telemetry.sources.replay import ReplaySource
from ecorl.telemetry.sources.specs import DeviceInfo, SourceConfig, SourceSpec
from ecorl.telemetry.sources.xrt import XrtSource


class DescribedSource(PowerSource, Protocol):
    """A `PowerSource` that also describes its devices."""

    def describe(self) -> tuple[DeviceInfo, ...]:
        """The devices, in the order of ``device_ids``; valid after ``open``."""
        ...


@dataclass(frozen=True)
class Opened:
    """The outcome of opening a spec.

    Attributes:
        source: the open source, or None when none could be opened.
        chosen: its type, or the type asked for when none opened.
        refusals: type and reason of every source that was tried and did not open.
        error: name of the last refusal's error when there is no source, else None.
    """

    source: DescribedSource | None
    chosen: str
    refusals: tuple[tuple[str, str], ...] = ()
    error: str | None = None


def build(config: SourceConfig, spec: SourceSpec) -> DescribedSource:
    """Make a power source, not yet open.

    Args:
        config: which source, and how it polls.
        spec: what the run knows of the device.

    Raises:
        ConfigError: the source models power and a figure for that is missing or not acceptable.
    """
    device = spec.device
    match config:
        case NvmlSourceConfig():
            return NvmlSource(
                device.gpus or None, config.interval_s, config.counter_interval_s, device.n_gpus
            )
        case RaplSourceConfig():
            return RaplSource(config.root, config.interval_s)
        case XrtSourceConfig():
            return XrtSource(config.interval_s, cards=device.cards or None)
        case ModelledSourceConfig():
            return ModelledSource(device, config.interval_s)
        case ReplaySourceConfig():
            return ReplaySource(config.path, config.interval_s, started_s=spec.started_s)
        case NullSourceConfig():
            return NullSource(device, config.interval_s)


def open_source(spec: SourceSpec) -> Opened:
    """Build and open the first candidate of a spec that opens.

    A machine that cannot do it is reported in the result; a user's mistake is raised.

    Args:
        spec: the candidates and the device.

    Raises:
        UserError: a figure is not acceptable or a replay file is malformed.
    """
    refusals: list[tuple[str, str]] = []
    error_name = ""
    for config in spec.candidates:
        source = build(config, spec)
        try:
            source.open()
        except DriverError as error:
            refusals.append((config.type, f"{type(error).__name__}: {error}"))
            error_name = type(error).__name__
            continue
        return Opened(source, config.type, tuple(refusals))
    return Opened(None, spec.type, tuple(refusals), error_name)
