"""Estimates over seeds, and comparisons of policies that played the same episodes.

Every policy plays the same drawn episodes, and episodes differ far more from one another than
policies do. So two policies are compared episode by episode: the differences are tested against 0
(the paired t-test), with Bonferroni's correction where one policy is compared with several.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from ecorl.scheduler.tables import Float64

LEVEL = 0.05
"""Level of all comparisons of one policy together, and 1 less the coverage of an interval."""

_ROUNDING = 1e-12
"""Spread over size below which values count as equal: rounding alone leaves less."""


@dataclass(frozen=True, slots=True)
class MeanEstimate:
    """A mean and how far it can be trusted.

    Attributes:
        mean: in the unit of the values.
        error: its standard error; 0 where the values are equal.
        low, high: interval of Student's t around it.
        n: values.
    """

    mean: float
    error: float
    low: float
    high: float
    n: int


@dataclass(frozen=True, slots=True)
class Difference:
    """One policy against another on the same episodes.

    Attributes:
        mean: mean difference, in the unit of the values.
        low, high: its interval, at the corrected level.
        p_value: of the two-sided paired t-test, uncorrected; None where all differences are equal.
        significant: whether the difference is other than 0 at the corrected level.
        level: the corrected level.
    """

    mean: float
    low: float
    high: float
    p_value: float | None
    significant: bool
    level: float


def estimate(values: Float64, level: float = LEVEL) -> MeanEstimate:
    """Mean of independent values, with its standard error and interval.

    Args:
        values: ``[n] float64``, one a seed, n of 2 or more.
        level: 1 less the coverage of the interval.

    Raises:
        ValueError: with fewer than two values.
    """
    n = len(values)
    if n < 2:
        raise ValueError("at least two values are needed")
    mean = float(np.mean(values))
    if np.ptp(values) <= _ROUNDING * np.abs(values).max():
        return MeanEstimate(mean, 0.0, mean, mean, n)
    error = float(np.std(values, ddof=1)) / math.sqrt(n)
    half = float(stats.t.ppf(1.0 - level / 2.0, n - 1)) * error
    return MeanEstimate(mean, error, mean - half, mean + half, n)


def paired(ours: Float64, theirs: Float64, n_comparisons: int = 1) -> Difference:
    """Paired t-test of two policies on the same episodes.

    Args:
        ours: ``[n] float64``, one value an episode or seed, n of 2 or more.
        theirs: the same of the other policy, in the same order.
        n_comparisons: that are made with the same policy; `LEVEL` is divided by it (Bonferroni).

    Raises:
        ValueError: with fewer than two values, an unequal number of them, or no comparison.
    """
    if len(ours) != len(theirs) or n_comparisons < 1:
        raise ValueError("as many values on each side and at least one comparison are needed")
    corrected = LEVEL / n_comparisons
    # Rounding is judged by the size of what is subtracted, not by that of the difference.
    scale = max(float(np.abs(ours).max()), float(np.abs(theirs).max()))
    off = np.asarray(ours, dtype=np.float64) - theirs
    if np.ptp(off) <= _ROUNDING * scale:
        off = np.full(len(off), off.mean() if abs(off.mean()) > _ROUNDING * scale else 0.0)
    found = estimate(off, corrected)
    if found.error == 0.0:
        differs = found.mean != 0.0
        return Difference(found.mean, found.low, found.high, None, differs, corrected)
    p_value = float(2.0 * stats.t.sf(abs(found.mean) / found.error, found.n - 1))
    return Difference(found.mean, found.low, found.high, p_value, p_value < corrected, corrected)


def ratio_values(numerator: Float64, denominator: Float64) -> Float64:
    """Values whose mean is a ratio of means, and whose spread is that ratio's (delta method).

    To first order the error of ``R = mean(x) / mean(y)`` is the mean of ``(x - R y) / mean(y)``:
    where both were measured on the same episodes, what they have in common cancels.

    Args:
        numerator: ``[n] float64``, x of each episode.
        denominator: ``[n] float64``, y of the same episodes; its mean is not 0.

    Returns:
        ``[n] float64``: ``R + (x - R y) / mean(y)``, for `estimate` and `paired`.
    """
    below = float(np.mean(denominator))
    ratio = float(np.mean(numerator)) / below
    return np.asarray(ratio + (numerator - ratio * denominator) / below)
