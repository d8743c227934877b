"""Text for terminals and file systems whose encoding lacks some of its characters.

Python takes ASCII for both where the locale is C and ``PYTHONUTF8=0`` forbids it to take UTF-8.
"""

from __future__ import annotations

import codecs
import io
import os
import sys
from pathlib import Path

PLAIN = "ecorl.plain"
"""Name of the error handler that writes what an encoding lacks in other characters."""

_IN_PLACE = str.maketrans(
    {"…": "...", "≥": ">=", "≤": "<=", "±": "+-", "µ": "u", "μ": "u", "→": "->", "²": "2", "₂": "2"}
    | dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212─━", "-")
    | dict.fromkeys("│┃", "|")
    | dict.fromkeys("╭╮╰╯├┤┌┐└┘┬┴┼", "+")
    | dict.fromkeys("\u2018\u2019", "'")
    | dict.fromkeys("\u201c\u201d", '"')
    | dict.fromkeys("·•", "*")
    | {"\N{MULTIPLICATION SIGN}": "x", "\N{NO-BREAK SPACE}": " ", "\N{NARROW NO-BREAK SPACE}": " "}
)


def _in_place(error: UnicodeError) -> tuple[str | bytes, int]:
    """Text in place of characters that an encoding lacks: plain forms of signs, else escapes."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = as_read(error.object[error.start : error.end])
    if error.encoding == "utf-8":
        return text.encode("utf-8", "backslashreplace"), error.end
    plain_form = text.translate(_IN_PLACE).encode("ascii", "backslashreplace")
    return plain_form.decode("ascii"), error.end


codecs.register_error(PLAIN, _in_place)


def as_read(text: str) -> str:
    """A text whose bytes were no text to this process, as UTF-8 reads them, where it can.

    Args:
        text: such as a path of the command line.
    """
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8")
    except UnicodeError:
        return text


def line_at(error: UnicodeEncodeError) -> str:
    """The line of a text that could not be encoded, as UTF-8 reads it.

    Args:
        error: of the encoding.
    """
    text, at = error.object, error.start
    return as_read(text[:at].rpartition("\n")[2] + text[at:].partition("\n")[0])


def plain(text: str, encoding: str) -> str:
    """A text in characters that an encoding has.

    Args:
        text: the text.
        encoding: of the stream that it goes to.
    """
    return text.encode(encoding, PLAIN).decode(encoding)


def plain_streams() -> None:
    """Let nothing that this program prints fail for its characters; for programs, not libraries."""
    for stream in (sys.stdout, sys.stderr):
        # With surrogateescape UTF-8 takes every path, as its bytes.
        is_whole = getattr(stream, "encoding", None) == "utf-8" and (
            getattr(stream, "errors", None) == "surrogateescape"
        )
        if isinstance(stream, io.TextIOWrapper) and not is_whole:
            stream.reconfigure(errors=PLAIN)


def text_refusal(given: str | Path, what: str = "a path") -> str | None:
    """What is allowed in place of a path that is no text in UTF-8 to this process.

    A run writes its paths into files of UTF-8, and other libraries take them as text.

    Args:
        given: the path, or what else stands on a command line.
        what: what to call it.

    Returns:
        None where it can be used.
    """
    text, encoding = str(given), sys.getfilesystemencoding()
    try:
        os.fsencode(text)
        text.encode("utf-8")
    except UnicodeEncodeError:
        if encoding == "utf-8":
            return f"{what} in UTF-8"
        return (
            f"{what} in {encoding}, the encoding of this process: start it with PYTHONUTF8=1, or "
            "in a locale of UTF-8 (LC_ALL=C.UTF-8)"
        )
    return None
