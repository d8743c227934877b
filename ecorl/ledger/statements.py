"""Statements by which a ledger's rows come into its file."""

from __future__ import annotations

import contextlib
import glob
import os
import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path

from ecorl.ledger import schema
from ecorl.ledger.connections import connect_for_writing, remove_database
from ecorl.ledger.encoding import Columns
from ecorl.ledger.rollup import HOLD_S


def insert(connection: sqlite3.Connection, table: str, columns: Columns) -> None:
    """Insert a row; in a table with a key of its own it replaces the row with the same key.

    Args:
        connection: to the file.
        table: its name.
        columns: values by column.
    """
    marks = ", ".join("?" * len(columns))
    connection.execute(
        f"INSERT OR REPLACE INTO {table} ({', '.join(columns)}) VALUES ({marks})",
        tuple(columns.values()),
    )


def supersede(connection: sqlite3.Connection, from_step: int) -> None:
    """Mark what came after a step: a new attempt goes on from there.

    Args:
        connection: to the file, inside a transaction.
        from_step: last iteration that is kept.
    """
    for table in schema.SUPERSEDED_TABLES:
        connection.execute(
            f"UPDATE {table} SET superseded = 1 WHERE iteration > ?", (int(from_step),)
        )


def insert_attempt(connection: sqlite3.Connection, attempt: int, from_step: int) -> None:
    """Begin an attempt of this process, now.

    Args:
        connection: to the file.
        attempt: its number.
        from_step: last iteration that its checkpoint holds; 0: none.
    """
    columns = {
        "attempt": attempt,
        "from_step": int(from_step),
        "unix_anchor_s": time.time(),
        "monotonic_anchor_s": time.monotonic(),
        "pid": os.getpid(),
        "hold_s": HOLD_S,
    }
    insert(connection, "attempt", columns)


def printable(path: Path) -> str:
    """Write a path for a message: what is no UTF-8 in it stands as escapes.

    Args:
        path: the path.
    """
    return str(path).encode("utf-8", "backslashreplace").decode("utf-8")


def lay_out(
    path: Path, *, run_id: str, config_toml: str, meta: Mapping[str, str], attempt: int, alone: bool
) -> None:
    """Write a ledger without rows; to be called under the writer's lock.

    It is laid out under another name, so that no instant shows half a ledger. The rename needs no
    hard links, and under the lock it replaces no other record.

    Args:
        path: the file to make.
        run_id: name of the run.
        config_toml: the resolved config.
        meta: free facts.
        attempt: number of the attempt that begins.
        alone: as of `ecorl.ledger.connections.connect_for_writing`.

    Raises:
        sqlite3.Error, OSError: when it cannot be written. Nothing is left behind then.
        UnicodeError: when a text is no UTF-8.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    # Under the lock whatever has such a name was left by a process that was killed.
    for left in path.parent.glob(f".{glob.escape(path.name)}.*"):
        with contextlib.suppress(OSError):
            left.unlink()
    try:
        with contextlib.closing(connect_for_writing(fresh, alone=alone)) as connection:
            schema.create_tables(connection)
            row = (run_id, config_toml, time.time())
            connection.execute("INSERT INTO run VALUES (?, ?, ?)", row)
            connection.executemany(
                "INSERT INTO meta VALUES (?, ?)",
                [(str(key), str(value)) for key, value in meta.items()],
            )
            insert_attempt(connection, attempt, from_step=0)
        fresh.rename(path)
    finally:
        remove_database(fresh)
