"""Puts together what a record holds of some windows of a run, each as an attempt of its own.

What lies outside is in no figure then: not in the energy of a stage, nor in what a device drew
beside the stages, nor in the time that either took.

Sums are kept by whole seconds. The first and the last second of a window are computed anew from
the raw readings where the ring still holds them, and taken in proportion where it does not.
All that accounts the energy of a whole run then accounts that of the windows, by the same rules.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from ecorl.carbon.timeline import timelines
from ecorl.config import AccountingConfig
from ecorl.ledger import (
    BarrierRow,
    DeviceRow,
    EnergySums,
    ExecutionRow,
    LedgerReader,
    PowerSecond,
    RawSampleRow,
)
from ecorl.ledger.rollup import PowerRollup, in_units
from ecorl.records import EVALUATION_ROLE, LOSS_ERRORS, EventKind, Provenance
from ecorl.report.energy.evidence import Attribution, Evidence
from ecorl.report.energy.pauses import run_pauses
from ecorl.report.energy.readings import (
    DeviceReadings,
    Span,
    attempt_spans,
    common,
    device_readings,
    device_spans,
    merged,
    minus,
)

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


_Row = TypeVar("_Row", ExecutionRow, BarrierRow, DeviceRow)


def window_evidence(
    reader: LedgerReader,
    windows: Sequence[Window],
    accounting: AccountingConfig | None = None,
) -> Evidence:
    """Read what a ledger holds of some windows of its run.

    An execution belongs to the window in which it began, a wait to that in which the thread began
    to wait. Windows that hold whole steps cut none of them in two.

    Args:
        reader: the run's ledger.
        windows: of its attempts, in the order of time and without overlaps.
        accounting: factors of the carbon figure by the config; None: no grams are asked for.

    Returns:
        Evidence whose attempts are the windows, numbered from 1.
    """
    spans = attempt_spans(reader.attempts(), reader.last_times())
    cut = {
        number: (attempt, _within(span, spans[attempt]))
        for number, (attempt, span) in enumerate(windows, start=1)
        if attempt in spans
    }
    own = {number: span for number, (_, span) in cut.items()}
    pauses, whole = run_pauses(reader.choices(), spans), device_spans(reader.node_spans(), spans)
    return Evidence(
        executions=_in_windows(reader.executions(), cut, lambda row: row.result.t_start_s),
        barriers=_in_windows(reader.barriers(), cut, lambda row: row.t_s - (row.wait_s or 0.0)),
        devices=_in_windows(reader.devices(), cut, lambda _: None),
        readings=_readings(reader, cut, own, spans),
        spans=own,
        own_spans={
            (number, device_id): _within(known, span)
            for number, (attempt, span) in cut.items()
            for (of, device_id), known in whole.items()
            if of == attempt
        },
        lost=reader.lost_nodes(),
        pauses={
            number: common(pauses.get(attempt, ()), [span])
            for number, (attempt, span) in cut.items()
        },
        grid=_grid(reader, cut, own, accounting),
    )


def _in_windows(
    rows: Sequence[_Row], windows: Mapping[int, Window], begin_s: Callable[[_Row], float | None]
) -> list[_Row]:
    """The rows that begin in each window, with its number in place of that of the attempt.

    Args:
        rows: of the whole run.
        windows: by number.
        begin_s: when a row begins, monotonic s; None: all of its attempt belong to each window.
    """
    found = []
    for number, (attempt, span) in windows.items():
        for row in rows:
            if row.attempt != attempt:
                continue
            at_s = begin_s(row)
            if at_s is None or span[0] <= at_s < span[1]:
                found.append(replace(row, attempt=number))
    return found


def _grid(
    reader: LedgerReader,
    windows: Mapping[int, Window],
    own: Mapping[int, Span],
    accounting: AccountingConfig | None,
) -> Attribution:
    """What finds the grams of energy in the windows; of nothing where none are asked for."""
    attempts = {a.attempt: a for a in reader.attempts()}
    parts = [replace(attempts[attempt], attempt=n) for n, (attempt, _) in windows.items()]
    return Attribution(None if accounting is None else timelines(reader, accounting), parts, own)


def _within(span: Span, limits: Span) -> Span:
    """A time cut to another one; of no length where they do not meet."""
    begin_s = min(max(span[0], limits[0]), limits[1])
    return begin_s, max(begin_s, min(span[1], limits[1]))


def _readings(
    reader: LedgerReader,
    windows: dict[int, Window],
    own: dict[int, Span],
    spans: dict[int, Span],
) -> list[DeviceReadings]:
    """Read what was read of each device, one after the other: all at once may not fit in memory."""
    hold_s = {a.attempt: a.hold_s for a in reader.attempts()}
    found: list[DeviceReadings] = []
    for device_id in reader.read_device_ids():
        rows = cut_seconds(
            reader.power_seconds(device_id), reader.raw_samples(device_id), windows, spans, hold_s
        )
        found += device_readings(rows, own)
    return found


def step_windows(
    reader: LedgerReader, after_step: int = 0, until_s: float | None = None
) -> list[Window]:
    """Find when a run trained some of its steps, without the evaluations among them.

    Args:
        reader: the run's ledger.
        after_step: steps at the begin that are left out, as a warm-up.
        until_s: where to end, monotonic s; None: where training ended.

    Returns:
        Windows in the order of time; none where no such step was recorded.
    """
    rows = reader.executions()
    ends = {e.attempt: e.t_s for e in reader.events() if e.kind is EventKind.TRAINING_END}
    found: list[Window] = []
    for attempt in sorted({row.attempt for row in rows}):
        own = [row for row in rows if row.attempt == attempt]
        span = _trained(own, after_step, ends.get(attempt))
        if span is None:
            continue
        end_s = span[1] if until_s is None else min(span[1], until_s)
        whole = [(span[0], end_s)] if end_s > span[0] else []
        found += [(attempt, part) for part in minus(whole, evaluation_spans(own))]
    return found


def evaluation_spans(rows: Sequence[ExecutionRow]) -> list[Span]:
    """When the framework evaluated its policy, disjoint and in order.

    Args:
        rows: executions of one attempt.
    """
    return merged(
        (row.result.t_start_s, row.result.t_end_s)
        for row in rows
        if row.result.role == EVALUATION_ROLE
    )


def _trained(rows: Sequence[ExecutionRow], after_step: int, end_s: float | None) -> Span | None:
    """From the begin of the first step that counts to the end of training."""
    counted = [
        row.result
        for row in rows
        if row.result.role != EVALUATION_ROLE and row.result.iteration > after_step
    ]
    if not counted:
        return None
    begin_s = min(result.t_start_s for result in counted)
    last_s = max(result.t_end_s for result in counted)
    return begin_s, last_s if end_s is None or end_s < begin_s else end_s
