"""Statements by which a ledger's rows come into its file."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

from ecorl.ledger import schema
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
