"""What forecasters are made of: means over cycles, rules, weights, intervals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ecorl.carbon.forecasts import intervals
from ecorl.carbon.forecasts.hindcast import hindcast, lead_groups
from ecorl.carbon.forecasts.history import History
from ecorl.carbon.forecasts.intervals import learn_spread, learn_weights
from ecorl.carbon.forecasts.rules import Cycle, Rule, predict
from ecorl.carbon.series import Series
from tests.examples import examples
from tests.fakes.grid_series import DAY_S, HOUR_S, MONDAY_S, cut, grid, with_gaps

quick = settings(
    max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def plain_mean(past, origin, lead, period, count, wanted):
    target = origin + lead - 1
    found, number = [], target
    while number >= origin:
        number -= period
    for cycle in range(count):
        i = number - cycle * period
        if i >= 0 and np.isfinite(past.values[i]) and wanted(i):
            found.append(past.values[i])
    return np.mean(found) if found else np.nan


@quick
@given(
    seed=st.integers(0, 1000),
    n=st.integers(1, 300),
    period=st.sampled_from([1, 5, 24, 168]),
    count=st.integers(1, 9),
    apart=st.booleans(),
    data=st.data(),
)
def test_means_over_cycles_are_what_a_loop_finds(seed, n, period, count, apart, data):
    past = with_gaps(cut(grid(13, seed=seed), n), share=0.2, seed=seed)
    past.values[0] = 300.0
    history = History(past)
    origin, lead = data.draw(st.integers(1, n)), data.draw(st.integers(1, 400))
    weekend = history.is_weekend(np.arange(origin + lead))
    wanted = (lambda i: weekend[i] == weekend[-1]) if apart else (lambda i: True)
    found = history.cyclic_mean(np.array([origin]), np.array([lead]), period, count, apart)
    expected = plain_mean(past, origin, lead, period, count, wanted)
    np.testing.assert_allclose(found, [expected])
    tail = past.values[max(0, origin - count) : origin]
    expected = np.nanmean(tail) if np.isfinite(tail).any() else np.nan
    np.testing.assert_allclose(history.trailing_mean(np.array([origin]), count), [expected])


def test_weekends_are_saturday_and_sunday():
    history = History(grid(14))
    weekend = history.is_weekend(np.arange(14 * 24)).reshape(14, 24)
    np.testing.assert_array_equal(
        weekend.all(axis=1), [False] * 5 + [True] * 2 + [False] * 5 + [True] * 2
    )
    np.testing.assert_array_equal(weekend.all(axis=1), weekend.any(axis=1))


def test_origins_are_the_same_times_whichever_part_is_given():
    series = grid(60)
    whole, part = (
        History(series),
        History(Series(MONDAY_S + 50 * HOUR_S, HOUR_S, series.values[50:])),
    )
    left = MONDAY_S + HOUR_S * hindcast(whole).origins
    right = MONDAY_S + HOUR_S * (50 + hindcast(part).origins)
    assert set(right) <= set(left)
    assert len(right) > 150


def test_the_rules_see_nothing_of_what_follows_an_origin():
    series = grid(40)
    rules = (
        Rule(Cycle.NEWEST),
        Rule(Cycle.DAY, 3, residual_h=6.0),
        Rule(Cycle.DAY, 28, apart=True, level_days=2),
        Rule(Cycle.WEEK, 4, level_days=1),
    )
    leads = np.array([1, 2, 24, 25, 168, 700])
    whole = predict(History(series), rules, np.array([20 * 24 + 5]), leads)
    known = predict(History(cut(series, 20 * 24 + 5)), rules, np.array([20 * 24 + 5]), leads)
    np.testing.assert_allclose(whole, known, rtol=1e-12)


def test_what_is_learnt_at_an_origin_was_known_then():
    tried = hindcast(History(with_gaps(grid(100))))
    end, week = 100 * 24, 7 * 24
    targets = tried.origins[:, None] + tried.groups.probes - 1
    for checkpoint in range(tried.checkpoints):
        assert (targets[tried.known_at >= checkpoint] < end - checkpoint * week).all()
    learnt_from = end - tried.learnt_at * week
    assert (learnt_from <= tried.origins).all()
    assert (tried.origins - learnt_from <= week).all()


@pytest.mark.parametrize("step_s", [60.0, 300.0, 900.0, 3600.0, 7200.0, 86400.0])
def test_lead_groups_go_from_the_next_interval_to_a_month(step_s):
    groups = lead_groups(step_s)
    assert groups.probes[0] == 1
    assert groups.probes[-1] == 30 * DAY_S / step_s
    assert (np.diff(groups.probes) > 0).all()
    assert (np.diff(groups.centres) > 0).all()
    ends = groups.spread_over(np.array([1, 10**6]), groups.centres)
    np.testing.assert_allclose(ends, [groups.centres[0], groups.centres[-1]])


def test_weights_are_positive_and_follow_the_better_rule():
    tried = hindcast(History(grid(90)))
    truth = np.where(np.isnan(tried.truth), 0.0, tried.truth)
    draws = np.random.default_rng(7).normal(size=(3, *truth.shape))
    said = truth + draws * np.array([2.0, 10.0, 30.0])[:, None, None]
    weights = learn_weights(said, tried, HOUR_S)
    assert weights.shape == (tried.checkpoints, 3, len(tried.groups.centres))
    assert (weights > 0.0).all()
    np.testing.assert_allclose(weights.sum(axis=1), 1.0)
    now = weights[0]
    assert (now[0] > now[1]).all()
    assert (now[1] > now[2]).all()
    # Nothing was known before the first origin: all rules count alike.
    np.testing.assert_allclose(weights[-1], 1.0 / 3.0)


def test_intervals_follow_what_was_missed_lately(monkeypatch):
    tried = hindcast(History(grid(95)))
    draws = np.random.default_rng(8).normal(size=tried.truth.shape)
    recent = (np.arange(len(tried.origins)) > 0.8 * len(tried.origins))[:, None]
    errors = np.where(np.isnan(tried.truth), np.nan, draws * np.where(recent, 4.0, 1.0))
    made = []
    for adaption in (0.0, 0.3):
        monkeypatch.setattr(intervals, "ADAPTION", adaption)
        made.append(learn_spread(errors, tried))
    still, adapted = made
    assert (adapted.above[:4] > still.above[:4]).all()
    assert (adapted.below[:4] < still.below[:4]).all()


def test_few_independent_errors_widen_intervals(monkeypatch):
    tried = hindcast(History(grid(100)))
    draws = np.random.default_rng(9).normal(size=tried.truth.shape)
    errors = np.where(np.isnan(tried.truth), np.nan, draws)
    monkeypatch.setattr(intervals, "ADAPTION", 0.0)
    spread = learn_spread(errors, tried)
    assert spread.above[0] == pytest.approx(1.645, rel=0.25)
    assert spread.above[-1] > 1.3 * spread.above[0]
