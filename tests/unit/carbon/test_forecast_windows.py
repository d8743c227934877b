"""Windows of a forecast, and how a past goes on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecorl.carbon.forecasts.forecast import Forecast, lowest_window, mean_between, next_clean_window
from ecorl.carbon.forecasts.pool import HORIZON_S, continuation
from ecorl.carbon.series import Series
from ecorl.errors import FeedSilent
from tests.fakes.grid_series import HOUR_S, grid, with_gaps

timeless = settings(deadline=None)
START_S = 1.7e9
NAN = float("nan")


def forecast(*middle, step_s=HOUR_S):
    return Forecast("made up", START_S, START_S, step_s, np.array(middle, np.float64))


def hours(window):
    return None if window is None else tuple((t - START_S) / HOUR_S for t in window)


@pytest.mark.parametrize(
    ("middle", "window"),
    [
        ((300, 200, 100, 250, 100), (1, 3)),
        ((200, 300), (0, 1)),
        ((300, 150, 150), (1, 3)),
        ((300, 250), None),
        ((NAN, NAN), None),
        ((NAN, 100, NAN, 100), (1, 2)),
    ],
)
def test_the_next_clean_window_is_the_first_stretch_at_or_below_the_threshold(middle, window):
    assert hours(next_clean_window(forecast(*middle), 200.0)) == window


@pytest.mark.parametrize(
    ("middle", "length_h", "window"),
    [
        ((5, 4, 1, 2, 9), 2, (2, 4)),
        ((1, 1, 1), 2, (0, 2)),
        ((NAN, 1, 2, 3), 2, (1, 3)),
        ((NAN, 1, NAN), 2, None),
        ((1,), 2, None),
        ((3, 2), 0.2, (1, 2)),
    ],
)
def test_the_lowest_window_has_the_lowest_mean(middle, length_h, window):
    assert hours(lowest_window(forecast(*middle), length_h * HOUR_S)) == window


def test_a_mean_is_of_the_intervals_that_begin_in_the_span():
    found = forecast(1, 2, NAN, 4)
    assert mean_between(found, START_S, START_S + 2 * HOUR_S) == 1.5
    assert mean_between(found, START_S + HOUR_S, START_S + 4 * HOUR_S) == 3.0
    assert mean_between(found, START_S + 2 * HOUR_S, START_S + 3 * HOUR_S) is None
    assert mean_between(found, START_S + 9 * HOUR_S, START_S + 10 * HOUR_S) is None


@given(st.integers(0, 120), st.floats(0, 0.6), st.sampled_from([900.0, HOUR_S]), st.integers(0, 9))
@timeless
def test_a_continuation_tells_what_is_known_and_forecasts_the_rest(ahead, share, step_s, seed):
    past = with_gaps(grid(8, seed, step_s), share, seed)
    first = len(past.values) - 12 + ahead
    made = continuation(past, first)
    assert made.start_s == past.start_s + first * step_s
    assert len(made.middle) == HORIZON_S / step_s
    assert np.isfinite(made.middle).all()
    assert (made.low <= made.middle).all()
    assert (made.middle <= made.high).all()
    # What is known of the first intervals stands there as it is, up to the first hole.
    known = past.values[first:]
    n = int(np.argmin(np.isfinite(known))) if np.isnan(known).any() else len(known)
    assert np.array_equal(made.middle[:n], known[:n])
    assert np.array_equal(made.high[:n], known[:n])


def test_twenty_hours_are_enough_and_nineteen_are_not():
    assert len(continuation(grid(20 / 24), 20).middle) == 96
    with pytest.raises(FeedSilent, match=r" 20 h.* 19 h"):
        continuation(grid(19 / 24), 19)
    nothing = Series(START_S, HOUR_S, np.full(99, NAN))
    with pytest.raises(FeedSilent, match=r" 0 h"):
        continuation(nothing, 99)
