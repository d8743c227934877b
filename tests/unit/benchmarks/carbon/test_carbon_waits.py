"""Waiting jobs and their savings, against the same worked out by brute force."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from benchmarks.studies.carbon.scores import (
    SIMPLE_RULES,
    RememberedForecasts,
    rule_errors,
    score,
)
from benchmarks.studies.carbon.waits import (
    BEST_START,
    BEST_STEPS,
    FIXED,
    START,
    STEPS,
    WaitingJob,
    best_start,
    best_steps,
    early_watcher,
    late_watcher,
    play,
    share_interval,
    start_numbers,
    wait_savings,
)
from ecorl.bench.stats import LEAST_VALUES
from ecorl.carbon.forecasts.pool import RecencyAdaptivePool
from ecorl.carbon.series import Series
from ecorl.controllers.replay.knowledge import told
from ecorl.controllers.waiting import Waiting
from tests.fakes.grid_series import HOUR_S, cut, grid, with_gaps
from tests.fakes.rule_forecaster import LAST_DAY, RuleForecaster

JOB = WaitingJob(work_h=3.0, max_wait_h=9.0)
DAILY = RuleForecaster(LAST_DAY)


def rule(**changes):
    limits = {"threshold_g_per_kwh": None, "percentile": 30.0, "max_wait_s": 9 * HOUR_S}
    return Waiting(**(limits | {"recheck_s": HOUR_S} | changes))


def worked(values, first, limits, at_steps=False, n_work=3, n_wait=9):
    """The hours in which a job works that knows the hours before each, by hand."""
    hours, waited, number = [], 0, first
    while len(hours) < n_work:
        may_wait = waited < n_wait and (at_steps or not hours)
        if may_wait and values[number - 1] > limits(number):
            waited += 1
        else:
            hours.append(number)
        number += 1
    return hours


def yesterday_limit(values, percentile=30.0):
    """The percentile of the coming day, if it is as the last 24 hours were."""
    return lambda number: np.percentile(values[number - 24 : number], percentile)


@pytest.mark.parametrize("at_steps", [False, True])
def test_a_job_works_when_it_should(at_steps):
    series = grid(8, noise=40.0)
    forecasts = RememberedForecasts(DAILY, series, 24)
    watcher = late_watcher(series, forecasts)
    seen = set()
    for first in range(3 * 24, 6 * 24):
        found = play(rule(at_steps=at_steps), watcher, series, first, 3)
        expected = worked(series.values, first, yesterday_limit(series.values), at_steps)
        assert found == expected
        seen.add(expected[-1] - first - 2)
    assert {0, 9} <= seen
    assert len(seen) > 5


def test_a_job_that_may_wait_for_nothing_begins_at_once():
    series = grid(4)
    watcher = late_watcher(series, RememberedForecasts(DAILY, series, 24))
    assert play(rule(max_wait_s=0.0), watcher, series, 50, 3) == [50, 51, 52]


def test_an_early_watcher_knows_the_hour_that_begins():
    series = grid(5)
    view = early_watcher(series, RememberedForecasts(DAILY, series, 24))(60)
    assert view.intensity.g_per_kwh == series.values[60]
    assert view.forecast.start_s == series.start_s + 60 * HOUR_S
    np.testing.assert_allclose(view.forecast.middle, [series.values[60], *series.values[37:61]])
    late = late_watcher(series, RememberedForecasts(DAILY, series, 24))(60)
    assert late.intensity.g_per_kwh == series.values[59]
    np.testing.assert_allclose(late.forecast.middle, series.values[36:60])


def test_nothing_is_told_outside_of_a_series_or_where_it_is_missing():
    series = Series(0.0, HOUR_S, np.array([1.0, np.nan]))
    assert told(series, 0).g_per_kwh == 1.0
    assert [told(series, n) for n in (-1, 1, 2)] == [None] * 3


def test_bounds_are_the_best_of_all_ways():
    values = np.random.default_rng(3).uniform(50, 500, 9)
    windows = [values[i : i + 3].sum() for i in range(7)]
    assert best_start(values, 3) == pytest.approx(min(windows))
    every = [sum(chosen) for chosen in combinations(values, 3)]
    assert best_steps(values, 3) == pytest.approx(min(every))


def test_savings_are_those_of_all_jobs_together():
    series = grid(30, noise=40.0)
    values = series.values
    starts = start_numbers(series, 4, 3, 6.0, 12)
    found = wait_savings(series, RememberedForecasts(DAILY, series, 24), starts, JOB)
    assert (found.n_jobs, found.n_left_out) == (len(starts), 0)
    plain = sum(values[n : n + 3].sum() for n in starts)
    fixed = np.percentile(values[: starts[0]], 30.0)
    assert found.fixed_g_per_kwh == pytest.approx(fixed)
    for name, limits, at_steps in (
        (START, yesterday_limit(values), False),
        (STEPS, yesterday_limit(values), True),
        (FIXED, lambda number: fixed, False),
    ):
        hours = [worked(values, n, limits, at_steps) for n in starts]
        share = 1 - sum(values[h].sum() for h in hours) / plain
        assert found.by_rule[name].share == pytest.approx(share)
        waits = [h[-1] - n - 2 for h, n in zip(hours, starts, strict=True)]
        assert found.by_rule[name].mean_wait_h == pytest.approx(np.mean(waits))
    bounds = [found.by_rule[name].share for name in (START, BEST_START, BEST_STEPS)]
    assert bounds == sorted(bounds)
    assert found.by_rule[STEPS].share <= found.by_rule[BEST_STEPS].share


def test_jobs_beside_missing_values_are_left_out():
    series = grid(20)
    series.values[300] = np.nan
    starts = start_numbers(series, 4, 2, 6.0, 12)
    found = wait_savings(series, RememberedForecasts(DAILY, series, 24), starts, JOB)
    n_beside = sum(n <= 300 < n + 12 for n in starts)
    assert n_beside > 0
    assert (found.n_jobs, found.n_left_out) == (len(starts) - n_beside, n_beside)
    nothing = Series(0.0, HOUR_S, np.where(np.arange(480) < 100, 300.0, np.nan))
    forecasts = RememberedForecasts(DAILY, nothing, 24)
    assert wait_savings(nothing, forecasts, [110, 120], JOB) is None


def test_start_times_come_to_all_hours_and_days_of_the_week():
    starts = np.array(start_numbers(grid(365), 28, 10, 3.0, 30))
    assert starts[0] == 28 * 24
    assert starts[-1] <= 365 * 24 - 30
    assert set(starts % 24) == set(range(24))
    assert set(starts // 24 % 7) == set(range(7))


def test_an_interval_is_that_of_weeks_drawn_anew():
    rng = np.random.default_rng(5)
    weeks = np.repeat(np.arange(20), 4)
    at_once = rng.uniform(200, 400, 80)
    amounts = at_once * (0.9 + 0.05 * rng.normal(size=20))[weeks]
    low, high = share_interval(at_once, amounts, weeks)
    drawn = []
    for _ in range(3000):
        rows = np.concatenate([np.flatnonzero(weeks == w) for w in rng.integers(20, size=20)])
        drawn.append(1 - amounts[rows].sum() / at_once[rows].sum())
    assert (low, high) == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])), abs=2e-3)
    few = 4 * (LEAST_VALUES - 1)
    assert share_interval(at_once[:few], amounts[:few], weeks[:few]) is None


# ---------------------------------------------------------------------------------- forecasts


def test_a_remembered_forecast_is_the_forecasters_own_and_made_once():
    series = grid(40)

    class Counting(RecencyAdaptivePool):
        n = 0

        def forecast(self, past, n):
            Counting.n += 1
            return super().forecast(past, n)

    forecasts = RememberedForecasts(Counting(), series, 30)
    past = cut(series, 900)
    for _ in range(2):
        ours, own = forecasts.forecast(past, 30), RecencyAdaptivePool().forecast(past, 30)
        for line in ("middle", "low", "high"):
            np.testing.assert_array_equal(getattr(ours, line), getattr(own, line))
        assert (ours.start_s, ours.step_s) == (own.start_s, own.step_s)
    assert Counting.n == 1


def test_a_remembered_forecast_knows_no_future():
    series = grid(40)
    other = Series(series.start_s, HOUR_S, series.values.copy())
    other.values[800:] = 5000.0
    made = [RememberedForecasts(RecencyAdaptivePool(), s, 24).after(800) for s in (series, other)]
    np.testing.assert_array_equal(made[0].middle, made[1].middle)


def test_errors_of_simple_rules_are_those_of_their_forecasters():
    series = with_gaps(grid(45), 0.05)
    origins = range(30 * 24, 43 * 24, 31)
    found = rule_errors(series, origins, 24)
    starts = [series.start_s + n * HOUR_S for n in origins]
    for name, one in SIMPLE_RULES.items():
        (lead,) = score(RuleForecaster(one), series, (24,), starts)
        assert found[name] == pytest.approx(lead.mape, rel=1e-9)
