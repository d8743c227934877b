"""How SQLite opens a ledger's file, on file systems of every kind.

As a rule the file is in WAL mode with its index in shared memory, and readers look into it beside
the writer. Some file systems know no POSIX locks (Lustre without ``-o flock``, NFS without its lock
service) or share no memory (9p, some FUSE). There the writer keeps the index to itself and takes no
lock, since `ecorl.ledger.lock` keeps other writers away; what is written is as safe, and readers
take a copy.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import tempfile
import zlib
from pathlib import Path

from ecorl.ledger.lock import knows_locks

_NO_LOCKS = "vfs=unix-none"
_BESIDE = ("-wal", "-shm", "-journal")
"""Ends of the names of the files that SQLite keeps beside a database."""

_HEADER_BYTES = 32
"""Bytes at the start of each file that change with its generation: of the database up to its
count of changes, of the others up to their salts."""

_COPIES = 10
"""How often a file that is changed meanwhile is copied anew. Invented: one is made in far less time
than a writer takes to fill its log."""

_READ_BY_COPY = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_PROTOCOL)
_FOLDER_NOT_WRITABLE = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)


def allows_readers(path: Path) -> bool:
    """Whether SQLite can write beside readers in a folder, found by a small file that goes again.

    Args:
        path: the ledger's file, or where it is to be.
    """
    probe = path.with_name(f".{path.name}.{os.getpid()}.probe")
    try:
        with contextlib.closing(_connect(probe, "mode=rwc", timeout_s=0.0)) as connection:
            connection.execute("PRAGMA synchronous = OFF")  # it goes at once
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("CREATE TABLE probe (value)")
    except sqlite3.Error:
        return False
    finally:
        remove_database(probe)
    return True


def connect_for_writing(path: Path, *, alone: bool) -> sqlite3.Connection:
    """A connection of the one writer that is left as the file is, also where it is a new one.

    Args:
        path: the file.
        alone: whether it is written without SQLite's locks and shared memory.

    Raises:
        sqlite3.Error: when the file cannot be opened.
    """
    query = f"mode=rwc&{_NO_LOCKS}" if alone else "mode=rwc"
    connection = _connect(path, query, one_thread=False)
    if alone:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        # One that a killed writer left would lead readers past what is written from now on.
        with contextlib.suppress(OSError):
            path.with_name(f"{path.name}-shm").unlink(missing_ok=True)
    return connection


def open_for_writing(path: Path, *, alone: bool) -> sqlite3.Connection:
    """A connection in WAL mode, to be used by one thread at a time.

    ``synchronous = NORMAL``: a commit survives the death of the process at any instant; after a
    loss of power the newest commits may be missing, the file stays sound.

    Args:
        path: the file.
        alone: as of `connect_for_writing`.

    Raises:
        sqlite3.Error: when the file cannot be opened or written.
    """
    connection = connect_for_writing(path, alone=alone)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA journal_size_limit = 4194304")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def open_for_reading(
    path: Path,
) -> tuple[sqlite3.Connection, tempfile.TemporaryDirectory[str] | None]:
    """A read-only connection to the file itself, or to a copy where SQLite cannot read it in place.

    Returns:
        The connection, and the folder of the copy, to be cleaned up after it; None without one.

    Raises:
        sqlite3.Error, OSError: when the file cannot be opened.
    """
    wal, shm, journal = (path.with_name(path.name + end) for end in _BESIDE)
    # A writer whose log has no index beside it keeps the index to itself, or was killed.
    if not knows_locks(path) or (wal.is_file() and not shm.is_file()):
        return _open_copy(path)
    connection = _connect(path, "mode=ro")
    try:
        connection.execute("PRAGMA schema_version").fetchone()
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code not in (*_FOLDER_NOT_WRITABLE, *_READ_BY_COPY):
            return connection, None
        connection.close()
    else:
        return connection, None
    if code in _FOLDER_NOT_WRITABLE and not wal.is_file() and not journal.is_file():
        return _connect(path, "immutable=1"), None
    return _open_copy(path)


def remove_database(path: Path) -> None:
    """Remove a database with the files beside it, as far as they are there and can be removed."""
    for file in (path, *(path.with_name(path.name + end) for end in _BESIDE)):
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)


def reason_of(error: BaseException, path: Path) -> str:
    """What stopped a write, with the system's reason where SQLite tells of an I/O error alone.

    Args:
        error: that it raised.
        path: the file that was to be written.
    """
    if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_IOERR:
        return str(error)
    probe = path.with_name(f".{path.name}.{os.getpid()}.probe")
    try:
        with probe.open("wb") as file:
            file.write(bytes(4096))
    except OSError as found:
        return f"{error}: {found.strerror}"
    finally:
        remove_database(probe)
    return f"{error}: {getattr(error, 'sqlite_errorname', 'unknown')}"


def _open_copy(path: Path) -> tuple[sqlite3.Connection, tempfile.TemporaryDirectory[str]]:
    """Copy the file with its log, as they are at one instant, and open the copy."""
    copy = tempfile.TemporaryDirectory(prefix="ecorl-ledger-")
    # Without the index: SQLite makes it anew.
    files = [path, *(path.with_name(path.name + end) for end in _BESIDE if end != "-shm")]
    try:
        for _ in range(_COPIES):
            before = [_header(file) for file in files]
            # The log last: it holds whatever its writer moves into the file meanwhile.
            for file in files:
                target = Path(copy.name, file.name)
                target.unlink(missing_ok=True)
                with contextlib.suppress(FileNotFoundError):
                    shutil.copyfile(file, target)
            if [_header(file) for file in files] == before:
                # Nobody else knows it, and the temporary folder may know no locks either.
                return connect_for_writing(Path(copy.name, path.name), alone=True), copy
        raise OSError(f"it was changed while it was copied, {_COPIES} times in turn")
    except BaseException:
        copy.cleanup()
        raise


def _header(file: Path) -> bytes | None:
    try:
        with file.open("rb") as handle:
            return handle.read(_HEADER_BYTES)
    except FileNotFoundError:
        return None


def _connect(
    path: Path, query: str, *, timeout_s: float = 5.0, one_thread: bool = True
) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{path.as_uri()}?{query}",
        uri=True,
        timeout=timeout_s,
        isolation_level=None,
        check_same_thread=one_thread,
    )


DAMAGE = (sqlite3.Error, zlib.error, ValueError, TypeError, KeyError, IndexError, OverflowError)
"""Errors that reading a damaged row raises: SQLite's own, and those of decoding a value that is no
member of its enum, lacks a key, or is no valid JSON or UTF-8."""

_STORED_AS = {
    "REAL": ("real", "integer"),
    "INTEGER": ("integer",),
    "TEXT": ("text",),
    "BLOB": ("blob",),
}
"""How SQLite stores the values of a column, by the column's type."""


def reason(error: BaseException) -> str:
    """The message of an error in one line of ASCII: it may quote damaged bytes."""
    return one_line(str(error))


def one_line(text: str) -> str:
    """A text in one line of ASCII."""
    return ascii(" ".join(text.split()))[1:-1]


def type_fault(connection: sqlite3.Connection, table: str) -> str | None:
    """Find values that are not of their column's declared type.

    Damage may turn a number into a text, or into NULL, and SQLite returns that without an error.

    Args:
        connection: to the ledger.
        table: its name.

    Returns:
        What is wrong, in one sentence, or None when all values are as declared.

    Raises:
        sqlite3.Error: when the table cannot be read.
    """
    wrong = []
    for _, name, kind, not_null, _, key in connection.execute(f"PRAGMA table_info({table})"):
        # A key is never null, whatever the table says of it.
        allowed = [*_STORED_AS.get(kind, ()), *(["null"] if not not_null and not key else [])]
        listed = ", ".join(f"'{one}'" for one in allowed)
        wrong.append(f'typeof("{name}") NOT IN ({listed})')
    if not wrong:
        return f"there is no table {table}"
    sql = f"SELECT count(*) FROM {table} WHERE {' OR '.join(wrong)}"
    (n,) = connection.execute(sql).fetchone()
    return f"{n} rows of table {table} hold values of other types" if n else None
