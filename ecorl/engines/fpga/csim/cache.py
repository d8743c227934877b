"""The cache of compiled libraries: folders that are complete or absent, one lock for each key."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from ecorl.files import lockable

logger = logging.getLogger(__name__)

LOCK_S = 900.0
"""Longest wait for another process that compiles the same, s. Invented: that takes a minute."""

_PREFIX = ".building-"
_LEFT_AFTER_S = 24 * 3600.0  # no compilation takes a day: its process was killed


def cache_folder() -> Path:
    """Folder of the compiled libraries: ``$ECORL_CACHE/csim`` or ``~/.cache/ecorl/csim``."""
    root = os.environ.get("ECORL_CACHE") or "~/.cache/ecorl"
    return Path(root).expanduser() / "csim"


@contextlib.contextmanager
def locked(path: Path, limit_s: float | None = LOCK_S) -> Iterator[None]:
    """Hold an exclusive lock; the system frees it if this process dies.

    Args:
        path: the lock's file.
        limit_s: longest wait for another process that holds it, s; None waits without a limit.

    Raises:
        OSError: when the lock's file cannot be written, or is not free in time.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(lockable(path), timeout=-1 if limit_s is None else limit_s)
    try:
        lock.acquire()
    except Timeout:
        told = f"another process has held {path} for {limit_s:g} s: end it and try again"
        raise TimeoutError(told) from None
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def fresh_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder that is renamed to `folder` if the block succeeds.

    Its content is on the disk before it gets its name: after a power cut there is the complete
    folder or none.

    Raises:
        OSError: when it cannot be written.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=folder.parent))
    try:
        yield temporary
        with contextlib.suppress(OSError):  # some file systems know no permissions
            temporary.chmod(0o755)
        for path in (*temporary.rglob("*"), temporary):
            _flush(path)
        try:
            temporary.replace(folder)
        except OSError:
            if not folder.is_dir():  # else another process was first, with the same content
                raise
        _flush(folder.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def sweep(parent: Path) -> None:
    """Remove temporary folders whose process was killed long ago. Call it with a lock held."""
    for path in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another process may sweep as well
            if time.time() - path.stat().st_mtime > _LEFT_AFTER_S:
                logger.info("removing %s, left by a process that was killed", path)
                shutil.rmtree(path)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        if not path.is_dir():  # some network file systems refuse it for folders
            raise
    finally:
        os.close(descriptor)
