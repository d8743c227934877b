"""Building power sources from the run's configuration, and choosing among several."""

from __future__ import annotations

import time
from dataclasses import replace

from ecorl import config as cfg
from ecorl.errors import DriverError, UserError
from ecorl.records import PowerSample, Provenance
from ecorl.telemetry.sampling.messages import SourceReport
from ecorl.telemetry.sources import specs
from ecorl.telemetry.sources.modelled import ModelledSource
from ecorl.telemetry.sources.nvml import NvmlSource
from ecorl.telemetry.sources.rapl import RaplSource
from ecorl.telemetry.sources.replay import ReplaySource
from ecorl.telemetry.sources.xrt import XrtSource


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
