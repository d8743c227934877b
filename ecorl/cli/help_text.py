"""Help texts whose lines are broken where the terminal ends, not where the source does."""

from __future__ import annotations

import inspect

import typer

_AS_WRITTEN = "\b\n"
"""What tells the parser to leave the lines of a paragraph as they are."""


def reflow(app: typer.Typer) -> None:
    """Join the lines of each paragraph in the help of all commands; examples stay as they are.

    The parser does so with the first paragraph alone, and then breaks the lines of the others in
    the middle.

    Args:
        app: the application; the groups in it are gone through too.
    """
    for command in app.registered_commands:
        text = command.help or (inspect.getdoc(command.callback) if command.callback else None)
        if text:
            command.help = "\n\n".join(map(_joined, text.split("\n\n")))
    for group in app.registered_groups:
        if group.typer_instance is not None:
            reflow(group.typer_instance)


def _joined(paragraph: str) -> str:
    # An example: its lines are indented.
    if any(line.startswith("  ") for line in paragraph.splitlines()):
        return _AS_WRITTEN + paragraph
    return " ".join(paragraph.split())
