"""Files of a time and an intensity, whose unit the header may name; the time may have an end."""

from __future__ import annotations

import re

import numpy as np

from ecorl.carbon.traces.content import Content, check_unit
from ecorl.carbon.traces.labels import Label, label_of
from ecorl.carbon.traces.table import CsvTable
from ecorl.carbon.traces.trace import Repair
from ecorl.carbon.traces.unit_names import unit_of
from ecorl.grid import Gas, Scope

UNNAMED = ("time", "value")
"""What the columns of a file without a header are called."""

_ESTIMATED = re.compile(r"estimate", re.IGNORECASE)
_MARGINAL = re.compile(r"marginal|moer|[ls]rmer", re.IGNORECASE)


_SHORTEST_TIME = len("20220131")


def times_of(table: CsvTable) -> tuple[int, int | None] | None:
    """Numbers of the columns with the times, and with their ends, before that of the intensity.

    Args:
        table: a file.

    Returns:
        The numbers, the second None in a file of two columns; None for files of another form.
    """
    if len(table.columns) == len(UNNAMED):
        return 0, None
    if len(table.columns) != len(UNNAMED) + 1:
        return None
    names = table.columns[:2]
    ends = [n for n in (0, 1) if label_of(names[n], is_paired=True) is Label.END]
    # A name as short as "a" may be chance.
    are_times = all(len(cell.strip()) >= _SHORTEST_TIME for cell in table.rows[0][:2])
    return (1 - ends[0], ends[0]) if len(ends) == 1 and are_times else None


def read_two_columns(
    table: CsvTable, scope: Scope | None, times: tuple[int, int | None]
) -> Content:
    """The intensity of a file in this form, in its last column.

    Args:
        table: the file.
        scope: what the caller knows of the figures; None takes them for the life cycle's.
        times: numbers of the columns with the times and with their ends.

    Raises:
        DataError: for a unit that is not known, for marginal intensities, and for figures that are
            none.
    """
    value = len(table.columns) - 1
    name = table.columns[value]
    if _MARGINAL.search(name):
        raise table.header_mistake(
            value, "a recording is of average intensities, not marginal ones"
        )
    try:
        unit = unit_of(name)
    except ValueError as error:
        raise table.header_mistake(value, str(error)) from error
    g_per_kwh = table.numbers(value) * (1.0 if unit is None else unit.g_per_kwh)
    scope = scope or Scope.LIFE_CYCLE
    check_unit(table, value, g_per_kwh, scope, is_named=unit is not None)
    repairs = []
    if unit is None:
        what = "no unit is named, and the values were taken as gCO2e/kWh"
        repairs.append(Repair(table.lines[0], name, what))
    return Content(
        time=times[0],
        value=value,
        value_name=name,
        g_per_kwh=g_per_kwh,
        figures=((value, g_per_kwh),),
        scope=scope,
        gas=Gas.CO2E if unit is None else unit.gas,
        factors=f"not stated in {table.path.name}",
        estimated=np.ones(len(g_per_kwh), np.bool_) if _ESTIMATED.search(name) else None,
        repairs=tuple(repairs),
        end=times[1],
    )
