"""Ledgers as canonical SQL text, and back.

The text has the tables by name, their rows by primary key and a row a statement, so that one ledger
has one text. Floats stand in the shortest form that gives the same bits again. They are read here
rather than by SQLite, some versions of which round the last digit of a decimal otherwise.
"""

from __future__ import annotations

import contextlib
import math
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

_NAMES = "SELECT name, sql FROM sqlite_master WHERE type = 'table' ORDER BY name"
_ROW = re.compile(r"INSERT INTO (\w+) VALUES\(((?:'(?:[^']|'')*'|[^')])*)\);\n")
_VALUE = re.compile(r"X'(?P<blob>[0-9a-f]*)'|'(?P<text>(?:[^']|'')*)'|(?P<other>[^,']+)")


def dump(ledger: Path) -> str:
    """The canonical text of a ledger; what a killed writer left in its log is part of it."""
    with contextlib.closing(sqlite3.connect(ledger)) as db:
        return "".join(_statements(db))


def _statements(db: sqlite3.Connection) -> Iterator[str]:
    for pragma in ("application_id", "user_version"):
        (value,) = db.execute(f"PRAGMA {pragma}").fetchone()
        yield f"PRAGMA {pragma} = {value};\n"
    for table, sql in db.execute(_NAMES).fetchall():
        yield f"{sql};\n"
        columns = db.execute(f"PRAGMA table_info({table})").fetchall()
        key = [column[1] for column in sorted(columns, key=lambda c: c[5]) if column[5]]
        for row in db.execute(f"SELECT * FROM {table} ORDER BY {', '.join(key or ['rowid'])}"):
            yield f"INSERT INTO {table} VALUES({','.join(map(_literal, row))});\n"


def _literal(value: str | bytes | float | None) -> str:
    match value:
        case None:
            return "NULL"
        case bytes():
            return f"X'{value.hex()}'"
        case str():
            return "'" + value.replace("'", "''") + "'"
        case float() if math.isinf(value):
            return "9e999" if value > 0 else "-9e999"
        case _:
            return repr(value)


def layout(text: str) -> str:
    """What a text says of its version and its tables, without the rows."""
    return _ROW.sub("", text)


def rebuild(text: str, ledger: Path) -> None:
    """Make a ledger's file from its text."""
    ledger.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(sqlite3.connect(ledger)) as db:
        db.executescript(layout(text))
        for match in _ROW.finditer(text):
            values = [_value(found) for found in _VALUE.finditer(match[2])]
            marks = ",".join("?" * len(values))
            db.execute(f"INSERT INTO {match[1]} VALUES({marks})", values)
        db.commit()


def _value(found: re.Match[str]) -> str | bytes | float | None:
    blob, text, other = found.group("blob", "text", "other")
    if blob is not None:
        return bytes.fromhex(blob)
    if text is not None:
        return text.replace("''", "'")
    if other == "NULL":
        return None
    return int(other) if re.fullmatch(r"-?\d+", other) else float(other)
