"""Where the commands print."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import Any, TextIO

from rich.console import Console


def make_console(**kwargs: Any) -> Console:
    """A console; with NO_COLOR without any style, for bold and dim are escapes as well."""
    return Console(**(kwargs | {"color_system": None} if os.environ.get("NO_COLOR") else kwargs))


def aligned(heads: Sequence[str], cells: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table: the first column to the left, the others to the right."""
    all_rows = [tuple(heads), *map(tuple, cells)]
    widths = [max(len(row[i]) for row in all_rows) for i in range(len(heads))]
    return [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in all_rows
    ]


class LastingOutput(io.TextIOBase):
    """A text stream that goes silent instead of failing.

    A terminal that was closed, a reader that went away or a full disk behind ``ecorl run | tee``
    must not end a training run.

    Args:
        stream: where the text goes as long as it can.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._lost = stream, False

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """That of the stream."""
        return self._stream.encoding

    def isatty(self) -> bool:
        """Whether the stream is a terminal."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """That of the stream; a console asks it for the width of the terminal."""
        return self._stream.fileno()

    def write(self, text: str) -> int:
        """Write as long as the stream takes it."""
        if not self._lost:
            try:
                self._stream.write(text)
            except (OSError, ValueError):
                self._lost = True
        return len(text)

    def flush(self) -> None:
        """Flush as long as the stream takes it."""
        if not self._lost:
            try:
                self._stream.flush()
            except (OSError, ValueError):
                self._lost = True
