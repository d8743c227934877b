"""Sections of text tables: what the page shows below its verdict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


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
