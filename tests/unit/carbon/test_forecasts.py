"""Forecasters: what all of them promise, and what each one says."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.studies.carbon.scores import score
from ecorl.carbon.forecasts import pool as pool_module
from ecorl.carbon.forecasts.pool import RecencyAdaptivePool
from ecorl.carbon.series import Series
from ecorl.carbon.traces.reading import read_trace
from ecorl.errors import FeedSilent
from tests.examples import examples
from tests.fakes.grid_series import DAY_S, HOUR_S, MONDAY_S, cut, grid, with_gaps
from tests.fakes.rule_forecaster import LAST_DAY, LAST_YEAR, NEWEST, RuleForecaster, profile

FORECASTERS = {
    "one rule": lambda bounds=None: RuleForecaster(profile(), bounds),
    "pool": RecencyAdaptivePool,
}
every_forecaster = pytest.mark.parametrize("make", FORECASTERS.values(), ids=FORECASTERS.keys())
quick = settings(
    max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def same(left, right):
    for name in ("middle", "low", "high"):
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name))
    assert (left.model, left.issued_s, left.start_s) == (right.model, right.issued_s, right.start_s)


# ------------------------------------------------------------------- what all of them promise


@every_forecaster
@pytest.mark.parametrize("step_s", [300.0, 1800.0, 3600.0])
def test_a_forecast_starts_where_the_past_ends(make, step_s):
    past = with_gaps(grid(30, step_s=step_s))
    forecast = make().forecast(past, 50)
    assert (forecast.issued_s, forecast.start_s) == (past.end_s, past.end_s)
    assert forecast.step_s == step_s
    assert forecast.model
    for line in (forecast.middle, forecast.low, forecast.high):
        assert line.shape == (50,)
        assert line.dtype == np.float64
        assert np.isfinite(line).all()
    assert (forecast.low <= forecast.middle).all()
    assert (forecast.middle <= forecast.high).all()
    assert (forecast.low < forecast.high).all()


values = st.one_of(
    st.floats(0.0, 1000.0), st.just(np.nan), st.just(0.0), st.just(np.inf), st.just(-5.0)
)


@every_forecaster
@quick
@given(
    short=st.lists(values, min_size=1, max_size=60).filter(lambda v: np.isfinite(v).any()),
    repeats=st.integers(1, 20),
    step_s=st.sampled_from([300.0, 900.0, 3600.0]),
    start_h=st.integers(0, 400),
    n=st.integers(1, 200),
)
def test_whatever_is_known_gives_numbers(make, short, repeats, step_s, start_h, n):
    start_s = MONDAY_S + start_h * HOUR_S + 100.0
    past = Series(start_s, step_s, np.tile(np.array(short), repeats))
    forecast = make().forecast(past, n)
    lines = np.stack([forecast.low, forecast.middle, forecast.high])
    assert np.isfinite(lines).all()
    assert (np.diff(lines, axis=0) >= 0.0).all()


@every_forecaster
@pytest.mark.parametrize("known", [[], [np.nan], [np.nan] * 500, [np.inf, -np.inf]])
def test_a_past_without_values_is_silent(make, known):
    with pytest.raises(FeedSilent, match="no value"):
        make().forecast(Series(MONDAY_S, HOUR_S, np.array(known, dtype=float)), 24)


@every_forecaster
def test_nothing_cannot_be_forecast(make):
    with pytest.raises(ValueError, match="not 0"):
        make().forecast(grid(3), 0)


@every_forecaster
def test_the_same_past_gives_the_same_forecast_and_stays_as_it_was(make):
    past = with_gaps(grid(70))
    kept = past.values.copy()
    same(make().forecast(past, 100), make().forecast(past, 100))
    np.testing.assert_array_equal(past.values, kept)


@every_forecaster
def test_a_longer_forecast_begins_like_a_shorter_one(make):
    past = grid(70)
    long, short = make().forecast(past, 400), make().forecast(past, 30)
    for name in ("middle", "low", "high"):
        np.testing.assert_allclose(getattr(long, name)[:30], getattr(short, name), rtol=1e-12)


@every_forecaster
def test_what_comes_later_in_the_same_memory_is_not_looked_at(make):
    whole = grid(80)
    before = make().forecast(cut(whole, 70 * 24), 48)
    whole.values[70 * 24 :] = 1e6
    same(before, make().forecast(cut(whole, 70 * 24), 48))


@every_forecaster
def test_bounds_hold(make):
    past = grid(40)
    share = Series(past.start_s, past.step_s, np.clip(past.values / 140.0 - 1.65, 0.0, 1.0))
    free, bound = make().forecast(share, 96), make(bounds=(0.0, 1.0)).forecast(share, 96)
    assert free.high.max() > 1.0
    assert free.low.min() < 0.0
    for line in (bound.low, bound.middle, bound.high):
        assert line.min() >= 0.0
        assert line.max() <= 1.0


@every_forecaster
def test_another_unit_gives_the_same_forecast_in_that_unit(make):
    past = with_gaps(grid(60))
    grams = make().forecast(past, 96)
    kilograms = make().forecast(Series(past.start_s, past.step_s, past.values / 1000.0), 96)
    for name in ("middle", "low", "high"):
        np.testing.assert_allclose(getattr(kilograms, name) * 1000.0, getattr(grams, name))


@every_forecaster
def test_a_constant_goes_on(make):
    forecast = make().forecast(Series(MONDAY_S, HOUR_S, np.full(24 * 40, 42.0)), 200)
    for line in (forecast.low, forecast.middle, forecast.high):
        np.testing.assert_allclose(line, 42.0)


@every_forecaster
def test_without_any_error_known_the_interval_is_wide(make):
    forecast = make().forecast(Series(MONDAY_S, HOUR_S, np.array([100.0])), 5)
    np.testing.assert_allclose(forecast.middle, 100.0)
    np.testing.assert_allclose(forecast.low, 50.0)
    np.testing.assert_allclose(forecast.high, 150.0)


@every_forecaster
def test_nine_of_ten_values_lie_within(make):
    series = with_gaps(grid(150, seed=3), share=0.03)
    starts = MONDAY_S + DAY_S * 60 + HOUR_S * np.arange(0, 24 * 85, 31)
    for lead in score(make(), series, (1, 6, 24, 96), starts):
        assert lead.n > 55
        # The standard deviation of a share of 0.9 of so few values is 0.04.
        assert lead.coverage > 0.78, lead
        if lead.lead_h >= 24:
            assert 0.84 <= lead.coverage_until <= 0.96, lead


# --------------------------------------------------------------------------- what each one says


def test_persistence_repeats_the_newest_value_that_is_not_missing():
    past = Series(MONDAY_S, HOUR_S, np.array([5.0, 7.0, 3.0, np.nan, np.nan]))
    np.testing.assert_array_equal(RuleForecaster(NEWEST).forecast(past, 3).middle, 3.0)


def test_daily_persistence_repeats_the_last_day():
    past = grid(20)
    forecast = RuleForecaster(LAST_DAY).forecast(past, 60)
    day = past.values[-24:]
    np.testing.assert_allclose(forecast.middle, np.concatenate((day, day, day[:12])))


def test_a_profile_is_the_mean_of_the_last_days():
    past = grid(9)
    forecast = RuleForecaster(profile(4)).forecast(past, 24)
    np.testing.assert_allclose(forecast.middle, past.values[-96:].reshape(4, 24).mean(axis=0))


def test_a_profile_keeps_weekends_apart():
    days = np.arange(35)
    values = np.repeat(np.where(days % 7 >= 5, 100.0, 200.0), 24)
    past = Series(MONDAY_S, HOUR_S, values)
    forecast = RuleForecaster(profile()).forecast(past, 24 * 7)
    np.testing.assert_allclose(forecast.middle, values[: 24 * 7])


def test_a_profile_of_a_few_days_does_not():
    values = np.repeat([200.0, 200.0, 200.0, 200.0, 200.0, 100.0, 100.0], 24)
    forecast = RuleForecaster(profile(7)).forecast(Series(MONDAY_S, HOUR_S, values), 24)
    np.testing.assert_allclose(forecast.middle, (5 * 200.0 + 2 * 100.0) / 7)


def test_last_year_is_moved_to_the_level_of_now():
    days = 364 + 60
    season = 50.0 * np.sin(2 * np.pi * np.arange(days * 24) / (364 * 24))
    values = 300.0 + season + np.where(np.arange(days * 24) >= 370 * 24, 40.0, 0.0)
    forecast = RuleForecaster(LAST_YEAR).forecast(Series(MONDAY_S, HOUR_S, values), 24 * 14)
    ahead = np.arange(days * 24, (days + 14) * 24)
    truth = 340.0 + 50.0 * np.sin(2 * np.pi * ahead / (364 * 24))
    np.testing.assert_allclose(forecast.middle, truth, atol=1e-9)


def test_intervals_of_a_random_walk_grow():
    walk = Series(MONDAY_S, HOUR_S, np.cumsum(np.random.default_rng(5).normal(size=24 * 90)))
    for forecaster in (RuleForecaster(NEWEST), RecencyAdaptivePool()):
        forecast = forecaster.forecast(walk, 336)
        width = forecast.high - forecast.low
        assert width[0] < width[23] < width[167]


# ------------------------------------------------------------------------------------ the pool


@quick
@given(hours=st.lists(st.integers(1, 45 * 24), min_size=1, max_size=5))
def test_what_the_pool_keeps_never_changes_a_forecast(hours):
    series = with_gaps(grid(45, seed=4))
    used = RecencyAdaptivePool()
    for hour in hours:
        past = cut(series, hour)
        if np.isfinite(past.values).any():
            same(used.forecast(past, 30), RecencyAdaptivePool().forecast(past, 30))


def test_a_past_that_was_mended_is_learnt_anew():
    past = grid(45)
    pool = RecencyAdaptivePool()
    pool.forecast(past, 24)
    mended = Series(past.start_s, past.step_s, past.values.copy())
    mended.values[500] = 900.0
    same(pool.forecast(mended, 24), RecencyAdaptivePool().forecast(mended, 24))


def test_the_pool_learns_once_a_day(monkeypatch):
    learnt = []
    learn = pool_module._learn
    monkeypatch.setattr(pool_module, "_learn", lambda *given: learnt.append(1) or learn(*given))
    series, pool = grid(60), RecencyAdaptivePool()
    for hour in range(50 * 24, 52 * 24):
        pool.forecast(cut(series, hour), 24)
    assert len(learnt) == 2
    # A window that moves on by the hour at both of its ends is learnt from once a day too.
    for hour in range(54 * 24, 55 * 24):
        window = series.values[hour - 40 * 24 : hour]
        pool.forecast(Series(MONDAY_S + (hour - 40 * 24) * HOUR_S, HOUR_S, window), 24)
    assert len(learnt) == 4


@pytest.mark.parametrize(
    ("seed", "memory_h", "noise"), [(0, 2.0, 20.0), (1, 24.0, 40.0), (2, 400.0, 60.0)]
)
def test_the_pool_is_about_as_good_as_its_best_rule(seed, memory_h, noise):
    series = grid(130, seed=seed, memory_h=memory_h, noise=noise)
    starts = MONDAY_S + DAY_S * 70 + HOUR_S * np.arange(0, 24 * 55, 37)
    simple = (NEWEST, LAST_DAY, profile(7), profile(28))
    scores = [score(RuleForecaster(rule), series, (1, 24, 96), starts) for rule in simple]
    pool = score(RecencyAdaptivePool(), series, (1, 24, 96), starts)
    for i, lead in enumerate(pool):
        assert lead.mape_until < 1.08 * min(other[i].mape_until for other in scores)
        assert lead.pinball < 1.15 * min(other[i].pinball for other in scores)


def test_the_pool_takes_last_year_in_where_it_repeats_itself():
    days = 364 + 110
    weather = np.random.default_rng(6).normal(size=364).cumsum() * 12.0
    values = 400.0 + np.repeat(np.tile(weather, 2)[:days], 24)
    series = Series(MONDAY_S, HOUR_S, values)
    starts = MONDAY_S + DAY_S * np.arange(440, 465, 3)
    (pool,) = score(RecencyAdaptivePool(), series, (96,), starts)
    (simple,) = score(RuleForecaster(profile()), series, (96,), starts)
    assert pool.mape < 0.6 * simple.mape


def test_the_pool_follows_a_new_level_within_days():
    values = grid(80).values
    values[60 * 24 :] += 150.0
    series = Series(MONDAY_S, HOUR_S, values)
    forecast = RecencyAdaptivePool().forecast(cut(series, 63 * 24), 48)
    truth = values[63 * 24 : 65 * 24]
    assert np.abs(forecast.middle - truth).mean() < 45.0


# ------------------------------------------------------------------------------- recorded years


@pytest.mark.parametrize("name", ["CISO", "PJM", "NYIS", "BPAT"])
def test_recorded_years_are_forecast_better_than_by_simple_rules(name):
    folder = os.environ.get("ECORL_TRACES")
    if not folder:
        pytest.skip("ECORL_TRACES names no folder with recorded grid data")
    series = read_trace(Path(folder) / f"{name}_2022_hourly.csv").series
    starts = series.start_s + HOUR_S * np.arange(24 * 60, 24 * 360, 113)
    pool = score(RecencyAdaptivePool(), series, (24, 96), starts)
    for rule in (LAST_DAY, profile()):
        scores = score(RuleForecaster(rule), series, (24, 96), starts)
        for lead, simple in zip(pool, scores, strict=True):
            assert lead.n > 60
            assert lead.mape_until < simple.mape_until
            # Of 64 origins, whose hours are alike; of many more it is 0.88 to 0.93.
            assert 0.84 <= lead.coverage_until <= 0.97
