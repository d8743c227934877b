"""The lock that lets one process alone write a ledger."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import struct
import threading
import time
from pathlib import Path
from typing import IO

from ecorl.errors import LedgerError, RunError
from ecorl.files import stand_in

logger = logging.getLogger(__name__)

_LOCKED: dict[Path, tuple[int, int, int]] = {}
"""Ledgers that this process writes, with its id and what tells the lock's file from all others.

A process's own file locks do not exclude itself, and one that is forked inherits this but no lock.
"""

_GUARD = threading.Lock()
"""Held while a lock's file is opened and closed: to close it frees all locks that this process has
on it, through whichever handle."""

_FLOCK = "hhlli4x"
"""Layout of ``struct flock`` on 64-bit Linux: kind, origin, start, length, owner."""

_HELD = (errno.EACCES, errno.EAGAIN)
"""Errors of a lock that another process holds; all others say that the file system knows no locks
(ENOLCK: NFS without its lock service; ENOSYS: Lustre without ``-o flock``)."""

_ATTEMPTS = 5
"""How often a lock's file is opened that its last owner removes meanwhile. Invented."""

_WATCH_S = 3.0
"""For how long a log is watched for a writer on another machine, s. Invented: a run's readings are
written ten times a second, and Lustre shows it at once. NFS may keep it back for half a minute, and
a run without readings may write less often: nothing but the warning keeps such writers apart."""


class WriterLock:
    """Holds the lock of a ledger's writer; the system frees it when the process dies, however.

    It is a POSIX record lock, and not `filelock`'s flock: a process that the trainer forks (a
    worker of its data loader) inherits an flock with the open file and would hold it after the
    trainer was killed, so that the run could not be resumed. A record lock is this process's alone.

    Where the ledger's file system knows no such locks, a file in this machine's memory stands in. A
    writer on another machine, or in another container, shows then by its log that grows, if it does
    so within `_WATCH_S`.

    Args:
        path: the ledger's file; the lock is a file beside it.

    Attributes:
        in_folder: whether the lock is beside the ledger; False where another file stands in.

    Raises:
        RunError: when a process writes this ledger already.
        LedgerError: when the folder cannot be written, or locks are known nowhere.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with _GUARD:
            if path in _LOCKED:
                raise RunError(f"{path}: this process writes it already")
            try:
                found = _hold(_lock_file(path), path)
            except OSError as error:
                raise LedgerError(f"{path}: cannot be written ({error})") from error
            self.in_folder = not isinstance(found, OSError)
            self._handle = _hold_stand_in(path, found) if isinstance(found, OSError) else found
            _LOCKED[path] = (os.getpid(), *_identity(os.fstat(self._handle.fileno())))
        if not self.in_folder and _is_growing(path):
            self.release()
            raise RunError(f"{path}: a process on another machine is writing this run")

    def release(self, *, remove: bool = False) -> None:
        """Free the lock; safe to call twice.

        Args:
            remove: whether its file goes too.
        """
        with _GUARD:
            if _LOCKED.pop(self._path, None) is not None:
                if remove:
                    _remove(_lock_file(self._path))
                if not self.in_folder:
                    _remove(_stand_in(self._path))
            self._handle.close()


def is_being_written(path: Path) -> bool | None:
    """Tell whether a process of this machine writes a ledger just now; it is not disturbed.

    Args:
        path: the ledger's file.

    Returns:
        None where it cannot be told: the lock's file cannot be read, or its file system knows no
        such locks and the log may be another container's. False says nothing of processes on other
        machines.
    """
    path = path.absolute()
    with _GUARD:
        try:
            held = _is_held(_lock_file(path))
            if held is not None:
                return held
            if (local := _stand_in(path)).exists():
                return _is_held(local)
            return None if _log(path).exists() else False
        except FileNotFoundError:
            return False  # whoever writes a ledger has made it
        except OSError:
            return None


def knows_locks(path: Path) -> bool:
    """Whether the file system of a ledger knows POSIX locks; True where that cannot be told.

    Args:
        path: the ledger's file.
    """
    path = path.absolute()
    with _GUARD, contextlib.suppress(OSError):
        lock = _lock_file(path)
        # A ledger without a lock's file has no writer, so that the ledger itself may be asked.
        return _is_held(lock if lock.exists() else path) is not None
    return True


def _hold(file: Path, path: Path) -> IO[bytes] | OSError:
    """Lock a file for the writer of a ledger.

    Returns:
        The open file; or the error of a file system that knows no locks.

    Raises:
        RunError: when another process holds it.
        OSError: when it cannot be opened.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        handle = _open(file)
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A file that its last owner has removed meanwhile would exclude no other process.
            with contextlib.suppress(FileNotFoundError):
                same = _identity(os.fstat(handle.fileno())) == _identity(file.stat())
                if same or attempt == _ATTEMPTS:
                    return handle
        except OSError as error:
            handle.close()
            if error.errno in _HELD:
                raise RunError(f"{path}: another process is writing this run") from error
            return error
        handle.close()
    raise FileNotFoundError(errno.ENOENT, "removed again and again", str(file))


def _open(file: Path) -> IO[bytes]:
    # One that is there is not asked to be made: Linux may refuse that for another user's, to root
    # too, in a folder like that of files in memory.
    try:
        return file.open("r+b")
    except FileNotFoundError:
        return file.open("ab")


def _hold_stand_in(path: Path, why: OSError) -> IO[bytes]:
    """Lock the file that stands in for one beside the ledger."""
    reason = f"the file system of {path.parent} knows no POSIX locks ({why.strerror})"
    try:
        found = _hold(_stand_in(path), path)
    except OSError as error:
        raise LedgerError(f"{path}: {reason}, and {error}") from error
    if isinstance(found, OSError):
        raise LedgerError(f"{path}: {reason}, nor does that of {_stand_in(path).parent}")
    logger.warning("ledger: %s: begin this run on one machine at a time", reason)
    return found


def _is_growing(path: Path) -> bool:
    """Whether somebody writes to a ledger's log, watched for some time; at once without a log."""
    end_s = time.monotonic() + _WATCH_S
    before = _log_state(path)
    while before is not None and time.monotonic() < end_s:
        time.sleep(0.1)
        if _log_state(path) != before:
            return True
    return False


def _log_state(path: Path) -> tuple[int, int] | None:
    # Opened anew each time: so network file systems ask their server.
    with contextlib.suppress(OSError), _log(path).open("rb") as handle:
        found = os.fstat(handle.fileno())
        return found.st_size, found.st_mtime_ns
    return None


def _is_held(file: Path) -> bool | None:
    """Whether a process holds a lock's file; None: its file system knows no locks.

    Raises:
        OSError: when it cannot be opened.
    """
    if (os.getpid(), *_identity(file.stat())) in _LOCKED.values():
        return True
    with file.open("rb") as handle:
        # Asking takes no lock.
        asked = struct.pack(_FLOCK, fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
        try:
            answer = fcntl.fcntl(handle, fcntl.F_GETLK, asked)
        except OSError:
            return None
    return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)


def _remove(file: Path) -> None:
    with contextlib.suppress(OSError):
        file.unlink(missing_ok=True)


def _lock_file(path: Path) -> Path:
    return path.with_name(path.name + ".lock")


def _stand_in(path: Path) -> Path:
    """The file on this machine's own disk whose lock stands in for one beside the ledger."""
    return stand_in(_lock_file(path))


def _log(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino
