"""``[runtime]``: in which processes and on which machines ecorl's parts run."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, StrictFloat, model_validator

from ecorl.config.base import Model, Text
from ecorl.config.mistakes import RefusedValue

_HOST_AND_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")


class LocalRuntimeConfig(Model):
    """Everything on the machine of the trainer, in its process and in children of it."""

    type: Literal["local"] = "local"


class RayRuntimeConfig(Model):
    """Power readings and offloaded stages on the machines of a Ray cluster."""

    type: Literal["ray"] = "ray"
    address: Text = Field(
        "auto",
        description="the cluster: auto takes the one that this machine is part of, local starts "
        "one for this run, host:port is the address of its head",
    )
    namespace: Text = Field(
        "ecorl", description="Ray namespace in which the actors of the run live"
    )
    patience_s: StrictFloat = Field(
        30.0, ge=1, le=3600, description="longest wait for machines and actors when the run starts"
    )

    @model_validator(mode="after")
    def _address_is_one(self) -> RayRuntimeConfig:
        found = _HOST_AND_PORT.fullmatch(self.address)
        is_port = found is not None and 1 <= int(found[2]) <= 65_535
        if self.address not in ("auto", "local") and not is_port:
            raise RefusedValue("address", self.address, "'auto', 'local' or 'host:port'")
        return self


RuntimeConfig = Annotated[LocalRuntimeConfig | RayRuntimeConfig, Field(discriminator="type")]
