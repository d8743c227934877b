"""`FileReader`: read-only access to one file of a finished, live or killed run."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from ecorl.errors import LedgerError, RunError
from ecorl.ledger import rows as tables
from ecorl.ledger.connections import DAMAGE, one_line, open_for_reading, reason, type_fault
from ecorl.ledger.encoding import choice_of, intensity_of, record_of, result_of
from ecorl.ledger.ledger import LEDGER_FILE
from ecorl.ledger.rollup import OpenReading, PowerRollup, SecondRow, in_units, unpack_block
from ecorl.ledger.samples import SELECT_SECONDS
from ecorl.ledger.schema import check_version
from ecorl.records import (
    FOREIGN_COUNTER,
    DeviceKind,
    Placement,
    Provenance,
    StageResult,
    kind_in_name,
)

_RAW = (
    "SELECT attempt, device_id, provenance, source, t_s, power_w, energy_j, utilisation, error "
    "FROM raw_sample JOIN series ON series.id = series_id"
)
_TIMED = (
    "event", "checkpoint", "placement", "barrier", "fault", "evaluation", "edi", "intensity",
    "gear_choice",
)  # fmt: skip
"""Tables whose rows hold the time at which they were written."""

_POWER = ("series", "power_second", "power_block", "power_open", "raw_sample")
"""Tables from which the roll-ups are put together."""

_SERIES = ("power_open", "raw_sample", "sample_error")
"""Tables that between them name each series of which an attempt has readings."""

_P = ParamSpec("_P")
_R = TypeVar("_R")
_Accessor = Callable[Concatenate["FileReader", _P], _R]


def _reads(*tables: str) -> Callable[[_Accessor[_P, _R]], _Accessor[_P, _R]]:
    """Make an accessor that checks the types of these tables and raises damage as `LedgerError`."""

    def decorate(accessor: _Accessor[_P, _R]) -> _Accessor[_P, _R]:
        @functools.wraps(accessor)
        def read(self: FileReader, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
            with self._telling():
                self._check_types(tables)
                return accessor(self, *args, **kwargs)

        return read

    return decorate


class FileReader:
    """Typed rows of one file, all as of the instant of opening (or of the last `refresh`).

    Times and device ids are those of the machine that wrote it; `ecorl.ledger.LedgerReader` puts
    the files of a run together.

    A killed run leaves its newest rows in a second file (``-wal``), which SQLite cannot read where
    it may not write, nor where the file system knows no locks or shares no memory. The two are then
    read from a copy in a temporary folder.

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
        self._open()

    def _open(self) -> None:
        try:
            self._connection, self._copy = open_for_reading(self.path)
            self._connection.row_factory = sqlite3.Row
            check_version(self._connection, self.path)
            self._last_times = None
            self._sound.clear()
            self._connection.execute("BEGIN")
            self._rows("SELECT count(*) FROM run")
        except (*DAMAGE, OSError) as error:
            self.close()
            raise LedgerError(f"{self.path}: cannot be opened ({reason(error)})") from error
        except LedgerError:
            self.close()
            raise

    def refresh(self) -> None:
        """See what was written since; until then all accessors show one and the same instant.

        Raises:
            LedgerError: when the file cannot be read.
        """
        # Opened anew: a writer that has come or gone meanwhile may ask for a copy, or for none.
        self.close()
        self._open()

    def check(self) -> None:
        """Read all but the packed power readings, to find damage before any of it is used.

        Raises:
            LedgerError: when a part of the file is damaged.
        """
        (verdict,) = next(self._rows("PRAGMA quick_check(1)"))
        if verdict != "ok":
            raise LedgerError(f"{self.path}: damaged ({one_line(verdict)})")
        with self._telling():
            self._check_types(_POWER)
        self.run()
        self.last_times()
        for read in (self.events, self.checkpoints, self.executions, self.placements, self.barriers,
                     self.faults, self.metrics, self.evaluations, self.edi, self.devices,
                     self.read_device_ids, self.sample_errors, self.raw_samples,
                     self.intensities, self.choices, self.pues):  # fmt: skip
            read()

    def close(self) -> None:
        """Release the file; safe to call twice."""
        with contextlib.suppress(AttributeError):  # closed by its own constructor
            self._connection.close()
        if self._copy is not None:
            self._copy.cleanup()
            self._copy = None

    def __enter__(self) -> FileReader:
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

    def _all(self, kind: type[_R], source: str, **given: object) -> list[_R]:
        """Rows of a table as records; the fields that it does not hold are given."""
        return [record_of(kind, row, **given) for row in self._rows(f"SELECT * FROM {source}")]

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
    def run(self) -> tables.RunRow:
        """The run's id, config and facts."""
        row = next(self._rows("SELECT * FROM run"), None)
        if row is None:
            raise LedgerError(f"{self.path}: holds no run")
        meta = {r["key"]: r["value"] for r in self._rows("SELECT * FROM meta ORDER BY key")}
        return tables.RunRow(row["run_id"], row["config_toml"], row["created_unix_s"], meta)

    @_reads("attempt")
    def attempts(self) -> list[tables.AttemptRow]:
        """Starts and resumes, in order."""
        return self._all(tables.AttemptRow, "attempt ORDER BY attempt")

    @_reads("node")
    def nodes(self) -> list[tables.NodeRow]:
        """The machines of each attempt."""
        return self._all(tables.NodeRow, "node ORDER BY attempt, node")

    @_reads("intensity")
    def intensities(self) -> list[tables.IntensityRow]:
        """What was known of the grid's intensity, in order."""
        return [intensity_of(r) for r in self._rows("SELECT * FROM intensity ORDER BY id")]

    @_reads("gear_choice")
    def choices(self) -> list[tables.GearChoiceRow]:
        """Decisions about the training stage, in order."""
        return [choice_of(r) for r in self._rows("SELECT * FROM gear_choice ORDER BY id")]

    @_reads("pue")
    def pues(self) -> list[tables.PueRow]:
        """The power usage effectiveness over time, in order."""
        return self._all(tables.PueRow, "pue ORDER BY id")

    @_reads("event")
    def events(self) -> list[tables.EventRow]:
        """What was noted about the course of the run, in order."""
        return self._all(tables.EventRow, "event ORDER BY id", node=None)

    @_reads("checkpoint")
    def checkpoints(self) -> list[tables.CheckpointRow]:
        """Checkpoints, in order."""
        return self._all(tables.CheckpointRow, "checkpoint ORDER BY id")

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

    @_reads("execution", "series", "sample_error")
    def executions(self) -> list[tables.ExecutionRow]:
        """Stage executions in the order in which they were recorded, superseded ones included.

        Energy by a counter that does not count its device alone is replaced by that of the power
        readings.
        """
        rows, foreign = self._rows("SELECT * FROM execution ORDER BY id"), self._foreign_counters()
        return [
            record_of(tables.ExecutionRow, r, result=_by_power(result_of(r), foreign)) for r in rows
        ]

    @_reads("placement")
    def placements(self) -> list[tables.PlacementRow]:
        """Decisions in order."""
        rows = self._rows("SELECT * FROM placement ORDER BY id")
        return [record_of(tables.PlacementRow, r, placement=record_of(Placement, r)) for r in rows]

    @_reads("barrier")
    def barriers(self) -> list[tables.BarrierRow]:
        """Waits at the completion barrier, in order."""
        return self._all(tables.BarrierRow, "barrier ORDER BY id")

    @_reads("fault")
    def faults(self) -> list[tables.FaultRow]:
        """Faults in order."""
        return self._all(tables.FaultRow, "fault ORDER BY id", node=None)

    @_reads("metric")
    def metrics(self, name: str | None = None) -> list[tables.MetricRow]:
        """Scalars of the trainer in order, of one name or of all."""
        rows = self._rows("SELECT * FROM metric WHERE ?1 IS NULL OR name = ?1 ORDER BY id", name)
        return [record_of(tables.MetricRow, r) for r in rows]

    @_reads("evaluation")
    def evaluations(self) -> list[tables.EvaluationRow]:
        """Evaluations in order; a later one of the same name and phase replaces an earlier."""
        return self._all(tables.EvaluationRow, "evaluation ORDER BY id")

    @_reads("edi")
    def edi(self) -> list[tables.EdiRow]:
        """The newest EDI matrix of each attempt."""
        return self._all(tables.EdiRow, "edi ORDER BY attempt")

    # ------------------------------------------------------------ power

    @_reads("device")
    def devices(self) -> list[tables.DeviceRow]:
        """Devices of each attempt."""
        rows = self._rows("SELECT * FROM device ORDER BY attempt, device_id")
        return [record_of(tables.DeviceRow, r, kind=_device_kind(r)) for r in rows]

    @_reads("series", *_SERIES)
    def read_device_ids(self, attempt: int | None = None) -> list[str]:
        """Devices of which there are power readings, in one attempt or at all."""
        found = " UNION ".join(f"SELECT series_id FROM {t} WHERE attempt = ?1" for t in _SERIES)
        sql = (
            f"SELECT DISTINCT device_id FROM series WHERE ?1 IS NULL OR id IN ({found}) ORDER BY 1"
        )
        return [r[0] for r in self._rows(sql, attempt)]

    def power_seconds(
        self,
        device_id: str | None = None,
        *,
        last_times: Mapping[int, float] | None = None,
        offset_s: int = 0,
        named: Callable[[str], str] = str,
    ) -> Iterator[tables.PowerSecond]:
        """Roll-ups by attempt, series and time; of one device or of all.

        Also what a killed run did not come to roll up, as far as the raw ring goes back, and the
        hold of the newest reading, up to the last record of the attempt.

        Args:
            device_id: as it stands in the file; None: of all.
            last_times: time of the last record by attempt, s, where other files go further.
            offset_s: taken from all seconds on their way out.
            named: what to call a device of the file.
        """
        known = self.last_times() if last_times is None else last_times
        with self._telling():
            self._check_types(_POWER)
            foreign = self._foreign_counters()
            series = "SELECT * FROM series WHERE ?1 IS NULL OR device_id = ?1 ORDER BY id"
            for attempt in self.attempts():
                until_s = known.get(attempt.attempt, -math.inf)
                for one in self._rows(series, device_id):
                    name, provenance = named(one["device_id"]), Provenance(one["provenance"])
                    head = (attempt.attempt, name, provenance, one["source"])
                    stored = self._stored_seconds(attempt.attempt, one["id"])
                    tail = self._tail_seconds(attempt, one["id"], until_s)
                    is_foreign = one["device_id"] in foreign
                    for row in itertools.chain(stored, tail):
                        second = tables.PowerSecond(*head, row.second - offset_s, *in_units(row))
                        yield second.by_power() if is_foreign else second

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

    def _tail_seconds(
        self, attempt: tables.AttemptRow, series_id: int, until_s: float
    ) -> list[SecondRow]:
        """Roll up what stands behind the stored seconds."""
        key = (attempt.attempt, series_id)
        sql = "SELECT t_s, power_w, energy_j, from_s FROM power_open "
        found = next(self._rows(sql + "WHERE attempt = ? AND series_id = ?", *key), None)
        after = None if found is None else OpenReading(*found)
        rollup = PowerRollup(attempt.hold_s, after)
        sql = f"{_RAW} WHERE raw_sample.attempt = ? AND series_id = ? AND t_s > ? ORDER BY t_s"
        for row in self._rows(sql, *key, -math.inf if after is None else after.t_s):
            rollup.add(_raw_row(row))
        rollup.hold_until(until_s)
        return rollup.take(everything=True)

    @_reads("raw_sample", "series")
    def raw_samples(self, device_id: str | None = None) -> list[tables.RawSampleRow]:
        """The last raw readings, oldest first; of one device or of all.

        Without counters that do not count their device alone.
        """
        sql = f"{_RAW} WHERE ?1 IS NULL OR device_id = ?1 ORDER BY seq"
        rows, foreign = [_raw_row(r) for r in self._rows(sql, device_id)], self._foreign_counters()
        return [replace(row, energy_j=None) if row.device_id in foreign else row for row in rows]

    @_reads("sample_error", "series")
    def sample_errors(self) -> list[tables.SampleErrorRow]:
        """Errors behind missing readings, counted per attempt and series."""
        sql = (
            "SELECT attempt, device_id, source, error, n, first_t_s, last_t_s FROM sample_error "
            "JOIN series ON series.id = series_id ORDER BY attempt, device_id, error"
        )
        return [tables.SampleErrorRow(*r) for r in self._rows(sql)]

    def _foreign_counters(self) -> set[str]:
        """Devices whose energy counter does not count them alone, as found in any attempt.

        Power readings replace it in the time before that too.
        """
        sql = (
            "SELECT DISTINCT device_id FROM sample_error "
            "JOIN series ON series.id = series_id WHERE error = ?"
        )
        return {device_id for (device_id,) in self._rows(sql, FOREIGN_COUNTER)}


def _by_power(result: StageResult, foreign: set[str]) -> StageResult:
    """A stage execution without the counters of some devices."""
    if result.energy is None or foreign.isdisjoint(result.energy.device_ids):
        return result
    return replace(result, energy=result.energy.by_power())


def _raw_row(r: sqlite3.Row) -> tables.RawSampleRow:
    return tables.RawSampleRow(r[0], r[1], Provenance(r[2]), *tuple(r)[3:])


def _device_kind(r: sqlite3.Row) -> DeviceKind:
    return kind_in_name(r["device_id"]) if r["kind"] is None else DeviceKind(r["kind"])
