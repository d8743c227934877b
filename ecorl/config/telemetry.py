"""``[telemetry]``: the source of power readings, and how they are smoothed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StrictFloat

from ecorl.config.base import Model, SomePath


class AutoSourceConfig(Model):
    """NVML, else RAPL, else modelled, whichever answers first."""

    type: Literal["auto"] = "auto"


class NvmlSourceConfig(Model):
    """NVIDIA GPUs by NVML."""

    type: Literal["nvml"] = "nvml"
    interval_s: StrictFloat = Field(0.1, ge=0.05, le=10, description="polling interval, s")


class RaplSourceConfig(Model):
    """The host's CPU package by RAPL."""

    type: Literal["rapl"] = "rapl"
    interval_s: StrictFloat = Field(0.1, ge=0.01, le=10, description="polling interval, s")
    root: SomePath = Field(Path("/sys/class/powercap"), description="powercap folder")


class XrtSourceConfig(Model):
    """Alveo cards by XRT's electrical report."""

    type: Literal["xrt"] = "xrt"
    interval_s: StrictFloat = Field(0.05, ge=0.05, le=10, description="polling interval, s")


class ModelledSourceConfig(Model):
    """Power from a device profile and utilisation."""

    type: Literal["modelled"] = "modelled"
    interval_s: StrictFloat = Field(0.1, ge=0.01, le=10, description="polling interval, s")


class ReplaySourceConfig(Model):
    """Readings from a recorded CSV file."""

    type: Literal["replay"] = "replay"
    path: SomePath = Field(description="CSV with t_s, device_id, power_w, energy_j, utilisation")
    interval_s: StrictFloat = Field(0.1, ge=0.01, le=10, description="polling interval, s")


class NullSourceConfig(Model):
    """No readings at all: every energy figure is missing."""

    type: Literal["null"] = "null"
    interval_s: StrictFloat = Field(1.0, ge=0.01, le=10, description="polling interval, s")


GpuPower = Annotated[
    AutoSourceConfig
    | NvmlSourceConfig
    | RaplSourceConfig
    | ModelledSourceConfig
    | ReplaySourceConfig
    | NullSourceConfig,
    Field(discriminator="type"),
]


class TelemetryConfig(Model):
    """Source and smoothing of power readings."""

    gpu: GpuPower = Field(
        default_factory=AutoSourceConfig,
        description="source for the devices on which your framework computes, GPUs or this "
        "machine's processor",
    )
    tau_s: StrictFloat = Field(
        1.0,
        gt=0,
        le=600,
        description="time constant of the EMA, s; 1.0 is "
        "the paper's n = 10 samples at 100 ms (weight 1/n a sample)",
    )
    stale_after_s: StrictFloat = Field(
        2.0, gt=0, le=600, description="age at which power is missing"
    )
