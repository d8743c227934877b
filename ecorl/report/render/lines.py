"""Plain lines of text: columns that stand under each other, and sentences wrapped at words."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

GAP = "  "
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""What moves the cursor, changes colours or turns the reading order, and what no file can hold."""


def visible(text: str) -> str:
    r"""``text`` with its control characters as escapes, e.g. ``\x1b``; line ends and tabs stay."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def wrapped(text: str, width: int, first: str = "  ", rest: str | None = None) -> list[str]:
    """``text`` in lines of at most ``width`` columns, broken between words alone.

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
    """Width of each column over rows of the same length."""
    return [max(len(visible(row[i])) for row in rows) for i in range(len(rows[0]))] if rows else []


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
            for i, (cell, size) in enumerate(zip(map(visible, row), sizes, strict=True))
        ).rstrip()
        for row in rows
    ]
