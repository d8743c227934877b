"""``[devices]``: the device profiles by which time and energy are modelled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import AliasChoices, Field, StrictInt, model_validator

from ecorl.config.base import Model, Text
from ecorl.config.mistakes import RefusedValue

FORMER_KEYS = {"fpga": "accelerator", "n_fpgas": "n_accelerators"}
"""Keys by their former names, which are still read."""


class DeviceConfig(Model):
    """The hardware of the run, by whose device profiles time and energy are modelled."""

    gpu: Text = Field(
        "auto",
        description="profile of the device on which your framework computes: auto takes that of "
        "the GPU or host that is found, else a name from `ecorl doctor` or the path of a TOML "
        "file",
    )
    n_gpus: StrictInt = Field(1, ge=1, le=4096, description="number of GPUs that the run uses")
    accelerator: Text = Field(
        "u55c",
        validation_alias=AliasChoices("accelerator", "fpga"),
        description="profile of the device on which offloaded stages run: for `engine.offload` of "
        "type fpga a card, simulated or real (u55c, v80), for torch also a GPU or host_cpu; a "
        "name from `ecorl doctor` or the path of a TOML file; formerly fpga, which is still read",
    )
    n_accelerators: StrictInt = Field(
        1,
        ge=1,
        le=64,
        validation_alias=AliasChoices("n_accelerators", "n_fpgas"),
        description="number of accelerators; each answers a batch on its own; formerly n_fpgas, "
        "which is still read",
    )
    calibration: Literal["roofline", "paper"] = Field(
        "roofline",
        description="which costs policies expect: roofline is bounded by physics (for the card by "
        "a model of its cycles), paper has the figures as the paper prints them, which are not",
    )

    @model_validator(mode="before")
    @classmethod
    def _says_each_once(cls, data: object) -> object:
        """Drop a former name beside its new one where both say the same."""
        if not isinstance(data, Mapping):
            return data
        told = dict(data)
        for former, key in FORMER_KEYS.items():
            if former not in told or key not in told:
                continue
            if told[former] != told[key]:
                allowed = f"{told[key]!r}, as devices.{key} says, or no {former}: its former name"
                old = RefusedValue(former, told[former], allowed)
                allowed = f"{told[former]!r}, as devices.{former} says, or no {former}"
                raise RefusedValue(key, told[key], allowed, old)
            del told[former]
        return told
