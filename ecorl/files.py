"""Atomic writing of files, on file systems of every kind."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_NO_REPLACING = (
    errno.EACCES,
    errno.EPERM,
    errno.EBUSY,
    errno.EEXIST,
    errno.ETXTBSY,
    errno.EOPNOTSUPP,
)
"""Errors of a rename over a file where the file system does not know it, or the file is open."""

_IN_MEMORY = "/dev/shm"
"""Folder of files in the memory of this machine."""


def write_whole(path: Path, content: bytes | str) -> None:
    """Write a file atomically: readers find the old content or the new, never a part.

    That holds when the program is killed and when the power fails. Where the file system puts no
    file in another's place, the old one is moved away first, and readers may find none for an
    instant. The permissions are those of any new file.

    Args:
        path: the file, in an existing folder.
        content: the content; text is written as UTF-8, with its line ends unchanged.

    Raises:
        OSError: when it cannot be written; the old content stays, and no temporary file is left.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    # In the same folder, since a rename is atomic within one file system only.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            temporary.replace(path)
        except OSError as error:
            if error.errno not in _NO_REPLACING or not path.is_file():
                raise
            _put_aside(path, temporary)
    except BaseException:
        with suppress(OSError):  # the first error is the one to report
            temporary.unlink()
        raise


def _put_aside(path: Path, new: Path) -> None:
    """Put a file in another's place where that takes two renames; on failure the old one stays."""
    old = new.with_suffix(".old")
    path.rename(old)
    try:
        new.rename(path)
    except BaseException:
        old.rename(path)
        raise
    with suppress(OSError):
        old.unlink()


@contextmanager
def made_folder(path: Path) -> Iterator[None]:
    """Make a folder with its parents; where the block fails, empty ones are removed.

    Args:
        path: the folder; it may be there.

    Raises:
        OSError: when it cannot be made.
    """
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        with suppress(OSError):
            for folder in missing:
                folder.rmdir()
        raise


def lockable(path: Path) -> Path:
    """The file for `filelock.FileLock` to lock, where the file system may know no locks.

    Some versions of it wait for ever there, or take a lock for held.

    Args:
        path: the lock's file, in an existing folder.

    Returns:
        The file itself, or `stand_in` for it.
    """
    with suppress(OSError), tempfile.TemporaryFile(dir=path.parent) as probe:
        try:
            fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return stand_in(path)
    return path


def stand_in(path: Path) -> Path:
    """A file of this machine's alone that stands in for one whose file system knows no locks.

    Args:
        path: the file; it need not exist.
    """
    name = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:32]
    # In memory where that can be: a temporary folder may lie on the same file system.
    is_usable = os.access(_IN_MEMORY, os.W_OK | os.X_OK)
    return Path(_IN_MEMORY if is_usable else tempfile.gettempdir(), f"ecorl-{name}.lock")
