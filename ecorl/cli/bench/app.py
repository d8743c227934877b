"""``ecorl bench``: what placements and other choices take, on the user's models and machine."""

from __future__ import annotations

import os

import typer

from ecorl.cli.bench.tokens_per_joule import tokens_per_joule
from ecorl.cli.exits import help_without_command

bench_app = typer.Typer(help="Measure what choices take, on your models and this machine.")


@bench_app.callback(invoke_without_command=True)
def _top(context: typer.Context) -> None:
    """Measure what choices take, on your models and this machine."""
    # Read when the libraries are loaded, which the processes of the runs do.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    help_without_command(context)


bench_app.command("tokens-per-joule")(tokens_per_joule)
