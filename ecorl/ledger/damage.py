"""How bytes that changed on the disk show when a ledger is read."""

from __future__ import annotations

import sqlite3
import zlib

DAMAGE = (
    sqlite3.Error,
    zlib.error,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    OverflowError,
)
"""What they raise once they are read as the record that they were: no such word, no such key, no
such column, no UTF-8."""

_STORED_AS = {
    "REAL": ("real", "integer"),
    "INTEGER": ("integer",),
    "TEXT": ("text",),
    "BLOB": ("blob",),
}
"""How SQLite stores the values of a column, by the column's type."""


def reason(error: BaseException) -> str:
    """What an error says, in one line of plain characters: it may quote what was damaged."""
    return ascii(" ".join(str(error).split()))[1:-1]


def type_fault(connection: sqlite3.Connection, table: str) -> str | None:
    """What is wrong with the types of a table's values, or None when all are as declared.

    Damage may turn a number into a text, or into nothing, and SQLite hands that out without a
    word.

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
