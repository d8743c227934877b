"""A recorded series of a grid's intensity, whatever form its file had."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ecorl.carbon.series import Series
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
    mix: dict[Fuel, NDArray[np.float64]] | None
    renewable: Series | None
    estimated: NDArray[np.bool_] | None
    stated: Series | None
    repairs: tuple[Repair, ...]
    generation_mw: Series | None = None
    doubted: Mapping[int, float] = field(default_factory=dict)
