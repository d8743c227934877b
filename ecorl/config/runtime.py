"""``[runtime]``: in which processes and on which machines ecorl's parts run."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, StrictFloat, model_validator

from ecorl.config.base import Model, Text
from ecorl.config.mistakes import RefusedValue

_HOST_AND_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")

ADDRESSES = "'auto', 'local' or 'host:port'"
"""What `is_address` accepts, in words."""


def is_address(text: str) -> bool:
    """Whether a text can be the address of a Ray cluster.

    Args:
        text: as a user wrote it.
    """
    found = _HOST_AND_PORT.fullmatch(text)
    return text in ("auto", "local") or (found is not None and 1 <= int(found[2]) <= 65_535)


class LocalRuntimeConfig(Model):
    """Everything on the machine of the trainer, in its process and in children of it."""

    type: Literal["local"] = "local"


class RayRuntimeConfig(Model):
    """Power readings and offloaded stages on the machines of a Ray cluster."""

    type: Literal["ray"] = "ray"
    address: Text = Field(
        "auto",
        description="the cluster: auto takes the one that RAY_ADDRESS names or that this machine "
        "is part of, local starts one for this run, host:port is the address of its head",
    )
    namespace: Text = Field(
        "ecorl", description="Ray namespace in which the actors of the run live"
    )
    patience_s: StrictFloat = Field(
        30.0,
        ge=1,
        le=3600,
        description="longest wait for the cluster, its machines and actors when the run starts, "
        "each",
    )

    @model_validator(mode="after")
    def _address_is_one(self) -> RayRuntimeConfig:
        if not is_address(self.address):
            raise RefusedValue("address", self.address, ADDRESSES)
        return self


RuntimeConfig = Annotated[LocalRuntimeConfig | RayRuntimeConfig, Field(discriminator="type")]
