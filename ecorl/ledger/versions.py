"""Ledgers of earlier versions: which can be read, and how they are brought up to date on a resume.

Version 2 has no ``refusal`` in table ``placement`` and no ``kind`` in table ``device``: there a
guard's refusal is a sentence in the reason alone, and a device's kind shows in its name. Both are
told from the text here and nowhere else, once, where the file is read or resumed.

Version 3 knows one machine and one model a stage: it has no tables ``node`` and
``teller``, and no columns for nodes, roles, gears, widths, clocks and rows that were delivered
twice or to nobody.

Version 4 knows no intensities of the grid: it has no table ``intensity``. Version 5 knows no
decisions about the training stage: it has no tables ``gear_choice`` and ``pue``. Version 6 knows no
price of what is trained, no clock that was asked for and no memory of a controller.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from ecorl.errors import LedgerError
from ecorl.ledger.schema import (
    APPLICATION_ID,
    CONTROL_TABLES,
    GRID_TABLES,
    NEW_TABLES,
    SCHEMA_VERSION,
)
from ecorl.records import Action, DeviceKind, GuardRefusal

READABLE_VERSIONS = (2, 3, 4, 5, 6, SCHEMA_VERSION)

WITH_NODES = 4
"""The version from which on a ledger has table ``node``."""

WITH_GRID = 5
"""The version from which on a ledger has table ``intensity``."""

WITH_CONTROL = 6
"""The version from which on a ledger has tables ``gear_choice`` and ``pue``."""

_NEW_IN_4 = {
    "execution": ("node TEXT", "role_name TEXT", "gear TEXT", "width INTEGER", "clock_mhz INTEGER"),
    "placement": ("role_name TEXT",),
    "barrier": ("role_name TEXT", "n_duplicates INTEGER", "n_unknown INTEGER"),
}
"""Columns that version 4 brought, by table."""

_NEW_IN_7 = (
    "price_g_per_token REAL",
    "price_g_per_step REAL",
    "clock_share REAL",
    "memory TEXT",
)
"""Columns that version 7 brought to table ``gear_choice``."""

_REFUSED_AFTER = ("kept on the GPU: ", "the guards leave a1 alone: ")
"""What stood before a guard's sentence in the reasons of version 2: the words of Algorithm 1, and
those of the learned policy, which asked the guards before it proposed anything."""

_SENTENCES = (
    ("the model of ", GuardRefusal.NOT_FROZEN),
    ("the FPGA path is not available", GuardRefusal.UNAVAILABLE),
    ("the queue of ", GuardRefusal.QUEUE_FULL),
    ("the mean length of ", GuardRefusal.TOO_LONG),
    ("its modelled energy of ", GuardRefusal.ENERGY),
    ("an offload's energy is above ", GuardRefusal.ENERGY),
    ("the energy guard is on and ", GuardRefusal.COST_UNKNOWN),
    ("the card cannot run this stage", GuardRefusal.CANNOT_RUN),
    ("the critic does not fit beside the others", GuardRefusal.CANNOT_RUN),
)
"""How the guards' sentences of version 2 began."""


def check_version(connection: sqlite3.Connection, path: Path) -> int:
    """Refuse a file that is no ledger, or one of a version that cannot be read.

    Args:
        connection: to the file.
        path: its path, for the message.

    Returns:
        The version of the file.

    Raises:
        LedgerError: with one line that names the file.
    """
    try:
        (application_id,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
    except sqlite3.Error as error:
        raise LedgerError(f"{path}: not a readable ledger ({error})") from error
    if application_id != APPLICATION_ID:
        raise LedgerError(f"{path}: an SQLite file, but not a ledger of ecorl (or an empty one)")
    if version not in READABLE_VERSIONS:
        raise LedgerError(
            f"{path}: ledger version {version}, this ecorl reads version {SCHEMA_VERSION}"
        )
    return int(version)


def upgrade(connection: sqlite3.Connection, version: int) -> None:
    """Bring a ledger of an earlier version up to date, inside the caller's transaction.

    Args:
        connection: to the file, open for writing.
        version: of the file, as told by `check_version`.

    Raises:
        sqlite3.Error: when the file cannot be written.
        ValueError: when a placement in it is damaged.
    """
    if version < 3:
        _add_refusals_and_kinds(connection)
    if version < WITH_NODES:
        for changed, columns in _NEW_IN_4.items():
            for column in columns:
                connection.execute(f"ALTER TABLE {changed} ADD COLUMN {column}")
        for table in NEW_TABLES:
            connection.execute(table)
    if version < WITH_GRID:
        for table in GRID_TABLES:
            connection.execute(table)
    if version < WITH_CONTROL:
        for table in CONTROL_TABLES:
            connection.execute(table)
    elif version < SCHEMA_VERSION:
        for column in _NEW_IN_7:
            connection.execute(f"ALTER TABLE gear_choice ADD COLUMN {column}")
    if version < SCHEMA_VERSION:
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _add_refusals_and_kinds(connection: sqlite3.Connection) -> None:
    """From version 2 to version 3."""
    connection.execute("ALTER TABLE placement ADD COLUMN refusal TEXT")
    rows = connection.execute("SELECT id, action, reason FROM placement").fetchall()
    refused = [(refusal_in_reason(Action(action), reason), key) for key, action, reason in rows]
    connection.executemany(
        "UPDATE placement SET refusal = ? WHERE id = ?",
        [(str(refusal), key) for refusal, key in refused if refusal is not None],
    )
    connection.execute("ALTER TABLE device ADD COLUMN kind TEXT")


def refusal_in_reason(action: Action, reason: str) -> GuardRefusal | None:
    """The guard's refusal that a placement of version 2 states in words, or None.

    Args:
        action: what stood after the guards.
        reason: the placement's sentence.
    """
    if action is not Action.GPU:
        return None
    for marker in _REFUSED_AFTER:
        # The guard's sentence comes last: a policy's own words before it may hold anything.
        _, found, sentence = reason.rpartition(marker)
        for start, refusal in _SENTENCES:
            if found and sentence.startswith(start):
                return refusal
    return None


def kind_in_name(device_id: str) -> DeviceKind:
    """The kind of a device of which only the name is known, as in a ledger of version 2.

    Args:
        device_id: as telemetry names devices: ``gpu0``, ``fpga0``, ``cpu0`` or ``dram0``, with or
            without the machine's name and a slash before it; any other name counts as a GPU's.
    """
    kind = device_id.rpartition("/")[2].rstrip("0123456789")
    named = {"cpu": DeviceKind.CPU, "dram": DeviceKind.CPU, "fpga": DeviceKind.FPGA}
    return named.get(kind, DeviceKind.GPU)
