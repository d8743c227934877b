"""`LedgerReader`: read-only access to a finished, live or killed run."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterator
from pathlib import Path

from ecorl.errors import LedgerError, RunError
from ecorl.ledger import encoding, schema
from ecorl.ledger.ledger import LEDGER_FILE
from ecorl.ledger.rollup import PackedRow, unpack_block
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
from ecorl.records import Provenance, Stage

_SECOND_COLUMNS = "second, n, n_missing, mean_mw, min_mw, max_mw, energy_first_mj, energy_last_mj"


class LedgerReader:
    """Typed rows of one ledger, all as of the instant of opening (or of the last `refresh`).

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
        try:
            self._connection = sqlite3.connect(
                f"{self.path.as_uri()}?mode=ro", uri=True, timeout=5.0, isolation_level=None
            )
        except sqlite3.Error as error:
            raise LedgerError(f"{self.path}: cannot be opened ({error})") from error
        self._connection.row_factory = sqlite3.Row
        try:
            schema.check_version(self._connection, self.path)
            self.refresh()
        except LedgerError:
            self._connection.close()
            raise

    def refresh(self) -> None:
        """See what was written since; until then all accessors show one and the same instant.

        Raises:
            LedgerError: when the file cannot be read.
        """
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
        self._connection.execute("BEGIN")
        list(self._rows("SELECT count(*) FROM run"))

    def close(self) -> None:
        """Release the file; safe to call twice."""
        self._connection.close()

    def __enter__(self) -> LedgerReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _rows(self, sql: str, *args: object) -> Iterator[sqlite3.Row]:
        try:
            yield from self._connection.execute(sql, args)
        except sqlite3.Error as error:
            raise LedgerError(f"{self.path}: cannot be read ({error})") from error

    # ------------------------------------------------------------ the run

    def run(self) -> RunRow:
        """What ran."""
        row = next(self._rows("SELECT * FROM run"), None)
        if row is None:
            raise LedgerError(f"{self.path}: holds no run")
        meta = {r["key"]: r["value"] for r in self._rows("SELECT * FROM meta ORDER BY key")}
        return RunRow(row["run_id"], row["config_toml"], row["created_unix_s"], meta)

    def attempts(self) -> list[AttemptRow]:
        """Starts and resumes, in order."""
        return [AttemptRow(*r) for r in self._rows("SELECT * FROM attempt ORDER BY attempt")]

    def events(self) -> list[EventRow]:
        """Start, stop, resume, finish, in order."""
        sql = "SELECT attempt, t_s, kind, detail FROM event ORDER BY id"
        return [EventRow(*r) for r in self._rows(sql)]

    def checkpoints(self) -> list[CheckpointRow]:
        """Checkpoints, in order."""
        sql = "SELECT attempt, superseded, iteration, t_s, path FROM checkpoint ORDER BY id"
        return [CheckpointRow(r[0], bool(r[1]), *r[2:]) for r in self._rows(sql)]

    def last_times(self) -> dict[int, float]:
        """Monotonic time of the last record of each attempt, s; attempts without any are left out.

        The end of an attempt that was killed: nothing later is known of it.
        """
        tables = ("event", "checkpoint", "placement", "barrier", "fault", "evaluation", "edi")
        parts = [f"SELECT attempt, t_s AS t FROM {table}" for table in tables]
        parts += [
            "SELECT attempt, t_s FROM raw_sample",
            "SELECT attempt, end_t_s FROM execution",
            "SELECT attempt, second FROM power_second",
            "SELECT attempt, second_last FROM power_block",
        ]
        sql = f"SELECT attempt, max(t) FROM ({' UNION ALL '.join(parts)}) GROUP BY attempt"
        return {r[0]: float(r[1]) for r in self._rows(sql) if r[1] is not None}

    # ------------------------------------------------------------ stages

    def executions(self) -> list[ExecutionRow]:
        """Stage executions in the order in which they were recorded, superseded ones included."""
        rows = self._rows("SELECT * FROM execution ORDER BY id")
        return [
            ExecutionRow(r["attempt"], bool(r["superseded"]), encoding.result_of(r)) for r in rows
        ]

    def placements(self) -> list[PlacementRow]:
        """Decisions in order."""
        rows = self._rows("SELECT * FROM placement ORDER BY id")
        return [
            PlacementRow(r["attempt"], bool(r["superseded"]), r["t_s"], encoding.placement_of(r))
            for r in rows
        ]

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

    def faults(self) -> list[FaultRow]:
        """Faults in order."""
        return [
            FaultRow(
                attempt=r["attempt"],
                superseded=bool(r["superseded"]),
                iteration=r["iteration"],
                t_s=r["t_s"],
                kind=r["kind"],
                where=r["place"],
                detail=r["detail"],
                n_rows=r["n_rows"],
            )
            for r in self._rows("SELECT * FROM fault ORDER BY id")
        ]

    def metrics(self, name: str | None = None) -> list[MetricRow]:
        """Scalars of the trainer in order, of one name or of all."""
        sql = (
            "SELECT attempt, superseded, iteration, name, value FROM metric "
            "WHERE ?1 IS NULL OR name = ?1 ORDER BY id"
        )
        return [MetricRow(r[0], bool(r[1]), r[2], r[3], r[4]) for r in self._rows(sql, name)]

    def evaluations(self) -> list[EvaluationRow]:
        """Evaluations in order; a later one of the same name and phase replaces an earlier."""
        sql = "SELECT attempt, t_s, name, phase, item_values FROM evaluation ORDER BY id"
        return [
            EvaluationRow(r[0], r[1], r[2], r[3], encoding.values_of(r[4])) for r in self._rows(sql)
        ]

    def edi(self) -> list[EdiRow]:
        """The newest EDI matrix of each attempt."""
        return [EdiRow(*r) for r in self._rows("SELECT * FROM edi ORDER BY attempt")]

    # ------------------------------------------------------------ power

    def devices(self) -> list[DeviceRow]:
        """Devices of each attempt."""
        rows = self._rows("SELECT * FROM device ORDER BY attempt, device_id")
        return [DeviceRow(r[0], r[1], r[2], Provenance(r[3]), r[4], r[5], r[6]) for r in rows]

    def read_device_ids(self) -> list[str]:
        """Devices of which there are power readings."""
        return [r[0] for r in self._rows("SELECT DISTINCT device_id FROM series ORDER BY 1")]

    def power_seconds(self, device_id: str | None = None) -> Iterator[PowerSecond]:
        """Roll-ups by attempt, series and time; of one device or of all."""
        series = "SELECT * FROM series WHERE ?1 IS NULL OR device_id = ?1 ORDER BY id"
        for attempt in self.attempts():
            for one in self._rows(series, device_id):
                head = (attempt.attempt, one["device_id"], Provenance(one["provenance"]))
                for row in self._packed_rows(attempt.attempt, one["id"]):
                    watts = (None if v is None else v / 1e3 for v in row[3:])
                    yield PowerSecond(*head, one["source"], *row[:3], *watts)

    def _packed_rows(self, attempt: int, series_id: int) -> Iterator[PackedRow]:
        blocks = self._rows(
            "SELECT n_seconds, packed FROM power_block WHERE attempt = ? AND series_id = ? "
            "ORDER BY second_first",
            attempt,
            series_id,
        )
        for block in blocks:
            try:
                yield from unpack_block(block["packed"], block["n_seconds"])
            except (ValueError, zlib.error) as error:
                raise LedgerError(f"{self.path}: damaged power block ({error})") from error
        sql = f"SELECT {_SECOND_COLUMNS} FROM power_second WHERE attempt = ? AND series_id = ?"
        for row in self._rows(sql + " ORDER BY second", attempt, series_id):
            yield tuple(row)

    def raw_samples(self, device_id: str | None = None) -> list[RawSampleRow]:
        """The last raw readings, oldest first; of one device or of all."""
        sql = (
            "SELECT attempt, device_id, provenance, source, t_s, power_w, energy_j, utilisation, "
            "error FROM raw_sample JOIN series ON series.id = series_id "
            "WHERE ?1 IS NULL OR device_id = ?1 ORDER BY seq"
        )
        return [
            RawSampleRow(r[0], r[1], Provenance(r[2]), *r[3:]) for r in self._rows(sql, device_id)
        ]

    def sample_errors(self) -> list[SampleErrorRow]:
        """Why readings are missing, counted per attempt and series."""
        sql = (
            "SELECT attempt, device_id, source, error, n, first_t_s, last_t_s FROM sample_error "
            "JOIN series ON series.id = series_id ORDER BY attempt, device_id, error"
        )
        return [SampleErrorRow(*r) for r in self._rows(sql)]
