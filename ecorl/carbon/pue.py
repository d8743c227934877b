"""Power usage effectiveness over time, from a file of two columns."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np

from ecorl.carbon.traces.stamps import read_times
from ecorl.carbon.traces.table import read_table

LOWEST, HIGHEST = 1.0, 3.0
"""A building draws at least what its machines draw; above 3 a figure is likely something else."""


def read_pue(path: Path) -> list[tuple[float, float]]:
    """Read when which power usage effectiveness counts.

    Args:
        path: CSV of a time and the PUE from then on, UTF-8, with or without a header.

    Returns:
        Pairs of s since 1970 and PUE, in the order of time.

    Raises:
        DataError: with file, line and column, for what is no time or no PUE, and for a time that is
            there twice.
    """
    table = read_table(path, ("time", "pue"))
    times, values = read_times(table, 0), table.numbers(1)
    if times.are_ends:
        raise table.header_mistake(
            0, "its times are ends of intervals; a PUE counts from its time on"
        )
    times_s = times.seconds
    is_pue = (values >= LOWEST) & (values <= HIGHEST)
    for row in np.flatnonzero(~is_pue):
        raise table.mistake(int(row), 1, f"is no PUE: {LOWEST:g} to {HIGHEST:g} is allowed")
    order = np.argsort(times_s, kind="stable")
    for before, after in itertools.pairwise(order):
        if times_s[before] == times_s[after]:
            raise table.mistake(int(max(before, after)), 0, "the same time stands there twice")
    return [(float(times_s[i]), float(values[i])) for i in order]
