"""Prices of spot machines: recorded ones from a file, and made-up ones."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np

from ecorl.carbon.series import Series
from ecorl.carbon.traces.stamps import read_times
from ecorl.carbon.traces.table import read_table
from ecorl.carbon.traces.times import lay_out
from ecorl.errors import DataError
from ecorl.kinds import Provenance

SYNTHETIC_PRICES = Provenance.MODELLED
"""Provenance of what follows from `synthetic_prices`."""

PEAK_H = 15.0
"""Hour of the day (UTC) at which a made-up price is highest. Invented."""

_DAY_SHARE = 0.15
"""How far the logarithm of a made-up price swings over a day. Invented."""

_SPREAD = 0.25
"""Standard deviation of its logarithm beside that. Invented: up to twice the price at times."""

_RETURN_H = 24.0
"""Hours after which its distance from the base has fallen to 1/e. Invented."""

_COLUMNS = ("time", "price")
_HOUR_S = 3600.0

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


def synthetic_prices(start_s: float, step_s: float, n: int, base_price: float, seed: int) -> Series:
    """Make up prices, of no market: their provenance is `SYNTHETIC_PRICES`.

    The logarithm of the price is that of the base, a cosine over the day, and an autoregression of
    the first order that returns to 0. All of its constants are invented.

    Args:
        start_s: begin of the first interval, s since 1970.
        step_s: length of an interval, s.
        n: number of intervals.
        base_price: the median price about which it moves, in any currency an hour.
        seed: the same prices for the same seed.

    Raises:
        ValueError: for a step or a price that is not above 0.
    """
    if not (step_s > 0 and base_price > 0):
        raise ValueError(f"step {step_s} s and base price {base_price} have to be above 0")
    draws = np.random.default_rng(seed).standard_normal(n)
    stays = np.exp(-step_s / _HOUR_S / _RETURN_H)
    spreads = np.full(n, _SPREAD * np.sqrt(1.0 - stays**2))
    spreads[:1] = _SPREAD
    distances, distance = np.empty(n), 0.0
    for number, move in enumerate(spreads * draws):
        distance = stays * distance + move
        distances[number] = distance
    hours = (start_s + step_s * (np.arange(n) + 0.5)) / _HOUR_S
    day = _DAY_SHARE * np.cos(2.0 * np.pi * (hours - PEAK_H) / 24.0)
    return Series(start_s, step_s, base_price * np.exp(day + distances))
