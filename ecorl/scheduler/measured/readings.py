"""What a run has measured of its stages, against what the cost table says of them.

A measured cost is told as a ratio to its nominal one, so that it holds for batches of other lengths
as well. Run and simulator share this arithmetic; it works on floats and on arrays alike.

A recent mean stands beside Eq. 5's slow one, because the two are for different questions. What a
token of a stage costs in this run is a matter of all its readings, and alpha = 0.05 keeps that
steady. What the next batch will cost on a path depends on who shares its devices just now: other
tenants come and go within tens of batches, and a mean that needs twenty readings to follow would
price each of them when it has left. How far the recent mean is to be believed, scatter and age
considered, is said by `ecorl.statistics.expected`.
"""

from __future__ import annotations

from typing import NamedTuple

from ecorl.stages import Number
from ecorl.statistics import RECENT_ALPHA, recent_weight

__all__ = ["PRIOR_COUNT", "RECENT_ALPHA", "UNREAD", "Readings", "level", "recent_weight"]

PRIOR_COUNT = 0.5
"""Readings that the nominal cost weighs as much as: one reading already has two thirds. Invented: a
roofline is off by factors, a reading after the first by some tens of percent."""


class Readings(NamedTuple):
    """What has been measured of a stage on one path; floats, or arrays side by side.

    Attributes:
        ratio: expected time over the nominal one; 1.0 where nothing is known.
        j_ratio: expected energy over the nominal one; where the energy is not known that of the
            time, which is the nominal power for longer; 1.0 where neither is.
        spread: standard deviation of time per token over its mean.
        count: readings behind these; 0.0 where nothing is known.
        age: rollout batches since the newest reading.
    """

    ratio: Number
    j_ratio: Number
    spread: Number
    count: Number
    age: Number


UNREAD = Readings(ratio=1.0, j_ratio=1.0, spread=0.0, count=0.0, age=0.0)
"""Of a stage that has not been read on a path."""


def level(ratio: Number, n_recent: Number) -> Number:
    """Compute the factor by which a nominal cost is scaled.

    It is the mean of the ratio, by its readings, and of 1, by `PRIOR_COUNT`.

    Args:
        ratio: cost that is expected by what was measured, over the nominal one.
        n_recent: readings behind it, 0 or more.
    """
    return 1.0 + (ratio - 1.0) * n_recent / (n_recent + PRIOR_COUNT)
