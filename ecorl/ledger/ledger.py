"""`Ledger`: the one writer of a run's record."""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import platform
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ecorl.errors import LedgerError, RunError
from ecorl.files import made_folder
from ecorl.ledger import connections, encoding, schema
from ecorl.ledger.connections import one_line
from ecorl.ledger.lock import WriterLock
from ecorl.ledger.nodes import NODE, check_node
from ecorl.ledger.rows import DeviceRecord, NodeRecord
from ecorl.ledger.samples import SampleStore, seal_all
from ecorl.ledger.writer import Drops, RowWriter, Write, told_drops
from ecorl.records import BarrierWait, EventKind, FaultEvent, Placement, PowerSample, StageResult

logger = logging.getLogger(__name__)

LEDGER_FILE = "ledger.sqlite"
"""Name of the file in a run folder."""

WRITER_HOST = "writer_host"
"""Key in table ``meta`` of the machine that goes on with a run; None: the one that began it."""

DEFAULT_RAW_SAMPLES = 20_000


class Ledger:
    """Records of one run, written in the background.

    Made by `create`, `open_for_resume` or `reopen`. The recording methods may be called from any
    thread; they put a row into a bounded queue and return at once. They never raise and never wait
    for the disk: when it is full, read-only or gone, rows are dropped, counted in `dropped_rows`
    and reported by one warning. The file can be read at any instant, also after SIGKILL.

    Attributes:
        path: the ledger's file.
        attempt: 1 for a fresh run, one more for each resume; as the head counts them.
        machine: name of the machine that began it; None where it names none.
        control: writes the control path's part of it.
    """

    def __init__(
        self, path: Path, attempt: int, raw_samples: int, lock: WriterLock, *, alone: bool
    ) -> None:
        self.path = path
        self.attempt = attempt
        self._lock = lock
        connection = connections.open_for_writing(path, alone=alone)
        (next_seq,) = connection.execute(
            "SELECT coalesce(max(seq) + 1, 0) FROM raw_sample"
        ).fetchone()
        self._samples = SampleStore(attempt, raw_samples, int(next_seq))
        self._samples.go_on(connection)
        connection.execute("DELETE FROM raw_sample WHERE slot >= ?", (raw_samples,))
        named = connection.execute("SELECT value FROM meta WHERE key = ?", (NODE,)).fetchone()
        self.machine: str | None = named[0] if named is not None else None
        sql = "SELECT teller, number FROM teller WHERE attempt = ?"
        self._kept: dict[str, int] = dict(connection.execute(sql, (attempt,)))
        self._together = threading.local()
        self._writer = RowWriter(connection, self)
        self.control = encoding.ControlRecord(self._insert)
        self._closed = False
        atexit.register(self.close)

    # ------------------------------------------------------------ opening

    @classmethod
    def create(
        cls,
        path: Path,
        *,
        run_id: str,
        config_toml: str,
        meta: Mapping[str, str],
        raw_samples: int = DEFAULT_RAW_SAMPLES,
        node: str | None = None,
        attempt: int = 1,
    ) -> Ledger:
        """Begin the record of a fresh run, or that of one machine of an attempt.

        The folder is made when it is absent.

        Args:
            path: the file to make: `LEDGER_FILE` in the run folder, or for another machine than the
                head what `node_file` names there.
            run_id: name of the run.
            config_toml: the resolved config.
            meta: free facts (versions, commit, host, model names).
            raw_samples: length of the ring of raw readings.
            node: name of the machine that writes it; None names none.
            attempt: number that the head's record gives the attempt under way.

        Raises:
            RunError: when there is a ledger already, another process writes it, the machine's name
                is none, or a text is no UTF-8.
            LedgerError: when the file cannot be written.
        """
        facts = dict(meta) if node is None else {**meta, NODE: check_node(node)}
        path = Path(path).absolute()
        if path.exists():
            raise RunError(f"{path}: exists already; resume that run or choose another folder")
        try:
            with made_folder(path.parent), _lock_of_new(path) as lock:
                alone = not lock.in_folder or not connections.allows_readers(path)
                schema.lay_out(path, run_id=run_id, config_toml=config_toml, meta=facts,
                        attempt=int(attempt), alone=alone)  # fmt: skip
                return cls(path, int(attempt), raw_samples, lock, alone=alone)
        except UnicodeError as error:
            raise RunError(
                f"{schema.printable(path)}: the config, the run's name or a fact about it is no "
                "valid text (UTF-8); is there a file name in it that is not?"
            ) from error
        except (sqlite3.Error, OSError) as error:
            reason = connections.reason_of(error, path)
            raise LedgerError(f"{path}: cannot be written ({reason})") from error

    @classmethod
    def open_for_resume(
        cls, path: Path, *, from_step: int, raw_samples: int = DEFAULT_RAW_SAMPLES
    ) -> Ledger:
        """Go on with the record of a run that ended or was killed, as a new attempt.

        Rows of earlier attempts with ``iteration > from_step`` are marked as superseded. They are
        kept: their energy was spent, and counts as wasted.

        Args:
            path: the ledger's file.
            from_step: last iteration that the checkpoint holds.
            raw_samples: length of the ring of raw readings.

        Raises:
            RunError: when there is no ledger, or another process writes it.
            LedgerError: when it is damaged, of another version, or cannot be written.
        """
        return cls._open_again(path, raw_samples, from_step)

    @classmethod
    def reopen(cls, path: Path, *, raw_samples: int = DEFAULT_RAW_SAMPLES) -> Ledger:
        """Go on writing the newest attempt, whose writer died while its run goes on.

        Nothing is superseded. What the dead writer did not come to roll up is rolled up here; the
        rise of an energy counter from its last reading to the first of this writer is not counted,
        since what counted may have ended with it.

        Args:
            path: the ledger's file.
            raw_samples: length of the ring of raw readings.

        Raises:
            RunError: when there is no ledger, or another process writes it.
            LedgerError: when it is damaged, of another version, or cannot be written.
        """
        return cls._open_again(path, raw_samples, None)

    @classmethod
    def _open_again(cls, path: Path, raw_samples: int, from_step: int | None) -> Ledger:
        """Open a ledger that there is: as a new attempt after a step, or in its newest one."""
        path = Path(path).absolute()
        if not path.is_file():
            raise RunError(f"{path}: there is no ledger to resume")
        lock = WriterLock(path)
        ledger: Ledger | None = None
        try:
            alone = not lock.in_folder or not connections.allows_readers(path)
            with contextlib.closing(
                connections.connect_for_writing(path, alone=alone)
            ) as connection:
                schema.check_version(connection, path)
                (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
                if verdict != "ok":
                    raise LedgerError(f"{path}: damaged ({one_line(verdict)})")
                connection.execute("BEGIN IMMEDIATE")
                (attempt,) = connection.execute("SELECT max(attempt) FROM attempt").fetchone()
                if attempt is None:
                    raise LedgerError(f"{path}: damaged (it holds no attempt)")
                schema.insert(connection, "meta", {"key": WRITER_HOST, "value": platform.node()})
                if from_step is not None:
                    schema.supersede(connection, from_step)
                    attempt += 1
                    schema.insert_attempt(connection, attempt, from_step)
                    seal_all(connection)
                connection.execute("COMMIT")
            ledger = cls(path, int(attempt), raw_samples, lock, alone=alone)
            return ledger
        except (sqlite3.Error, OSError, ValueError) as error:
            reason = connections.reason_of(error, path)
            raise LedgerError(f"{path}: cannot be resumed ({reason})") from error
        finally:
            if ledger is None:
                lock.release()

    # ------------------------------------------------------------ recording

    @property
    def dropped_rows(self) -> int:
        """Rows that never reached the disk."""
        return self._writer.dropped_rows

    def placement(self, p: Placement) -> None:
        """Record one decision."""
        t_s = time.monotonic()
        self._insert("placement", lambda: {"t_s": t_s, **encoding.columns_of(Placement, p)})

    def result(self, r: StageResult) -> None:
        """Record one finished stage execution."""
        self._insert("execution", lambda: encoding.result_columns(r))

    def barrier(self, wait: BarrierWait) -> None:
        """Record one wait of the training thread at the completion barrier, as it ends."""
        t_s = time.monotonic()
        self._insert("barrier", lambda: {"t_s": t_s, **encoding.columns_of(BarrierWait, wait)})

    def fault(self, f: FaultEvent) -> None:
        """Record something that went wrong and was survived."""
        t_s = time.monotonic()
        self._insert("fault", lambda: {"t_s": t_s, **encoding.columns_of(FaultEvent, f)})

    def metric(self, iteration: int, name: str, value: float | None) -> None:
        """Record one scalar of the trainer.

        Args:
            iteration: 1-based.
            name: e.g. ``reward``.
            value: None or NaN when it is missing.
        """

        def columns() -> encoding.Columns:
            told = {"iteration": int(iteration), "name": str(name)}
            return {**told, "value": encoding.number(value)}

        self._insert("metric", columns)

    def evaluation(self, name: str, phase: str, values: Sequence[float | None]) -> None:
        """Record per-item values of one evaluation; the newest of a (name, phase) counts.

        Args:
            name: what was evaluated.
            phase: when, e.g. ``before``.
            values: one an item; None or NaN for an item without a value.
        """
        t_s, kept = time.monotonic(), tuple(values)

        def columns() -> encoding.Columns:
            items = encoding.values_text(kept)
            return {"t_s": t_s, "name": str(name), "phase": str(phase), "item_values": items}

        self._insert("evaluation", columns)

    def samples(self, samples: Iterable[PowerSample]) -> None:
        """Record power readings: 1 s roll-ups per series, and the raw ring."""
        kept = tuple(samples)
        if kept:
            self._put(lambda c: self._samples.add(c, kept), len(kept), "raw_sample")

    def begin_now(self) -> None:
        """Let the attempt begin now, before its first reading.

        What a run needs before its devices are read (a cluster, engines) belongs to no figure of
        it: nobody has measured it.
        """
        unix_s, monotonic_s = time.time(), time.monotonic()

        def write(connection: sqlite3.Connection) -> None:
            sql = "UPDATE attempt SET unix_anchor_s = ?, monotonic_anchor_s = ? WHERE attempt = ?"
            connection.execute(sql, (unix_s, monotonic_s, self.attempt))

        self._put(write, 0)

    def hold_readings(self, hold_s: float) -> None:
        """Set for how long a power reading stands without a successor, s; `HOLD_S` until then.

        To be called before the first reading, with the value that telemetry uses.
        """

        def write(connection: sqlite3.Connection) -> None:
            if not 0 < hold_s < math.inf:
                raise ValueError(f"hold_s = {hold_s}")
            self._samples.hold(float(hold_s))
            sql = "UPDATE attempt SET hold_s = ? WHERE attempt = ?"
            connection.execute(sql, (float(hold_s), self.attempt))

        self._put(write, 0)

    def found(self, attempt: int, node: str) -> None:
        """Note that a machine's record of an earlier attempt is there after all.

        Args:
            attempt: that attempt.
            node: the machine.
        """

        def write(connection: sqlite3.Connection) -> None:
            sql = "UPDATE node SET lost = NULL WHERE attempt = ? AND node = ?"
            connection.execute(sql, (int(attempt), str(node)))

        self._put(write, 0)

    def device(self, device: DeviceRecord) -> None:
        """Record a device: its profile, where its power comes from, what it draws idle."""
        self._insert("device", lambda: encoding.columns_of(DeviceRecord, device))

    def node(self, record: NodeRecord) -> None:
        """Record a machine of this attempt, on the head; the newest record of a machine counts."""
        self._insert("node", lambda: encoding.columns_of(NodeRecord, record))

    def checkpoint(self, iteration: int, path: str) -> None:
        """Record a checkpoint of the trainer.

        Args:
            iteration: the last one whose work it holds.
            path: its folder.
        """
        t_s = time.monotonic()
        self._insert(
            "checkpoint", lambda: {"iteration": int(iteration), "t_s": t_s, "path": str(path)}
        )

    def edi(self, json: str) -> None:
        """Record the EDI matrix; the newest of an attempt replaces the one before."""
        t_s = time.monotonic()
        self._insert("edi", lambda: {"t_s": t_s, "matrix": str(json)})

    def event(self, kind: EventKind, detail: str) -> None:
        """Note something about the course of the run, e.g. its start or its end.

        Args:
            kind: what happened.
            detail: one sentence about it.
        """
        t_s = time.monotonic()
        self._insert("event", lambda: {"t_s": t_s, "kind": str(kind), "detail": str(detail)})

    def _insert(self, table: str, columns: Callable[[], encoding.Columns]) -> None:
        # Converted on the writing thread: a value of the wrong kind must not raise into the run.
        def write(connection: sqlite3.Connection) -> None:
            schema.insert(connection, table, {"attempt": self.attempt, **columns()})

        self._put(write, kind=table)

    def _put(self, write: Write, n_rows: int = 1, kind: str = "") -> None:
        together: list[tuple[Write, int, str]] | None = getattr(self._together, "writes", None)
        if together is None:
            self._writer.put(write, n_rows, kind)
        else:
            together.append((write, n_rows, kind))

    # ------------------------------------------------------------ what other processes tell

    @contextlib.contextmanager
    def note(self, teller: str, number: int) -> Iterator[None]:
        """Record what this thread records inside together with the number of a process's note.

        Both stand in the file or neither, so that a process can tell a writer that was started
        anew what is missing, and nothing twice.

        Args:
            teller: the process.
            number: of its note; higher than those before.
        """
        row = {"attempt": self.attempt, "teller": teller, "number": number}
        self._together.writes = writes = []
        try:
            yield
        finally:
            del self._together.writes
            writes.append((lambda c: schema.insert(c, "teller", row), 0, ""))
            self._writer.put_together(writes, lambda: self._keep(teller, number))

    def _keep(self, teller: str, number: int) -> None:
        self._kept[teller] = number

    def kept(self, teller: str) -> int:
        """Number of the newest note of a process that is in the file, or was dropped; 0: none.

        Args:
            teller: as in `note`.
        """
        return self._kept.get(teller, 0)

    def flush(self, timeout_s: float = 30.0) -> bool:
        """Wait until all that was recorded before is in the file; also the second that runs.

        Returns:
            False when that took longer than ``timeout_s`` or rows were dropped meanwhile.
        """
        return self._writer.flush(timeout_s)

    def close(self, timeout_s: float = 30.0) -> None:
        """Write what waits and close the file; safe to call twice. Later rows are dropped."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        if not self._writer.close(timeout_s):
            logger.warning("ledger: %s: not closed within %.0f s", self.path, timeout_s)
        self._lock.release()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------ hooks of the writing thread

    def after_batch(self, connection: sqlite3.Connection, everything: bool) -> None:
        """Write roll-ups of seconds that are over; see `BatchHooks`."""
        self._samples.write_seconds(connection, everything)

    def lost(self, connection: sqlite3.Connection, drops: Drops) -> None:
        """Note in the record itself that rows are missing from it; see `BatchHooks`."""
        detail = told_drops(drops, now_unix_s=time.time(), now_t_s=time.monotonic())
        columns = {"attempt": self.attempt, "t_s": time.monotonic(), "detail": detail}
        columns["kind"] = str(EventKind.LEDGER_ROWS_DROPPED)
        schema.insert(connection, "event", columns)

    def reason_of(self, error: Exception) -> str:
        """What stopped a transaction; see `BatchHooks`."""
        return connections.reason_of(error, self.path)

    def rolled_back(self) -> None:
        """Forget series of a transaction that was undone; see `BatchHooks`."""
        self._samples.forget_series()


@contextlib.contextmanager
def _lock_of_new(path: Path) -> Iterator[WriterLock]:
    """Lock a ledger that is to be made; where the block fails, all that was made of it goes again.

    Raises:
        RunError: when it is there by now, or another process writes it.
    """
    lock = WriterLock(path)
    is_new = False
    try:
        is_new = not path.exists()
        if not is_new:
            raise RunError(f"{path}: exists already; another process has just begun that run")
        yield lock
    except BaseException:
        if is_new:
            connections.remove_database(path)
        lock.release(remove=is_new)
        raise
