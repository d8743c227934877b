"""``[places]``: which machine and which devices serve a role.

A role is the name of a stage, or that with the name of one of its models behind a colon. TOML wants
quotes around the latter: ``[places."reward:math"]``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import BeforeValidator, Field, StrictInt, model_validator

from ecorl.config.base import Model, Text
from ecorl.config.mistakes import RefusedValue
from ecorl.records import Stage

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
    devices: tuple[Text, ...] = Field(
        (),
        max_length=4096,
        description="GPUs that serve it, each by its index, UUID or another of its NVML names",
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
