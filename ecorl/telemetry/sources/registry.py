"""Building sources from their specs, and the choice behind ``auto``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ecorl.errors import ConfigError, DriverError
from ecorl.telemetry.sources.modelled import ModelledSource
from ecorl.telemetry.sources.null import NullSource
from ecorl.telemetry.sources.nvml import NvmlSource
from ecorl.telemetry.sources.protocol import PowerSource
from ecorl.telemetry.sources.rapl import RaplSource
from ecorl.telemetry.sources.replay import ReplaySource
from ecorl.telemetry.sources.specs import JSON, SOURCE_TYPES, DeviceInfo, SourceSpec, number_option
from ecorl.telemetry.sources.xrt import XrtSource

AUTO_ORDER = ("nvml", "rapl", "modelled")


class DescribedSource(PowerSource, Protocol):
    """A `PowerSource` that also describes its devices."""

    def describe(self) -> tuple[DeviceInfo, ...]:
        """The devices, in the order of ``device_ids``; valid after ``open``."""
        ...


@dataclass(frozen=True)
class Opened:
    """What came of opening a spec.

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


def build(spec: SourceSpec) -> DescribedSource:
    """A source from its spec, not yet open; ``auto`` cannot be built, only opened.

    Raises:
        ConfigError: the type is not known or an option is missing or not acceptable.
    """
    builder = _BUILDERS.get(spec.type)
    if builder is None:
        raise ConfigError("telemetry source type", spec.type, f"one of {SOURCE_TYPES}")
    return builder(spec.options)


def open_source(spec: SourceSpec) -> Opened:
    """Build and open a source; ``auto`` takes the first of its ``order`` that opens.

    A machine that cannot do it is reported in the result; a user's mistake is raised.

    Raises:
        UserError: an option is not acceptable or a replay file is malformed.
    """
    candidates = _auto_order(spec.options) if spec.type == "auto" else (spec.type,)
    refusals: list[tuple[str, str]] = []
    error_name = ""
    for kind in candidates:
        options = dict(spec.options)
        if spec.type == "auto" and kind == "modelled" and "idle_w" not in options:
            refusals.append((kind, "no idle_w and active_w were given"))
            error_name = error_name or "NotSupported"
            continue
        source = build(SourceSpec(kind, options))
        try:
            source.open()
        except DriverError as error:
            refusals.append((kind, f"{type(error).__name__}: {error}"))
            error_name = type(error).__name__
            continue
        return Opened(source, kind, tuple(refusals))
    return Opened(None, spec.type, tuple(refusals), error_name)


def _auto_order(options: Mapping[str, JSON]) -> tuple[str, ...]:
    order = options.get("order", list(AUTO_ORDER))
    if not isinstance(order, list) or not order or not set(map(str, order)) <= set(AUTO_ORDER):
        raise ConfigError("telemetry option order", order, f"a list of some of {AUTO_ORDER}")
    return tuple(str(kind) for kind in order)


def _nvml(options: Mapping[str, JSON]) -> DescribedSource:
    devices = options.get("devices")
    if devices is not None and (
        not isinstance(devices, list)
        or not all(isinstance(d, str | int) and d != "" for d in devices)
    ):
        raise ConfigError(
            "telemetry option devices", devices, "a list of indices, UUIDs or PCI addresses"
        )
    prefer = options.get("prefer", "instant")
    if prefer not in ("instant", "average"):
        raise ConfigError("telemetry option prefer", prefer, "instant or average")
    return NvmlSource(
        None if devices is None else [str(d) for d in devices],
        prefer,
        number_option(options, "interval_s", 0.1),
    )


def _rapl(options: Mapping[str, JSON]) -> DescribedSource:
    root = Path(str(options.get("root", "/sys/class/powercap")))
    return RaplSource(root, number_option(options, "interval_s", 0.1))


def _xrt(options: Mapping[str, JSON]) -> DescribedSource:
    cards = options.get("cards")
    if cards is not None and (
        not isinstance(cards, list) or not all(type(c) is int and c >= 0 for c in cards)
    ):
        raise ConfigError("telemetry option cards", cards, "a list of XRT's numbers of cards")
    numbers = None if cards is None else [int(str(c)) for c in cards]
    return XrtSource(number_option(options, "interval_s", 0.05), cards=numbers)


def _modelled(options: Mapping[str, JSON]) -> DescribedSource:
    for key in ("idle_w", "active_w", "pid"):
        if key not in options:
            raise ConfigError(f"telemetry option {key}", None, "a number (it is required)")
    return ModelledSource(
        str(options.get("device_id", "gpu0")),
        number_option(options, "idle_w", 0.0),
        number_option(options, "active_w", 0.0),
        int(number_option(options, "pid", 0)),
        int(number_option(options, "n_threads", os.cpu_count() or 1)),
        number_option(options, "interval_s", 0.1),
    )


def _replay(options: Mapping[str, JSON]) -> DescribedSource:
    path = options.get("path")
    if not isinstance(path, str):
        raise ConfigError("telemetry option path", path, "the path of a CSV file")
    return ReplaySource(
        Path(path),
        number_option(options, "interval_s", 0.1),
        number_option(options, "hold_s", 0.0) or None,
        number_option(options, "started_s", 0.0) or None,
    )


def _null(options: Mapping[str, JSON]) -> DescribedSource:
    ids = options.get("device_ids", ["gpu0"])
    if not isinstance(ids, list):
        raise ConfigError("telemetry option device_ids", ids, "a list of names")
    return NullSource([str(i) for i in ids], number_option(options, "interval_s", 1.0))


_BUILDERS: Mapping[str, Callable[[Mapping[str, JSON]], DescribedSource]] = {
    "nvml": _nvml,
    "rapl": _rapl,
    "xrt": _xrt,
    "modelled": _modelled,
    "replay": _replay,
    "null": _null,
}
