"""Confidence intervals of shares."""

from __future__ import annotations

import math
import statistics

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
