"""The past of a grid in its hours."""

from __future__ import annotations

import numpy as np

from ecorl.carbon.series import Series
from ecorl.controllers.horizon.levels import DAY_H, DAY_S
from ecorl.controllers.problem.table import FloatArray


def hourly(past: Series, day_s: float = DAY_S) -> FloatArray:
    """The past in whole hours up to its end, holes filled with what stood before them.

    Args:
        past: what was told, g/kWh.
        day_s: length of a day of the grid, s.

    Returns:
        ``[hours] float64``.
    """
    per_hour = day_s / DAY_H / past.step_s
    values = past.values
    if per_hour < 1.0:
        values = np.repeat(values, round(1.0 / per_hour))
    elif per_hour > 1.0:
        block = round(per_hour)
        part = values[len(values) % block :].reshape(-1, block)
        known = np.isfinite(part)
        counts = known.sum(axis=1)
        sums = np.where(known, part, 0.0).sum(axis=1)
        values = np.divide(sums, counts, out=np.full(len(part), np.nan), where=counts > 0)
    is_there = np.isfinite(values)
    if is_there.all():
        return values
    numbers = np.where(is_there, np.arange(len(values)), -1)
    np.maximum.accumulate(numbers, out=numbers)
    filled: FloatArray = values[numbers[numbers >= 0]]
    return filled
