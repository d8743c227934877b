"""Exports of Electricity Maps: CSV files of one zone, as its data portal hands them out."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from ecorl.carbon.traces.content import Content, check_unit
from ecorl.carbon.traces.table import CsvTable
from ecorl.errors import DataError
from ecorl.grid import Gas, Scope

# Older exports write other capitals and say LCA; programs in between may spoil the small 2 of CO2.
_TIME = re.compile(r"datetime \(utc\)", re.IGNORECASE)
_INTENSITY = {
    Scope.LIFE_CYCLE: re.compile(r"carbon intensity g\S+/kwh \((life ?cycle|lca)\)", re.IGNORECASE),
    Scope.DIRECT: re.compile(r"carbon intensity g\S+/kwh \(direct\)", re.IGNORECASE),
}
_RENEWABLE = re.compile(r"renewable energy percentage \(re%\)|renewable percentage", re.IGNORECASE)
_ESTIMATED = re.compile(r"data estimated", re.IGNORECASE)
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
    g_per_kwh = table.numbers(value)
    check_unit(table, value, g_per_kwh)
    return Content(
        time=time,
        value=value,
        value_name=table.columns[value],
        g_per_kwh=g_per_kwh,
        figures=((value, g_per_kwh),),
        scope=scope,
        gas=Gas.CO2E,
        factors=_FACTORS[scope],
        renewable=_renewable(table),
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


def _renewable(table: CsvTable) -> NDArray[np.float64] | None:
    column = _number(table.columns, _RENEWABLE)
    if column is None:
        return None
    shares = table.numbers(column) / 100.0
    wrong = np.flatnonzero((shares < 0) | (shares > 1))
    if len(wrong):
        raise table.mistake(int(wrong[0]), column, "is no percentage from 0 to 100")
    return None if np.isnan(shares).all() else shares


def _estimated(table: CsvTable) -> NDArray[np.bool_] | None:
    column = _number(table.columns, _ESTIMATED)
    if column is None:
        return None
    cells = [cell.lower() for cell in table.cells(column)]
    for row, cell in enumerate(cells):
        if cell not in _ANSWERS:
            raise table.mistake(row, column, "expected is true or false")
    return np.array([_ANSWERS[cell] for cell in cells], np.bool_) if any(cells) else None
