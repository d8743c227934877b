"""A recorded series of a grid's intensity, and what the rows of a file say, whatever its form."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ecorl.carbon.plausibility import MAX_G_PER_KWH
from ecorl.carbon.series import FloatArray, Series
from ecorl.carbon.traces.table import CsvTable
from ecorl.grid import Fuel, Gas, Scope


@dataclass(frozen=True, slots=True)
class Repair:
    """What was changed of a file's content, or taken for granted, so that it could be used.

    Attributes:
        line: 1-based line of the file at which it shows.
        column: name of the column that it is about.
        what: what was done, and why, in one plain line.
    """

    line: int
    column: str
    what: str


@dataclass(frozen=True, slots=True, eq=False)
class GridTrace:
    """Recorded average intensities of a grid, in equal intervals.

    Attributes:
        name: of the grid: the file's name up to its first underscore.
        path: the file.
        series: the intensity, g/kWh.
        scope: whether it counts life-cycle or direct emissions.
        gas: what the grams are of.
        factors: the set of emission factors behind it.
        mix: ``[n] float64`` share of each fuel in each interval, 0 to 1, NaN where the intensity is
            missing; None where the file has none.
        renewable: share of renewable fuels, 0 to 1; None where the file does not tell.
        estimated: ``[n] bool``, whether the provider estimated the value; None where it never says.
        stated: the file's own intensity, g/kWh, where `series` was computed from the mix.
        repairs: what was changed, in the order of lines.
        generation_mw: all that the grid's plants fed in, the total behind `mix`, MW, NaN where the
            intensity is missing; None where the file does not tell.
        doubted: intensities of the file that are not believed, by number of interval, g/kWh.
    """

    name: str
    path: Path
    series: Series
    scope: Scope
    gas: Gas
    factors: str
    mix: dict[Fuel, FloatArray] | None
    renewable: Series | None
    estimated: NDArray[np.bool_] | None
    stated: Series | None
    repairs: tuple[Repair, ...]
    generation_mw: Series | None = None
    doubted: Mapping[int, float] = field(default_factory=dict)


MIN_MEDIAN_G_PER_KWH = 1.0
"""Below this median a column is in another unit, g/kWh: the cleanest grids emit about 10 over the
life cycle of their plants, and kg/kWh make less than 1.5 of any."""


@dataclass(frozen=True, slots=True, eq=False)
class Content:
    """Figures of a file, one for each of its rows.

    Attributes:
        time: number of the column with the times.
        value: number of the column that the intensity is from, or the first of those that it is
            computed from.
        value_name: what to call the intensity in repairs.
        g_per_kwh: ``[n_rows] float64``, NaN where it is missing.
        figures: number and values of the columns that make a row what it is.
        scope: whether the intensity counts life-cycle or direct emissions.
        gas: what the grams are of.
        factors: the set of emission factors behind it.
        shares: ``[n_rows] float64`` of each fuel, 0 to 1.
        renewable: ``[n_rows] float64``, share of renewable fuels, 0 to 1.
        estimated: ``[n_rows] bool``, whether the provider estimated the value.
        stated: ``[n_rows] float64``, the file's own intensity beside the computed one.
        repairs: what was changed.
        generation_mw: ``[n_rows] float64``, generation from all fuels, MW, NaN where it is missing.
        end: number of the column with the ends of the intervals that begin at the times, or None.
        carbon_free: ``[n_rows] float64``, share of what emits nothing directly, 0 to 1.
    """

    time: int
    value: int
    value_name: str
    g_per_kwh: FloatArray
    figures: tuple[tuple[int, FloatArray], ...]
    scope: Scope
    gas: Gas
    factors: str
    shares: dict[Fuel, FloatArray] | None = None
    renewable: FloatArray | None = None
    estimated: NDArray[np.bool_] | None = None
    stated: FloatArray | None = None
    repairs: tuple[Repair, ...] = ()
    generation_mw: FloatArray | None = None
    end: int | None = None
    carbon_free: FloatArray | None = None


def check_unit(
    table: CsvTable,
    column: int,
    values: FloatArray,
    scope: Scope = Scope.LIFE_CYCLE,
    *,
    is_named: bool = False,
) -> None:
    """Refuse a column whose values cannot be g/kWh of a grid.

    Args:
        table: the file.
        column: number of the column.
        values: its values, in what they are taken for: g/kWh.
        scope: of the values. Directly a grid may emit nothing: there zeros tell nothing of a unit,
            and where it is named, small values tell nothing either.
        is_named: whether the file names the unit.

    Raises:
        DataError: when the column has no value at all, or its median is far from what grids emit.
    """
    known = np.flatnonzero(~np.isnan(values))
    if not len(known):
        raise table.mistake(0, column, "no row of the column has a value")
    of, least = "the column", MIN_MEDIAN_G_PER_KWH
    if scope is Scope.DIRECT:
        of, least = "its values other than 0", -math.inf if is_named else least
        known = known[values[known] != 0]
        if not len(known):
            return
    median = float(np.median(values[known]))
    if not least <= median <= MAX_G_PER_KWH:
        why = (
            f"the median of {of} is {median:g}; expected are g/kWh, of which grids emit"
            f" {MIN_MEDIAN_G_PER_KWH:g} to {MAX_G_PER_KWH:g}"
        )
        if median == 0:
            why += '; directly a grid may emit nothing: say scope = "direct"'
        raise table.mistake(int(known[0]), column, why)
