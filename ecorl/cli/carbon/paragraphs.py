"""Prints a text in lines as wide as the terminal; elsewhere it stays one line, for grep."""

from __future__ import annotations

import re

from rich.console import Console

from ecorl.cli.output import say
from ecorl.report.render.lines import visible, wrapped

_NO_BREAK = "\u00a0"
_WITH_UNIT = re.compile(r"(\d) (?=(?:d|h|min|s|%|gCO2e?/kWh)\b|%)")
"""Where a number and its unit meet: no line is broken there."""


def paragraph(text: str, console: Console, first: str = "") -> None:
    """Print a text, broken between words where a terminal shows it.

    Args:
        text: one sentence or more.
        console: where to.
        first: what its first line begins with; the others begin with as many blanks.
    """
    if not console.is_terminal:
        say(first + visible(text), console)
        return
    for line in wrapped(_WITH_UNIT.sub(rf"\1{_NO_BREAK}", text), console.width, first):
        say(line.replace(_NO_BREAK, " "), console)
