"""``[devices]``, ``[places]``, ``[runtime]``: profiles, what serves a role, and processes.

A role is the name of a stage, or that with the name of one of its models behind a colon. TOML wants
quotes around the latter: ``[places."reward:math"]``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, StrictFloat, StrictInt, model_validator

from ecorl.config.base import Model, Text
from ecorl.config.mistakes import RefusedValue
from ecorl.records import Stage


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
        1, ge=1, le=64, description="number of accelerators; each answers a batch on its own"
    )
    calibration: Literal["roofline", "paper"] = Field(
        "roofline",
        description="which costs policies expect: roofline is bounded by physics (for the card by "
        "a model of its cycles), paper has the figures as the paper prints them, which are not",
    )


_MODEL_NAME = re.compile(r"[A-Za-z0-9_.-]+")


class Place(Model):
    """The machine and the devices that serve a role.

    A role is a stage (generation, reward, reference, critic, actor_train or critic_train), or one
    of its models, as in `[places."reward:math"]`.
    """

    node: Text | None = Field(
        None,
        description="name of the machine in the Ray cluster; not set: that of the trainer, or for "
        "an offloaded model any that has a card",
    )
    devices: Annotated[tuple[Text, ...], Field(max_length=4096)] = Field(
        (), description="GPUs that serve it, each by its index, UUID or another of its NVML names"
    )
    count: StrictInt | None = Field(
        None, ge=1, le=4096, description="number of devices, where they are not named"
    )
    profile: Text | None = Field(
        None,
        description="device profile of its devices: a name from `ecorl doctor`, or the path of a "
        "TOML file",
    )

    @model_validator(mode="after")
    def _devices_are_counted(self) -> Place:
        n_named = len(self.devices)
        if len(set(self.devices)) < n_named:
            raise RefusedValue("devices", list(self.devices), "names of devices, each once")
        if self.count is not None and n_named and self.count != n_named:
            allowed = f"{self.count} names of devices, as count says, or none"
            named = RefusedValue("devices", list(self.devices), allowed)
            allowed = f"{n_named}, the number of names in devices, or no count"
            raise RefusedValue("count", self.count, allowed, named)
        return self


def _of_roles(places: object) -> object:
    for role, place in places.items() if isinstance(places, Mapping) else ():
        stage, colon, name = str(role).partition(":")
        if stage in list(Stage) and (not colon or _MODEL_NAME.fullmatch(name)):
            continue
        allowed = f"a role: one of {[str(s) for s in Stage]}, alone or as in 'reward:math'"
        close = difflib.get_close_matches(stage, list(Stage), n=1)
        if stage in list(Stage):
            allowed = f"'{stage}', or '{stage}:' and a name that matches {_MODEL_NAME.pattern}"
        elif close:
            allowed += f"; is {str(close[0])!r} meant?"
        raise RefusedValue((str(role),), place, allowed)
    return places


Places = Annotated[dict[str, Place], BeforeValidator(_of_roles)]
"""Places by role."""


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
    patience_s: Annotated[StrictFloat, Field(ge=1, le=3600)] = Field(
        30.0,
        description="longest wait for the cluster, its machines and actors when the run starts, "
        "each",
    )

    @model_validator(mode="after")
    def _address_is_one(self) -> RayRuntimeConfig:
        if not is_address(self.address):
            raise RefusedValue("address", self.address, ADDRESSES)
        return self


RuntimeConfig = Annotated[LocalRuntimeConfig | RayRuntimeConfig, Field(discriminator="type")]
