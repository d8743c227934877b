"""The layout of ``ledger.sqlite`` and of the other machines' files, and how rows are put into them.

The file is plain SQLite (``application_id`` and ``user_version`` are set), in WAL mode while the
run lives and back in one file once it is closed. Conventions:

- every time ``*_t_s`` is ``time.monotonic()`` of its attempt on the machine that writes the file;
  ``attempt`` holds one pair (wall clock, monotonic) per attempt, so that
  wall time = unix_anchor_s + t - monotonic_anchor_s;
- ``ledger.sqlite`` is the record of the head, the machine that the run was started on. Table
  ``node`` there names the files of the other machines (see `ecorl.ledger.nodes`), which have the
  same layout, and tells how far their clocks are from the head's. Device ids stand as the machine
  itself knows them; a reader puts the machine's name before them;
- NULL is "missing", never 0; a NaN that a caller hands over is stored as NULL;
- ``superseded`` = 1 marks what an earlier attempt did after the checkpoint from which a later
  attempt went on: its result was thrown away, its energy was spent all the same;
- power roll-ups are integers in mW, mJ and us. The newest seconds stand one a row in
  ``power_second``; full stretches of them are packed into ``power_block`` (see
  `ecorl.ledger.rollup`), an eighth of the space of plain rows or less. Their energies add up to
  the zero-order-hold integral of the readings (see `ecorl.ledger.rollup`), but for what the
  newest reading, in ``power_open``, holds beyond them.
"""

from __future__ import annotations

import contextlib
import glob
import os
import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path

from ecorl.errors import LedgerError
from ecorl.ledger.connections import connect_for_writing, remove_database
from ecorl.ledger.encoding import Columns
from ecorl.ledger.rollup import HOLD_S

SCHEMA_VERSION = 7
"""``PRAGMA user_version``; raised with every change of the tables. No other version is read."""

APPLICATION_ID = 0x45434F4C
"""``PRAGMA application_id``: the letters ECOL."""

TABLES = """
-- One row: what ran.
CREATE TABLE run (
  run_id TEXT NOT NULL, config_toml TEXT NOT NULL, created_unix_s REAL NOT NULL);
-- Free facts of the run: versions, commit, host, model names.
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
-- One row per start or resume. from_step: last iteration that the checkpoint holds (0: none);
-- hold_s: for how long a power reading stands without a successor.
CREATE TABLE attempt (
  attempt INTEGER PRIMARY KEY, from_step INTEGER NOT NULL,
  unix_anchor_s REAL NOT NULL, monotonic_anchor_s REAL NOT NULL, pid INTEGER NOT NULL,
  hold_s REAL NOT NULL);
-- One row per placement decision; costs is a JSON list of what each action was expected to cost,
-- refusal the `GuardRefusal` that kept the stage on the GPU (NULL: no guard objected),
-- role_name which of the stage's models it is (NULL: its only one).
CREATE TABLE placement (
  id INTEGER PRIMARY KEY, attempt INTEGER NOT NULL, iteration INTEGER NOT NULL, t_s REAL NOT NULL,
  stage TEXT NOT NULL, proposed TEXT NOT NULL, action TEXT NOT NULL, policy TEXT NOT NULL,
  reason TEXT NOT NULL, costs TEXT NOT NULL, superseded INTEGER NOT NULL DEFAULT 0, refusal TEXT,
  role_name TEXT);
-- One row per stage execution on one device, or on several together. energy_method NULL: no energy
-- record at all; node NULL: on the machine that wrote this file; role_name NULL: the stage's only
-- model; gear, width, clock_mhz NULL: as the framework has it, not counted, not locked.
CREATE TABLE execution (
  id INTEGER PRIMARY KEY, attempt INTEGER NOT NULL, iteration INTEGER NOT NULL,
  stage TEXT NOT NULL, action TEXT NOT NULL, device_id TEXT NOT NULL, device TEXT NOT NULL,
  start_t_s REAL NOT NULL, end_t_s REAL NOT NULL, time_s REAL, time_provenance TEXT NOT NULL,
  host_time_s REAL, wait_s REAL,
  n_sequences INTEGER NOT NULL, n_tokens INTEGER NOT NULL, n_output_tokens INTEGER NOT NULL,
  n_rows_fallback INTEGER NOT NULL, fault TEXT,
  energy_device_id TEXT, energy_start_t_s REAL, energy_end_t_s REAL, energy_j REAL,
  mean_power_w REAL, counter_energy_j REAL, integral_energy_j REAL, n_samples INTEGER,
  coverage REAL, energy_method TEXT, energy_provenance TEXT,
  superseded INTEGER NOT NULL DEFAULT 0,
  node TEXT, role_name TEXT, gear TEXT, width INTEGER, clock_mhz INTEGER);
-- One row per completion barrier at which the training thread stood. n_duplicates: rows delivered
-- beyond the first for an id, n_unknown: rows that nobody asked for.
CREATE TABLE barrier (
  id INTEGER PRIMARY KEY, attempt INTEGER NOT NULL, iteration INTEGER NOT NULL, t_s REAL NOT NULL,
  stage TEXT NOT NULL, wait_s REAL, n_rows INTEGER NOT NULL, n_missing INTEGER NOT NULL,
  n_late INTEGER NOT NULL, superseded INTEGER NOT NULL DEFAULT 0,
  role_name TEXT, n_duplicates INTEGER, n_unknown INTEGER);
-- What went wrong and was survived.
CREATE TABLE fault (
  id INTEGER PRIMARY KEY, attempt INTEGER NOT NULL, iteration INTEGER, t_s REAL NOT NULL,
  kind TEXT NOT NULL, place TEXT NOT NULL, detail TEXT NOT NULL, n_rows INTEGER NOT NULL,
  superseded INTEGER NOT NULL DEFAULT 0);
-- Scalars of the trainer, one a name and iteration: reward, kl, loss.
CREATE TABLE metric (
  id INTEGER PRIMARY KEY, attempt INTEGER NOT NULL, iteration INTEGER NOT NULL,
  name TEXT NOT NULL, value REAL, superseded INTEGER NOT NULL DEFAULT 0);
-- Per-item values of one evaluation, a JSON list with null for missing.
CREATE TABLE evaluation (
  id INTEGER PRIMARY KEY, attempt INTEGER NOT NULL, t_s REAL NOT NULL,
  name TEXT NOT NULL, phase TEXT NOT NULL, item_values TEXT NOT NULL);
-- Devices as the run knew them; figures is a JSON object.
CREATE TABLE device (
  attempt INTEGER NOT NULL, device_id TEXT NOT NULL, profile TEXT NOT NULL,
  provenance TEXT NOT NULL, source TEXT NOT NULL, idle_w REAL, figures TEXT NOT NULL, kind TEXT,
  PRIMARY KEY (attempt, device_id)) WITHOUT ROWID;
CREATE TABLE checkpoint (
  id INTEGER PRIMARY KEY, attempt INTEGER NOT NULL, iteration INTEGER NOT NULL,
  t_s REAL NOT NULL, path TEXT NOT NULL, superseded INTEGER NOT NULL DEFAULT 0);
-- The newest EDI matrix of each attempt, as JSON.
CREATE TABLE edi (attempt INTEGER PRIMARY KEY, t_s REAL NOT NULL, matrix TEXT NOT NULL);
-- run start, stop, resume, finish.
CREATE TABLE event (
  id INTEGER PRIMARY KEY, attempt INTEGER NOT NULL, t_s REAL NOT NULL,
  kind TEXT NOT NULL, detail TEXT NOT NULL);
-- A stream of readings: one device by one instrument with one provenance.
CREATE TABLE series (
  id INTEGER PRIMARY KEY, device_id TEXT NOT NULL, provenance TEXT NOT NULL, source TEXT NOT NULL,
  UNIQUE (device_id, provenance, source));
-- Roll-ups of one second [second, second + 1): n valid readings, n_missing failed ones; time and
-- energy for which readings held, over which the device's counter rose, and for which readings
-- held where the counter tells nothing; n_breaks: how often the counter fell or was reset.
CREATE TABLE power_second (
  attempt INTEGER NOT NULL, series_id INTEGER NOT NULL, second INTEGER NOT NULL,
  n INTEGER NOT NULL, n_missing INTEGER NOT NULL,
  mean_mw INTEGER, min_mw INTEGER, max_mw INTEGER,
  held_us INTEGER NOT NULL, held_mj INTEGER NOT NULL,
  counted_us INTEGER NOT NULL, counted_mj INTEGER NOT NULL,
  alone_us INTEGER NOT NULL, alone_mj INTEGER NOT NULL, n_breaks INTEGER NOT NULL,
  PRIMARY KEY (attempt, series_id, second)) WITHOUT ROWID;
-- n_seconds rows of power_second of one series, packed.
CREATE TABLE power_block (
  id INTEGER PRIMARY KEY, attempt INTEGER NOT NULL, series_id INTEGER NOT NULL,
  second_first INTEGER NOT NULL, second_last INTEGER NOT NULL,
  n_seconds INTEGER NOT NULL, packed BLOB NOT NULL);
-- The newest reading behind the roll-ups of each series; from_s: they hold it up to here.
CREATE TABLE power_open (
  attempt INTEGER NOT NULL, series_id INTEGER NOT NULL, t_s REAL NOT NULL, power_w REAL,
  energy_j REAL, from_s REAL NOT NULL, PRIMARY KEY (attempt, series_id)) WITHOUT ROWID;
-- The last raw readings, a ring: slot = seq modulo its length.
CREATE TABLE raw_sample (
  slot INTEGER PRIMARY KEY, seq INTEGER NOT NULL, attempt INTEGER NOT NULL,
  series_id INTEGER NOT NULL, t_s REAL NOT NULL, power_w REAL, energy_j REAL, utilisation REAL,
  error TEXT);
-- Why readings are missing, counted.
CREATE TABLE sample_error (
  attempt INTEGER NOT NULL, series_id INTEGER NOT NULL, error TEXT NOT NULL, n INTEGER NOT NULL,
  first_t_s REAL NOT NULL, last_t_s REAL NOT NULL,
  PRIMARY KEY (attempt, series_id, error)) WITHOUT ROWID;
-- The machines of each attempt. file: where the machine's own record lies, relative to the run
-- folder (NULL: this file is its record); offset_s: its monotonic clock minus the head's, measured
-- at t_s of the head's, to within offset_error_s; lost: why its record could not be fetched
-- (NULL: it is there).
CREATE TABLE node (
  attempt INTEGER NOT NULL, node TEXT NOT NULL, file TEXT, offset_s REAL, offset_error_s REAL,
  t_s REAL, lost TEXT, PRIMARY KEY (attempt, node)) WITHOUT ROWID;
-- The processes that tell the head what to record, and the number of the newest of their notes
-- that is in this file: a head that was killed is told again what came after it, and only that.
CREATE TABLE teller (
  attempt INTEGER NOT NULL, teller TEXT NOT NULL, number INTEGER NOT NULL,
  PRIMARY KEY (attempt, teller)) WITHOUT ROWID;
-- What counted as the grid's intensity from t_s on, on the head. kind: average or marginal; all
-- else NULL: nothing was known from then on. start_unix_s, fetched_unix_s: s since 1970; gas: what
-- the grams are of; mix: a JSON object of each fuel's share (NULL: the feed told none).
CREATE TABLE intensity (
  id INTEGER PRIMARY KEY, attempt INTEGER NOT NULL, t_s REAL NOT NULL, kind TEXT NOT NULL,
  feed TEXT, start_unix_s REAL, interval_s REAL, g_per_kwh REAL, gas TEXT, basis TEXT, scope TEXT,
  factors TEXT, is_estimated INTEGER, fetched_unix_s REAL, provenance TEXT, mix TEXT);
-- Decisions about the training stage, each where it differs from the one before, on the head.
-- command: run, pause or stop; why: what it goes by; g_per_kwh, feed: the intensity that it goes by
-- (NULL: unknown); width, gear: what they become (NULL: as they are); price_g_per_token,
-- price_g_per_step: what one more is worth (NULL: no price); clock_share: the clock that is asked
-- for, as a share of the highest (NULL: as it is); memory: what the controller goes on from after a
-- resume, a JSON object (NULL: nothing).
CREATE TABLE gear_choice (
  id INTEGER PRIMARY KEY, attempt INTEGER NOT NULL, t_s REAL NOT NULL, decided_unix_s REAL NOT NULL,
  command TEXT NOT NULL, why TEXT NOT NULL, controller TEXT NOT NULL, reason TEXT NOT NULL,
  look_again_unix_s REAL NOT NULL, g_per_kwh REAL, feed TEXT, threshold_g_per_kwh REAL,
  width INTEGER, gear TEXT, price_g_per_token REAL, price_g_per_step REAL, clock_share REAL,
  memory TEXT);
-- The power usage effectiveness that counted from start_unix_s on, s since 1970, on the head; NULL:
-- none is known from then on.
CREATE TABLE pue (
  id INTEGER PRIMARY KEY, attempt INTEGER NOT NULL, start_unix_s REAL NOT NULL, pue REAL);
"""

SUPERSEDED_TABLES = ("placement", "execution", "barrier", "fault", "metric", "checkpoint")
"""Tables with an ``iteration`` whose rows a resume may mark as superseded."""


def create_tables(connection: sqlite3.Connection) -> None:
    """Lay out an empty file; the caller commits."""
    connection.executescript(f"BEGIN; {TABLES} COMMIT;")
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def check_version(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a file that is no ledger, or one of another version.

    Args:
        connection: to the file.
        path: its path, for the message.

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
    if version != SCHEMA_VERSION:
        raise LedgerError(
            f"{path}: ledger version {version}, this ecorl reads version {SCHEMA_VERSION}"
        )


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
    for table in SUPERSEDED_TABLES:
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
            create_tables(connection)
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
