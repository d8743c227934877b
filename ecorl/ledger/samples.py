"""Stores power readings: as seconds, packed blocks, a ring of raw ones and a count of errors.

Used by the writing thread alone.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from ecorl.ledger.rollup import (
    BLOCK_SECONDS,
    HOLD_S,
    OpenReading,
    PowerRollup,
    SecondRow,
    pack_block,
)
from ecorl.records import PowerSample

# A second whose readings came in two parts is one row all the same.
_MERGE_SECOND = """
INSERT INTO power_second VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (attempt, series_id, second) DO UPDATE SET
  mean_mw = CASE WHEN excluded.mean_mw IS NULL THEN mean_mw
                 WHEN mean_mw IS NULL THEN excluded.mean_mw
                 ELSE (mean_mw * n + excluded.mean_mw * excluded.n) / (n + excluded.n) END,
  min_mw = coalesce(min(min_mw, excluded.min_mw), min_mw, excluded.min_mw),
  max_mw = coalesce(max(max_mw, excluded.max_mw), max_mw, excluded.max_mw),
  n = n + excluded.n, n_missing = n_missing + excluded.n_missing,
  held_us = held_us + excluded.held_us, held_mj = held_mj + excluded.held_mj,
  counted_us = counted_us + excluded.counted_us, counted_mj = counted_mj + excluded.counted_mj,
  alone_us = alone_us + excluded.alone_us, alone_mj = alone_mj + excluded.alone_mj,
  n_breaks = n_breaks + excluded.n_breaks
"""
_PUT_OPEN = "INSERT OR REPLACE INTO power_open VALUES (?, ?, ?, ?, ?, ?)"
_PUT_RAW = "INSERT OR REPLACE INTO raw_sample VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_PUT_ERROR = """
INSERT INTO sample_error VALUES (?, ?, ?, 1, ?, ?)
ON CONFLICT (attempt, series_id, error) DO UPDATE SET
  n = n + 1, last_t_s = max(last_t_s, excluded.last_t_s)
"""
SELECT_SECONDS = f"""
SELECT {", ".join(SecondRow._fields)}
FROM power_second WHERE attempt = ? AND series_id = ? ORDER BY second LIMIT ?
"""
"""`SecondRow` columns of one series, oldest first; -1 as the limit takes all."""


def seal(connection: sqlite3.Connection, attempt: int, series_id: int) -> None:
    """Pack the oldest plain seconds of one series into a block; at most `BLOCK_SECONDS` of them.

    Args:
        connection: with a transaction open.
        attempt: of the series.
        series_id: its key.

    Raises:
        sqlite3.Error: when the file cannot be written.
    """
    found = connection.execute(SELECT_SECONDS, (attempt, series_id, BLOCK_SECONDS))
    rows = [SecondRow(*row) for row in found]
    if not rows:
        return
    connection.execute(
        "INSERT INTO power_block (attempt, series_id, second_first, second_last, n_seconds, packed)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        (attempt, series_id, rows[0].second, rows[-1].second, len(rows), pack_block(rows)),
    )
    connection.execute(
        "DELETE FROM power_second WHERE attempt = ? AND series_id = ? AND second <= ?",
        (attempt, series_id, rows[-1].second),
    )


def seal_all(connection: sqlite3.Connection) -> None:
    """Pack all plain seconds of all attempts.

    Raises:
        sqlite3.Error: when the file cannot be written.
    """
    query = "SELECT attempt, series_id FROM power_second GROUP BY attempt, series_id"
    while pairs := connection.execute(query).fetchall():
        for attempt, series_id in pairs:
            seal(connection, attempt, series_id)


class _RingReading(NamedTuple):
    """A reading of the raw ring as a roll-up takes it."""

    t_s: float
    power_w: float | None
    energy_j: float | None
    error: str | None


class SampleStore:
    """Gathers readings and writes them.

    Args:
        attempt: the attempt that all readings belong to.
        raw_samples: length of the raw ring; 0 keeps none.
        next_seq: running number of the next raw reading (the ring goes on across attempts).
    """

    def __init__(self, attempt: int, raw_samples: int, next_seq: int) -> None:
        self._attempt = attempt
        self._raw_samples = raw_samples
        self._seq = next_seq
        self._series: dict[tuple[str, str, str], int] = {}
        self._rollups: dict[tuple[str, str, str], PowerRollup] = {}
        self._plain: dict[int, int] = {}
        self._hold_s = HOLD_S

    def go_on(self, connection: sqlite3.Connection) -> None:
        """Take up the series of the attempt, as an earlier writer that died has left them.

        What it did not come to roll up is rolled up and written, as far as the raw ring goes back;
        its newest readings stand on until the next ones. Their energy counters are forgotten: what
        counted may have begun anew, so no rise is counted from a reading of its to one of this
        writer's. Nothing is done for an attempt without readings.

        Args:
            connection: without a transaction.

        Raises:
            sqlite3.Error: when the file cannot be read or written.
            ValueError: when a reading in it is damaged.
        """
        mine = (self._attempt,)
        found = connection.execute("SELECT hold_s FROM attempt WHERE attempt = ?", mine).fetchone()
        opened = connection.execute(
            "SELECT series_id, t_s, power_w, energy_j, from_s FROM power_open WHERE attempt = ?",
            mine,
        )
        after = {series_id: OpenReading(*reading) for series_id, *reading in opened}
        ring: dict[int, list[_RingReading]] = defaultdict(list)
        for series_id, *reading in connection.execute(
            "SELECT series_id, t_s, power_w, energy_j, error FROM raw_sample WHERE attempt = ? "
            "ORDER BY t_s",
            mine,
        ):
            ring[series_id].append(_RingReading(*reading))
        if not after and not ring:
            return
        self._hold_s = float(found[0])
        connection.execute("BEGIN IMMEDIATE")
        series = connection.execute("SELECT id, device_id, provenance, source FROM series")
        for series_id, *key in series.fetchall():
            if series_id in after or series_id in ring:
                rollup = PowerRollup(self._hold_s, after.get(series_id))
                last = self._write_tail(connection, series_id, rollup, ring[series_id])
                self._rollups[key[0], key[1], key[2]] = PowerRollup(self._hold_s, last)
        connection.execute("COMMIT")

    def _write_tail(
        self,
        connection: sqlite3.Connection,
        series_id: int,
        rollup: PowerRollup,
        ring: Sequence[_RingReading],
    ) -> OpenReading | None:
        """Roll up what stands behind a series' seconds; its newest reading, without a counter."""
        before = rollup.open_reading()
        for reading in ring:
            if before is None or reading.t_s > before.t_s:
                rollup.add(reading)
        rows = rollup.take(everything=True)
        connection.executemany(_MERGE_SECOND, [(self._attempt, series_id, *row) for row in rows])
        last = rollup.open_reading()
        if last is None:
            return None
        last = last._replace(energy_j=None)
        connection.execute(_PUT_OPEN, (self._attempt, series_id, *last))
        sql = "SELECT count(*) FROM power_second WHERE attempt = ? AND series_id = ?"
        (self._plain[series_id],) = connection.execute(sql, (self._attempt, series_id)).fetchone()
        return last

    def hold(self, hold_s: float) -> None:
        """Let readings from here on stand for up to ``hold_s`` without a successor."""
        self._hold_s = hold_s
        for rollup in self._rollups.values():
            rollup.hold_s = hold_s

    def add(self, connection: sqlite3.Connection, samples: Sequence[PowerSample]) -> None:
        """Add readings: ring and errors go to the file at once, seconds when they are over.

        Args:
            connection: with a transaction open.
            samples: readings of any devices, in the order of time.
        """
        ring = []
        for sample in samples:
            key = (str(sample.device_id), str(sample.provenance), str(sample.source))
            if key not in self._rollups:
                self._rollups[key] = PowerRollup(self._hold_s)
            self._rollups[key].add(sample)
            series_id = self._series_id(connection, key)
            t_s = float(sample.t_s)
            if sample.error is not None:
                error_row = (self._attempt, series_id, str(sample.error), t_s, t_s)
                connection.execute(_PUT_ERROR, error_row)
            if self._raw_samples:
                readings = (sample.power_w, sample.energy_j, sample.utilisation)
                plain = (None if x is None else float(x) for x in readings)
                slot = self._seq % self._raw_samples
                ring.append((slot, self._seq, self._attempt, series_id, t_s, *plain, sample.error))
                self._seq += 1
        connection.executemany(_PUT_RAW, ring)

    def write_seconds(self, connection: sqlite3.Connection, everything: bool) -> None:
        """Write the seconds that are over, and pack stretches that have grown long enough.

        Args:
            connection: with a transaction open.
            everything: whether the second that runs is written as well.
        """
        for key, rollup in self._rollups.items():
            rows = rollup.take(everything=everything)
            if not rows:
                continue
            series_id = self._series_id(connection, key)
            connection.executemany(
                _MERGE_SECOND, [(self._attempt, series_id, *row) for row in rows]
            )
            reading = rollup.open_reading()
            if reading is not None:
                connection.execute(_PUT_OPEN, (self._attempt, series_id, *reading))
            count = self._plain.get(series_id, 0) + len(rows)
            while count >= 2 * BLOCK_SECONDS:
                # The newest stretch stays plain: its last second may still get late readings.
                seal(connection, self._attempt, series_id)
                count -= BLOCK_SECONDS
            self._plain[series_id] = count

    def forget_series(self) -> None:
        """Ids that a rolled-back transaction had given out are void."""
        self._series.clear()

    def _series_id(self, connection: sqlite3.Connection, key: tuple[str, str, str]) -> int:
        if key not in self._series:
            connection.execute(
                "INSERT OR IGNORE INTO series (device_id, provenance, source) VALUES (?, ?, ?)", key
            )
            (series_id,) = connection.execute(
                "SELECT id FROM series WHERE device_id = ? AND provenance = ? AND source = ?", key
            ).fetchone()
            self._series[key] = int(series_id)
        return self._series[key]
