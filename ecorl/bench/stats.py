"""Small statistics for noisy measurements. All functions are pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ecorl.report.model import PairedGain

Values = Sequence[float]

LEAST_VALUES = 6
"""Values from which on a bootstrap of the median covers about what it says: resampled medians of
three lie between the lowest and the highest, which holds the true median three times in four."""

_LEVEL = 0.95

RESAMPLES = 4000
"""Bootstrap resamples; the interval's ends then move by less than its width over 20."""


def median(values: Values) -> float:
    """The median.

    Raises:
        ValueError: without values.
    """
    return float(np.median(_array(values)))


def mad(values: Values) -> float:
    """Median absolute deviation from the median, not scaled to a normal distribution.

    Raises:
        ValueError: without values.
    """
    array = _array(values)
    return float(np.median(np.abs(array - np.median(array))))


def bootstrap_interval(values: Values, *, of_mean: bool = False) -> tuple[float, float] | None:
    """95 % percentile bootstrap interval of the median; the same values give the same interval.

    Args:
        values: independent measurements.
        of_mean: of the mean in place of the median.

    Returns:
        Lower and upper end, or None below `LEAST_VALUES`.
    """
    array = _array(values)
    if len(array) < LEAST_VALUES:
        return None
    rng = np.random.default_rng(0)
    picks = rng.integers(len(array), size=(RESAMPLES, len(array)))
    middles = (np.mean if of_mean else np.median)(array[picks], axis=1)
    tail = (1.0 - _LEVEL) / 2.0
    low, high = np.quantile(middles, [tail, 1.0 - tail])
    return float(low), float(high)


def gain_in_errors(gain: PairedGain) -> float | None:
    """A paired gain over its standard error; None when one is missing or the error is 0."""
    if gain.gain is None or not gain.standard_error:
        return None
    return gain.gain / gain.standard_error


def spread_of(values: Values) -> dict[str, object]:
    """Make the ``spread`` of a figure: count, MAD, extremes and, of enough values, the interval."""
    array = _array(values)
    interval = bootstrap_interval(values)
    return {
        "n": len(array),
        "mad": mad(values),
        "min": float(array.min()),
        "max": float(array.max()),
        "interval_95": None if interval is None else list(interval),
    }


def _array(values: Values) -> npt.NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        raise ValueError("no values")
    return array
