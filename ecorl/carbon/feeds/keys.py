"""Keys of the feeds: read from a file or the environment, and kept out of every text."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

from ecorl.errors import ConfigError

_MAX_BYTES = 4096  # longer than any provider's key, and short enough to read of any file


class Secret:
    """A text that shows as ``***`` wherever it is printed, logged or formatted.

    Args:
        value: the text itself, which only `reveal` gives back.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The text itself, for the one place that sends it."""
        return self._value

    def __repr__(self) -> str:
        return "***"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not written anywhere")


def read_key(variable: str, file: Path | None) -> Secret:
    """Read a key from the first line of a file, or from the environment where no file is given.

    Args:
        variable: the environment's variable that holds the key.
        file: the file whose first line is the key; it goes before the environment.

    Raises:
        ConfigError: when there is no key, or the file cannot be read. The message names the
            variable and the file, never what is in them.
    """
    if file is None:
        given = os.environ.get(variable, "").strip()
        shown: tuple[str, str | None] = (variable, "..." if given else None)
    else:
        given = _first_line(file.expanduser())
        shown = ("key_file", str(file))
    if not given or not given.isprintable():
        allowed = f"a key in one printable line, in {variable} or in the first line of key_file"
        raise ConfigError(*shown, allowed)
    return Secret(given)


def _first_line(file: Path) -> str:
    """First line of a file without its ends; empty where it is no text.

    Errors are raised outside of the handlers, so that what was read does not hang on them.
    """
    problem = None
    raw = b""
    try:
        with file.open("rb") as stream:
            raw = stream.readline(_MAX_BYTES)
    except OSError as error:
        problem = error.strerror
    if problem is not None:
        raise ConfigError("key_file", str(file), f"a readable file with the key ({problem})")
    try:
        return raw.decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        return ""
