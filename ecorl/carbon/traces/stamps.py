"""What a column of times says: dates of ISO 8601, or numbers for them, of begins or of ends."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from ecorl.carbon.traces.labels import Label, label_of, says_begin
from ecorl.carbon.traces.table import CsvTable

_EXPECTED = "2022-01-31 23:00:00+00:00, YYYYMMDDHH or YYYYMMDDHHMM, or seconds or ms since 1970"
_UTC = re.compile(r"(?<![a-z])(utc|gmt)(?![a-z])", re.IGNORECASE)
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
_HOUR_24 = re.compile(r"^(\d{4}-?\d\d-?\d\d[ T])24((?::?00)*([Z+ -].*)?)$")
_OTHER_FORMS = {
    re.compile(pattern, re.IGNORECASE): name
    for pattern, name in (
        (r"(he *)?\d{1,2}", "the number of an hour without its date"),
        (r"[34568]\d{4}([.,]\d+)?", "a spreadsheet's serial number of a day"),
        (r"24[4-6]\d{4}([.,]\d+)?", "a Julian day number"),
        (r"\d{4}-?[0-3]\d\d(\D.*)?", "an ordinal date, YYYYDDD"),
        (r"\d+([.,]\d+)?e\+?\d+", "a number whose last digits a spreadsheet has cut off"),
        (r"\d\d?[./-]\d\d?[./-]\d{2,4}(\D+[\d:]+( *[ap]m)?)?", "a date with day or month first"),
        (r"\d{4}[./]\d\d?[./]\d\d?(\D.*)?", "a date without hyphens"),
        (r".*\d:\d\d.*(-|\u2013|/|\.\.|to|bis).*\d:\d\d.*|.{8,}/.{8,}", "both ends of an interval"),
    )
}


@dataclass(frozen=True, slots=True)
class Times:
    """When the rows of a file begin or end.

    Attributes:
        seconds: ``[n_rows] float64``, s since 1970.
        are_local: whether the file says neither an offset nor that it means UTC.
        are_ends: whether they are ends of the rows' intervals.
        form: that numbers were taken for, as YYYYMMDDHH; None where the file says it.
        is_guess: whether the numbers may be something else than the form that they fit.
    """

    seconds: NDArray[np.float64]
    are_local: bool
    are_ends: bool = False
    form: str | None = None
    is_guess: bool = False


def read_times(table: CsvTable, column: int) -> Times:
    """The times in a column: ISO 8601, with an offset or without one, or numbers, all of one form.

    Args:
        table: the file.
        column: number of its column with times.

    Raises:
        DataError: when a cell is no time, with the name of its form where it is a known one; when
            some have an offset and others do not; and when the name of the column leaves open
            whether they are begins or ends, or says begins of what has an hour 24.
    """
    cells = table.cells(column)
    name = table.columns[column] if table.has_header else ""
    if not all(_NUMBER.fullmatch(cell) for cell in cells):
        times = _dates(table, column, _iso, None)
    elif _UNIX_NAME.search(name):
        times = _unix(table, column, is_guess=False)
    else:
        # Digits of a date are no chance: up to 2032 no seconds since 1970 are.
        first = next((cell for cell in cells if _compact(cell)), None)
        if first is None:
            times = _unix(table, column, is_guess=True)
        else:
            times = _dates(table, column, _compact, _COMPACT_FORMS[_n_digits(first)])
    label = label_of(name)
    if label is Label.UNCLEAR:
        why = (
            "may name begins of intervals or their ends, which are a step apart; name the column"
            " period_start or period_end"
        )
        raise table.header_mistake(column, why)
    if times.are_ends and says_begin(name):
        why = "names begins of intervals, but only ends have an hour 24, as the column does"
        raise table.header_mistake(column, why)
    return replace(
        times,
        are_local=times.are_local and not _UTC.search(name),
        are_ends=times.are_ends or label is Label.END,
    )


def _dates(
    table: CsvTable,
    column: int,
    read: Callable[[str], tuple[datetime, bool] | None],
    form: str | None,
) -> Times:
    cells = table.cells(column)
    seconds, is_local = np.empty(len(cells), np.float64), np.zeros(len(cells), np.bool_)
    are_ends = False
    for row, cell in enumerate(cells):
        found = read(cell)
        if form is not None and (found is None or _n_digits(cell) != len(form)):
            raise table.mistake(row, column, f"is no time in the form {form} of other rows")
        if found is None:
            raise table.mistake(row, column, _no_time(cell))
        moment, is_24 = found
        # Ends of intervals alone have an hour 24.
        are_ends |= is_24
        is_local[row] = moment.tzinfo is None
        seconds[row] = (
            moment.timestamp() if moment.tzinfo else moment.replace(tzinfo=UTC).timestamp()
        )
    if is_local.any() and not is_local.all():
        row = int(np.flatnonzero(is_local != is_local[0])[0])
        raise table.mistake(row, column, "some times of the column have an offset, others do not")
    return Times(seconds, bool(is_local[0]), are_ends, form)


def _iso(cell: str) -> tuple[datetime, bool] | None:
    """The moment of a cell in ISO 8601, and whether its hour is 24."""
    plain, is_24 = _HOUR_24.subn(r"\g<1>00\g<2>", cell)
    # Python takes any character for the blank between date and time, a digit too.
    if re.match(r"\d{9}", cell):
        return None
    try:
        return datetime.fromisoformat(plain) + timedelta(days=is_24), bool(is_24)
    except (ValueError, OverflowError):
        return None


def _compact(cell: str) -> tuple[datetime, bool] | None:
    """The moment that digits of a date and perhaps a time name, and whether its hour is 24."""
    found = _COMPACT.fullmatch(cell)
    if found is None:
        return None
    year, month, day, hour, minute, second = (int(part or 0) for part in found.groups())
    is_24 = (hour, minute, second) == (24, 0, 0)
    try:
        moment = datetime(year, month, day, 0 if is_24 else hour, minute, second)
    except ValueError:
        return None
    return (moment + timedelta(days=is_24), is_24) if year in _COMPACT_YEARS else None


def _unix(table: CsvTable, column: int, *, is_guess: bool) -> Times:
    cells, form = table.cells(column), None
    seconds = np.empty(len(cells), np.float64)
    for row, cell in enumerate(cells):
        found, per_s = _UNIX_FORMS.get(_n_digits(cell), (None, 1.0))
        if found is None:
            raise table.mistake(row, column, _no_time(cell))
        if found != (form := form or found):
            raise table.mistake(row, column, f"is no time in the form of other rows, {form}")
        seconds[row] = float(cell.replace(",", ".")) / per_s
    return Times(seconds, False, form=form if is_guess else None, is_guess=is_guess)


def _n_digits(number: str) -> int:
    return len(re.split("[.,]", number)[0])


def _no_time(cell: str) -> str:
    name = next((name for form, name in _OTHER_FORMS.items() if form.fullmatch(cell)), None)
    looks = f" (it looks like {name})" if name else ""
    return f"is no time in the form {_EXPECTED}{looks}"
