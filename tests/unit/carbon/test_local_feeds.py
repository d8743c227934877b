"""Feeds that ask nobody: a recording, a made-up day, and a stated figure."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ecorl.carbon.feeds.local import ConstantFeed, Intervals, ReplayFeed, SyntheticFeed
from ecorl.carbon.forecasts.pool import RecencyAdaptivePool
from ecorl.carbon.series import Series
from ecorl.carbon.traces.trace import GridTrace
from ecorl.errors import FeedSilent
from ecorl.grid import Basis, Fuel, Gas, Scope
from ecorl.kinds import Provenance
from tests.fakes.grid_series import grid

# Machines that are busy are slow.
timeless = settings(deadline=None)

HOUR_S, DAY_S = 3600.0, 86400.0
NEW_YEAR_S = 1640995200.0  # 2022-01-01 00:00 UTC
BEGAN_S = 1789000123.75  # when the runs of these tests begin

VALUES = np.array([100.0, 200.0, np.nan, 400.0, 500.0, 600.0])
TRACE = GridTrace(
    name="X",
    path=Path("folder/X_2022.csv"),
    series=Series(NEW_YEAR_S, HOUR_S, VALUES),
    scope=Scope.DIRECT,
    gas=Gas.CO2,
    factors="made up",
    mix=None,
    renewable=None,
    estimated=None,
    stated=None,
    repairs=(),
)


def replay(starts_at_h=0.0, **options):
    return ReplayFeed(TRACE, NEW_YEAR_S + starts_at_h * HOUR_S, BEGAN_S, **options)


def told(feed, now_s):
    """What a feed tells at a time, or None where it is silent."""
    try:
        return feed.read(now_s).g_per_kwh
    except FeedSilent:
        return None


# ------------------------------------------------------------------------------------- intervals


@given(st.floats(-2e9, 2e9), st.floats(0.01, 1e5), st.floats(-1e9, 3e9))
@timeless
def test_an_interval_holds_its_own_times(first_s, step_s, t_s):
    intervals = Intervals(first_s, step_s)
    number = intervals.number(t_s)
    assert intervals.start_s(number) <= t_s < intervals.start_s(number + 1)
    assert intervals.number(intervals.start_s(number)) == number
    assert intervals.number(math.nextafter(intervals.start_s(number + 1), -math.inf)) == number


@given(st.floats(0, 2e9), st.floats(1, 1e5), st.floats(0, 2e9), st.floats(0, 1e6))
@timeless
def test_intervals_within_a_span_are_all_that_fit(first_s, step_s, start_s, span_s):
    intervals = Intervals(first_s, step_s)
    within = intervals.within(start_s, start_s + span_s)
    if len(within):
        assert intervals.start_s(within.start) >= start_s
        assert intervals.start_s(within.stop) <= start_s + span_s
        assert intervals.start_s(within.stop + 1) > start_s + span_s
    assert intervals.start_s(within.start - 1) < start_s


# ---------------------------------------------------------------------------------------- replay


def test_a_replayed_value_says_what_it_is():
    value = replay().read(BEGAN_S + 1.5 * HOUR_S)
    assert (value.feed, value.g_per_kwh) == ("replay", 200.0)
    assert (value.start_s, value.interval_s) == (BEGAN_S + HOUR_S, HOUR_S)
    assert (value.gas, value.scope, value.basis) == (Gas.CO2, Scope.DIRECT, Basis.LOCATION)
    assert (value.factors, value.provenance) == ("made up", Provenance.REPLAYED)
    assert (value.is_estimated, value.mix, value.renewable_share) == (None, None, None)
    assert value.fetched_s == BEGAN_S + 1.5 * HOUR_S
    info = replay().info
    assert (info.name, info.interval_s) == ("replay", HOUR_S)
    assert "X_2022.csv" in info.source


def test_a_replay_ends_where_the_recording_does_and_tells_nothing_of_gaps():
    feed = replay(starts_at_h=1)
    hours = [told(feed, BEGAN_S + h * HOUR_S) for h in (-1.5, -1, 0, 0.99, 1, 2, 4.99, 5, 100)]
    assert hours == [None, 100, 200, 200, None, 400, 600, None, None]


def test_a_faster_replay_has_shorter_intervals():
    feed = replay(speed=1800.0)
    assert [told(feed, BEGAN_S + t_s) for t_s in (0, 1.9, 2, 3.9, 4, 6, 11.9, 12)] == [
        100, 100, 200, 200, None, 400, 600, None,
    ]  # fmt: skip
    value = feed.read(BEGAN_S + 7)
    assert (value.start_s, value.interval_s) == (BEGAN_S + 6, 2.0)


def test_late_values_are_told_late():
    feed = replay(delay_s=HOUR_S)
    assert [told(feed, BEGAN_S + h * HOUR_S) for h in (0, 1, 2, 3, 6.5, 7)] == [
        None, 100, 200, None, 600, None,
    ]  # fmt: skip
    # Three hours have ended, of which the last is not told yet.
    assert [v.g_per_kwh for v in feed.history(BEGAN_S, BEGAN_S + 2.5 * HOUR_S)] == [100, 200]
    later = replay(delay_s=1.5 * HOUR_S)
    assert [v.g_per_kwh for v in later.history(BEGAN_S, BEGAN_S + 2.4 * HOUR_S)] == [100]


def test_history_has_whole_intervals_and_leaves_out_what_is_missing():
    feed = replay(starts_at_h=3)
    history = feed.history(BEGAN_S - 100 * DAY_S, BEGAN_S + 2.5 * HOUR_S)
    assert [value.g_per_kwh for value in history] == [100, 200, 400, 500]
    assert [value.start_s for value in history] == [BEGAN_S + h * HOUR_S for h in (-3, -2, 0, 1)]
    assert {value.fetched_s for value in history} == {BEGAN_S + 2.5 * HOUR_S}
    assert len(feed.history(BEGAN_S, BEGAN_S + HOUR_S)) == 1
    assert feed.history(BEGAN_S + 1, BEGAN_S + HOUR_S + 1) == ()
    assert feed.history(BEGAN_S + 100 * DAY_S, BEGAN_S + 200 * DAY_S) == ()


def test_mix_and_estimates_of_a_recording_are_handed_on():
    shares = {Fuel.WIND: np.linspace(0, 1, 6), Fuel.COAL: np.linspace(1, 0, 6)}
    estimated = np.array([False, True, False, False, False, False])
    feed = ReplayFeed(replace(TRACE, mix=shares, estimated=estimated), NEW_YEAR_S, BEGAN_S)
    value = feed.read(BEGAN_S + HOUR_S)
    assert value.mix == {Fuel.WIND: pytest.approx(0.2), Fuel.COAL: pytest.approx(0.8)}
    assert value.renewable_share == pytest.approx(0.2)
    assert value.is_estimated is True
    assert feed.read(BEGAN_S).is_estimated is False


LONG = grid(12, seed=3)
AT_S = LONG.start_s + 10.3 * DAY_S  # in the trace, when the runs of these tests begin


def replay_long(values=None, **options):
    series = LONG if values is None else Series(LONG.start_s, LONG.step_s, values)
    return ReplayFeed(replace(TRACE, series=series), AT_S, BEGAN_S, **options)


def test_a_recording_forecasts_from_what_it_has_told():
    speed = 60.0
    feed = replay_long(speed=speed)
    now_s = BEGAN_S + 90.0  # an hour and a half of the trace later
    forecast, value = feed.forecast(now_s), feed.read(now_s)
    assert (forecast.model, forecast.issued_s) == ("recency-adaptive pool", now_s)
    assert (forecast.start_s, forecast.step_s) == (value.start_s, HOUR_S / speed)
    assert len(forecast.middle) == 96
    # The interval under way has been told; the rest is the pool's, in the time of the trace.
    n_told = LONG.index(AT_S + 90.0 * speed) + 1
    assert forecast.middle[0] == forecast.low[0] == forecast.high[0] == value.g_per_kwh
    told = Series(LONG.start_s, HOUR_S, LONG.values[:n_told])
    pools = RecencyAdaptivePool((0.0, math.inf)).forecast(told, 95)
    assert np.array_equal(forecast.middle[1:], pools.middle)
    assert np.array_equal(forecast.low[1:], pools.low)
    assert np.array_equal(forecast.high[1:], pools.high)


@given(st.floats(0, 1.6 * DAY_S), st.floats(0.5, 5000), st.floats(0, 30), st.integers(0, 99))
@timeless
def test_a_recording_does_not_look_at_its_future(at_s, speed, delay_h, seed):
    delay_s = delay_h * HOUR_S / speed
    now_s = BEGAN_S + at_s / speed
    n_told = LONG.index(AT_S + (now_s - BEGAN_S - delay_s) * speed) + 1
    changed = LONG.values.copy()
    # Rounding may put a time on the boundary of two intervals into either.
    changed[n_told + 1 :] = np.random.default_rng(seed).uniform(1, 900, len(changed) - n_told - 1)
    first = replay_long(speed=speed, delay_s=delay_s).forecast(now_s)
    second = replay_long(changed, speed=speed, delay_s=delay_s).forecast(now_s)
    assert np.array_equal(first.middle, second.middle)
    assert np.array_equal(first.high, second.high)
    assert first.start_s <= now_s < first.start_s + first.step_s + 1e-6
    assert len(first.middle) == 96
    assert first.step_s == HOUR_S / speed


def test_a_recording_with_gaps_forecasts_without():
    values = LONG.values.copy()
    n_told = LONG.index(AT_S) + 1
    values[n_told - 1] = np.nan  # the interval under way
    values[::5] = np.nan
    forecast = replay_long(values).forecast(BEGAN_S)
    assert np.isfinite(forecast.middle).all()
    assert forecast.start_s == pytest.approx(BEGAN_S - (AT_S - LONG.start_s) % HOUR_S)


@pytest.mark.parametrize(
    ("at_h", "part"), [(0, "those of 1 h are known"), (6, "nothing at this time"), (-1, "nothing")]
)
def test_where_too_little_is_told_there_is_no_forecast(at_h, part):
    with pytest.raises(FeedSilent, match=part):
        replay().forecast(BEGAN_S + at_h * HOUR_S)


def test_a_recording_of_long_intervals_has_no_forecast():
    series = Series(NEW_YEAR_S, 3 * HOUR_S, np.full(99, 100.0))
    feed = ReplayFeed(replace(TRACE, series=series), NEW_YEAR_S + 9 * DAY_S, BEGAN_S)
    with pytest.raises(FeedSilent, match=r"X_2022\.csv.* 1 h"):
        feed.forecast(BEGAN_S)


@given(st.floats(0.1, 1e5), st.floats(-10, 10), st.floats(0, 6))
@timeless
def test_a_replayed_interval_holds_the_time_of_asking_and_its_own_begin(speed, starts_at_h, at_h):
    feed = replay(starts_at_h=starts_at_h, speed=speed)
    now_s = BEGAN_S + (at_h - starts_at_h) * HOUR_S / speed
    assume(told(feed, now_s) is not None)
    value = feed.read(now_s)
    assert value.start_s <= now_s < value.end_s + 1e-6
    again = feed.read(value.start_s)
    assert (again.start_s, again.g_per_kwh) == (value.start_s, value.g_per_kwh)
    # What is read later is what history tells of it.
    history = feed.history(value.start_s, value.start_s + 1.5 * value.interval_s)
    assert history[0].g_per_kwh == value.g_per_kwh
    assert history[0].start_s == value.start_s


@pytest.mark.parametrize("options", [{"speed": 0.0}, {"speed": math.inf}, {"delay_s": -1.0}])
def test_a_replay_goes_forward(options):
    (value,) = options.values()
    with pytest.raises(ValueError, match=str(value)):
        replay(**options)


# ------------------------------------------------------------------------------------- synthetic


def test_the_made_up_day_is_lowest_at_3_and_highest_at_18():
    feed = SyntheticFeed()
    at = {h: feed.read(NEW_YEAR_S + h * HOUR_S).g_per_kwh for h in (3, 10.5, 18, 22.5, 27)}
    assert at == {3: 200, 10.5: pytest.approx(325), 18: 450, 22.5: pytest.approx(325), 27: 200}
    value = feed.read(NEW_YEAR_S + 200)
    assert (value.start_s, value.interval_s) == (NEW_YEAR_S, 300.0)
    assert (value.provenance, value.factors) == (Provenance.MODELLED, "synthetic day")
    assert (value.feed, value.is_estimated, value.mix) == ("synthetic", None, None)


def test_the_made_up_day_knows_local_time():
    feed = SyntheticFeed(100.0, 700.0, utc_offset_h=-5)
    assert feed.read(NEW_YEAR_S + 8 * HOUR_S).g_per_kwh == 100
    assert feed.read(NEW_YEAR_S + 23 * HOUR_S).g_per_kwh == 700


@given(st.floats(0, 2e9), st.floats(1, 500), st.floats(0, 500), st.floats(-12, 14))
@timeless
def test_the_made_up_day_is_smooth_and_stays_in_its_range(now_s, low, more, utc_offset_h):
    feed = SyntheticFeed(low, low + more, utc_offset_h)
    value = feed.read(now_s)
    following = feed.read(value.end_s)
    assert low <= value.g_per_kwh <= low + more + 1e-9
    assert value.start_s <= now_s < value.end_s == following.start_s
    # The steepest step, of five minutes in the nine hours of falling.
    steepest = more * math.pi / 2 * 300 / (9 * HOUR_S)
    assert abs(following.g_per_kwh - value.g_per_kwh) <= steepest + 1e-9
    assert feed.read(value.start_s + DAY_S).g_per_kwh == pytest.approx(value.g_per_kwh, abs=1e-6)


def test_a_faster_made_up_day_begins_at_the_time_of_the_clock():
    began_s = NEW_YEAR_S + 3 * HOUR_S
    feed = SyntheticFeed(speed=HOUR_S, began_s=began_s)
    assert [feed.read(began_s + t_s).g_per_kwh for t_s in (0, 15, 24)] == [200, 450, 200]
    assert feed.read(began_s).interval_s == pytest.approx(300 / HOUR_S)


@given(st.floats(1, 1e4), st.floats(-1e6, 1e6))
@timeless
def test_the_forecast_is_what_the_feed_tells_then(speed, offset_s):
    feed = SyntheticFeed(speed=speed, began_s=BEGAN_S)
    now_s = BEGAN_S + offset_s
    forecast = feed.forecast(now_s)
    assert forecast.issued_s == now_s
    assert forecast.start_s <= now_s < forecast.start_s + forecast.step_s + 1e-6
    assert forecast.low is forecast.middle is forecast.high
    assert len(forecast.middle) * forecast.step_s * speed == pytest.approx(96 * HOUR_S)
    for number in (0, 1, 100, len(forecast.middle) - 1):
        middle_s = forecast.start_s + (number + 0.5) * forecast.step_s
        assert feed.read(middle_s).g_per_kwh == forecast.middle[number]


def test_the_made_up_past():
    history = SyntheticFeed().history(NEW_YEAR_S + 1, NEW_YEAR_S + HOUR_S)
    assert [value.start_s for value in history] == [NEW_YEAR_S + 300 * i for i in range(1, 12)]
    assert history[-1].end_s == NEW_YEAR_S + HOUR_S


@pytest.mark.parametrize("range_g_per_kwh", [(0.0, 1.0), (2.0, 1.0), (1.0, math.inf)])
def test_the_made_up_day_has_a_range(range_g_per_kwh):
    with pytest.raises(ValueError, match="range"):
        SyntheticFeed(*range_g_per_kwh)


# -------------------------------------------------------------------------------------- constant


@given(st.floats(0, 4e9), st.floats(0, 3000))
@timeless
def test_a_stated_figure_holds_for_its_day(now_s, g_per_kwh):
    feed = ConstantFeed(g_per_kwh, "a data sheet")
    value = feed.read(now_s)
    assert value.start_s <= now_s < value.end_s
    assert value.start_s % DAY_S == 0
    assert value.end_s - value.start_s == feed.info.interval_s == DAY_S
    assert (value.g_per_kwh, value.provenance) == (g_per_kwh, Provenance.PUBLISHED)
    assert (value.is_estimated, value.factors, value.mix) == (None, "a data sheet", None)
    assert feed.forecast(now_s) is None


def test_a_stated_figure_says_what_it_is_of():
    value = ConstantFeed(9.0, "a contract", Scope.DIRECT, Basis.MARKET).read(0.0)
    assert (value.scope, value.basis) == (Scope.DIRECT, Basis.MARKET)


def test_a_stated_figure_held_on_each_whole_day():
    history = ConstantFeed(450.0, "a data sheet").history(NEW_YEAR_S - 1, NEW_YEAR_S + 2.5 * DAY_S)
    assert [value.start_s for value in history] == [NEW_YEAR_S, NEW_YEAR_S + DAY_S]


@pytest.mark.parametrize("g_per_kwh", [-1.0, math.nan, math.inf])
def test_a_stated_figure_is_an_intensity(g_per_kwh):
    with pytest.raises(ValueError, match="no intensity"):
        ConstantFeed(g_per_kwh, "nobody")
