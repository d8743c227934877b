"""Cuts the power readings of a device to windows of time.

Sums are kept by whole seconds. The first and the last second of a window are computed anew from
the raw readings where the ring still holds them, and taken in proportion where it does not.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ecorl.ledger import EnergySums, PowerSecond, RawSampleRow
from ecorl.ledger.rollup import PowerRollup, in_units
from ecorl.records import LOSS_ERRORS, Provenance
from ecorl.report.energy.spans import Span

Window = tuple[int, Span]
"""Attempt, and begin and end in it, monotonic s."""

_Series = tuple[int, str, Provenance, str]


class _CutReading(NamedTuple):
    """A reading as the roll-up takes it."""

    t_s: float
    power_w: float | None
    energy_j: float | None
    error: str | None


def cut_seconds(
    seconds: Iterable[PowerSecond],
    raw: Iterable[RawSampleRow],
    windows: Mapping[int, Window],
    spans: Mapping[int, Span],
    hold_s: Mapping[int, float],
) -> list[PowerSecond]:
    """Cut one-second sums to windows.

    Args:
        seconds: of one device or of several.
        raw: the newest readings of the same devices, as far as they are kept.
        windows: by the number that their rows get in place of that of the attempt.
        spans: begin and end of each attempt.
        hold_s: for how long a reading stands without a successor, s, by attempt.
    """
    stored: dict[_Series, list[PowerSecond]] = defaultdict(list)
    for row in seconds:
        stored[row.attempt, row.device_id, row.provenance, row.source].append(row)
    kept: dict[_Series, list[_CutReading]] = defaultdict(list)
    for one in raw:
        key = one.attempt, one.device_id, one.provenance, one.source
        kept[key].append(_CutReading(one.t_s, one.power_w, one.energy_j, one.error))
    for readings in kept.values():
        readings.sort(key=lambda reading: reading.t_s)
    return [
        replace(row, attempt=number)
        for number, (attempt, span) in windows.items()
        for key, rows in sorted(stored.items(), key=lambda item: item[0][:2])
        if key[0] == attempt and attempt in spans
        for row in _cut(rows, kept[key], span, spans[attempt], hold_s[attempt])
    ]


def _cut(
    rows: Sequence[PowerSecond],
    readings: Sequence[_CutReading],
    window: Span,
    attempt: Span,
    hold_s: float,
) -> Iterator[PowerSecond]:
    """The rows of one series within a window."""
    begin_s, end_s = window
    anew: dict[int, list[PowerSecond] | None] = {}
    for row in rows:
        low_s, high_s = max(begin_s, row.second), min(end_s, row.second + 1.0)
        if low_s >= high_s:
            continue
        if high_s - low_s >= 1.0:
            yield row
            continue
        if row.second not in anew:
            # A second may be stored in two parts; what is computed anew holds both of them.
            anew[row.second] = _computed(row, readings, (low_s, high_s), hold_s)
            yield from anew[row.second] or ()
        if anew[row.second] is None:
            yield _in_proportion(row, (low_s, high_s), attempt)


def _computed(
    row: PowerSecond, readings: Sequence[_CutReading], part: Span, hold_s: float
) -> list[PowerSecond] | None:
    """A part of one second from raw readings; None where they do not reach around it."""
    times_s = [reading.t_s for reading in readings]
    first, last = bisect.bisect_right(times_s, part[0]) - 1, bisect.bisect_left(times_s, part[1])
    if first < 0 or last == len(readings):
        return None
    rollup = PowerRollup(hold_s)
    rollup.add(_between(readings, first, part[0], hold_s))
    for reading in readings[first + 1 : last]:
        rollup.add(reading)
    rollup.add(_between(readings, last - 1, part[1], hold_s))
    made = []
    for found in rollup.take(everything=True):
        # The reading at the very end may open a second that holds no time of the window.
        if found.second == row.second:
            fields = dict(zip(_FIGURES, in_units(found), strict=True))
            made.append(replace(row, **fields))
    return made


_FIGURES = (
    "n", "n_missing", "mean_w", "min_w", "max_w", "held_s", "held_j", "counted_s", "counted_j",
    "alone_s", "alone_j", "n_breaks",
)  # fmt: skip


def _between(readings: Sequence[_CutReading], index: int, t_s: float, hold_s: float) -> _CutReading:
    """What the device says at a time from a reading on: its power held, its counter in between."""
    here = readings[index]
    if t_s <= here.t_s or index + 1 == len(readings):
        return here._replace(t_s=t_s)
    power_w = here.power_w if t_s - here.t_s <= hold_s else None
    energy_j = _counter_between(readings, index, t_s)
    return _CutReading(t_s, power_w, energy_j, here.error if power_w is None else None)


def _counter_between(readings: Sequence[_CutReading], index: int, t_s: float) -> float | None:
    """The counter at a time from a reading on; None where it was lost, or not read on both sides.

    Readings of power alone may lie between two of the counter. What the counter gained then goes
    with the power that was held; with the time, where there is none of them or their power is not
    known.
    """
    counted = [i for i, reading in enumerate(readings) if reading.energy_j is not None]
    place = bisect.bisect_right(counted, index)
    if place == 0 or place == len(counted):
        return None
    between = readings[counted[place - 1] : counted[place] + 1]
    before_j, after_j = between[0].energy_j, between[-1].energy_j
    is_whole = not any(reading.error in LOSS_ERRORS for reading in between[1:])
    if before_j is None or after_j is None or after_j < before_j or not is_whole:
        return None
    gone = whole = 0.0
    known = all(reading.power_w is not None for reading in between[:-1])
    for one, following in itertools.pairwise(between):
        weight = one.power_w if known and one.power_w is not None else 1.0
        whole += weight * (following.t_s - one.t_s)
        gone += weight * max(0.0, min(t_s, following.t_s) - one.t_s)
    return before_j + (gone / whole if whole > 0 else 1.0) * (after_j - before_j)


def _in_proportion(row: PowerSecond, part: Span, attempt: Span) -> PowerSecond:
    """The share of a second that lies in a part of it."""
    begin_s, end_s = max(attempt[0], row.second), min(attempt[1], row.second + 1.0)
    within_s = min(part[1], end_s) - max(part[0], begin_s)
    share = min(1.0, max(0.0, within_s) / (end_s - begin_s)) if end_s > begin_s else 0.0
    sums = {name: share * getattr(row, name) for name in EnergySums.__dataclass_fields__}
    return replace(row, n=math.ceil(share * row.n), **sums)
