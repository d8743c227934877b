"""Plain lines of text: columns that stand under each other, and sentences wrapped at words."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import rich.table
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from ecorl.plain_text import as_read

GAP = "  "
CAPTION = "  # "
"""What a line begins with that says where the figures below it come from."""
_READABLE = (60, 110)
"""Least and most columns of a terminal that sentences use: longer lines read badly."""
_ANY_WIDTH = 100_000
"""Columns that no table reaches."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""What moves the cursor, changes colours or turns the reading order, and what no file can hold."""


def visible(text: str) -> str:
    r"""Write control characters of a text as escapes, e.g. ``\x1b``; line ends and tabs stay."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], as_read(text))


def readable_width(columns: int) -> int:
    """Columns that sentences use of those that a terminal has.

    Args:
        columns: of the terminal.
    """
    least, most = _READABLE
    return max(least, min(most, columns))


def wrapped(text: str, width: int, first: str = "  ", rest: str | None = None) -> list[str]:
    """Break a text into lines of at most ``width`` columns, between words only.

    Args:
        text: one sentence or more.
        width: columns; a single word that is longer stays whole.
        first: what the first line begins with.
        rest: what the others begin with; as many blanks as ``first`` has columns if not told.
    """
    return textwrap.wrap(
        visible(text),
        width,
        initial_indent=first,
        subsequent_indent=" " * len(first) if rest is None else rest,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [first.rstrip()]


def widths(rows: Sequence[Sequence[str]]) -> list[int]:
    """Width of each column over rows of the same length, in cells of a terminal."""
    return [max(cell_len(visible(cell)) for cell in column) for column in zip(*rows, strict=True)]


def aligned(
    rows: Sequence[Sequence[str]],
    *,
    text_columns: Collection[int] = (0,),
    columns: Sequence[int] | None = None,
    indent: str = "",
) -> list[str]:
    """Lay out rows as lines of text whose columns stand under each other.

    Args:
        rows: cells, the heading among them; all rows of the same length.
        text_columns: indices of the columns that are aligned to the left; the others go right.
        columns: widths to keep to, so that several tables stand under each other.
        indent: what each line begins with.

    Returns:
        One line a row, without blanks at its end.
    """
    table = rich.table.Table.grid(padding=(0, len(GAP), 0, 0))
    for i, width in enumerate(columns if columns is not None else widths(rows)):
        table.add_column(justify="left" if i in text_columns else "right", min_width=width)
    for row in rows:
        table.add_row(*(Text(visible(cell), no_wrap=True) for cell in row))
    # No terminal has a say here: lines are never cut, coloured or filled up.
    console = Console(file=io.StringIO(), width=_ANY_WIDTH, color_system=None, force_terminal=False)
    with console.capture() as shown:
        console.print(table)
    return [f"{indent}{line}".rstrip() for line in shown.get().splitlines()]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text. ``numeric`` tells per column whether to align right.

    Attributes:
        caption: a line above the table; names the provenance where columns do not.
        folded: shown only on demand.
    """

    columns: tuple[str, ...]
    numeric: tuple[bool, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""
    folded: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, an introducing line, a plot by name, tables, and remarks under them."""

    id: str
    title: str
    lead: str = ""
    plot: str = ""
    tables: tuple[Table, ...] = ()
    remarks: tuple[str, ...] = ()


def table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], n_text: int = 1, caption: str = ""
) -> Table:
    """Make a table whose first ``n_text`` columns are text and the others numbers.

    Args:
        heads: headings of the columns.
        rows: cells as text, as many as headings.
        n_text: leading columns that hold text.
        caption: a line above the table.
    """
    return Table(
        columns=tuple(heads),
        numeric=tuple(i >= n_text for i in range(len(heads))),
        rows=tuple(tuple(row) for row in rows),
        caption=caption,
    )
