"""The simple controllers do what their rules say."""

from __future__ import annotations

import numpy as np
import pytest

from ecorl.control import Command, Gear, Why
from ecorl.controllers.problem.table import TrainingAction
from ecorl.controllers.problem.training import Progress, TrainingProblem
from ecorl.controllers.rules.reactive import (
    Fcfs,
    Race,
    StaticRule,
    SuspendResume,
    ThresholdWait,
    full_width,
    high_gear,
)
from ecorl.controllers.step import action_of
from tests.fakes.training_problems import DAY_S, HOUR_S, NOW_S, ahead, past, problem, seen, table

# -------------------------------------------------------------------- static and race


def test_the_static_rule_does_the_same_always():
    p = problem()
    rule = StaticRule(p, TrainingAction(2, Gear.BF16))
    for g_per_kwh in (None, 10.0, 900.0):
        found = rule.decide(NOW_S, seen(p, g_per_kwh))
        assert (found.width, found.gear, found.why) == (2, Gear.BF16, Why.STATIC)


@pytest.mark.parametrize(
    ("rates", "gear"),
    [
        ({"FP32": 1.0, "FP16": 2.0, "BF16": 2.0, "FP8": 3.0}, Gear.BF16),
        ({"FP32": 1.0, "FP16": 3.0, "BF16": 2.0, "FP8": 3.0}, Gear.FP16),
        ({"FP32": 1.0, "FP8": 3.0}, Gear.FP32),
        ({"FP8": 3.0}, Gear.FP8),
    ],
)
def test_the_high_gear_is_the_fastest_that_is_not_of_low_precision(rates, gear):
    of = TrainingProblem(table(**rates), 1.0, NOW_S, NOW_S + DAY_S)
    assert high_gear(of) is gear
    assert full_width(of) == TrainingAction(8, gear)


def test_a_race_takes_low_precision_for_as_long_as_the_cap_allows():
    p = problem(low_share=0.5)
    race, begin = Race(p), p.begin()
    assert action_of(race.decide(NOW_S, seen(p))) == TrainingAction(8, Gear.FP8)
    used_up = Progress(begin.tokens_left / 2, 0.0)
    found = race.decide(NOW_S, seen(p, progress=used_up))
    assert action_of(found) == TrainingAction(8, Gear.BF16)


def test_first_come_first_served_is_full_width_without_low_precision():
    p = problem()
    found = Fcfs(p).decide(NOW_S, seen(p, 900.0))
    assert (action_of(found), found.controller) == (TrainingAction(8, Gear.BF16), "fcfs")


# -------------------------------------------------------------------- suspend and resume


@pytest.mark.parametrize(
    ("g_per_kwh", "command", "why"),
    [(100.0, Command.RUN, Why.CLEAN), (400.0, Command.PAUSE, Why.DIRTY)],
)
def test_it_suspends_above_the_percentile_of_the_past(g_per_kwh, command, why):
    p = problem()
    known = past([100.0] * 8 + [300.0] * 16)
    found = SuspendResume(p).decide(NOW_S, seen(p, g_per_kwh, past=known))
    assert (found.command, found.why, found.threshold_g_per_kwh) == (command, why, 100.0)


def test_what_runs_does_so_at_full_speed():
    p = problem()
    found = SuspendResume(p).decide(NOW_S, seen(p, 200.0, past=past([200.0] * 24)))
    assert action_of(found) == TrainingAction(8, Gear.FP8)
    assert found.threshold_g_per_kwh == 200.0


def test_the_percentile_is_of_the_last_week():
    p = problem()
    known = past([10.0] * 24 * 30 + [300.0] * 24 * 7)
    found = SuspendResume(p).decide(NOW_S, seen(p, 290.0, past=known))
    assert (found.why, found.threshold_g_per_kwh) == (Why.CLEAN, 300.0)


@pytest.mark.parametrize(
    ("g_per_kwh", "known"),
    [
        (None, past([100.0] * 48)),
        (900.0, None),
        (900.0, past([])),
        (900.0, past([100.0] * 23)),
        (900.0, past([np.nan] * 48 + [100.0] * 23)),
    ],
)
def test_it_runs_at_full_speed_where_too_little_is_known(g_per_kwh, known):
    p = problem()
    found = SuspendResume(p).decide(NOW_S, seen(p, g_per_kwh, past=known))
    assert (action_of(found), found.why) == (TrainingAction(8, Gear.FP8), Why.UNKNOWN)


# -------------------------------------------------------------------- waiting


def test_waiting_pauses_in_dirty_hours_and_runs_at_full_speed_in_clean_ones():
    p = problem()
    forecast = ahead([100.0] * 8 + [300.0] * 16)
    dirty = ThresholdWait(p).decide(NOW_S, seen(p, 250.0, forecast=forecast, left_s=HOUR_S))
    assert (dirty.command, dirty.width, dirty.gear, dirty.why) == (
        Command.PAUSE, 0, None, Why.DIRTY,
    )  # fmt: skip
    clean = ThresholdWait(p).decide(NOW_S, seen(p, 90.0, forecast=forecast, left_s=HOUR_S))
    assert (action_of(clean), clean.why) == (TrainingAction(8, Gear.FP8), Why.CLEAN)
