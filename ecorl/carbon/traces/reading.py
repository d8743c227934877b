"""Reading recorded grid data: files of three forms into one, in which only missing is missing."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from pathlib import Path
from textwrap import shorten

import numpy as np
from numpy.typing import NDArray

from ecorl.carbon.plausibility import Doubt, doubts_in, explains_zero
from ecorl.carbon.series import Series
from ecorl.carbon.traces.content import Content
from ecorl.carbon.traces.eia930 import is_eia930, read_eia930
from ecorl.carbon.traces.electricity_maps import is_electricity_maps, read_electricity_maps
from ecorl.carbon.traces.stamps import read_times
from ecorl.carbon.traces.table import CsvTable, read_table
from ecorl.carbon.traces.times import Raster, check_pairs, lay_out
from ecorl.carbon.traces.trace import GridTrace, Repair
from ecorl.carbon.traces.two_columns import UNNAMED, read_two_columns, times_of
from ecorl.errors import DataError
from ecorl.grid import Fuel, Scope

N_LOGGED = 5
"""Repairs of a file that are logged one by one, in the order of its lines; the rest is counted."""

_log = logging.getLogger(__name__)

_DOUBTS = {
    Doubt.NOT_FINITE: "is not finite",
    Doubt.NEGATIVE: "is negative",
    Doubt.ZERO: "is what a dead source reads, and neither its mix nor the time before explains it",
    Doubt.ABOVE_ANY_GRID: "is more than any grid emits",
    Doubt.OUT_OF_KEEPING: "is out of keeping with what the grid emitted around it",
}


def read_trace(path: Path, scope: Scope | None = None) -> GridTrace:
    """Read a recording of a grid's average intensity.

    Its form is found by its columns:

    - EIA-930: ``timestamp``, generation in MW by ``WND SUN WAT OIL NG COL NUC OTH``, and perhaps
      ``avg_CI``; the intensity is computed from the mix.
    - Electricity Maps: an export of its data portal, of today's columns or of older ones.
    - Two columns: time and intensity, with a header, which may name the unit (g, kg, t or lb per
      Wh, kWh, MWh or GWh, however it is spelt), or without one. Three with begin and end of each
      interval, if their names say so.

    Cells are parted by commas, semicolons or tabs; with the latter two a number may have a decimal
    comma. Times are ISO 8601, YYYYMMDDHH and its like, or seconds or milliseconds since 1970; they
    are begins of intervals, unless the column's name says that they are ends, which are moved back
    by a step. What can be repaired without guessing is, and stands in the log and in the trace's
    `repairs`: rows out of order, rows that are there twice, gaps, and values that no grid, or not
    this one, emits, which become missing.

    Args:
        path: the file, UTF-8.
        scope: which emissions are asked for; None takes the life cycle's. A file of two columns
            does not say, and is taken by this word.

    Raises:
        DataError: with file, line and column, for a file that cannot be read or repaired.
    """
    table = read_table(path, UNNAMED)
    content = _content(table, scope)
    times = read_times(table, content.time)
    raster = lay_out(table, content.time, times, content.figures)
    if content.end is not None:
        check_pairs(table, content.end, times, raster.step_s)
    values = raster.place(content.g_per_kwh)
    repairs = [*content.repairs, *raster.repairs, *_missing(table, content, raster, values)]
    series = Series(raster.start_s, raster.step_s, values)
    doubts = doubts_in(series, content.scope, _explained(content, raster))
    for number, doubt in doubts.items():
        why = _DOUBTS[doubt]
        if doubt is Doubt.ZERO and content.scope is Scope.LIFE_CYCLE:
            why = "is what no grid emits over the life cycle of its plants"
        what = f"{values[number]:.1f} g/kWh {why}, and became missing"
        repairs.append(Repair(table.lines[raster.rows[number]], content.value_name, what))
    doubted = {number: float(values[number]) for number in doubts}
    values[list(doubts)] = np.nan
    if np.isnan(values).all():
        raise table.mistake(0, content.value, "no row has an intensity that can be believed")
    repairs.sort(key=lambda repair: repair.line)
    _log_repairs(path, repairs)
    made = _trace(path, content, raster, values, tuple(repairs))
    return replace(made, doubted=doubted)


def _log_repairs(path: Path, repairs: list[Repair]) -> None:
    for repair in repairs[:N_LOGGED]:
        _log.warning("%s:%d: %s: %s", path, repair.line, repair.column, repair.what)
    if len(repairs) > N_LOGGED:
        _log.warning("%s: and %d more repairs", path, len(repairs) - N_LOGGED)


def _content(table: CsvTable, scope: Scope | None) -> Content:
    if is_eia930(table.columns):
        return read_eia930(table, scope)
    if is_electricity_maps(table.columns):
        return read_electricity_maps(table, scope)
    numbers = times_of(table)
    if numbers is not None:
        return read_two_columns(table, scope, numbers)
    raise DataError(
        f"{table.path}:1: the columns {shorten(', '.join(table.columns), 120)} are of no known"
        " form: EIA-930"
        " (timestamp,WND,SUN,...), an export of Electricity Maps, or two columns (time and"
        " intensity), or three (from, to and intensity)"
    )


def _explained(content: Content, raster: Raster) -> list[bool | None] | None:
    """Of each interval, whether the file's share of carbon-free electricity explains a 0.

    What the rest is made from, the file does not say.
    """
    if content.scope is not Scope.DIRECT or content.carbon_free is None:
        return None
    shares = raster.place(content.carbon_free).tolist()
    mixes = [
        None if math.isnan(share) else {Fuel.WIND: share, Fuel.OTHER: 1 - share} for share in shares
    ]
    return [explains_zero(content.scope, mix) for mix in mixes]


def _missing(
    table: CsvTable, content: Content, raster: Raster, values: NDArray[np.float64]
) -> list[Repair]:
    """A line about each run of rows without an intensity."""
    is_missing = np.isnan(values) & (raster.rows >= 0)
    edges = np.diff(np.concatenate([[0], is_missing.astype(np.int8), [0]]))
    repairs = []
    for begin, end in zip(np.flatnonzero(edges > 0), np.flatnonzero(edges < 0), strict=True):
        line = table.lines[raster.rows[begin]]
        rows = "the row has no value" if end - begin == 1 else f"{end - begin} rows have no value"
        repairs.append(Repair(line, content.value_name, f"{rows}, and stayed missing"))
    return repairs


def _trace(
    path: Path,
    content: Content,
    raster: Raster,
    values: NDArray[np.float64],
    repairs: tuple[Repair, ...],
) -> GridTrace:
    is_missing = np.isnan(values)

    def known(of_rows: NDArray[np.float64]) -> NDArray[np.float64]:
        # A row whose intensity is not believed is not believed in its mix either.
        return np.where(is_missing, np.nan, raster.place(of_rows))

    def series(of_intervals: NDArray[np.float64]) -> Series:
        return Series(raster.start_s, raster.step_s, of_intervals)

    mix, estimated, generation_mw = None, None, None
    if content.shares is not None:
        mix = {fuel: known(shares) for fuel, shares in content.shares.items()}
    if content.generation_mw is not None:
        generation_mw = series(known(content.generation_mw))
    if content.estimated is not None:
        estimated = (raster.rows >= 0) & content.estimated[raster.rows]
    return GridTrace(
        name=path.stem.partition("_")[0],
        path=path,
        series=series(values),
        scope=content.scope,
        gas=content.gas,
        factors=content.factors,
        mix=mix,
        renewable=None if content.renewable is None else series(known(content.renewable)),
        estimated=estimated,
        stated=None if content.stated is None else series(raster.place(content.stated)),
        repairs=repairs,
        generation_mw=generation_mw,
    )
