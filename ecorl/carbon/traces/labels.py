"""What the name of a column of times says: whether they are begins of intervals or their ends."""

from __future__ import annotations

import re
import unicodedata
from enum import StrEnum


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
