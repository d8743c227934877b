"""Confidence intervals of shares, recent means, and what the next reading is expected to be."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Any

RECENT_ALPHA = 0.3
"""Least weight of a new reading in a recent mean: it stands for about the last six readings.
Invented: others who share a device come and go within tens of batches, and a mean of that length
has followed them after five."""

FADING_BATCHES = 15.0
"""Batches without a reading after which 1/e of what set the recent mean apart is still expected.
Invented, as `RECENT_ALPHA` is: others who shared the device then may have left it by now."""

_Z_95 = statistics.NormalDist().inv_cdf(0.975)


def wilson_interval(n_hits: int, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share.

    Unlike the share plus or minus its standard error it says something where nothing, or
    everything, was hit: 0 of 40 may still be 8.8 %.

    Args:
        n_hits: hits among the tries.
        n: tries, at least 1.

    Returns:
        Lower and upper end, each 0 to 1.
    """
    share, z2 = n_hits / n, _Z_95 * _Z_95
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z_95 / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    # At the ends the two terms are equal but for rounding.
    return max(0.0, middle - half) if n_hits else 0.0, min(
        1.0, middle + half
    ) if n_hits < n else 1.0


def recent_weight(n: Any, maximum: Callable[..., Any] = max) -> Any:
    """Compute the weight of a reading in a recent mean: 1/n, but no less than `RECENT_ALPHA`.

    So the first readings are averaged plainly, and later ones fade.

    Args:
        n: number of the reading among those that count, from 1; a float or an array.
        maximum: the larger of two; `numpy.maximum` for arrays.
    """
    return maximum(1.0 / n, RECENT_ALPHA)


SCATTER_SHARE = RECENT_ALPHA / (2.0 - RECENT_ALPHA)
"""Variance of a recent mean over that of the readings in it, where these are independent."""


def expected(recent: float, mean: float, spread: float, age: float) -> float:
    """Compute what the next reading is expected to be: between the mean of all and the recent one.

    The recent mean stands apart from that of all readings where something has changed, and by
    chance where readings scatter. So what counts of its distance d is ``max(0, 1 - v / d^2)``
    (James and Stein's estimator, positive part), v being the variance that scatter alone gives a
    recent mean: a slow execution of a stage that scatters by half of its time says little, and a
    tenant who doubles a steady one is believed for the most part. And a distance fades with the age
    of the newest reading: a path that was slow when it was last used must not be avoided for ever
    on that ground.

    Args:
        recent: recent mean.
        mean: plain mean of the same readings.
        spread: their standard deviation over their mean, 0 or more.
        age: batches since the newest of them; 1: it was read in the batch before.
    """
    off, scatter = recent - mean, spread * mean
    by_chance = SCATTER_SHARE * scatter * scatter
    if off * off <= by_chance:
        return mean
    kept = off - by_chance / off
    return mean + (kept if age <= 1.0 else kept * math.exp((1.0 - age) / FADING_BATCHES))
