"""What a source is asked for, and what it says of its devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from ecorl.errors import ConfigError
from ecorl.records import Provenance

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"
"""Plain data, as it travels to the sampling process."""

SOURCE_TYPES = ("auto", "nvml", "rapl", "xrt", "modelled", "replay", "null")

COUNTER_RESET = "CounterReset"
"""Fault name of a reading at which an energy counter began anew: no sum may cross it."""

COUNTER_STOPPED = "CounterStopped"
"""Fault name of readings that are missing because the energy counter behind them stands still."""

SAMPLER_LOST = "SamplerLost"
"""Fault name of readings that are missing because the sampling process is not there."""


@dataclass(frozen=True)
class SourceSpec:
    """A source by type and options.

    Options by type, all with ``interval_s`` (s) besides:

    * ``nvml``: ``devices`` (list of indices, UUIDs with or without ``GPU-``, MIG UUIDs or PCI
      addresses; default: ``CUDA_VISIBLE_DEVICES``, else all), ``prefer`` (``instant`` or
      ``average``)
    * ``rapl``: ``root`` (powercap folder)
    * ``xrt``: ``cards`` (list of XRT's numbers; default: all that open)
    * ``modelled``: ``device_id``, ``idle_w``, ``active_w``, ``pid``, ``n_threads``
    * ``replay``: ``path``, ``hold_s``, ``started_s`` (the sampler sets it, so that a restart of its
      process does not start the recording again)
    * ``null``: ``device_ids``
    * ``auto``: those of its candidates, and ``order``, a list of some of ``nvml``, ``rapl`` and
      ``modelled`` (default: all three). Leave out ``rapl`` for a trainer on a GPU, whose power no
      CPU counter tells, and ``nvml`` for one on the CPU.

    Attributes:
        type: one of `SOURCE_TYPES`.
        options: see above; plain JSON data.
    """

    type: str
    options: dict[str, JSON] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A device that a source reports.

    Attributes:
        device_id: the name in every sample, e.g. ``gpu0``.
        provenance: of its figures.
        source: the instrument behind it, e.g. ``nvml:field186:gpu``.
        name: what the vendor calls it, with the remark that the power is that of a whole GPU where
            it is shared by MIG instances.
    """

    device_id: str
    provenance: Provenance
    source: str
    name: str


def number_option(options: Mapping[str, JSON], key: str, default: float) -> float:
    """A number among options.

    Raises:
        ConfigError: the option is there and not a number.
    """
    value = options.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"telemetry option {key}", value, "a number")
    return float(value)
