"""Prints the reference of a config's keys on a terminal, table by table."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.console import Console

from ecorl.config.reference import NOT_SET, REQUIRED, ReferenceKey, ReferenceTable

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


def _title(table: ReferenceTable) -> str:
    header = table.header or "At the top of the file"
    return header if table.kind is None else f'{header} with type = "{table.kind}"'


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
