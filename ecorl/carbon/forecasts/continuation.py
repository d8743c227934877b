"""How a past goes on, from the interval under way: what is told of it already, then a forecast."""

from __future__ import annotations

import numpy as np

from ecorl.carbon.forecasts.forecast import Forecast
from ecorl.carbon.forecasts.pool import RecencyAdaptivePool
from ecorl.carbon.forecasts.single import Bounds
from ecorl.carbon.series import Series
from ecorl.errors import FeedSilent

HORIZON_S = 96 * 3600.0
"""How far a continuation reaches from the interval under way, s."""

NEEDED_S = 20 * 3600.0
"""For how long values must be known, s. Invented: a day, as the shortest rules need it, less the
hours by which a provider of the last 24 hours may be late."""

LONGEST_STEP_S = 3600.0
"""Longest intervals that the forecasters here are made for, s."""


def continuation(past: Series, first: int, bounds: Bounds = (0.0, np.inf)) -> Forecast:
    """Go on with a past by the recency-adaptive pool.

    Args:
        past: what is known now; values may be missing (NaN).
        first: number of the interval that is under way, counted from the begin of the past. The
            past may hold it already, or end before it.
        bounds: what the signal cannot be below and above, in its unit.

    Returns:
        A forecast from interval `first` on, over `HORIZON_S`, in the time of the past. What is
        known of its first intervals is told as it is, its low and high being the same. None of its
        numbers is missing. As the time of its making stands the end of what is known, which may lie
        ahead of the clock: whoever knows the clock puts it right.

    Raises:
        FeedSilent: when the intervals are longer than `LONGEST_STEP_S`, or values are known for
            less than `NEEDED_S`.
    """
    step_s, values = past.step_s, past.values
    if step_s > LONGEST_STEP_S:
        raise FeedSilent(
            f"a forecast takes intervals of at most {LONGEST_STEP_S / 3600:g} h, and they are of"
            f" {step_s / 3600:g} h"
        )
    known = np.isfinite(values)
    known_s = float(np.count_nonzero(known)) * step_s
    if known_s < NEEDED_S:
        raise FeedSilent(
            f"a forecast takes values of {NEEDED_S / 3600:g} h, and those of {known_s / 3600:.3g} h"
            " are known"
        )
    end = int(np.flatnonzero(known)[-1]) + 1
    # After a hole in what is told of the time ahead the forecast has to take over.
    holes = np.flatnonzero(~known[first:end])
    if holes.size:
        end = first + int(holes[0])
    told = values[:end]
    n = round(HORIZON_S / step_s)
    pool = RecencyAdaptivePool(bounds)
    made = pool.forecast(Series(past.start_s, step_s, told), max(1, first + n - end))
    assert made.low is not None
    assert made.high is not None
    middle, low, high = (
        np.concatenate((told, line))[first : first + n]
        for line in (made.middle, made.low, made.high)
    )
    start_s = past.start_s + first * step_s
    return Forecast(pool.name, made.issued_s, start_s, step_s, middle, low, high)
