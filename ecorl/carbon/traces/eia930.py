"""Generation by fuel as the EIA's hourly grid monitor (form EIA-930) has it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ecorl.carbon.traces.content import Content, check_unit
from ecorl.carbon.traces.table import CsvTable
from ecorl.carbon.traces.trace import Repair
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
    table: CsvTable, numbers: dict[str, int], raw: dict[str, NDArray[np.float64]]
) -> tuple[dict[str, NDArray[np.float64]], list[Repair]]:
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
