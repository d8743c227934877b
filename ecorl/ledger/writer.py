"""The thread that writes, and the queue before it.

The training thread only appends to a bounded queue. Whatever happens to the disk happens here:
a failed transaction costs its rows, which are counted and reported once per outage, and the next
batch tries again.
"""

from __future__ import annotations

import logging
import math
import sqlite3
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Protocol

logger = logging.getLogger(__name__)

Write = Callable[[sqlite3.Connection], object]


@dataclass(frozen=True, slots=True)
class Drops:
    """Rows that never reached the disk.

    Attributes:
        by_kind: number of rows by the kind that they were put under.
        first_t_s, last_t_s: when the first and the last of them were put, monotonic s.
        why: the newest reason.
    """

    by_kind: Mapping[str, int] = field(default_factory=dict)
    first_t_s: float = math.inf
    last_t_s: float = -math.inf
    why: str = ""

    @property
    def n_rows(self) -> int:
        """How many there are."""
        return sum(self.by_kind.values())

    @classmethod
    def of(cls, entries: Sequence[_Waiting], why: str) -> Drops:
        """Those of dropped entries of the queue.

        Args:
            entries: that were dropped.
            why: the reason.
        """
        by_kind = Counter[str]()
        times_s = [entry.t_s for entry in entries if entry.n_rows]
        for entry in entries:
            by_kind[entry.kind] += entry.n_rows
        return cls(+by_kind, min(times_s, default=math.inf), max(times_s, default=-math.inf), why)

    def and_those(self, later: Drops) -> Drops:
        """These and later ones."""
        return Drops(
            Counter(self.by_kind) + Counter(later.by_kind),
            min(self.first_t_s, later.first_t_s),
            max(self.last_t_s, later.last_t_s),
            later.why or self.why,
        )


class BatchHooks(Protocol):
    """Calls that a `RowWriter` makes on its owner, on the writing thread."""

    def after_batch(self, connection: sqlite3.Connection, everything: bool) -> None:
        """Write more inside a transaction, after its rows.

        Args:
            connection: with the transaction open.
            everything: whether nothing may stay in memory.
        """

    def lost(self, connection: sqlite3.Connection, drops: Drops) -> None:
        """Note inside a transaction that rows were dropped since the last note.

        Args:
            connection: with the transaction open.
            drops: which ones.
        """

    def reason_of(self, error: Exception) -> str:
        """What stopped a transaction, in words.

        Args:
            error: that it raised.
        """

    def rolled_back(self) -> None:
        """Drop what was remembered of a transaction that was undone."""


MAX_PENDING_ROWS = 200_000
"""Rows that may wait. At 36 devices' full rate that is eight minutes of a disk that hangs, in
about 100 MB of memory; beyond it rows are dropped and counted."""

_COMMIT_INTERVAL_S = 0.1
"""Least time between two commits when nobody waits: many rows share one transaction."""

_BAD_ROW = (
    TypeError,
    ValueError,
    AttributeError,
    LookupError,
    OverflowError,
    sqlite3.ProgrammingError,
    sqlite3.IntegrityError,
    sqlite3.InterfaceError,
    sqlite3.DataError,
)
"""Errors that one unusable row raises: it alone is dropped, the rest of its batch is kept."""


def _nothing() -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A write in the queue.

    Attributes:
        write: as `RowWriter.put` was given it.
        n_rows: rows that it stands for.
        kind: what rows they are, as they are named when they are dropped.
        t_s: when it was put, monotonic s.
        done: called once it is on the disk, or will never be.
    """

    write: Write
    n_rows: int
    kind: str = ""
    t_s: float = field(default_factory=time.monotonic)
    done: Callable[[], object] = _nothing


class RowWriter:
    """Writes rows on its own thread, in the order in which they were put.

    Args:
        connection: used by this thread alone from now on; closed by `close`.
        hooks: see `BatchHooks`.
        max_pending: rows that may wait in the queue.
    """

    def __init__(
        self, connection: sqlite3.Connection, hooks: BatchHooks, max_pending: int = MAX_PENDING_ROWS
    ) -> None:
        self._connection = connection
        self._hooks = hooks
        self._max_pending = max_pending
        self._queue: deque[_Waiting] = deque()
        self._batch: list[_Waiting] = []
        self._pending = 0
        self._wake = threading.Condition()
        self._put_count = self._done_count = 0
        self._flush_to = 0
        self._stopping = self._idle = False
        self._dropped = 0
        # Of the dropped rows those without a note, and those noted in the transaction under way.
        self._untold = self._told = Drops()
        self._in_outage, self._reason = False, ""
        self._thread = threading.Thread(target=self._run, name="ecorl-ledger", daemon=True)
        self._thread.start()

    @property
    def dropped_rows(self) -> int:
        """Rows that never reached the disk."""
        return self._dropped

    def put(self, write: Write, n_rows: int = 1, kind: str = "") -> None:
        """Queue one write; never blocks, never raises. It is dropped when the queue is full.

        Args:
            write: called with the connection inside a transaction.
            n_rows: rows that it stands for, as they are counted when it is dropped.
            kind: what rows they are, for the note of those that were dropped.
        """
        self._put([_Waiting(write, n_rows, kind)])

    def put_together(
        self, writes: Sequence[tuple[Write, int, str]], done: Callable[[], object]
    ) -> None:
        """Queue writes that are to stand in one transaction; as `put` otherwise.

        Args:
            writes: at least one, each with the rows that it stands for and their kind.
            done: called once they are on the disk, or dropped; mostly on the writing thread.
        """
        entries = [_Waiting(*write) for write in writes]
        entries[-1] = replace(entries[-1], done=done)
        if not self._put(entries):
            done()

    def _put(self, entries: Sequence[_Waiting]) -> bool:
        """Queue entries, all of them or none; whether there was room."""
        n_rows = sum(entry.n_rows for entry in entries)
        with self._wake:
            if self._stopping:
                self._note_drop(entries, "the ledger is closed")
                return False
            if self._pending + n_rows > self._max_pending:
                self._note_drop(entries, f"{self._pending} rows wait for the disk already")
                return False
            self._queue.extend(entries)
            self._pending += n_rows
            self._put_count += len(entries)
            # Between two commits the thread sleeps on: waking it for every row would
            # interrupt the training thread again and again.
            if self._idle:
                self._idle = False
                self._wake.notify_all()
        return True

    def flush(self, timeout_s: float) -> bool:
        """Wait until all that was put before has been dealt with, or the time is over.

        Returns:
            Whether the thread got to all of it without dropping a row meanwhile.
        """
        deadline = time.monotonic() + timeout_s
        with self._wake:
            dropped_before = self._dropped
            if not self._stopping:
                # An empty write: even behind an empty queue, what is gathered must be written.
                self._queue.append(_Waiting(lambda _: None, 0))
                self._put_count += 1
            target = self._flush_to = self._put_count
            self._wake.notify_all()
            while self._done_count < target and self._thread.is_alive():
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._wake.wait(min(left, 0.2))
            return self._done_count >= target and self._dropped == dropped_before

    def close(self, timeout_s: float) -> bool:
        """Write what waits, then end the thread; the connection is closed by it.

        Returns:
            Whether the thread ended in time.
        """
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # ------------------------------------------------------------ the writing thread

    def _run(self) -> None:
        try:
            while self._one_round():
                pass
        finally:
            # However the thread ends, waiting rows are lost and new ones are refused.
            with self._wake:
                self._stopping = True
                lost = [*self._batch, *self._queue]
                self._queue.clear()
                if self._pending:
                    self._note_drop(lost, "the writing thread has ended")
                    self._pending = 0
            self._finish()

    def _one_round(self) -> bool:
        with self._wake:
            while not self._queue and not self._stopping:
                self._idle = True
                self._wake.wait()
            self._idle = False
            batch = self._batch = list(self._queue)
            self._queue.clear()
            stopping, everything = self._stopping, self._flush_to > self._done_count
        kept = self._commit(batch, everything=everything or stopping, may_retry=not stopping)
        with self._wake:
            self._batch = []
            if kept:
                self._queue.extendleft(reversed(batch))
            else:
                self._pending -= sum(entry.n_rows for entry in batch)
                self._done_count += len(batch)
                for entry in batch:
                    entry.done()
            self._wake.notify_all()
            if stopping:
                return False
            if self._flush_to <= self._done_count:
                self._wake.wait_for(
                    lambda: self._stopping or self._flush_to > self._done_count, _COMMIT_INTERVAL_S
                )
        return True

    def _commit(self, batch: list[_Waiting], *, everything: bool, may_retry: bool) -> bool:
        """Write a batch in one transaction; True when it is to be tried again."""
        begun = False
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            begun = True
            if self._in_outage:
                self._tell_of_drops()
            for entry in batch:
                self._write_one(entry)
            self._hooks.after_batch(self._connection, everything)
            if everything:
                self._tell_of_drops()
            self._connection.execute("COMMIT")
        except (sqlite3.Error, *_BAD_ROW) as error:
            busy = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY
            if busy and may_retry and not begun:
                # Another program holds the write lock (a shell, say): the rows can wait.
                return True
            self._rollback()
            if not self._in_outage:
                self._reason = self._hooks.reason_of(error)
            with self._wake:
                # Its notes of earlier ones are undone with it.
                self._untold, self._told = self._told.and_those(self._untold), Drops()
                self._note_drop(batch, self._reason, outage=True)
            return False
        self._told = Drops()
        if self._in_outage:
            self._in_outage = False
            logger.warning("ledger: writing again; %d rows were dropped", self._dropped)
        return False

    def _tell_of_drops(self) -> None:
        """Leave a note in the file of the rows that were dropped since the last one."""
        with self._wake:
            drops, self._untold = self._untold, Drops()
            self._told = self._told.and_those(drops)
        if drops.n_rows:
            self._hooks.lost(self._connection, drops)

    def _write_one(self, entry: _Waiting) -> None:
        try:
            entry.write(self._connection)
        except _BAD_ROW as error:
            with self._wake:
                self._note_drop([entry], f"a row cannot be stored: {error}")

    def _rollback(self) -> None:
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            logger.debug("ledger: roll-back failed: %s", error)
        self._hooks.rolled_back()

    def _note_drop(self, entries: Sequence[_Waiting], why: str, *, outage: bool = False) -> None:
        first = self._dropped == 0 or (outage and not self._in_outage)
        self._dropped += sum(entry.n_rows for entry in entries)
        self._untold = self._untold.and_those(Drops.of(entries, why))
        self._in_outage = self._in_outage or outage
        if first:
            logger.warning(
                "ledger: %s; %d rows dropped, the run goes on without them", why, self._dropped
            )

    def _finish(self) -> None:
        try:
            self._connection.execute("PRAGMA busy_timeout = 100")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            # Back to one plain file that can be copied or read from a read-only place. Refused
            # while a reader is there; the file is sound in WAL mode as well.
            self._connection.execute("PRAGMA journal_mode = DELETE")
        except sqlite3.Error as error:
            logger.debug("ledger: left in WAL mode: %s", error)
        try:
            self._connection.close()
        except sqlite3.Error as error:
            logger.debug("ledger: close failed: %s", error)
        if self._dropped:
            logger.warning("ledger: %d rows were dropped in all", self._dropped)
        with self._wake:
            self._wake.notify_all()


_NAMES = {
    "raw_sample": ("power reading", "power readings"),
    "execution": ("stage execution", "stage executions"),
    "placement": ("placement decision", "placement decisions"),
    "barrier": ("wait for offloaded rows", "waits for offloaded rows"),
    "fault": ("fault", "faults"),
    "metric": ("metric of the trainer", "metrics of the trainer"),
    "evaluation": ("evaluation", "evaluations"),
    "event": ("event", "events"),
    "checkpoint": ("checkpoint", "checkpoints"),
    "device": ("device", "devices"),
    "node": ("machine", "machines"),
    "edi": ("state of the EDI matrix", "states of the EDI matrix"),
    "intensity": ("carbon intensity", "carbon intensities"),
    "pue": ("PUE", "PUEs"),
    "gear_choice": ("decision about the training stage", "decisions about the training stage"),
}
"""What rows of a table are called, one and several."""


def told_drops(drops: Drops, *, now_unix_s: float, now_t_s: float) -> str:
    """Say which rows were dropped, how many, and from when to when.

    Args:
        drops: at least one row.
        now_unix_s: wall clock, s since 1970.
        now_t_s: monotonic time at the same instant, s.
    """
    n = drops.n_rows
    rows = "1 row" if n == 1 else f"{n} rows"
    were = "was" if n == 1 else "were"
    counts = sorted(drops.by_kind.items(), key=lambda item: (-item[1], item[0]))
    kinds = ", ".join(_counted(kind, count) for kind, count in counts)
    first, last = (
        datetime.fromtimestamp(now_unix_s - (now_t_s - t_s), UTC)
        for t_s in (drops.first_t_s, drops.last_t_s)
    )
    begin, end = f"{first:%Y-%m-%d %H:%M:%S}", f"{last:%Y-%m-%d %H:%M:%S}"
    if begin == end:
        span = f"of {begin} UTC"
    else:
        span = f"from {begin} to {end if first.date() != last.date() else end[11:]} UTC"
    return f"{rows} of the run's record {were} dropped ({drops.why}): {kinds}, {span}"


def _counted(kind: str, count: int) -> str:
    one, several = _NAMES.get(kind, ("other row", "other rows"))
    return f"{count} {one if count == 1 else several}"
