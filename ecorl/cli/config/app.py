"""``ecorl config``: what a config may hold, and what one says once defaults are filled in."""

from __future__ import annotations

from typing import Annotated

import typer

from ecorl.cli.config.page import reference_page
from ecorl.cli.config.terminal import print_reference
from ecorl.cli.exits import help_without_command
from ecorl.cli.options import OverridesOption
from ecorl.cli.output import make_console
from ecorl.config import config_changes_toml, config_toml, load_config, preset_names
from ecorl.config.reference import config_reference, matching
from ecorl.errors import ConfigError

_HELP = "Explain every key of a config file; show one with its defaults."

config_app = typer.Typer(help=_HELP)


@config_app.callback(invoke_without_command=True)
def _top(context: typer.Context) -> None:
    """Explain every key of a config file, or show a config with its defaults filled in."""
    help_without_command(context)


@config_app.command()
def reference(
    part: Annotated[
        str | None,
        typer.Argument(
            metavar="TABLE|KEY",
            help="Only this part, such as engine.offload or trainer.steps.",
        ),
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown page.")] = False,
) -> None:
    """Print every key of a config with its type, default, unit and meaning."""
    tables = config_reference()
    if part is not None:
        tables = matching(tables, part)
    if markdown:
        typer.echo(reference_page(tables), nl=False)
    else:
        print_reference(tables, make_console())


@config_app.command()
def show(
    config: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help=f"TOML file, or a preset: {', '.join(preset_names())}."
        ),
    ],
    overrides: OverridesOption = None,
    changed: Annotated[
        bool, typer.Option("--changed", help="Print only what differs from the defaults.")
    ] = False,
) -> None:
    """Print a config as TOML with its defaults filled in, as a run would use it.

    Keys that are not set and have no default are left out.
    """
    try:
        settings = load_config(config, overrides or ())
    except ConfigError as error:
        if error.key != "--config":
            raise
        raise ConfigError("FILE", config, error.allowed, error.path, error.line) from error
    typer.echo(config_changes_toml(settings) if changed else config_toml(settings), nl=False)
