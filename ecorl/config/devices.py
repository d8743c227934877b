"""``[devices]``: the device profiles by which time and energy are modelled."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, StrictInt

from ecorl.config.base import Model, Text


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
        description="profile of the device on which offloaded stages run: for `engine.offload` of "
        "type fpga a card, simulated or real (u55c, v80), for torch also a GPU or host_cpu; a "
        "name from `ecorl doctor` or the path of a TOML file",
    )
    n_accelerators: StrictInt = Field(
        1,
        ge=1,
        le=64,
        description="number of accelerators; each answers a batch on its own",
    )
    calibration: Literal["roofline", "paper"] = Field(
        "roofline",
        description="which costs policies expect: roofline is bounded by physics (for the card by "
        "a model of its cycles), paper has the figures as the paper prints them, which are not",
    )
