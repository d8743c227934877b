"""Plain lines of text: columns that stand under each other, and sentences wrapped at words."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

GAP = "  "


def wrapped(text: str, width: int, first: str = "  ", rest: str | None = None) -> list[str]:
    """``text`` in lines of at most ``width`` columns, broken between words alone.

    Args:
        text: one sentence or more.
        width: columns; a single word that is longer stays whole.
        first: what the first line begins with.
        rest: what the others begin with; as many blanks as ``first`` has columns if not told.
    """
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=" " * len(first) if rest is None else rest,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [first.rstrip()]


def widths(rows: Sequence[Sequence[str]]) -> list[int]:
    """Width of each column over rows of the same length."""
    return [max(len(row[i]) for row in rows) for i in range(len(rows[0]))] if rows else []


def aligned(
    rows: Sequence[Sequence[str]], n_text: int = 1, columns: Sequence[int] | None = None
) -> list[str]:
    """Rows as lines: the first ``n_text`` columns to the left, the others to the right.

    Args:
        rows: cells, the heading among them; all rows of the same length.
        n_text: columns of text.
        columns: widths to keep to, so that several tables stand under each other.
    """
    sizes = list(columns) if columns is not None else widths(rows)
    return [
        GAP
        + GAP.join(
            cell.ljust(size) if i < n_text else cell.rjust(size)
            for i, (cell, size) in enumerate(zip(row, sizes, strict=True))
        ).rstrip()
        for row in rows
    ]
