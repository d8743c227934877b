"""Carry the dumps over a change of the ledger's schema.

    python -m tests.recorded.convert

No part of the package, which reads ledgers of one version alone. A change of `ecorl.ledger.schema`
that renames, drops or redefines something adds a step here; the records, and what is made of them,
then stay comparable over the change.
"""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path

from ecorl.ledger.schema import SCHEMA_VERSION, create_tables
from tests.recorded.dump import dump, rebuild
from tests.recorded.make import SETS

STEPS: dict[int, Callable[[sqlite3.Connection], None]] = {}
"""By the version that it leads to, what it renames, drops or works out anew in a ledger of the
version before. Tables and columns that are new and empty need no step."""


def convert(text: str) -> str:
    """The text of a ledger in the present layout; one that has it is returned as it is.

    Raises:
        ValueError: where a table or column has no place in the present layout: its step is missing.
    """
    with tempfile.TemporaryDirectory() as folder:
        old, new = Path(folder) / "old.sqlite", Path(folder) / "new.sqlite"
        rebuild(text, old)
        with contextlib.closing(sqlite3.connect(new)) as db:
            create_tables(db)
            with contextlib.closing(sqlite3.connect(old)) as before, before:
                (version,) = before.execute("PRAGMA user_version").fetchone()
                for step in range(version + 1, SCHEMA_VERSION + 1):
                    if step in STEPS:
                        STEPS[step](before)
                for table, columns in _columns(before).items():
                    lost = set(columns) - set(_columns(db).get(table, ()))
                    if lost:
                        raise ValueError(f"no place for {', '.join(sorted(lost))} of {table}")
                    names, marks = ", ".join(columns), ", ".join("?" * len(columns))
                    rows = before.execute(f"SELECT {names} FROM {table}")
                    db.executemany(f"INSERT INTO {table} ({names}) VALUES ({marks})", rows)
            db.commit()
        return dump(new)


def _columns(db: sqlite3.Connection) -> dict[str, list[str]]:
    tables = db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    return {
        name: [column[1] for column in db.execute(f"PRAGMA table_info({name})")]
        for (name,) in tables
    }


def main() -> None:
    """Convert all dumps in place."""
    for path in sorted(SETS.rglob("*.sql")):
        before = path.read_text("utf-8")
        now = convert(before)
        path.write_text(now, "utf-8")
        print(f"{path.relative_to(SETS)}: {'as it was' if now == before else 'converted'}")


if __name__ == "__main__":
    main()
