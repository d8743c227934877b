"""``ecorl config``: what a config may hold, and what one says once defaults are filled in."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console

from ecorl.cli.exits import help_without_command
from ecorl.cli.options import OverridesOption
from ecorl.cli.output import make_console
from ecorl.config import config_changes_toml, config_toml, load_config, preset_names
from ecorl.config.reference import (
    NOT_SET,
    REQUIRED,
    ReferenceKey,
    ReferenceTable,
    config_reference,
    matching,
)
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


_INTRODUCTION = """\
# Every key of an ecorl.toml

For those who write an `ecorl.toml`: every key that it may hold, with its type, default, unit and
meaning.

A key that is left out has its default, if it has one; *required* means that its table cannot do
without it. The unit of a number is that of its name (`deadline_s` is in seconds); where a name has
none, the meaning says it. A relative path counts from the folder in which you start. A table with a
`type` takes the keys of that type alone.

The *card* is the accelerator, simulated or real, and *offloading* a stage moves it there: `reward`
(the scores of the reward model) or `reference` (the log-probs of the frozen model that the policy
is kept near). All else stays where your framework computes: on a GPU, or on the host.

`ecorl config reference engine.offload` prints one table or key, `ecorl config show FILE` a config
with its defaults filled in. This page is made by
`ecorl config reference --markdown > ecorl/config/REFERENCE.md`.
"""


def reference_page(tables: Sequence[ReferenceTable]) -> str:
    """Make the page of some tables of the reference.

    Args:
        tables: in the order of the page.

    Returns:
        Markdown, as GitHub shows it, with a line feed at its end.
    """
    parts = [_INTRODUCTION, _contents(tables)]
    parts += [_section(table) for table in tables]
    return "\n".join(parts)


def _contents(tables: Sequence[ReferenceTable]) -> str:
    titles = dict.fromkeys(_title(table, "`") for table in tables if table.kind is None)
    return "".join(f"- [{title}](#{_anchor(title)})\n" for title in titles)


def _anchor(title: str) -> str:
    """The name that GitHub gives to a heading."""
    return re.sub(r"[^a-z0-9 _-]", "", title.lower()).replace(" ", "-")


def _section(table: ReferenceTable) -> str:
    level = "##" if table.kind is None else "###"
    meaning = "\n\n".join(" ".join(paragraph.split()) for paragraph in table.meaning.split("\n\n"))
    section = f"{level} {_title(table, '`')}\n\n{meaning}\n"
    if not table.keys:
        return section
    rows = ["| key | type | default | unit | meaning |", "|---|---|---|---|---|"]
    return "\n".join([section, *rows, *map(_row, table.keys), ""])


def _row(key: ReferenceKey) -> str:
    default = key.default if key.default in (REQUIRED, NOT_SET) else f"`{key.default}`"
    cells = [f"`{key.name}`", _escaped(key.type), default, key.unit, _escaped(key.meaning)]
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    """Text in which no character has a meaning in a table of Markdown, but for back-ticks."""
    return re.sub(r"([|*_<>^])", r"\\\1", text)


_WIDEST = 80
"""Columns of a line, at most: longer ones read badly."""
_NARROWEST = 40


def print_reference(tables: Sequence[ReferenceTable], console: Console) -> None:
    """Print tables of the reference.

    Args:
        tables: in the order in which they are printed.
        console: where to; its width is used up to 80 columns.
    """
    width = max(_NARROWEST, min(_WIDEST, console.width))
    for number, table in enumerate(tables):
        if number:
            _print("", console)
        _print(_title(table), console, style="bold")
        for paragraph in table.meaning.split("\n\n"):
            _print(_wrapped(paragraph, width), console)
        for key in table.keys:
            _print("", console)
            _print(f"  {_with_default(key)}", console, style="cyan")
            unit = f"; in {key.unit}" if key.unit else ""
            for text in (f"{key.type}{unit}", key.meaning):
                _print(_wrapped(text, width, indent=6), console)


def _title(table: ReferenceTable, quote: str = "") -> str:
    """The heading of a table; `quote` stands around what is written in a config."""
    header = f"{quote}{table.header}{quote}" if table.header else "At the top of the file"
    if table.kind is None:
        return header
    return f'{header} with {quote}type = "{table.kind}"{quote}'


def _with_default(key: ReferenceKey) -> str:
    if key.default in (REQUIRED, NOT_SET):
        return f"{key.name}   ({key.default})"
    return f"{key.name} = {key.default}"


def _wrapped(text: str, width: int, indent: int = 0) -> str:
    pad = " " * indent
    return textwrap.fill(
        text,
        width,
        initial_indent=pad,
        subsequent_indent=pad,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _print(text: str, console: Console, style: str | None = None) -> None:
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
