"""Reading recorded grid data: files of three forms into one, in which only missing is missing."""

from __future__ import annotations

import logging
import math
import re
from dataclasses import replace
from pathlib import Path
from textwrap import shorten

import numpy as np
from numpy.typing import NDArray

from ecorl.carbon.marks import names_estimation, says_made_up
from ecorl.carbon.plausibility import Doubt, doubts_in, explains_zero
from ecorl.carbon.series import FloatArray, Series
from ecorl.carbon.traces.stamps import read_times
from ecorl.carbon.traces.table import CsvTable, read_table
from ecorl.carbon.traces.times import Raster, check_pairs, lay_out
from ecorl.carbon.traces.trace import Content, GridTrace, Repair, check_unit
from ecorl.carbon.traces.two_columns import UNNAMED, read_two_columns, times_of
from ecorl.errors import DataError
from ecorl.grid import RENEWABLE, Fuel, Gas, Scope

TIME = "timestamp"
STATED = "avg_CI"

FUELS = {
    "WND": Fuel.WIND,
    "SUN": Fuel.SOLAR,
    "WAT": Fuel.HYDRO,
    "OIL": Fuel.OIL,
    "NG": Fuel.GAS,
    "COL": Fuel.COAL,
    "NUC": Fuel.NUCLEAR,
    "OTH": Fuel.OTHER,
}
"""The fuels behind the columns of generation, MW."""

FACTORS = {
    Fuel.WIND: 11.0,
    Fuel.SOLAR: 41.0,
    Fuel.HYDRO: 24.0,
    Fuel.OIL: 650.0,
    Fuel.GAS: 490.0,
    Fuel.COAL: 820.0,
    Fuel.NUCLEAR: 12.0,
    Fuel.OTHER: 230.0,
}
"""Life-cycle emissions of each fuel, gCO2e/kWh: medians of IPCC AR5, working group III, annex III,
table A.III.2 (wind on shore, solar on roofs, coal as dust, gas in combined cycles, and biomass for
other fuels). It has no oil: 650 is what the intensities published in this form were made with."""

FACTORS_NAME = "IPCC AR5 medians"


def is_eia930(columns: tuple[str, ...]) -> bool:
    """Whether names of columns are those of this form.

    Args:
        columns: names of a file's columns.
    """
    return columns[0] == TIME and len(FUELS.keys() & set(columns)) > 1


def read_eia930(table: CsvTable, scope: Scope | None) -> Content:
    """The intensity of a file in this form, computed from its mix.

    Args:
        table: the file.
        scope: what the caller expects; None takes what there is: life cycle.

    Raises:
        DataError: for other columns than those of the form, for figures that are no numbers, and
            for another scope.
    """
    if scope is Scope.DIRECT:
        raise DataError(f"{table.path}:1: the form has life-cycle intensities, none of {scope}")
    numbers: dict[str, int] = {}
    for number, name in enumerate(table.columns):
        if name in numbers or name not in {TIME, STATED, *FUELS}:
            known = ", ".join((TIME, *FUELS, STATED))
            raise table.header_mistake(number, f"expected are, each once: {known}")
        numbers[name] = number
    raw = {name: table.numbers(number) for name, number in numbers.items() if name in FUELS}
    power_mw, repairs = _generation(table, numbers, raw)
    total_mw = np.sum(list(power_mw.values()), axis=0)
    total_mw = np.where(total_mw > 0, total_mw, np.nan)
    shares = {FUELS[name]: values / total_mw for name, values in power_mw.items()}
    figures = [(numbers[name], values) for name, values in raw.items()]
    stated = None
    if STATED in numbers:
        stated = table.numbers(numbers[STATED])
        check_unit(table, numbers[STATED], stated)
        figures.append((numbers[STATED], stated))
    return Content(
        time=numbers[TIME],
        value=figures[0][0],
        value_name=",".join(raw),
        g_per_kwh=np.sum([share * FACTORS[fuel] for fuel, share in shares.items()], axis=0),
        figures=tuple(figures),
        scope=Scope.LIFE_CYCLE,
        gas=Gas.CO2E,
        factors=FACTORS_NAME,
        shares=shares,
        renewable=sum((share for f, share in shares.items() if f in RENEWABLE), 0.0 * total_mw),
        stated=stated,
        repairs=tuple(repairs),
        generation_mw=total_mw,
    )


def _generation(
    table: CsvTable, numbers: dict[str, int], raw: dict[str, FloatArray]
) -> tuple[dict[str, FloatArray], list[Repair]]:
    """Power of each fuel without what stands for none of it, MW."""
    power_mw, repairs = {}, []
    for name, values in raw.items():
        power_mw[name] = np.maximum(values, 0.0)
        negative = np.flatnonzero(values < 0)
        if len(negative):
            # Plants that stand still draw power; the grid does not emit less for it.
            what = f"{len(negative)} negative powers, of which this is the first, count as 0"
            repairs.append(Repair(table.lines[int(negative[0])], name, what))
        if np.isnan(values).all():
            power_mw[name] = np.zeros_like(values)
            what = "the column is empty: the grid has none of this fuel"
            repairs.append(Repair(table.lines[0], name, what))
    return power_mw, repairs


# Older exports write other capitals and say LCA; programs in between may spoil the small 2 of CO2.
_TIME = re.compile(r"datetime \(utc\)", re.IGNORECASE)
_INTENSITY = {
    Scope.LIFE_CYCLE: re.compile(
        r"carbon intensity g[^/]+/ ?kwh \((life ?cycle|lca)\)", re.IGNORECASE
    ),
    Scope.DIRECT: re.compile(r"carbon intensity g[^/]+/ ?kwh \(direct\)", re.IGNORECASE),
}
_RENEWABLE = re.compile(r"renewable energy percentage \(re%\)|renewable percentage", re.IGNORECASE)
_CARBON_FREE = re.compile(
    r"carbon-free energy percentage \(cfe%\)|low carbon percentage", re.IGNORECASE
)
_ESTIMATED = re.compile(r"data estimated", re.IGNORECASE)
_METHOD = re.compile(r"data estimation method", re.IGNORECASE)
_SOURCE = re.compile(r"data source", re.IGNORECASE)
_ZONE = re.compile(r"zone id", re.IGNORECASE)

_FACTORS = {
    Scope.LIFE_CYCLE: "Electricity Maps, life cycle",
    Scope.DIRECT: "Electricity Maps, direct",
}
_ANSWERS = {"true": True, "false": False, "1": True, "0": False, "": False}


def is_electricity_maps(columns: tuple[str, ...]) -> bool:
    """Whether names of columns are those of this form.

    Args:
        columns: names of a file's columns.
    """
    has_intensity = any(_number(columns, pattern) is not None for pattern in _INTENSITY.values())
    return _number(columns, _TIME) is not None and has_intensity


def read_electricity_maps(table: CsvTable, scope: Scope | None) -> Content:
    """The intensity of a file in this form.

    Args:
        table: the file.
        scope: which of its two intensities; None takes the life cycle.

    Raises:
        DataError: when it lacks that intensity, holds several zones, or has figures that are none.
    """
    scope = scope or Scope.LIFE_CYCLE
    time, value = _number(table.columns, _TIME), _number(table.columns, _INTENSITY[scope])
    if time is None or value is None:
        raise DataError(f"{table.path}:1: no column has the intensity of {scope}")
    _check_zone(table)
    _refuse_made_up(table)
    g_per_kwh = table.numbers(value)
    check_unit(table, value, g_per_kwh, scope, is_named=True)
    return Content(
        time=time,
        value=value,
        value_name=table.columns[value],
        g_per_kwh=g_per_kwh,
        figures=((value, g_per_kwh),),
        scope=scope,
        gas=Gas.CO2E,
        factors=_FACTORS[scope],
        renewable=_share(table, _RENEWABLE),
        carbon_free=_share(table, _CARBON_FREE) if scope is Scope.DIRECT else None,
        estimated=_estimated(table),
    )


def _number(columns: tuple[str, ...], pattern: re.Pattern[str]) -> int | None:
    return next((i for i, name in enumerate(columns) if pattern.fullmatch(name)), None)


def _check_zone(table: CsvTable) -> None:
    column = _number(table.columns, _ZONE)
    if column is None:
        return
    zones = table.cells(column)
    for row, zone in enumerate(zones):
        if zone != zones[0]:
            raise table.mistake(row, column, f"expected is one zone in a file, here {zones[0]}")


def _refuse_made_up(table: CsvTable) -> None:
    for pattern in (_METHOD, _SOURCE):
        column = _number(table.columns, pattern)
        for row, cell in enumerate(() if column is None else table.cells(column)):
            if column is not None and says_made_up(cell):
                why = "the values are made up, as for a sandbox or test key"
                raise table.mistake(row, column, why)


def _share(table: CsvTable, pattern: re.Pattern[str]) -> FloatArray | None:
    column = _number(table.columns, pattern)
    if column is None:
        return None
    shares = table.numbers(column) / 100.0
    wrong = np.flatnonzero((shares < 0) | (shares > 1))
    if len(wrong):
        raise table.mistake(int(wrong[0]), column, "is no percentage from 0 to 100")
    return None if np.isnan(shares).all() else shares


def _estimated(table: CsvTable) -> NDArray[np.bool_] | None:
    """Which rows are estimates, by their flag or by the method that is named; None: not said."""
    column, method = _number(table.columns, _ESTIMATED), _number(table.columns, _METHOD)
    cells = [] if column is None else [cell.lower() for cell in table.cells(column)]
    for row, cell in enumerate(cells):
        if column is not None and cell not in _ANSWERS:
            raise table.mistake(row, column, "expected is true or false")
    is_named = [names_estimation(m) for m in ([] if method is None else table.cells(method))]
    if not any(cells) and not any(is_named):
        return None
    is_flagged = np.array([_ANSWERS[cell] for cell in cells] or False, np.bool_)
    return is_flagged | np.array(is_named or False, np.bool_)


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


def _missing(table: CsvTable, content: Content, raster: Raster, values: FloatArray) -> list[Repair]:
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
    path: Path, content: Content, raster: Raster, values: FloatArray, repairs: tuple[Repair, ...]
) -> GridTrace:
    is_missing = np.isnan(values)

    def known(of_rows: FloatArray) -> FloatArray:
        # A row whose intensity is not believed is not believed in its mix either.
        return np.where(is_missing, np.nan, raster.place(of_rows))

    def series(of_intervals: FloatArray) -> Series:
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
