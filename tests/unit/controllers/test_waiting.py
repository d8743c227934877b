"""Training waits for a clean window, and never longer than it may."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecorl.carbon.forecasts.forecast import Forecast
from ecorl.control import Command, Why
from ecorl.controllers.protocol import Seen
from ecorl.controllers.waiting import Waiting, decide
from tests.fakes.scripted_feed import HOUR_S, average

NOW_S = 1.7e9
RULE = Waiting(threshold_g_per_kwh=200.0, max_wait_s=7200.0, recheck_s=300.0)


def seen(g_per_kwh=None, **more):
    intensity = None if g_per_kwh is None else average("uk", NOW_S, g_per_kwh)
    return Seen(intensity, **more)


def chosen(rule, what, now_s=NOW_S):
    choice = decide(rule, now_s, what)
    return choice.command, choice.why


@pytest.mark.parametrize(("g_per_kwh", "why"), [(200.0, Why.CLEAN), (10.0, Why.CLEAN)])
def test_it_runs_at_and_below_the_threshold(g_per_kwh, why):
    assert chosen(RULE, seen(g_per_kwh)) == (Command.RUN, why)


def test_it_waits_above_the_threshold_and_says_what_for(snapshot):
    choice = decide(RULE, NOW_S, seen(250.0, waited_s=1200.0))
    assert (choice.command, choice.why) == (Command.PAUSE, Why.DIRTY)
    assert "6000 s" in choice.reason
    snapshot(choice.reason)
    assert choice.look_again_s == NOW_S + 300
    assert (choice.g_per_kwh, choice.feed, choice.threshold_g_per_kwh) == (250.0, "uk", 200.0)


def test_it_looks_again_when_the_wait_is_over_and_not_later():
    assert decide(RULE, NOW_S, seen(250.0, waited_s=7100.0)).look_again_s == NOW_S + 100


def test_it_runs_when_it_has_waited_long_enough():
    assert chosen(RULE, seen(250.0, waited_s=7200.0)) == (Command.RUN, Why.WAITED)


def test_it_runs_where_the_intensity_is_unknown():
    assert chosen(RULE, seen()) == (Command.RUN, Why.UNKNOWN)


def test_what_has_begun_is_paused_only_where_it_may_be():
    assert chosen(RULE, seen(250.0, has_begun=True)) == (Command.RUN, Why.BEGUN)
    at_steps = replace(RULE, at_steps=True)
    assert chosen(at_steps, seen(250.0, has_begun=True)) == (Command.PAUSE, Why.DIRTY)


@pytest.mark.parametrize(
    ("left_s", "command", "look_s"),
    [(None, Command.PAUSE, 300), (900, Command.PAUSE, 100), (1000, Command.RUN, 300)],
)
def test_a_deadline_leaves_the_time_that_training_needs(left_s, command, look_s):
    rule = replace(RULE, deadline_s=NOW_S + 1000)
    choice = decide(rule, NOW_S, seen(250.0, left_s=left_s))
    assert choice.command is command
    assert choice.look_again_s == NOW_S + look_s


def forecast(*values):
    middle = np.array(values, np.float64)
    return Forecast("made up", NOW_S, NOW_S, HOUR_S, middle)


def test_a_percentile_is_of_the_coming_day_alone():
    rule = replace(RULE, threshold_g_per_kwh=None, percentile=50.0, horizon_s=3 * HOUR_S)
    ahead = forecast(100.0, 200.0, 300.0, 9000.0)
    assert decide(rule, NOW_S, seen(199.0, forecast=ahead)).threshold_g_per_kwh == 200.0
    assert chosen(rule, seen(201.0, forecast=ahead)) == (Command.PAUSE, Why.DIRTY)
    later = decide(rule, NOW_S + 2 * HOUR_S, seen(201.0, forecast=ahead))
    assert later.threshold_g_per_kwh == 4650.0


def test_hours_that_a_forecast_lacks_are_left_out():
    rule = replace(RULE, threshold_g_per_kwh=None, percentile=50.0)
    gappy = forecast(100.0, np.nan, 300.0)
    assert decide(rule, NOW_S, seen(250.0, forecast=gappy)).threshold_g_per_kwh == 200.0
    assert chosen(rule, seen(250.0, forecast=forecast(np.nan))) == (Command.RUN, Why.UNKNOWN)


def test_without_a_forecast_there_is_no_percentile_to_wait_by():
    rule = replace(RULE, threshold_g_per_kwh=None, percentile=30.0)
    assert chosen(rule, seen(900.0)) == (Command.RUN, Why.UNKNOWN)
    assert chosen(rule, seen(900.0, forecast=forecast(1.0)), NOW_S + 9e4) == (
        Command.RUN, Why.UNKNOWN,
    )  # fmt: skip


LEVELS = st.lists(st.none() | st.floats(1, 2000), min_size=1, max_size=50)


@given(LEVELS, st.floats(0, 1e5), st.floats(1, 1e4), st.none() | st.floats(0, 1e5), st.booleans())
def test_no_wait_is_longer_than_it_may_be(levels, max_wait_s, recheck_s, spare_s, at_steps):
    deadline_s = None if spare_s is None else NOW_S + spare_s
    rule = Waiting(100.0, max_wait_s, recheck_s, deadline_s=deadline_s, at_steps=at_steps)
    now_s, waited_s = NOW_S, 0.0
    for level in levels * 20:
        choice = decide(rule, now_s, seen(level, waited_s=waited_s))
        assert now_s <= choice.look_again_s <= now_s + recheck_s
        if choice.command is Command.RUN:
            now_s += 10.0
            continue
        assert level is not None
        assert level > 100.0
        waited_s += choice.look_again_s - now_s
        now_s = choice.look_again_s
    # Seconds since 1970 are rounded to a quarter of a microsecond.
    assert waited_s <= max_wait_s + 1e-3


def test_without_a_threshold_nothing_is_waited_for():
    assert chosen(replace(RULE, threshold_g_per_kwh=None), seen(900.0)) == (
        Command.RUN, Why.UNGOVERNED,
    )  # fmt: skip


def test_the_feeds_first_answer_is_waited_for():
    choice = decide(RULE, NOW_S, Seen(None, is_asking=True))
    assert (choice.command, choice.why) == (Command.PAUSE, Why.ASKING)
    assert choice.look_again_s == NOW_S + 1.0
    # A training that has begun and may not be paused does not ask.
    assert chosen(RULE, Seen(None, is_asking=True, has_begun=True)) == (Command.RUN, Why.BEGUN)


@given(st.builds(Seen, intensity=st.none(), waited_s=st.floats(0, 1e5), has_begun=st.booleans()))
def test_a_training_that_is_asked_to_stop_runs(known):
    for rule in (RULE, replace(RULE, stops_over_budget=True)):
        stopping = replace(known, is_stopping=True, is_over_budget=True, is_asking=True)
        assert chosen(rule, stopping) == (Command.RUN, Why.STOPPING)


def test_over_the_budget_training_ends_where_it_is_to():
    over = replace(seen(900.0), is_over_budget=True)
    assert chosen(RULE, over) == (Command.PAUSE, Why.DIRTY)
    assert chosen(replace(RULE, stops_over_budget=True), over) == (Command.STOP, Why.BUDGET)
