"""``[devices]``: the device profiles that stand for the GPU path and the card."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, StrictInt

from ecorl.config.base import Model, Text


class DeviceConfig(Model):
    """The device profiles that stand for the GPU path and the card."""

    gpu: Text = Field(
        "auto",
        description="profile of the devices on which your framework computes, GPUs or this "
        "machine's processor: auto, or a name from `ecorl doctor`",
    )
    n_gpus: StrictInt = Field(1, ge=1, le=4096, description="GPUs that the run uses")
    fpga: Text = Field("u55c", description="profile of the card")
    n_fpgas: StrictInt = Field(1, ge=1, le=64, description="cards; each answers a batch on its own")
    calibration: Literal["roofline", "paper"] = Field(
        "roofline",
        description="cost model: bounded by physics (roofline for the GPU, cycle model for the "
        "card), or as printed in the paper",
    )
