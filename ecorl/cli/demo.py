"""``ecorl demo``: small models and data to try the other commands with."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from ecorl.cli.exits import help_without_command
from ecorl.cli.output import check_text, make_console, say
from ecorl.config import ArithmeticTask, Config

_CACHE_DIR = ArithmeticTask().cache_dir
_HELP = "Make small models and data, to try the other commands with."

_NEXT = (
    ("check a config before it trains", "ecorl run --config {0}/ecorl.toml --check"),
    ("train, and leave a report", "ecorl run --config {0}/ecorl.toml"),
    (
        "is INT8 good enough for the reward model?",
        "ecorl fpga validate --model {0}/reward --pairs {0}/pairs.jsonl",
    ),
    (
        "what would a card take for both models?",
        "ecorl fpga estimate --model {0}/reward --tokens 512 --reference {0}/policy",
    ),
    ("answer log-probs over HTTP, until Ctrl-C", "ecorl fpga serve --model {0}/policy"),
    ("train with a TRL script of your own, to which ecorl is attached", "python {0}/train.py"),
)
"""What can be typed next, and what for; the folder is filled in."""


def demo_commands(find: Callable[[str, str], Any]) -> typer.Typer:
    """Make the command group.

    Args:
        find: loads a function of a framework's adapter, given both names.
    """
    group = typer.Typer(help=_HELP)

    @group.callback(invoke_without_command=True)
    def top(context: typer.Context) -> None:
        """Make small models and data, to try the other commands with."""
        help_without_command(context)

    @group.command()
    def models(
        folder: Annotated[
            Path, typer.Argument(metavar="DIR", help="New or empty folder, or one made before.")
        ],
        seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Of the models.")] = 42,
        cache_dir: Annotated[
            Path, typer.Option(help="Folder that keeps the models for the next time.")
        ] = _CACHE_DIR,
    ) -> None:
        """Write a small policy, reward model, prompts and pairs, a config and a training script.

        They are made in about a minute, and the next time copied. What to type next is
        printed. A folder that was made before gets what is missing in it.
        """
        check_text(folder, "DIR")
        check_text(cache_dir, "--cache-dir")
        # Read when the libraries are loaded, which the adapter does.
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        make = find(str(Config.model_fields["adapter"].default), "demo_models")
        for line in _told(folder, make(folder, seed, cache_dir, make_console())):
            say(line)

    return group


def _told(folder: Path, written: list[str]) -> list[str]:
    """Say what was written, and what can be typed now."""
    if written:
        names = sorted({f"{name.partition('/')[0]}/" if "/" in name else name for name in written})
        first = f"{folder}: wrote {', '.join(names)}"
    else:
        first = f"{folder} holds all of it already; nothing was written"
    name = shlex.quote(str(folder))
    lines = [first, "", "To type next:"]
    for text, command in _NEXT:
        lines += [f"  # {text}", f"  {command.format(name)}"]
    return lines
