"""Files of a time and an intensity, whose unit the header may name; the time may have an end."""

from __future__ import annotations

import re

import numpy as np

from ecorl.carbon.traces.content import Content, check_unit
from ecorl.carbon.traces.labels import Label, label_of
from ecorl.carbon.traces.table import CsvTable
from ecorl.carbon.traces.trace import Repair
from ecorl.errors import DataError
from ecorl.grid import Gas, Scope

UNNAMED = ("time", "value")
"""What the columns of a file without a header are called."""

GRAMS_PER_POUND = 453.59237

_G_PER_KWH = {
    ("g", "kwh"): 1.0,
    ("kg", "mwh"): 1.0,
    ("lb", "mwh"): GRAMS_PER_POUND / 1000.0,
    ("lbs", "mwh"): GRAMS_PER_POUND / 1000.0,
}
"""What one of the unit is in g/kWh."""

# An amount, perhaps what it is of, and an energy: g_per_kwh, gCO2eq/kWh, kg CO2/MWh, lbs/MWh.
_UNIT = re.compile(
    r"(?<![a-z0-9])(?P<mass>[a-z]*?)[ _]?(?P<of>co[2₂][ _-]?e?q?)?"
    r"(?:[ _]?/[ _]?|[ _]per[ _])(?P<energy>[a-z]+)",
    re.IGNORECASE,
)
# Units of other things, and whatever stands in brackets.
_OTHER_UNIT = re.compile(r"[(\[%]|(?<![a-z])([kmg]?wh?|eur|usd|percent)(?![a-z])", re.IGNORECASE)
_ESTIMATED = re.compile(r"estimate", re.IGNORECASE)
_MARGINAL = re.compile(r"marginal|moer", re.IGNORECASE)


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
    factor, gas, is_named = _unit(table, value)
    g_per_kwh = table.numbers(value) * factor
    scope = scope or Scope.LIFE_CYCLE
    check_unit(table, value, g_per_kwh, scope, is_named=is_named)
    repairs = []
    if not is_named:
        what = "no unit is named, and the values were taken as gCO2e/kWh"
        repairs.append(Repair(table.lines[0], name, what))
    return Content(
        time=times[0],
        value=value,
        value_name=name,
        g_per_kwh=g_per_kwh,
        figures=((value, g_per_kwh),),
        scope=scope,
        gas=gas,
        factors=f"not stated in {table.path.name}",
        estimated=np.ones(len(g_per_kwh), np.bool_) if _ESTIMATED.search(name) else None,
        repairs=tuple(repairs),
        end=times[1],
    )


def _unit(table: CsvTable, value: int) -> tuple[float, Gas, bool]:
    """What the values are multiplied with, what they are of, and whether the header says so."""
    name = table.columns[value]
    found = _UNIT.search(name)
    if found is None:
        if _OTHER_UNIT.search(name):
            raise _unknown(table, value)
        return 1.0, Gas.CO2E, False
    factor = _G_PER_KWH.get((found["mass"].lower(), found["energy"].lower()))
    if factor is None:
        raise _unknown(table, value)
    # Who writes no gas, or an e behind it, means all of them.
    of = (found["of"] or "co2e").lower()
    return factor, Gas.CO2E if "e" in of else Gas.CO2, True


def _unknown(table: CsvTable, value: int) -> DataError:
    return table.header_mistake(value, "the unit is not known; known are g/kWh, kg/MWh and lbs/MWh")
