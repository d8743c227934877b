"""Puts together what a record holds of some windows of a run, each as an attempt of its own.

What lies outside is in no figure then: not in the energy of a stage, nor in what a device drew
beside the stages, nor in the time that either took.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from ecorl.carbon.timeline import timelines
from ecorl.config import AccountingConfig
from ecorl.ledger import BarrierRow, DeviceRow, ExecutionRow, LedgerReader
from ecorl.report.energy.attribution import Attribution
from ecorl.report.energy.evidence import Evidence
from ecorl.report.energy.pauses import run_pauses
from ecorl.report.energy.readings import DeviceReadings, device_readings
from ecorl.report.energy.spans import Span, attempt_spans, common, device_spans
from ecorl.report.energy.windows.seconds import Window, cut_seconds

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
