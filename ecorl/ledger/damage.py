"""Recognises a damaged ledger: bytes that changed on the disk show as errors or wrong types."""

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
