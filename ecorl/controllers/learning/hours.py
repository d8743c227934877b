"""The hours of the past: what is compared with what, and what the next ones are expected to be."""

from __future__ import annotations

import numpy as np

from ecorl.controllers.horizon.levels import DAY_H
from ecorl.controllers.problem.table import FloatArray

OUTLOOK_H = 6
"""How far the paper's agent sees ahead, h."""

PROFILE_DAYS = 7
"""How many days the next hours are expected to be like, where no forecast tells them."""

MEAN_DAYS = 28
"""How many days the intensity is compared with. Invented: four weeks follow the season."""


def recent_mean(hours: FloatArray) -> FloatArray:
    """Mean of the newest weeks at each hour, that hour included, ``[hours] float64``.

    Args:
        hours: ``[hours] float64``, intensities, g/kWh.
    """
    sums = np.concatenate(([0.0], np.cumsum(hours)))
    ends = np.arange(1, len(hours) + 1)
    begins = np.maximum(0, ends - MEAN_DAYS * DAY_H)
    return np.maximum((sums[ends] - sums[begins]) / (ends - begins), 1e-9)


def outlook_by_profile(hours: FloatArray) -> FloatArray:
    """Mean intensity of the next six hours, if they are as those of the last days were.

    Args:
        hours: ``[hours] float64``, intensities, g/kWh.

    Returns:
        ``[hours] float64``; each is of earlier hours alone. Where not even one day is known it is
        the intensity of the hour itself.
    """
    n = len(hours)
    if n <= DAY_H:
        return hours
    sums = np.concatenate(([0.0], np.cumsum(hours)))
    later = (sums[OUTLOOK_H + 1 :] - sums[1:-OUTLOOK_H]) / OUTLOOK_H
    total, count = np.zeros(n), np.zeros(n)
    for first in range(DAY_H, min(n, PROFILE_DAYS * DAY_H + 1), DAY_H):
        total[first:] += later[: n - first]
        count[first:] += 1.0
    found: FloatArray = np.where(count > 0.0, total / np.maximum(count, 1.0), hours)
    return found
