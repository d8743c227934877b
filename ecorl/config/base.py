"""The base class of all tables of a config, and the types of values that they share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictInt, StringConstraints

MANY = 10_000_000
"""Bound of steps and the like: far above any real run, far below what overflows."""


class Model(BaseModel):
    """Base of all tables: frozen, without unknown keys; numbers are finite."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_enum_values=False, allow_inf_nan=False
    )


def _some_path(value: object) -> object:
    # An empty path would be the current folder.
    if isinstance(value, str) and (not value.strip() or "\0" in value):
        raise ValueError("no path")
    return value


SomePath = Annotated[Path, BeforeValidator(_some_path)]
"""A path that is not empty."""

_PRESETS = Path(__file__).parent / "presets"


def _in_presets(value: object) -> object:
    return value.replace("{presets}", str(_PRESETS)) if isinstance(value, str) else value


PresetPath = Annotated[SomePath, BeforeValidator(_in_presets)]
"""A path that is not empty; ``{presets}`` in it is the folder of the configs that ecorl brings."""
Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
"""Text that says something."""
Ordinal = Annotated[StrictInt, Field(ge=0)]
"""A place in a sequence, from 0."""
