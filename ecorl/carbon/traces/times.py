"""The times of a file's rows: what they mean, and the equal intervals that they make."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from ecorl.carbon.traces.table import CsvTable
from ecorl.carbon.traces.trace import Repair

MAX_MISSING = 0.5
"""Largest share of the intervals that may be missing between the rows: of a file with more gaps
than rows, a wrong date is likelier than a recording."""

_UNIX = re.compile(r"\d{9,10}(\.\d*)?")
_UTC = re.compile(r"(?<![a-z])(utc|gmt)(?![a-z])", re.IGNORECASE)
_CLOCK_CHANGE_MONTHS = frozenset({3, 4, 9, 10, 11})
_SUNDAY = 6


@dataclass(frozen=True, slots=True)
class Times:
    """When the rows of a file begin.

    Attributes:
        seconds: ``[n_rows] float64``, s since 1970.
        are_local: whether the file says neither an offset nor that it means UTC.
    """

    seconds: NDArray[np.float64]
    are_local: bool


@dataclass(frozen=True, slots=True)
class Raster:
    """The equal intervals that rows make, in the order of time.

    Attributes:
        start_s: begin of the first, s since 1970.
        step_s: length of each, s.
        rows: ``[n] int64``, number of the row of each interval, -1 for one that has none.
        repairs: what was changed to get there.
    """

    start_s: float
    step_s: float
    rows: NDArray[np.int64]
    repairs: tuple[Repair, ...]

    def place(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Values of rows as values of intervals, NaN where an interval has no row.

        Args:
            values: ``[n_rows] float64``.
        """
        return np.where(self.rows < 0, np.nan, values[self.rows])


def read_times(table: CsvTable, column: int) -> Times:
    """The times in a column: ISO 8601, with an offset or without one, or seconds since 1970.

    Args:
        table: the file.
        column: number of its column with times.

    Raises:
        DataError: when a cell is no time, or some have an offset and others do not.
    """
    cells = table.cells(column)
    seconds = np.empty(len(cells), np.float64)
    is_local = np.zeros(len(cells), np.bool_)
    for row, cell in enumerate(cells):
        if _UNIX.fullmatch(cell):
            seconds[row] = float(cell)
            continue
        try:
            moment = datetime.fromisoformat(cell)
        except ValueError as error:
            why = "is no time in the form 2022-01-31 23:00:00+00:00, nor seconds since 1970"
            raise table.mistake(row, column, why) from error
        if moment.tzinfo is None:
            is_local[row] = True
            moment = moment.replace(tzinfo=UTC)
        seconds[row] = moment.timestamp()
    if is_local.any() and not is_local.all():
        row = int(np.flatnonzero(is_local != is_local[0])[0])
        raise table.mistake(row, column, "some times of the column have an offset, others do not")
    says_utc = table.has_header and _UTC.search(table.columns[column]) is not None
    return Times(seconds, bool(is_local[0]) and not says_utc)


def lay_out(
    table: CsvTable, column: int, times: Times, figures: Sequence[tuple[int, NDArray[np.float64]]]
) -> Raster:
    """Sort rows, drop those that are there twice, and fill gaps with intervals without a row.

    Args:
        table: the file.
        column: number of its column with times.
        times: of its rows.
        figures: number and values of each column that a row must share with another one of the
            same time to be the same row.

    Raises:
        DataError: for rows that contradict each other, times that may mean two moments, steps that
            are no multiple of the usual one, and files with hardly any rows.
    """
    repairs = []
    name, seconds = table.columns[column], times.seconds
    if times.are_local:
        what = "the times have no offset from UTC and were taken as UTC"
        repairs.append(Repair(table.lines[0], name, what))
    backwards = np.flatnonzero(np.diff(seconds) < 0) + 1
    if len(backwards):
        what = f"the rows are not in the order of time ({len(backwards)} go back) and were sorted"
        repairs.append(Repair(table.lines[int(backwards[0])], name, what))
    order, dropped = _without_doubles(table, column, times, figures)
    repairs += dropped
    if len(order) < 2:
        raise table.mistake(0, column, "is the only time; at least two are needed")
    step_s, positions = _positions(table, column, seconds, order)
    repairs += _gaps(table, column, times, order, positions)
    rows = np.full(int(positions[-1]) + 1, -1, np.int64)
    rows[positions] = order
    return Raster(float(seconds[order[0]]), step_s, rows, tuple(repairs))


def _without_doubles(
    table: CsvTable,
    column: int,
    times: Times,
    figures: Sequence[tuple[int, NDArray[np.float64]]],
) -> tuple[NDArray[np.int64], list[Repair]]:
    """Numbers of the rows by their time, each time once; and what was dropped."""
    seconds = times.seconds
    n_missing = np.sum([np.isnan(values) for _, values in figures], axis=0)
    # Of rows of one time, the one that lacks least comes first.
    order: NDArray[np.int64] = np.lexsort((np.arange(len(seconds)), n_missing, seconds))
    is_double = np.concatenate([[False], np.diff(seconds[order]) == 0])
    repairs: list[Repair] = []
    kept = 0
    for position in np.flatnonzero(is_double).tolist():
        row = int(order[position])
        kept = int(order[position - 1]) if not is_double[position - 1] else kept
        for number, values in figures:
            if not np.isnan(values[row]) and values[row] != values[kept]:
                later, sooner = max(row, kept), min(row, kept)
                raise table.mistake(later, number, _contradiction(table, column, sooner, times))
        if times.are_local and _may_be_clock_change(seconds[row]):
            why = (
                f"is on line {table.lines[min(row, kept)]} too: ambiguous, since summer time may"
                " end here; give the times with their offset from UTC"
            )
            raise table.mistake(max(row, kept), column, why)
        line = table.lines[kept]
        what = f"the row says the same of its time as line {line}, and was dropped"
        repairs.append(Repair(table.lines[row], table.columns[column], what))
    return order[~is_double], repairs


def _contradiction(table: CsvTable, column: int, sooner: int, times: Times) -> str:
    time, line = table.rows[sooner][column].strip(), table.lines[sooner]
    why = f"line {line} has another value for the same time, {time}"
    if times.are_local:
        why += "; ambiguous where summer time ends: give the times with their offset from UTC"
    return why


def _positions(
    table: CsvTable, column: int, seconds: NDArray[np.float64], order: NDArray[np.int64]
) -> tuple[float, NDArray[np.int64]]:
    """The usual step, and for each row in the order of time the number of its interval."""
    steps_s, counts = np.unique(np.diff(seconds[order]), return_counts=True)
    step_s = float(steps_s[np.argmax(counts)])
    offsets = (seconds[order] - seconds[order[0]]) / step_s
    numbers = np.diff(np.rint(offsets))
    is_crooked = np.abs(offsets - np.rint(offsets))[1:] > 1e-3
    crooked = np.flatnonzero(is_crooked | (numbers < 1))
    if len(crooked):
        row, before = int(order[crooked[0] + 1]), int(order[crooked[0]])
        passed_s = seconds[row] - seconds[before]
        why = (
            f"is {passed_s:g} s after the time before it (line {table.lines[before]}), which is"
            f" no multiple of the usual step of {step_s:g} s"
        )
        raise table.mistake(row, column, why)
    n_missing = float(numbers.sum()) + 1 - len(order)
    if n_missing > MAX_MISSING * (len(order) + n_missing):
        widest = int(np.argmax(numbers))
        why = (
            f"is {numbers[widest]:.0f} steps of {step_s:g} s after the time before it (line"
            f" {table.lines[int(order[widest])]}); more than half of the intervals would be missing"
        )
        raise table.mistake(int(order[widest + 1]), column, why)
    return step_s, np.concatenate([[0], np.cumsum(numbers)]).astype(np.int64)


def _gaps(
    table: CsvTable,
    column: int,
    times: Times,
    order: NDArray[np.int64],
    positions: NDArray[np.int64],
) -> list[Repair]:
    repairs = []
    for number in np.flatnonzero(np.diff(positions) > 1).tolist():
        row, before = int(order[number + 1]), int(order[number])
        passed_s = float(times.seconds[row] - times.seconds[before])
        n_missing = int(positions[number + 1] - positions[number]) - 1
        missing_s = passed_s * n_missing / (n_missing + 1)
        begin_s = times.seconds[row] - missing_s
        if times.are_local and missing_s == 3600 and _may_be_clock_change(begin_s):
            why = (
                "comes an hour late: ambiguous, since summer time may begin here; give the times"
                " with their offset from UTC"
            )
            raise table.mistake(row, column, why)
        plural = "interval is" if n_missing == 1 else "intervals are"
        what = f"{n_missing} {plural} not there before this row, and became missing"
        repairs.append(Repair(table.lines[row], table.columns[column], what))
    return repairs


def _may_be_clock_change(local_s: float) -> bool:
    """Whether clocks may be changed in the hour that begins at a local time.

    Nearly all countries that do change them do it in the first hours of a Sunday, of a month of
    spring or autumn.
    """
    moment = datetime(1970, 1, 1) + timedelta(seconds=float(local_s))
    is_month = moment.month in _CLOCK_CHANGE_MONTHS
    return is_month and moment.weekday() == _SUNDAY and moment.hour < 4
