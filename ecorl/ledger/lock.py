"""The lock that lets one process alone write a ledger."""

from __future__ import annotations

import fcntl
import os
import struct
import threading
from pathlib import Path
from typing import IO

from ecorl.errors import LedgerError, RunError

_LOCKED: dict[Path, tuple[int, int, int]] = {}
"""Ledgers that this process writes, with its id and what tells the lock's file from all others.

A process's own file locks do not exclude itself, and one that is forked inherits this but no lock.
"""

_GUARD = threading.Lock()
"""Held while a lock's file is opened and closed: to close it frees all locks that this process has
on it, through whichever handle."""

_FLOCK = "hhlli4x"
"""Layout of ``struct flock`` on 64-bit Linux: kind, origin, start, length, owner."""


class WriterLock:
    """Holds the lock of a ledger's writer; the system frees it when the process dies, however.

    It is a POSIX record lock, and not `filelock`'s flock: a process that the trainer forks (a
    worker of its data loader) inherits an flock with the open file and would hold it after the
    trainer was killed, so that the run could not be resumed. A record lock is this process's alone.

    Args:
        path: the ledger's file; the lock is a file beside it.

    Raises:
        RunError: when a process writes this ledger already.
        LedgerError: when the folder cannot be written.
    """

    def __init__(self, path: Path) -> None:
        with _GUARD:
            if path in _LOCKED:
                raise RunError(f"{path}: this process writes it already")
            try:
                self._handle = _lock_file(path).open("ab")
            except OSError as error:
                raise LedgerError(f"{path}: cannot be written ({error})") from error
            try:
                fcntl.lockf(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                self._handle.close()
                raise RunError(f"{path}: another process is writing this run") from error
            self._path = path
            _LOCKED[path] = (os.getpid(), *_identity(os.fstat(self._handle.fileno())))

    def release(self) -> None:
        """Free the lock; safe to call twice."""
        with _GUARD:
            _LOCKED.pop(self._path, None)
            self._handle.close()


def is_being_written(path: Path) -> bool | None:
    """Tell whether a process of this machine writes a ledger just now; it is not disturbed.

    Args:
        path: the ledger's file.

    Returns:
        None where it cannot be told: the lock's file cannot be read, or its file system knows no
        such locks. False says nothing of processes on other machines.
    """
    lock = _lock_file(path.absolute())
    with _GUARD:
        try:
            found = _identity(lock.stat())
            if (os.getpid(), *found) in _LOCKED.values():
                return True
            with lock.open("rb") as handle:
                return _is_locked(handle)
        except FileNotFoundError:
            return False  # whoever writes a ledger has made it
        except OSError:
            return None


def _is_locked(handle: IO[bytes]) -> bool:
    """Whether another process holds the lock of a writer; asking takes no lock."""
    asked = struct.pack(_FLOCK, fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
    answer = fcntl.fcntl(handle, fcntl.F_GETLK, asked)
    return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)


def _lock_file(path: Path) -> Path:
    return path.with_name(path.name + ".lock")


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino
