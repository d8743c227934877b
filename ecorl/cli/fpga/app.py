"""``ecorl fpga``: whether a model can be offloaded to a card, bitstreams, and the service."""

from __future__ import annotations

import os

import typer

from ecorl.cli.exits import help_without_command
from ecorl.cli.fpga.bitstream import bitstream
from ecorl.cli.fpga.estimate import estimate
from ecorl.cli.fpga.serve import serve
from ecorl.cli.fpga.validate import validate

fpga_app = typer.Typer(help="Check whether a model fits a card; build bitstreams; serve scores.")


@fpga_app.callback(invoke_without_command=True)
def _top(context: typer.Context) -> None:
    """Say whether a model can be offloaded to a card, what it would take there, or serve it."""
    # Read when the libraries are loaded, which the commands do.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    help_without_command(context)


fpga_app.command()(validate)
fpga_app.command()(estimate)
fpga_app.command()(bitstream)
fpga_app.command()(serve)
