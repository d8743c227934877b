"""The equal intervals that the times of a file's rows make."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from ecorl.carbon.series import FloatArray
from ecorl.carbon.traces.stamps import Times, read_times
from ecorl.carbon.traces.table import CsvTable
from ecorl.carbon.traces.trace import Repair

MAX_MISSING = 0.5
"""Largest share of the intervals that may be missing between the rows: of a file with more gaps
than rows, a wrong date is likelier than a recording."""

_CLOCK_CHANGE_MONTHS = frozenset({3, 4, 9, 10, 11})
_SUNDAY = 6
_DAY_S, _MINUTE_S = 86400.0, 60.0


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

    def place(self, values: FloatArray) -> FloatArray:
        """Values of rows as values of intervals, NaN where an interval has no row.

        Args:
            values: ``[n_rows] float64``.
        """
        return np.where(self.rows < 0, np.nan, values[self.rows])


def lay_out(
    table: CsvTable, column: int, times: Times, figures: Sequence[tuple[int, FloatArray]]
) -> Raster:
    """Sort rows, drop those that are there twice, and fill gaps with intervals without a row.

    Times that are ends are moved back by a step.

    Args:
        table: the file.
        column: number of its column with times.
        times: of its rows.
        figures: number and values of each column that a row must share with another one of the
            same time to be the same row.

    Raises:
        DataError: for rows that contradict each other, times that may mean two moments, steps that
            are no multiple of the usual one, files with hardly any rows, and those whose times are
            hardly a recording's.
    """
    repairs = []
    name, seconds = table.columns[column], times.seconds
    if times.form is not None:
        what = f"the times are read as {times.form}, the first as {_utc_text(seconds[0])}"
        repairs.append(Repair(table.lines[0], name, what))
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
    repairs += _questions(table, column, times, order)
    step_s, positions = _positions(table, column, seconds, order)
    shift_s = step_s if times.are_ends else 0.0
    if times.are_ends:
        what = f"the times are ends of intervals, and were moved back by a step of {step_s:g} s"
        repairs.append(Repair(table.lines[0], name, what))
    repairs += _gaps(table, column, times, order, positions)
    rows = np.full(int(positions[-1]) + 1, -1, np.int64)
    rows[positions] = order
    return Raster(float(seconds[order[0]]) - shift_s, step_s, rows, tuple(repairs))


def check_pairs(table: CsvTable, column: int, begins: Times, step_s: float) -> None:
    """Check that the ends beside the begins of intervals are theirs.

    The last second or minute of an interval counts as its end too.

    Args:
        table: the file.
        column: number of the column with the ends.
        begins: times of the rows.
        step_s: length of the intervals, s.

    Raises:
        DataError: for an end that is no time, or that of another interval.
    """
    lengths_s = read_times(table, column).seconds - begins.seconds
    is_wrong = (lengths_s < step_s - _MINUTE_S) | (lengths_s > step_s) | (lengths_s <= 0)
    for row in np.flatnonzero(is_wrong):
        why = f"is {lengths_s[row]:g} s after the row's begin, and rows are {step_s:g} s apart"
        raise table.mistake(int(row), column, why)


def _questions(
    table: CsvTable, column: int, times: Times, order: NDArray[np.int64]
) -> list[Repair]:
    """What is said of a recording that lies in the future or is too fine for a grid.

    Raises:
        DataError: where other figures than times are likelier.
    """
    n_rows, seconds = len(order), times.seconds[order]
    span_s = float(seconds[-1] - seconds[0]) * n_rows / (n_rows - 1)
    is_future, is_fine = seconds[-1] > time.time(), np.median(np.diff(seconds)) < _MINUTE_S
    doubts = [
        doubt
        for doubt, is_so in (
            ("is shorter than a day", span_s < _DAY_S),
            ("lies in the future", is_future),
            ("has rows less than a minute apart, as no grid has", is_fine),
        )
        if is_so
    ]
    what = (
        f"the recording, {n_rows} rows in {span_s:,.0f} s from {_utc_text(seconds[0])} UTC on,"
        f" {' and '.join(doubts)}"
    )
    row = int(order[0])
    if doubts and times.is_guess:
        why = (
            f"read as {times.form}, {what}; if that is meant, call the column unix_time, and"
            " otherwise give times as 2022-01-31 23:00:00+00:00 or YYYYMMDDHH"
        )
        raise table.mistake(row, column, why)
    # Dates are taken at their word: those of a forecast or a scenario lie in the future.
    told = Repair(table.lines[row], table.columns[column], f"{what}, and was taken at its word")
    return [told] if is_future or is_fine else []


def _utc_text(seconds: float) -> str:
    return f"{datetime(1970, 1, 1) + timedelta(seconds=round(float(seconds)))}"


def _without_doubles(
    table: CsvTable, column: int, times: Times, figures: Sequence[tuple[int, FloatArray]]
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
        if times.are_local and _may_be_clock_change(seconds[row], times.are_ends):
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
    table: CsvTable, column: int, seconds: FloatArray, order: NDArray[np.int64]
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
        if (
            times.are_local
            and missing_s == 3600
            and (_may_be_clock_change(begin_s, times.are_ends))
        ):
            why = (
                "comes an hour late: ambiguous, since summer time may begin here; give the times"
                " with their offset from UTC"
            )
            raise table.mistake(row, column, why)
        plural = "interval is" if n_missing == 1 else "intervals are"
        what = f"{n_missing} {plural} not there before this row, and became missing"
        repairs.append(Repair(table.lines[row], table.columns[column], what))
    return repairs


def _may_be_clock_change(local_s: float, is_end: bool) -> bool:
    """Whether clocks may be changed in the hour that begins, or ends, at a local time.

    Nearly all countries that do change them do it in the first hours of a Sunday, of a month of
    spring or autumn.
    """
    moment = datetime(1970, 1, 1) + timedelta(seconds=float(local_s))
    is_month = moment.month in _CLOCK_CHANGE_MONTHS
    return is_month and moment.weekday() == _SUNDAY and moment.hour < 4 + is_end
