"""Prints what the commands say, and checks the files that they write."""

from __future__ import annotations

import contextlib
import io
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO, TypeVar

from rich.console import Console

from ecorl.errors import ConfigError
from ecorl.plain_text import plain, text_refusal

_Path = TypeVar("_Path", Path, Path | None)

_TALKATIVE = ("torchao", "torch.utils._pytree")
"""Loggers that warn, as soon as transformers imports torchao, of kernels for other devices."""


def log_plainly() -> None:
    """Have warnings printed in one line each, but for those that tell a user of ecorl nothing."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.ERROR)


def make_console(**kwargs: Any) -> Console:
    """Make a console; with NO_COLOR it has no style at all, for bold and dim are escapes too."""
    return Console(**(kwargs | {"color_system": None} if os.environ.get("NO_COLOR") else kwargs))


def say(line: str, console: Console | None = None) -> None:
    """Print a line as it is, without markup or wrapping.

    Args:
        line: may hold a path with bytes that are no text, and signs that the console lacks.
        console: where to; standard output when None.
    """
    console = console or make_console()
    text = plain(line, console.encoding)
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def check_text(path: Path, key: str) -> None:
    """Check a path that goes into a file or to another library, which take text alone.

    Args:
        path: the path.
        key: the option or argument that names it.

    Raises:
        ConfigError: when its bytes are no text to this process.
    """
    whole = path.expanduser().absolute()
    refusal = text_refusal(whole)
    if refusal is not None:
        raise ConfigError(key, str(whole), refusal)


def writable(path: _Path, key: str) -> _Path:
    """Check a file that a long command will write at its end, so that its work is not lost.

    Args:
        path: the file, or None where none is asked for.
        key: the option that names it.

    Returns:
        The path with ``~`` filled in.

    Raises:
        ConfigError: when it is a folder, or lies where no file can be made.
    """
    if path is None:
        return None
    path = path.expanduser()
    parent = next((p for p in path.parents if p.exists()), path.parent)
    if path.is_dir() or not parent.is_dir():
        raise ConfigError(key, str(path), "a file that can be written")
    return path


@contextlib.contextmanager
def writing(path: Path, key: str) -> Iterator[None]:
    """Turn a file that cannot be written into a mistake of the option that names it.

    Args:
        path: the file.
        key: the option.

    Raises:
        ConfigError: in place of an `OSError`.
    """
    try:
        yield
    except OSError as error:
        allowed = f"a file that can be written ({error.strerror})"
        raise ConfigError(key, str(path), allowed) from error


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
        """Encoding of the stream."""
        return self._stream.encoding

    def isatty(self) -> bool:
        """Whether the stream is a terminal."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """File descriptor of the stream; a console asks it for the width of the terminal."""
        return self._stream.fileno()

    def write(self, text: str) -> int:
        """Write to the stream unless it has failed before."""
        if not self._lost:
            try:
                self._stream.write(text)
            except (OSError, ValueError):
                self._lost = True
        return len(text)

    def flush(self) -> None:
        """Flush the stream unless it has failed before."""
        if not self._lost:
            try:
                self._stream.flush()
            except (OSError, ValueError):
                self._lost = True
