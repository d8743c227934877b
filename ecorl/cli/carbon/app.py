"""``ecorl carbon``: what the grid emits now and in the next hours, and when to train."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from ecorl.cli.carbon.planning.commands import plan, profile, simulate
from ecorl.cli.exits import FAULT, help_without_command
from ecorl.cli.options import ConfigOption, OverridesOption, chosen_config
from ecorl.cli.output import make_console

_HELP = "Say what the grid emits now and later, and when to train."

carbon_app = typer.Typer(help=_HELP)

_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@carbon_app.callback(invoke_without_command=True)
def _top(context: typer.Context) -> None:
    """Say what the grid emits now and later, and when to train."""
    help_without_command(context)


@carbon_app.command()
def now(
    config: ConfigOption = None, overrides: OverridesOption = None, as_json: _Json = False
) -> None:
    """Say what the grid emits now, and whether a run would train.

    The feeds of the config are asked once. Exit code 1 when an intensity is unknown: the feeds that
    were asked, and why none counts, are told all the same.
    """
    settings = chosen_config(config, overrides)
    from ecorl.cli.carbon.asking import ask_grid
    from ecorl.cli.carbon.now import now_data, show_now

    grid = ask_grid(settings, looks_ahead=False)
    if as_json:
        typer.echo(json.dumps(now_data(grid), indent=2, allow_nan=False))
    else:
        show_now(grid, make_console())
    if not grid.is_known:
        raise typer.Exit(FAULT)


@carbon_app.command()
def forecast(
    config: ConfigOption = None,
    overrides: OverridesOption = None,
    hours: Annotated[int, typer.Option(min=1, max=48, help="Of the table.")] = 24,
    as_json: _Json = False,
) -> None:
    """Say what the grid will emit, and when the next clean window is.

    Hour by hour. It is of the intensity that carbon.waits_for names. Exit code 1 when there is no
    forecast, except for a stated figure, which has none.
    """
    settings = chosen_config(config, overrides)
    from ecorl.cli.carbon.asking import ask_grid
    from ecorl.cli.carbon.forecast import forecast_data, is_missed, show_forecast

    grid = ask_grid(settings, looks_ahead=True)
    if as_json:
        typer.echo(json.dumps(forecast_data(grid), indent=2, allow_nan=False))
    else:
        show_forecast(grid, hours, make_console())
    if is_missed(grid):
        raise typer.Exit(FAULT)


carbon_app.command()(plan)
carbon_app.command()(simulate)
carbon_app.command()(profile)
