"""A recorded series of a grid's intensity, whatever form its file had."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ecorl.carbon.series import Series
from ecorl.grid import Fuel, Gas, Scope

DIFFERS_FROM = 0.005
"""From this relative difference on a computed value differs from the stated one: half a percent,
above what the rounding of whole megawatts and grams makes."""


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


@dataclass(frozen=True, slots=True)
class Agreement:
    """How well the intensities computed from a mix agree with those that the file states.

    Attributes:
        n: number of intervals that have both.
        largest_g_per_kwh: largest difference, g/kWh.
        n_differ: number of intervals in which they differ by more than `DIFFERS_FROM`.
    """

    n: int
    largest_g_per_kwh: float
    n_differ: int


def agreement(trace: GridTrace) -> Agreement | None:
    """Compare what was computed from the mix with the file's own column.

    Args:
        trace: a recording; values that were repaired away are not compared.

    Returns:
        The differences, or None where the file states no intensity beside its mix, or no interval
        has both.
    """
    if trace.stated is None:
        return None
    stated = trace.stated.values
    differences = np.abs(trace.series.values - stated)
    is_known = ~np.isnan(differences)
    if not is_known.any():
        return None
    n_differ = np.count_nonzero(differences[is_known] > DIFFERS_FROM * np.abs(stated[is_known]))
    return Agreement(
        n=int(np.count_nonzero(is_known)),
        largest_g_per_kwh=float(differences[is_known].max()),
        n_differ=int(n_differ),
    )
