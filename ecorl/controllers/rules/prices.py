"""Prices of spot machines, recorded in a file."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np

from ecorl.carbon.series import Series
from ecorl.carbon.traces.stamps import read_times
from ecorl.carbon.traces.table import read_table
from ecorl.carbon.traces.times import lay_out
from ecorl.errors import DataError

_COLUMNS = ("time", "price")

_log = logging.getLogger(__name__)


def read_prices(path: Path) -> Series:
    """Read the price of a worker over time.

    Rows that are out of order or there twice are put right, and times without an offset are taken
    as UTC; each with a line in the log. Intervals between rows of which there is none are missing.

    Args:
        path: CSV of a time (ISO 8601, or seconds since 1970) and a price in any currency an hour,
            UTF-8, with or without a header; the rows are equal steps of time apart.

    Returns:
        The prices, NaN where the file has no row.

    Raises:
        DataError: with file, line and column, for what is no time or no price, be it missing or
            negative, and for times that make no equal intervals.
    """
    table = read_table(path, _COLUMNS)
    if len(table.columns) != len(_COLUMNS):
        raise DataError(f"{path}:1: {len(table.columns)} columns, expected a time and a price")
    prices = table.numbers(1)
    for row in np.flatnonzero(~(prices >= 0.0)):
        raise table.mistake(int(row), 1, "is no price: a number from 0 on is expected")
    raster = lay_out(table, 0, read_times(table, 0), [(1, prices)])
    for repair in raster.repairs:
        _log.warning("%s:%d: %s: %s", path, repair.line, repair.column, repair.what)
    return Series(raster.start_s, raster.step_s, raster.place(prices))
