"""Times and lengths of time in words, in this machine's zone and in UTC."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone, tzinfo

from rich.console import Console

from ecorl.cli.output import say
from ecorl.report.render.lines import visible, wrapped

_MINUTE_S = 60.0
_WITH_SECONDS_S = 120.0
"""Spans that are shorter are told to the second."""
_DAYS_FROM_H = 48
"""Lengths of time from here on are told in days."""
_FAR_DAYS = 180
"""From so many days on a date is told with its year."""


def utc_text(t_s: float) -> str:
    """A time as ISO 8601 in UTC, to the second.

    Args:
        t_s: time, s since 1970.
    """
    return datetime.fromtimestamp(t_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def zone_name(t_s: float) -> str:
    """This machine's time zone at a time by its distance from UTC, e.g. ``UTC+02:00``.

    Args:
        t_s: time, s since 1970.
    """
    offset = datetime.fromtimestamp(t_s, UTC).astimezone().utcoffset() or timedelta()
    return timezone(offset).tzname(None)


def clock(t_s: float, zone: tzinfo | None, with_seconds: bool = False) -> str:
    """Weekday and time of the day, e.g. ``Thu 13:00``.

    Args:
        t_s: time, s since 1970.
        zone: the zone; None for this machine's.
        with_seconds: whether seconds are told.
    """
    text = "%a %H:%M:%S" if with_seconds else "%a %H:%M"
    return datetime.fromtimestamp(t_s, UTC).astimezone(zone).strftime(text)


def moment(t_s: float, now_s: float) -> str:
    """A time as seen from now, e.g. ``today 23:00 (UTC)``.

    Args:
        t_s: time, s since 1970.
        now_s: the time now, s since 1970.
    """
    return _both(t_s, lambda zone: _day_and_time(t_s, now_s, zone, with_seconds=False))


def span(start_s: float, end_s: float, now_s: float) -> str:
    """Two times as seen from now, e.g. ``today 23:00 to tomorrow 05:00 (UTC)``.

    Args:
        start_s: the first time, s since 1970.
        end_s: the second one.
        now_s: the time now, s since 1970.
    """
    with_seconds = end_s - start_s < _WITH_SECONDS_S

    def told(zone: tzinfo | None) -> str:
        first = _day_and_time(start_s, now_s, zone, with_seconds)
        last = _day_and_time(end_s, now_s, zone, with_seconds)
        day, _, time = last.rpartition(" ")
        return f"{first} to {time if first.rpartition(' ')[0] == day else last}"

    return _both(start_s, told)


def dated(t_s: float, zone: tzinfo | None, with_year: bool = False) -> str:
    """Day and time, e.g. ``Thu 12 Jan 13:00``.

    Args:
        t_s: time, s since 1970.
        zone: the zone; None for this machine's.
        with_year: whether the year is told.
    """
    text = "%a %d %b %Y %H:%M" if with_year else "%a %d %b %H:%M"
    return datetime.fromtimestamp(t_s, UTC).astimezone(zone).strftime(text)


def dated_moment(t_s: float, with_year: bool = False) -> str:
    """Day and time in this machine's zone and in UTC, e.g. ``Thu 12 Jan 13:00 (UTC)``.

    Args:
        t_s: time, s since 1970.
        with_year: whether the year is told.
    """
    return _both(t_s, lambda zone: dated(t_s, zone, with_year))


def length(seconds: float) -> str:
    """A length of time, e.g. ``4 h 20 min``.

    Args:
        seconds: length of time, s.
    """
    if seconds < _MINUTE_S:
        return f"{seconds:.3g} s"
    hours, minutes = divmod(round(seconds / _MINUTE_S), 60)
    days, hours = divmod(hours, 24) if hours >= _DAYS_FROM_H else (0, hours)
    return " ".join(f"{n} {u}" for n, u in ((days, "d"), (hours, "h"), (minutes, "min")) if n)


def _both(t_s: float, told: Callable[[tzinfo | None], str]) -> str:
    """A text in this machine's zone, and in UTC too where that is another one."""
    zone = zone_name(t_s)
    return f"{told(None)} (UTC)" if zone == "UTC" else f"{told(None)} ({zone}), {told(UTC)} UTC"


def _day_and_time(t_s: float, now_s: float, zone: tzinfo | None, with_seconds: bool) -> str:
    at = datetime.fromtimestamp(t_s, UTC).astimezone(zone)
    days = (at.date() - datetime.fromtimestamp(now_s, UTC).astimezone(zone).date()).days
    near = {-1: "yesterday", 0: "today", 1: "tomorrow"}
    date = "%a %d %b" if abs(days) < _FAR_DAYS else "%d %b %Y"
    time = "%H:%M:%S" if with_seconds else "%H:%M"
    return f"{near.get(days) or at.strftime(date)} {at.strftime(time)}"


_NO_BREAK = "\u00a0"
_WITH_UNIT = re.compile(r"(\d) (?=(?:d|h|min|s|%|gCO2e?/kWh)\b|%)")
"""Where a number and its unit meet: no line is broken there."""


def paragraph(text: str, console: Console, first: str = "") -> None:
    """Print a text, broken between words where a terminal shows it.

    Args:
        text: one sentence or more.
        console: where to.
        first: what its first line begins with; the others begin with as many blanks.
    """
    if not console.is_terminal:
        say(first + visible(text), console)
        return
    for line in wrapped(_WITH_UNIT.sub(rf"\1{_NO_BREAK}", text), console.width, first):
        say(line.replace(_NO_BREAK, " "), console)
