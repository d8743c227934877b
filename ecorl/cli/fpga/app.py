"""``ecorl fpga``: whether a model can be offloaded to a card, bitstreams, and the service."""

from __future__ import annotations

import os

import typer

from ecorl.cli.fpga.bitstream import bitstream
from ecorl.cli.fpga.estimate import estimate
from ecorl.cli.fpga.serve import serve
from ecorl.cli.fpga.validate import validate

USER_ERROR = 2

fpga_app = typer.Typer(
    help="Say whether a model can be offloaded and what it takes; build bitstreams; serve scores."
)


@fpga_app.callback(invoke_without_command=True)
def _top(context: typer.Context) -> None:
    """Say whether a model can be offloaded to a card, what it would take there, or serve it."""
    # Read when the libraries are loaded, which the commands do.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(USER_ERROR)


fpga_app.command()(validate)
fpga_app.command()(estimate)
fpga_app.command()(bitstream)
fpga_app.command()(serve)
