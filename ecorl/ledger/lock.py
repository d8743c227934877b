"""The lock that lets one process alone write a ledger."""

from __future__ import annotations

import fcntl
from pathlib import Path

from ecorl.errors import LedgerError, RunError

_LOCKED: set[Path] = set()
# A process's own file locks do not exclude itself.


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
        if path in _LOCKED:
            raise RunError(f"{path}: this process writes it already")
        try:
            self._handle = path.with_name(path.name + ".lock").open("ab")
        except OSError as error:
            raise LedgerError(f"{path}: cannot be written ({error})") from error
        try:
            fcntl.lockf(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._handle.close()
            raise RunError(f"{path}: another process is writing this run") from error
        self._path = path
        _LOCKED.add(path)

    def release(self) -> None:
        """Free the lock; safe to call twice."""
        _LOCKED.discard(self._path)
        self._handle.close()
