"""``[telemetry]``, ``[ledger]``, ``[accounting]``: readings, what is kept of them, emissions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StrictFloat, StrictInt, model_validator

from ecorl.config.base import MANY, Model, SomePath, Text
from ecorl.config.mistakes import NOT_GIVEN, RefusedValue


class AutoSourceConfig(Model):
    """Whichever answers first: NVML (GPUs), RAPL (the host), else modelled."""

    type: Literal["auto"] = "auto"


class NvmlSourceConfig(Model):
    """Measured: NVIDIA GPUs, by NVML; by power readings where a GPU's counter is not its own.

    That is judged where readings are at most 1 s apart and the GPU tells its average power.
    """

    type: Literal["nvml"] = "nvml"
    interval_s: StrictFloat = Field(0.1, ge=0.05, le=10, description="time between two readings")
    counter_interval_s: Annotated[StrictFloat, Field(ge=0, le=1)] = Field(
        1.0,
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
    tau_s: Annotated[StrictFloat, Field(gt=0, le=600)] = Field(
        1.0,
        description="time constant over which power is smoothed for decisions; energy sums are "
        "not smoothed",
    )
    stale_after_s: StrictFloat = Field(
        2.0, gt=0, le=600, description="age from which on a reading counts as missing"
    )


class LedgerConfig(Model):
    """How much of the record of the run is kept."""

    raw_samples: Annotated[StrictInt, Field(ge=0, le=MANY)] = Field(
        20_000,
        description="number of raw power readings that are kept on each machine; older ones are "
        "dropped, sums and stages are not",
    )


_PUE = 1.2
_INTENSITY_G_PER_KWH = 450.0
_DEFAULT_SOURCE = "450 g/kWh: world average as used by the EcoRL-Sched paper; PUE 1.2: assumed"


class AccountingConfig(Model):
    """By which factors energy is turned into emissions, and where they come from.

    Without a word in the config the defaults hold; the report names them and their source. That
    source speaks for the defaults alone: whoever changes a factor states its source, or the report
    says that none was stated.
    """

    pue: Annotated[StrictFloat, Field(ge=1.0, le=3.0)] = Field(
        _PUE,
        description="power usage effectiveness: factor from the energy of the machines to that of "
        "the whole data centre",
    )
    intensity_g_per_kwh: Annotated[StrictFloat, Field(ge=0, le=3000)] = Field(
        _INTENSITY_G_PER_KWH, description="carbon intensity of the grid where no feed tells it"
    )
    source: Text | None = Field(
        None, description="where pue and intensity_g_per_kwh come from, for the report"
    )
    pue_csv: SomePath | None = Field(None, description="CSV of time and PUE, used in place of pue")
    budget_g: Annotated[StrictFloat, Field(gt=0)] | None = Field(
        None, description="budget of emissions of the whole run; a warning comes at 80 % of it"
    )
    over_budget: Literal["warn", "stop"] = Field(
        "warn", description="at the budget: warn only, or have the trainer save and stop"
    )
    beside: Literal["codecarbon"] | None = Field(
        None, description="another instrument that measures the run beside ecorl, for comparison"
    )
    country: Annotated[str, Field(pattern="^[A-Z]{3}$")] | None = Field(
        None,
        description="country by whose electricity that instrument computes, a code of three "
        "letters such as GBR; required with beside",
    )
    embodied_kg: StrictFloat | None = Field(
        None, gt=0, description="emissions of making the hardware that is kept for the run"
    )
    lifetime_h: Annotated[StrictFloat, Field(gt=0)] = Field(
        43_800.0,
        description="time for which that hardware serves, over which embodied_kg is spread",
    )
    embodied_source: Text | None = Field(
        None, description="where embodied_kg comes from, for the report"
    )

    @model_validator(mode="after")
    def _country_is_given(self) -> AccountingConfig:
        if self.beside is not None and self.country is None:
            allowed = "a country code of three letters such as 'GBR', for accounting.beside"
            raise RefusedValue("country", NOT_GIVEN, allowed)
        return self

    @property
    def origin(self) -> str:
        """Where the two factors come from, for the report."""
        is_default = (self.pue, self.intensity_g_per_kwh) == (_PUE, _INTENSITY_G_PER_KWH)
        return self.source or (
            _DEFAULT_SOURCE if is_default else "given in the config, no source stated"
        )
