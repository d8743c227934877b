"""Options that several commands share, and the config that they name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from ecorl.config import Config, load_config, parse_config, preset_names

ConfigOption = Annotated[
    str | None,
    typer.Option("--config", "-c", help=f"TOML file, or a preset: {', '.join(preset_names())}."),
]
"""The config of a command; None where the defaults are to hold."""

OverridesOption = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", metavar="KEY=VALUE", help="Override a value; repeatable."),
]
"""Values that go before those of the config."""


def chosen_config(config: str | None, overrides: Sequence[str] | None) -> Config:
    """Read the config that the options name; without one the defaults hold.

    Args:
        config: path of a TOML file, or name of a preset.
        overrides: ``dotted.key=value`` each.

    Raises:
        ConfigError: for the first mistake found.
    """
    if config is None:
        return parse_config("", "the defaults", overrides or ())
    return load_config(config, overrides or ())
