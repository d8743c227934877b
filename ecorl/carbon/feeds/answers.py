"""Parts of a JSON answer that are read with care, and what feeds build of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from textwrap import shorten
from typing import TypeVar

import numpy as np

from ecorl.carbon.forecasts.forecast import Forecast
from ecorl.carbon.marks import says_made_up
from ecorl.errors import FeedMadeUp, FeedMalformed, FeedSilent
from ecorl.grid import Fuel, Intensity

_MAX_STEPS = 4096  # two weeks of 5 minutes: no source forecasts so far

Kind = TypeVar("Kind", bound=Intensity)


@dataclass(frozen=True, slots=True)
class AnswerPart:
    """A part of an answer, which knows where in it it stands.

    Attributes:
        source: name of the source, with which messages begin.
        where: place in the answer, e.g. ``data[0].intensity``; empty for the whole.
        value: what the JSON has there.
    """

    source: str
    where: str
    value: object

    def get(self, name: str) -> AnswerPart:
        """The field of an object.

        Raises:
            FeedMalformed: when this is no object, or the field is missing or null.
        """
        found = self.find(name)
        if found is None:
            raise FeedMalformed(f"{self.source} answers without {self._inner(name)}")
        return found

    def find(self, name: str) -> AnswerPart | None:
        """The field of an object, or None where it is missing or null.

        Raises:
            FeedMalformed: when this is no object.
        """
        if not isinstance(self.value, Mapping):
            raise self._mistake("an object")
        value = self.value.get(name)
        return None if value is None else AnswerPart(self.source, self._inner(name), value)

    def fields(self) -> list[tuple[str, AnswerPart]]:
        """Names and values of an object's fields, without those that are null.

        Raises:
            FeedMalformed: when this is no object.
        """
        if not isinstance(self.value, Mapping):
            raise self._mistake("an object")
        return [
            (name, AnswerPart(self.source, self._inner(name), value))
            for name, value in self.value.items()
            if value is not None
        ]

    def items(self) -> list[AnswerPart]:
        """The items of an array.

        Raises:
            FeedMalformed: when this is no array.
        """
        if not isinstance(self.value, list):
            raise self._mistake("an array")
        return [
            AnswerPart(self.source, f"{self.where}[{index}]", value)
            for index, value in enumerate(self.value)
        ]

    def number(self) -> float:
        """A finite number.

        Raises:
            FeedMalformed: when this is none.
        """
        if isinstance(self.value, int | float) and not isinstance(self.value, bool):
            try:
                number = float(self.value)
            except OverflowError:
                number = math.inf
            if math.isfinite(number):
                return number
        raise self._mistake("a number")

    def text(self) -> str:
        """A text.

        Raises:
            FeedMalformed: when this is none.
        """
        if not isinstance(self.value, str):
            raise self._mistake("a text")
        return self.value

    def flag(self) -> bool:
        """True or false.

        Raises:
            FeedMalformed: when this is neither.
        """
        if not isinstance(self.value, bool):
            raise self._mistake("true or false")
        return self.value

    def moment_s(self) -> float:
        """A time in ISO 8601 with its zone, as s since 1970.

        Raises:
            FeedMalformed: when this is none.
        """
        try:
            moment = datetime.fromisoformat(self.text())
            if moment.tzinfo is not None:
                return moment.timestamp()
        except (ValueError, OverflowError):
            pass
        raise self._mistake("a time with its zone")

    def expect(self, wanted: str, name: str) -> None:
        """Check that a text says what was asked for, in capital or small letters.

        Args:
            wanted: the text that was asked for.
            name: what it is, in words.

        Raises:
            FeedMalformed: when it says something else.
        """
        if self.text().lower() != wanted.lower():
            raise FeedMalformed(f"{self.source} answers for another {name} ({self.where})")

    def _inner(self, name: str) -> str:
        return f"{self.where}.{name}" if self.where else name

    def _mistake(self, wanted: str) -> FeedMalformed:
        return FeedMalformed(f"{self.source} answers with {self.where or 'what'} is not {wanted}")


def refuse_made_up(answer: AnswerPart) -> None:
    """Refuse an answer that says anywhere that its values are made up.

    Args:
        answer: the whole of it.

    Raises:
        FeedMadeUp: when a text of it says so, or a field of such a name is true.
    """
    parts = [answer.value]
    while parts:
        part = parts.pop()
        texts = []
        if isinstance(part, Mapping):
            texts = [name for name, value in part.items() if value is True]
            parts += part.values()
        elif isinstance(part, list):
            parts += part
        elif isinstance(part, str):
            texts = [part]
        for text in filter(says_made_up, texts):
            raise FeedMadeUp(
                f"{answer.source} marks its values as made up, as for a sandbox or test key:"
                f" {shorten(text, 80)!r}"
            )


def utc(moment_s: float) -> datetime:
    """A time in s since 1970 as a date in UTC."""
    return datetime.fromtimestamp(moment_s, UTC)


def in_order(values: Iterable[Kind], start_s: float, end_s: float) -> tuple[Kind, ...]:
    """Intensities that lie within a range, by time; of several for one interval the last given.

    Args:
        values: intensities in any order.
        start_s: begin of the range, s since 1970.
        end_s: its end.
    """
    kept = {
        value.start_s: value
        for value in values
        if value.start_s >= start_s and value.end_s <= end_s
    }
    return tuple(kept[start] for start in sorted(kept))


def fuel_of(name: str) -> Fuel:
    """The fuel that a source names; what has no name of ours counts as other.

    Args:
        name: by the source.
    """
    try:
        return Fuel(name)
    except ValueError:
        return Fuel.OTHER


def shares(source: str, amounts: Iterable[tuple[Fuel, float]]) -> Mapping[Fuel, float] | None:
    """Shares of the fuels, of amounts in any unit; None where there are none.

    Args:
        source: name of the source.
        amounts: amount of each fuel; several of one fuel are added up.

    Raises:
        FeedMalformed: when an amount is negative.
    """
    sums: dict[Fuel, float] = {}
    for fuel, amount in amounts:
        if amount < 0:
            raise FeedMalformed(f"{source} answers with a negative amount of {fuel}")
        sums[fuel] = sums.get(fuel, 0.0) + amount
    total = math.fsum(sums.values())
    if total <= 0 or not math.isfinite(total):
        return None
    return {fuel: amount / total for fuel, amount in sums.items()}


@dataclass(frozen=True, slots=True)
class ForecastPoint:
    """One interval of a forecast.

    Attributes:
        start_s: begin of the interval, s since 1970.
        value: value in it; None where the source has none.
    """

    start_s: float
    value: float | None


def forecast_of(
    model: str, points: Iterable[ForecastPoint], step_s: float, issued_s: float, now_s: float
) -> Forecast:
    """A forecast of points over equal intervals, in any order, without those that have ended.

    Args:
        model: who forecasts.
        points: its points; of several for one interval the last counts, and what is missing
            between them becomes NaN.
        step_s: length of an interval, s.
        issued_s: when it was made, s since 1970, as its source says; a time in the future is
            taken as now.
        now_s: the time, s since 1970.

    Raises:
        FeedSilent: when no value lies ahead.
        FeedMalformed: when the points lie on no common grid, or too far ahead.
    """
    ahead = {p.start_s: p.value for p in points if p.start_s + step_s > now_s}
    known = [start for start, value in ahead.items() if value is not None]
    if not known:
        raise FeedSilent(f"{model} has no forecast for the time from now on")
    first = min(ahead)
    n = (max(known) - first) / step_s + 1
    if n > _MAX_STEPS:
        raise FeedMalformed(f"{model} forecasts more than {_MAX_STEPS} intervals")
    middle = np.full(round(n), np.nan)
    for start, value in ahead.items():
        place = (start - first) / step_s
        if place != round(place):
            raise FeedMalformed(f"{model} forecasts for intervals that overlap")
        if value is not None:
            middle[round(place)] = value
    return Forecast(model, min(issued_s, now_s), first, step_s, middle)
