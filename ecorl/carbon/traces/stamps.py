"""What a column of times says: dates of ISO 8601, or numbers for them, of begins or of ends."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum

import numpy as np

from ecorl.carbon.series import FloatArray
from ecorl.carbon.traces.table import CsvTable


class Label(StrEnum):
    """What times label."""

    BEGIN = "begin"
    END = "end"
    UNCLEAR = "unclear"


def label_of(name: str, *, is_paired: bool = False) -> Label:
    """What the times under a name label: begins of intervals, as nearly all do, unless it says so.

    Words of the languages that grid data is exported in count, also run together with what they
    are about (HourEnding, INTERVALENDTIME_GMT, Stundenende), and without their accents.

    Args:
        name: of the column.
        is_paired: whether it stands beside another column of times, where a mere "a" is an end too.
    """
    words = _name_words(name)
    is_begin = says_begin(name)
    is_end = any(_ENDS.fullmatch(word) for word in words) or _holds(name, _END_SIGNS)
    short_ends = _SHORT_ENDS | _SHORT_ENDS_OF_PAIRS if is_paired else _SHORT_ENDS
    is_end = is_end or _ends_shortly([word for word in words if word not in _ZONES], short_ends)
    if is_begin == is_end:
        is_period = any(_PERIODS.fullmatch(word) for word in words)
        return Label.UNCLEAR if is_end or is_period else Label.BEGIN
    return Label.END if is_end else Label.BEGIN


def says_begin(name: str) -> bool:
    """Whether a name itself says that times are begins, as `period_start` does and `time` does not.

    Args:
        name: of the column.
    """
    is_begin = any(_BEGINS.fullmatch(word) for word in _name_words(name))
    return is_begin or _holds(name, _BEGIN_SIGNS)


def _name_words(name: str) -> list[str]:
    return _words(re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name))


def _ends_shortly(words: list[str], short_ends: frozenset[str]) -> bool:
    """Whether a short word for an end begins or closes a name, as in "valid to" and "to date".

    Elsewhere it may be an article, or the "to" of "converted to UTC".
    """
    words = " ".join(_RUN_TOGETHER.sub(r"\1 \2", word) for word in words).split()
    if not words or not {words[0], words[-1]} & short_ends:
        return False
    rest = [word for word in words if word not in short_ends]
    return all(_ABOUT.fullmatch(word) or _BEGINS.fullmatch(word) for word in rest)


def _folded(text: str) -> str:
    """A text in one case and without accents."""
    parts = unicodedata.normalize("NFKD", text.casefold())
    return "".join(part for part in parts if not unicodedata.combining(part))


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W\d_]+", _folded(text))


def _any(text: str) -> str:
    """A pattern for the words of a text, the longest first."""
    return "|".join(sorted(_words(text), key=len, reverse=True))


def _holds(name: str, signs: str) -> bool:
    """Whether a name holds one of the signs, of scripts without blanks and of abbreviations."""
    return any(_folded(sign) in _folded(name) for sign in signs.split())


# What is said to begin or to end: words that may stand before or behind the ones that count.
_ABOUT_WORDS = _any(
    """
    at of the and in on hour hours hourly hr hrs min quarter date dates day time times stamp
    timestamp ts datetime utc gmt local valid market mkt mtu slot period interval
    datum zeit uhrzeit zeitpunkt zeitstempel zeitraum stunde stunden intervall periode perioden
    heure horaire horodatage horodate jour de la le du fecha hora dia el data ora giorno periodo
    intervallo intervalo intervalle tijd tijdstip uur het van czas godzina okres okresu tid
    tidspunkt klokkeslett dato time timme timma aika tunti cas hodina interval vreme sat kell laiks
    laikas время час дата дата периода интервала ωρα
    """
)
_ABOUT = re.compile(_ABOUT_WORDS)


def _compounds(words: str) -> re.Pattern[str]:
    about = rf"(?:(?:{_ABOUT_WORDS})(?:{_ABOUT_WORDS})?s?)?"
    return re.compile(rf"{about}(?:{_any(words)})s?(?:{_ABOUT_WORDS})?(?:{_ABOUT_WORDS})?")


_ENDS = _compounds(
    """
    end ends ended ending tend heending he until till thru through upto finish stop tstop bis ende
    endet jusqu jusque fin fino hasta termina termino termine fim ate tot eind einde eindigt koniec
    konca zakonczenia zakonczenie slut slutt slutter slutar til indtil inntil loppu loppuu paattyy
    asti saakka konec vege veg sfarsit pana τελος εως ληξη bitis kadar lopp kuni beigas lidz pabaiga
    iki до конец окончание окончания кінець закінчення
    """
)
_BEGINS = _compounds(
    """
    start starts started starting begin begins beginning from since von ab beginn anfang debut
    depuis inicio desde inizio dal dalle vanaf aanvang od poczatek poczatku zacatek zaciatok
    pocetak fra fran alku alkaa alkaen kezdete inceput αρχη εναρξη απο baslangic algus sakums
    pradzia от начало початок
    """
)
_PERIODS = re.compile(
    _any(
        """
        period interval slot mtu settlement settlementdate zeitraum periode periodo intervalle
        intervallo intervalo intervall okres
        """
    )
)
_SHORT_ENDS = frozenset(_words("to do al alle te final fine kraj край son"))
_SHORT_ENDS_OF_PAIRS = frozenset(_words("a au"))
_RUN_TOGETHER = re.compile(rf"\b((?:{_ABOUT_WORDS}){{1,2}})(to|final|fine)\b")
_ZONES = frozenset(_words("utc gmt cet cest est edt cst cdt mst mdt pst pdt local"))
_END_SIGNS = "t/m t.o.m 終了 まで 结束 結束 截止 종료 까지"
_BEGIN_SIGNS = "開始 から 开始 시작 부터"


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

    seconds: FloatArray
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
