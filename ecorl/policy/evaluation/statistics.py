"""Comparing policies over seeds: Welch's test with Bonferroni's correction."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

from ecorl.scheduler.tables import Float64


@dataclass(frozen=True, slots=True)
class Difference:
    """One policy against another.

    Attributes:
        mean: difference of the means, in the unit of the values.
        p_value: of Welch's two-sided test, as it is; None where nothing varies.
        significant: whether it is below the level after the correction.
        level: the corrected level.
    """

    mean: float
    p_value: float | None
    significant: bool
    level: float


def welch(ours: Float64, theirs: Float64, n_comparisons: int, level: float = 0.05) -> Difference:
    """Welch's t-test (unequal variances), Bonferroni-corrected for several comparisons.

    Args:
        ours: one value a seed.
        theirs: one value a seed.
        n_comparisons: that are made with the same policy.
        level: of all comparisons together.

    Raises:
        ValueError: with fewer than two values on a side, or no comparison.
    """
    if min(len(ours), len(theirs)) < 2 or n_comparisons < 1:
        raise ValueError("at least two values on each side and one comparison are needed")
    corrected = level / n_comparisons
    mean = float(np.mean(ours) - np.mean(theirs))
    if np.ptp(ours) == 0 and np.ptp(theirs) == 0:
        return Difference(mean, None, mean != 0.0, corrected)
    p_value = float(stats.ttest_ind(ours, theirs, equal_var=False).pvalue)
    return Difference(mean, p_value, p_value < corrected, corrected)
