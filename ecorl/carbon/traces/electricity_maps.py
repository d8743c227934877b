"""Exports of Electricity Maps: CSV files of one zone, as its data portal hands them out."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from ecorl.carbon.marks import names_estimation, says_made_up
from ecorl.carbon.traces.content import Content, check_unit
from ecorl.carbon.traces.table import CsvTable
from ecorl.errors import DataError
from ecorl.grid import Gas, Scope

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


def _share(table: CsvTable, pattern: re.Pattern[str]) -> NDArray[np.float64] | None:
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
