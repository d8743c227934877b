"""`LedgerReader`: read-only access to a finished, live or killed run."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from ecorl.errors import LedgerError, RunError
from ecorl.ledger import encoding
from ecorl.ledger.damage import DAMAGE, reason, type_fault
from ecorl.ledger.ledger import LEDGER_FILE
from ecorl.ledger.packing import unpack_block
from ecorl.ledger.rollup import OpenReading, PowerRollup, SecondRow
from ecorl.ledger.rows import (
    AttemptRow,
    BarrierRow,
    CheckpointRow,
    DeviceRow,
    EdiRow,
    EvaluationRow,
    EventRow,
    ExecutionRow,
    FaultRow,
    MetricRow,
    PlacementRow,
    PowerSecond,
    RawSampleRow,
    RunRow,
    SampleErrorRow,
)
from ecorl.ledger.samples import SELECT_SECONDS
from ecorl.ledger.versions import check_version
from ecorl.records import EventKind, FaultKind, Provenance, Stage

_RAW = (
    "SELECT attempt, device_id, provenance, source, t_s, power_w, energy_j, utilisation, error "
    "FROM raw_sample JOIN series ON series.id = series_id"
)
_FOLDER_NOT_WRITABLE = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
_TIMED = ("event", "checkpoint", "placement", "barrier", "fault", "evaluation", "edi")
"""Tables whose rows hold the time at which they were written."""

_P = ParamSpec("_P")
_R = TypeVar("_R")
_Accessor = Callable[Concatenate["LedgerReader", _P], _R]


def _reads(*tables: str) -> Callable[[_Accessor[_P, _R]], _Accessor[_P, _R]]:
    """Make an accessor that checks the types of these tables and raises damage as `LedgerError`."""

    def decorate(accessor: _Accessor[_P, _R]) -> _Accessor[_P, _R]:
        @functools.wraps(accessor)
        def read(self: LedgerReader, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
            with self._telling():
                self._check_types(tables)
                return accessor(self, *args, **kwargs)

        return read

    return decorate


class LedgerReader:
    """Typed rows of one ledger, all as of the instant of opening (or of the last `refresh`).

    A killed run leaves its newest rows in a second file (``-wal``), which SQLite cannot read in a
    folder in which it may not write. The two are then read from a copy in a temporary folder.

    Args:
        path: the ledger's file, or the run folder that holds it.

    Raises:
        RunError: when there is no such file.
        LedgerError: when it is damaged, no ledger, or of another version. Any accessor may raise
            it too, when it meets a damaged page.
    """

    def __init__(self, path: Path) -> None:
        path = Path(path).absolute()
        self.path = path / LEDGER_FILE if path.is_dir() else path
        if not self.path.is_file():
            raise RunError(f"{self.path}: there is no ledger; is this a run folder?")
        self._last_times: dict[int, float] | None = None
        self._sound: set[str] = set()
        self._copy: tempfile.TemporaryDirectory[str] | None = None
        try:
            self._connection = self._open()
            self._connection.row_factory = sqlite3.Row
            check_version(self._connection, self.path)
            self.refresh()
        except (*DAMAGE, OSError) as error:
            self.close()
            raise LedgerError(f"{self.path}: cannot be opened ({reason(error)})") from error
        except LedgerError:
            self.close()
            raise

    def _open(self) -> sqlite3.Connection:
        """The file itself, or a copy where SQLite can open it but not read it."""
        connection = _connect(self.path, "mode=ro")
        try:
            connection.execute("PRAGMA schema_version").fetchone()
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _FOLDER_NOT_WRITABLE:
                return connection
            connection.close()
        else:
            return connection
        wal = self.path.with_name(self.path.name + "-wal")
        if not wal.is_file():
            return _connect(self.path, "immutable=1")
        self._copy = tempfile.TemporaryDirectory(prefix="ecorl-ledger-")
        for file in (self.path, wal):
            shutil.copyfile(file, Path(self._copy.name, file.name))
        return _connect(Path(self._copy.name, self.path.name), "mode=rw")

    def refresh(self) -> None:
        """See what was written since; until then all accessors show one and the same instant.

        A copy, made where the folder cannot be written, stays as it was made.

        Raises:
            LedgerError: when the file cannot be read.
        """
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
        self._last_times = None
        self._sound.clear()
        self._connection.execute("BEGIN")
        self._rows("SELECT count(*) FROM run")

    def close(self) -> None:
        """Release the file; safe to call twice."""
        with contextlib.suppress(AttributeError):  # closed by its own constructor
            self._connection.close()
        if self._copy is not None:
            self._copy.cleanup()
            self._copy = None

    def __enter__(self) -> LedgerReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        """Turn errors of damaged values inside the block into a `LedgerError`."""
        try:
            yield
        except DAMAGE as error:
            raise LedgerError(f"{self.path}: cannot be read ({reason(error)})") from error

    def _rows(self, sql: str, *args: object) -> Iterator[sqlite3.Row]:
        try:
            # All at once: a cursor that is left behind would outlive the connection.
            return iter(self._connection.execute(sql, args).fetchall())
        except DAMAGE as error:
            raise LedgerError(f"{self.path}: cannot be read ({reason(error)})") from error

    def _check_types(self, tables: Iterable[str]) -> None:
        """Check that each value is of its column's type, once per table and instant."""
        for table in tables:
            if table not in self._sound:
                fault = type_fault(self._connection, table)
                if fault is not None:
                    raise LedgerError(f"{self.path}: cannot be read ({fault})")
                self._sound.add(table)

    # ------------------------------------------------------------ the run

    @_reads("run", "meta")
    def run(self) -> RunRow:
        """The run's id, config and facts."""
        row = next(self._rows("SELECT * FROM run"), None)
        if row is None:
            raise LedgerError(f"{self.path}: holds no run")
        meta = {r["key"]: r["value"] for r in self._rows("SELECT * FROM meta ORDER BY key")}
        return RunRow(row["run_id"], row["config_toml"], row["created_unix_s"], meta)

    @_reads("attempt")
    def attempts(self) -> list[AttemptRow]:
        """Starts and resumes, in order."""
        return [AttemptRow(*r) for r in self._rows("SELECT * FROM attempt ORDER BY attempt")]

    @_reads("event")
    def events(self) -> list[EventRow]:
        """What was noted about the course of the run, in order."""
        sql = "SELECT attempt, t_s, kind, detail FROM event ORDER BY id"
        return [
            EventRow(r[0], r[1], encoding.known_or_text(EventKind, r[2]), r[3])
            for r in self._rows(sql)
        ]

    @_reads("checkpoint")
    def checkpoints(self) -> list[CheckpointRow]:
        """Checkpoints, in order."""
        sql = "SELECT attempt, superseded, iteration, t_s, path FROM checkpoint ORDER BY id"
        return [CheckpointRow(r[0], bool(r[1]), *r[2:]) for r in self._rows(sql)]

    @_reads(*_TIMED, "raw_sample", "execution", "power_second", "power_block")
    def last_times(self) -> dict[int, float]:
        """Monotonic time of the last record of each attempt, s; attempts without any are left out.

        The end of an attempt that was killed: nothing later is known of it.
        """
        if self._last_times is not None:
            return dict(self._last_times)
        parts = [f"SELECT attempt, t_s AS t FROM {table}" for table in _TIMED]
        parts += [
            "SELECT attempt, t_s FROM raw_sample",
            "SELECT attempt, end_t_s FROM execution",
            "SELECT attempt, second FROM power_second",
            "SELECT attempt, second_last FROM power_block",
        ]
        sql = f"SELECT attempt, max(t) FROM ({' UNION ALL '.join(parts)}) GROUP BY attempt"
        self._last_times = {r[0]: float(r[1]) for r in self._rows(sql) if r[1] is not None}
        return dict(self._last_times)

    # ------------------------------------------------------------ stages

    @_reads("execution")
    def executions(self) -> list[ExecutionRow]:
        """Stage executions in the order in which they were recorded, superseded ones included."""
        rows = self._rows("SELECT * FROM execution ORDER BY id")
        return [
            ExecutionRow(r["attempt"], bool(r["superseded"]), encoding.result_of(r)) for r in rows
        ]

    @_reads("placement")
    def placements(self) -> list[PlacementRow]:
        """Decisions in order."""
        rows = self._rows("SELECT * FROM placement ORDER BY id")
        return [
            PlacementRow(r["attempt"], bool(r["superseded"]), r["t_s"], encoding.placement_of(r))
            for r in rows
        ]

    @_reads("barrier")
    def barriers(self) -> list[BarrierRow]:
        """Waits at the completion barrier, in order."""
        return [
            BarrierRow(
                attempt=r["attempt"],
                superseded=bool(r["superseded"]),
                iteration=r["iteration"],
                t_s=r["t_s"],
                stage=Stage(r["stage"]),
                wait_s=r["wait_s"],
                n_rows=r["n_rows"],
                n_missing=r["n_missing"],
                n_late=r["n_late"],
            )
            for r in self._rows("SELECT * FROM barrier ORDER BY id")
        ]

    @_reads("fault")
    def faults(self) -> list[FaultRow]:
        """Faults in order."""
        return [
            FaultRow(
                attempt=r["attempt"],
                superseded=bool(r["superseded"]),
                iteration=r["iteration"],
                t_s=r["t_s"],
                kind=encoding.known_or_text(FaultKind, r["kind"]),
                where=r["place"],
                detail=r["detail"],
                n_rows=r["n_rows"],
            )
            for r in self._rows("SELECT * FROM fault ORDER BY id")
        ]

    @_reads("metric")
    def metrics(self, name: str | None = None) -> list[MetricRow]:
        """Scalars of the trainer in order, of one name or of all."""
        sql = (
            "SELECT attempt, superseded, iteration, name, value FROM metric "
            "WHERE ?1 IS NULL OR name = ?1 ORDER BY id"
        )
        return [MetricRow(r[0], bool(r[1]), r[2], r[3], r[4]) for r in self._rows(sql, name)]

    @_reads("evaluation")
    def evaluations(self) -> list[EvaluationRow]:
        """Evaluations in order; a later one of the same name and phase replaces an earlier."""
        sql = "SELECT attempt, t_s, name, phase, item_values FROM evaluation ORDER BY id"
        return [
            EvaluationRow(r[0], r[1], r[2], r[3], encoding.values_of(r[4])) for r in self._rows(sql)
        ]

    @_reads("edi")
    def edi(self) -> list[EdiRow]:
        """The newest EDI matrix of each attempt."""
        return [EdiRow(*r) for r in self._rows("SELECT * FROM edi ORDER BY attempt")]

    # ------------------------------------------------------------ power

    @_reads("device")
    def devices(self) -> list[DeviceRow]:
        """Devices of each attempt."""
        rows = self._rows("SELECT * FROM device ORDER BY attempt, device_id")
        return [encoding.device_of(r) for r in rows]

    @_reads("series")
    def read_device_ids(self) -> list[str]:
        """Devices of which there are power readings."""
        return [r[0] for r in self._rows("SELECT DISTINCT device_id FROM series ORDER BY 1")]

    def power_seconds(self, device_id: str | None = None) -> Iterator[PowerSecond]:
        """Roll-ups by attempt, series and time; of one device or of all.

        Also what a killed run did not come to roll up, as far as the raw ring goes back, and the
        hold of the newest reading, up to the last record of the attempt.
        """
        with self._telling():
            self._check_types(("series", "power_second", "power_block", "power_open", "raw_sample"))
            series = "SELECT * FROM series WHERE ?1 IS NULL OR device_id = ?1 ORDER BY id"
            for attempt in self.attempts():
                for one in self._rows(series, device_id):
                    head = (attempt.attempt, one["device_id"], Provenance(one["provenance"]))
                    stored = self._stored_seconds(attempt.attempt, one["id"])
                    tail = self._tail_seconds(attempt, one["id"])
                    for row in itertools.chain(stored, tail):
                        yield PowerSecond(*head, one["source"], *_in_units(row))

    def _stored_seconds(self, attempt: int, series_id: int) -> Iterator[SecondRow]:
        blocks = self._rows(
            "SELECT n_seconds, packed FROM power_block WHERE attempt = ? AND series_id = ? "
            "ORDER BY second_first",
            attempt,
            series_id,
        )
        for block in blocks:
            yield from unpack_block(block["packed"], block["n_seconds"])
        for row in self._rows(SELECT_SECONDS, attempt, series_id, -1):
            yield SecondRow(*row)

    def _tail_seconds(self, attempt: AttemptRow, series_id: int) -> list[SecondRow]:
        """Roll up what stands behind the stored seconds."""
        key = (attempt.attempt, series_id)
        sql = "SELECT t_s, power_w, energy_j, from_s FROM power_open "
        found = next(self._rows(sql + "WHERE attempt = ? AND series_id = ?", *key), None)
        after = None if found is None else OpenReading(*found)
        rollup = PowerRollup(attempt.hold_s, after)
        sql = f"{_RAW} WHERE raw_sample.attempt = ? AND series_id = ? AND t_s > ? ORDER BY t_s"
        for row in self._rows(sql, *key, -math.inf if after is None else after.t_s):
            rollup.add(_raw_row(row))
        rollup.hold_until(self.last_times().get(attempt.attempt, -math.inf))
        return rollup.take(everything=True)

    @_reads("raw_sample", "series")
    def raw_samples(self, device_id: str | None = None) -> list[RawSampleRow]:
        """The last raw readings, oldest first; of one device or of all."""
        sql = f"{_RAW} WHERE ?1 IS NULL OR device_id = ?1 ORDER BY seq"
        return [_raw_row(r) for r in self._rows(sql, device_id)]

    @_reads("sample_error", "series")
    def sample_errors(self) -> list[SampleErrorRow]:
        """Errors behind missing readings, counted per attempt and series."""
        sql = (
            "SELECT attempt, device_id, source, error, n, first_t_s, last_t_s FROM sample_error "
            "JOIN series ON series.id = series_id ORDER BY attempt, device_id, error"
        )
        return [SampleErrorRow(*r) for r in self._rows(sql)]


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.as_uri()}?{mode}", uri=True, timeout=5.0, isolation_level=None)


def _raw_row(r: sqlite3.Row) -> RawSampleRow:
    return RawSampleRow(r[0], r[1], Provenance(r[2]), *tuple(r)[3:])


def _in_units(row: SecondRow) -> tuple[Any, ...]:
    """Counts as they are, then W, s and J, in the order of `PowerSecond`."""
    watts = (None if v is None else v / 1e3 for v in (row.mean_mw, row.min_mw, row.max_mw))
    return (
        *row[:3],
        *watts,
        row.held_us / 1e6,
        row.held_mj / 1e3,
        row.counted_us / 1e6,
        row.counted_mj / 1e3,
        row.alone_us / 1e6,
        row.alone_mj / 1e3,
        row.n_breaks,
    )
