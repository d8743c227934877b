"""Lays out the file of a record that begins."""

from __future__ import annotations

import contextlib
import glob
import os
import time
from collections.abc import Mapping
from pathlib import Path

from ecorl.ledger import encoding, schema
from ecorl.ledger.connections import connect_for_writing, remove_database
from ecorl.ledger.statements import insert_attempt


def lay_out(
    path: Path,
    *,
    run_id: str,
    config_toml: str,
    meta: Mapping[str, str],
    attempt: int,
    alone: bool,
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
            connection.executemany("INSERT INTO meta VALUES (?, ?)", encoding.meta_rows(meta))
            insert_attempt(connection, attempt, from_step=0)
        fresh.rename(path)
    finally:
        remove_database(fresh)
