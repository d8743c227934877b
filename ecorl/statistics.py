"""Confidence intervals of shares, and the weight of a reading in a recent mean."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Any

RECENT_ALPHA = 0.3
"""Least weight of a new reading in a recent mean: it stands for about the last six readings.
Invented: others who share a device come and go within tens of batches, and a mean of that length
has followed them after five."""

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
