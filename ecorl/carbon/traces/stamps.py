"""The cells of a column of times: dates of ISO 8601, and the numbers that stand for a time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from ecorl.carbon.traces.table import CsvTable

EXPECTED = (
    "2022-01-31 23:00:00+00:00, nor YYYYMMDDHH or YYYYMMDDHHMM, nor seconds or milliseconds"
    " since 1970"
)

_NUMBER = re.compile(r"\d+([.,]\d*)?")
_COMPACT = re.compile(r"(\d{4})(\d\d)(\d\d)(?:(\d\d)(?:(\d\d)(\d\d)?)?)?(?:[.,]0*)?")
_COMPACT_FORMS = {n: "YYYYMMDDHHMMSS"[:n] for n in (8, 10, 12, 14)}
_COMPACT_YEARS = range(1970, 2100)
_UNIX_FORMS = {
    n_digits: (f"{unit} since 1970", 10.0**power)
    for unit, power in (
        ("seconds", 0),
        ("milliseconds", 3),
        ("microseconds", 6),
        ("nanoseconds", 9),
    )
    for n_digits in (9 + power, 10 + power)
}
"""What a number of so many digits before its point counts, and how many of it make a second."""

_UNIX_NAME = re.compile(r"(?<![a-z])(unix|epoch|posix)|since 1970", re.IGNORECASE)
_HOUR_24 = re.compile(r"(\d{4}-?\d\d-?\d\d[ T])24((?::?00){0,2}(?:\D.*)?)")
_OTHER_FORMS = {
    re.compile(pattern, re.IGNORECASE): name
    for pattern, name in (
        (r"(he *)?\d{1,2}", "the number of an hour without its date"),
        (r"[34568]\d{4}([.,]\d+)?", "a spreadsheet's serial number of a day"),
        (r"24[4-6]\d{4}([.,]\d+)?", "a Julian day number"),
        (r"\d{4}-?[0-3]\d\d(\D.*)?", "an ordinal date, YYYYDDD"),
        (r"\d+([.,]\d+)?e\+?\d+", "a number whose last digits a spreadsheet has cut off"),
        (
            r"\d\d?[./-]\d\d?[./-]\d{2,4}(\D+[\d:]+( *[ap]m)?)?",
            "a date that begins with day or month",
        ),
        (r"\d{4}[./]\d\d?[./]\d\d?(\D.*)?", "a date without hyphens"),
        (r".*\d *(-|\u2013|/|\.\.|to|bis) *\d.*\d:\d\d.*|.{8,}/.{8,}", "both ends of an interval"),
    )
}


@dataclass(frozen=True, slots=True)
class Stamps:
    """What the cells of a column say.

    Attributes:
        seconds: ``[n_rows] float64``, s since 1970.
        is_local: ``[n_rows] bool``, whether the cell has no offset from UTC.
        form: that numbers were taken for, as YYYYMMDDHH; None where the file says it.
        is_guess: whether the numbers may be something else than the form that they fit.
        has_hour_24: whether an hour 24 is among them, as only ends of intervals have it.
    """

    seconds: NDArray[np.float64]
    is_local: NDArray[np.bool_]
    form: str | None = None
    is_guess: bool = False
    has_hour_24: bool = False


def read_stamps(table: CsvTable, column: int) -> Stamps:
    """Read the cells of a column of times, all of one form.

    Args:
        table: the file.
        column: number of the column.

    Raises:
        DataError: for a cell that is no time, with the name of its form where it is a known one.
    """
    cells = table.cells(column)
    if not all(_NUMBER.fullmatch(cell) for cell in cells):
        return _dates(table, column, cells)
    moments = [_compact(cell) for cell in cells]
    is_unix = table.has_header and _UNIX_NAME.search(table.columns[column]) is not None
    # Digits of a date are no chance: up to 2032 no seconds since 1970 are.
    if any(moments) and not is_unix:
        return _compacts(table, column, cells, moments)
    return _unix(table, column, cells, is_guess=not is_unix)


def _dates(table: CsvTable, column: int, cells: list[str]) -> Stamps:
    seconds = np.empty(len(cells), np.float64)
    is_local = np.zeros(len(cells), np.bool_)
    has_hour_24 = False
    for row, cell in enumerate(cells):
        plain, is_24 = _HOUR_24.subn(r"\g<1>00\g<2>", cell)
        has_hour_24 |= is_24 > 0
        try:
            # Any character would do for the blank between date and time, a digit too.
            if re.match(r"\d{9}", cell):
                raise ValueError(cell)
            moment = datetime.fromisoformat(plain) + timedelta(days=is_24)
        except (ValueError, OverflowError) as error:
            raise table.mistake(row, column, _no_time(cell)) from error
        is_local[row] = moment.tzinfo is None
        seconds[row] = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return Stamps(seconds, is_local, has_hour_24=has_hour_24)


def _compacts(
    table: CsvTable, column: int, cells: list[str], moments: list[tuple[datetime, bool] | None]
) -> Stamps:
    first = next(cell for cell, moment in zip(cells, moments, strict=True) if moment)
    form = _COMPACT_FORMS[_n_digits(first)]
    seconds, has_hour_24 = np.empty(len(cells), np.float64), False
    for row, (cell, moment) in enumerate(zip(cells, moments, strict=True)):
        if moment is None or _n_digits(cell) != len(form):
            raise table.mistake(row, column, f"is no time in the form {form} of other rows")
        seconds[row] = moment[0].timestamp()
        has_hour_24 |= moment[1]
    return Stamps(seconds, np.ones(len(cells), np.bool_), form, has_hour_24=has_hour_24)


def _compact(cell: str) -> tuple[datetime, bool] | None:
    """The moment that digits of a date and perhaps a time name, and whether its hour is 24."""
    found = _COMPACT.fullmatch(cell)
    if found is None:
        return None
    year, month, day, hour, minute, second = (int(part or 0) for part in found.groups())
    is_24 = (hour, minute, second) == (24, 0, 0)
    try:
        moment = datetime(year, month, day, 0 if is_24 else hour, minute, second, tzinfo=UTC)
    except ValueError:
        return None
    return (moment + timedelta(days=is_24), is_24) if year in _COMPACT_YEARS else None


def _unix(table: CsvTable, column: int, cells: list[str], *, is_guess: bool) -> Stamps:
    seconds, forms = np.empty(len(cells), np.float64), set()
    for row, cell in enumerate(cells):
        form, per_s = _UNIX_FORMS.get(_n_digits(cell), (None, 1.0))
        if form is None:
            raise table.mistake(row, column, _no_time(cell))
        forms.add(form)
        if len(forms) > 1:
            raise table.mistake(row, column, f"is no time in the form of other rows, {forms}")
        seconds[row] = float(cell.replace(",", ".")) / per_s
    form = forms.pop() if is_guess else None
    return Stamps(seconds, np.zeros(len(cells), np.bool_), form, is_guess)


def _n_digits(number: str) -> int:
    return len(re.split("[.,]", number)[0])


def _no_time(cell: str) -> str:
    name = next((name for form, name in _OTHER_FORMS.items() if form.fullmatch(cell)), None)
    looks = f" (it looks like {name})" if name else ""
    return f"is no time in the form {EXPECTED}{looks}"
