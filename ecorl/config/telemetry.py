"""``[telemetry]``: the source of power readings, and how they are smoothed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StrictFloat, StrictInt

from ecorl.config.base import MANY, Model, SomePath


class AutoSourceConfig(Model):
    """Whichever answers first: NVML (GPUs), RAPL (the host), else modelled."""

    type: Literal["auto"] = "auto"


class NvmlSourceConfig(Model):
    """Measured: NVIDIA GPUs, by NVML; by power readings where a GPU's counter is not its own.

    That is judged where readings are at most 1 s apart and the GPU tells its average power.
    """

    type: Literal["nvml"] = "nvml"
    interval_s: StrictFloat = Field(0.1, ge=0.05, le=10, description="time between two readings")
    counter_interval_s: StrictFloat = Field(
        1.0,
        ge=0,
        le=1,
        description="time between two readings of a GPU's energy counter where one takes longer "
        "than 0.5 ms; it is read as well where a stage ends that took a second or more, and where "
        "the next one of its kind begins. Elsewhere, and with 0, it is read with each power "
        "reading",
    )


class RaplSourceConfig(Model):
    """Measured: the processor of the host, by RAPL; zones that show one counter count once."""

    type: Literal["rapl"] = "rapl"
    interval_s: StrictFloat = Field(0.1, ge=0.01, le=10, description="time between two readings")
    root: SomePath = Field(
        Path("/sys/class/powercap"),
        description="folder in which Linux shows the counters (powercap)",
    )


class XrtSourceConfig(Model):
    """Measured: Alveo cards, by the electrical report of XRT."""

    type: Literal["xrt"] = "xrt"
    interval_s: StrictFloat = Field(0.05, ge=0.05, le=10, description="time between two readings")


class ModelledSourceConfig(Model):
    """Modelled: from a device profile and how busy the device is.

    A processor is as busy as the training's processes and all that descend from them.
    """

    type: Literal["modelled"] = "modelled"
    interval_s: StrictFloat = Field(0.1, ge=0.01, le=10, description="time between two readings")


class ReplaySourceConfig(Model):
    """Replayed: readings from a recorded CSV file."""

    type: Literal["replay"] = "replay"
    path: SomePath = Field(
        description="recording: CSV with t_s, device_id, power_w, energy_j, utilisation"
    )
    interval_s: StrictFloat = Field(0.1, ge=0.01, le=10, description="time between two readings")


class NullSourceConfig(Model):
    """No readings at all: every energy figure is missing."""

    type: Literal["null"] = "null"
    interval_s: StrictFloat = Field(1.0, ge=0.01, le=10, description="time between two readings")


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
    """Where power readings come from, and how they are smoothed."""

    gpu: GpuPower = Field(
        default_factory=AutoSourceConfig,
        description="source of readings for the device on which your framework computes",
    )
    tau_s: StrictFloat = Field(
        1.0,
        gt=0,
        le=600,
        description="time constant over which power is smoothed for decisions; energy sums are "
        "not smoothed",
    )
    stale_after_s: StrictFloat = Field(
        2.0, gt=0, le=600, description="age from which on a reading counts as missing"
    )


class LedgerConfig(Model):
    """How much of the record of the run is kept."""

    raw_samples: StrictInt = Field(
        20_000,
        ge=0,
        le=MANY,
        description="number of raw power readings that are kept on each machine; older ones are "
        "dropped, sums and stages are not",
    )
