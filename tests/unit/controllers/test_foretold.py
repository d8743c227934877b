"""What a forecast is worth: by its errors, which are stated, or learnt from what came."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ecorl.carbon.forecasts.forecast import Forecast
from ecorl.carbon.series import Series
from ecorl.controllers.horizon.fan import LevelFan
from ecorl.controllers.horizon.foretold import ForecastErrors, pooled
from ecorl.controllers.horizon.receding import RecedingHorizon
from ecorl.controllers.replay.knowledge import Knowledge
from ecorl.controllers.replay.playing import play
from ecorl.controllers.rules.reactive import Race
from tests.fakes.training_problems import DAY_S, HOUR_S, NOW_S, past, problem


def days(n=60, seed=0, noise=5.0, level=300.0):
    hours = np.arange(n * 24)
    draw = np.random.default_rng(seed).normal(0.0, noise, len(hours))
    return level + 80.0 * np.sin(2 * np.pi * hours / 24) + draw


def told_and_foretold(n_days, off, seed=0):
    """A week and more of a noisy day, and forecasts of 48 h that are off by a normal error."""
    rng = np.random.default_rng(seed)
    truth = days(n_days + 3, noise=20.0)
    errors = ForecastErrors(HOUR_S)
    for hour in range(24 * 8, 24 * n_days):
        ahead = truth[hour : hour + 48] + rng.normal(0.0, off, 48)
        errors.learn(Series(0.0, HOUR_S, truth[:hour]), ahead)
    return errors


@pytest.mark.parametrize("off", [5.0, 60.0])
def test_how_far_forecasts_are_off_is_learnt(off):
    ahead = np.full(48, 300.0)
    assert ForecastErrors(HOUR_S).deviations(ahead) == pytest.approx(np.full(48, 37.5))
    learnt = told_and_foretold(60, off).deviations(ahead)
    # The presumption counts for a day of some fifty.
    expected = np.sqrt((24 * 37.5**2 + 51 * 24 * off**2) / (52 * 24))
    assert learnt == pytest.approx(np.full(48, expected), rel=0.05)


def test_later_hours_of_a_forecast_may_be_further_off():
    rng, truth = np.random.default_rng(3), days(63)
    errors = ForecastErrors(HOUR_S)
    for hour in range(24 * 8, 24 * 60):
        off = np.repeat([5.0, 50.0], 24)
        errors.learn(
            Series(0.0, HOUR_S, truth[:hour]), truth[hour : hour + 48] + off * rng.normal(size=48)
        )
    found = errors.deviations(np.full(96, 300.0))
    assert found[0] < 10.0 < 40.0 < found[40]
    # What nobody has seen is as the last that was.
    assert found[95] == pytest.approx(found[40], rel=0.1)


def test_a_forecast_is_learnt_once_however_often_it_is_told():
    truth = days(20)
    once, often = ForecastErrors(HOUR_S), ForecastErrors(HOUR_S)
    for hour in range(24 * 8, 24 * 18):
        told, ahead = Series(0.0, HOUR_S, truth[:hour]), truth[hour : hour + 48] + 9.0
        once.learn(told, ahead)
        for _ in range(3):
            often.learn(told, ahead)
    assert once.memory() == often.memory()
    again = ForecastErrors(HOUR_S)
    again.recall(json.loads(json.dumps(once.memory())))
    assert again.memory() == once.memory()


def test_hours_that_nobody_told_teach_nothing():
    truth = days(20)
    truth[24 * 9 : 24 * 10] = np.nan
    errors = ForecastErrors(HOUR_S)
    errors.learn(Series(0.0, HOUR_S, truth[: 24 * 9]), np.full(24, 300.0))
    errors.learn(Series(0.0, HOUR_S, truth[: 24 * 11]), np.zeros(0))
    assert errors.memory() == ForecastErrors(HOUR_S).memory()


def test_five_minutes_teach_the_mean_of_their_hour():
    truth = days(20)
    fine, coarse = ForecastErrors(HOUR_S), ForecastErrors(HOUR_S)
    for hour in range(24 * 8, 24 * 18):
        ahead = np.full(30, 280.0)
        coarse.learn(Series(0.0, HOUR_S, truth[:hour]), ahead)
        fine.learn(Series(0.0, 300.0, np.repeat(truth[:hour], 12)), ahead)
    assert fine.deviations(np.ones(30)) == pytest.approx(coarse.deviations(np.ones(30)))


def test_the_better_of_two_counts_more_and_both_together_are_better():
    ahead, own = np.full(4, 100.0), np.full(4, 200.0)
    off, own_off = np.array([0.0, 10.0, 30.0, 10.0]), np.array([10.0, 10.0, 10.0, 0.0])
    middle, left = pooled(ahead, off, own, own_off)
    assert middle == pytest.approx([100.0, 150.0, 190.0, 200.0])
    assert left == pytest.approx([0.0, 50.0**0.5, 90.0**0.5, 0.0])


def test_a_forecast_that_states_its_intervals_counts_by_them():
    values = days(noise=30.0)
    middle = np.full(24, 150.0)
    spread = []
    for half in (0.0, 16.449, 164.49):
        forecast = Forecast("theirs", NOW_S, NOW_S, HOUR_S, middle, middle - half, middle + half)
        found = LevelFan().values(past(values), NOW_S, NOW_S + 48 * HOUR_S, forecast)
        spread.append((found[6].mean(), found[6].std()))
    assert spread[0] == pytest.approx((150.0, 0.0), abs=1e-6)
    assert (
        spread[0][0]
        < spread[1][0]
        < spread[2][0]
        < LevelFan().values(past(values), NOW_S, NOW_S + 48 * HOUR_S)[6].mean()
    )
    assert 0.0 < spread[1][1] <= 10.0 < spread[2][1]


def test_a_useless_forecast_hurts_little():
    """Noise told for a forecast costs a training little, once it is known for what it is."""
    p = problem(share=0.3, hours=20 * 24)
    truth = Series(NOW_S - 60 * DAY_S, HOUR_S, days(90, noise=15.0))

    class Noise:
        def after(self, n_known):
            start_s = truth.start_s + n_known * HOUR_S
            middle = np.maximum(5.0, np.random.default_rng(n_known // 24).normal(300.0, 150.0, 96))
            return Forecast("noise", start_s, start_s, HOUR_S, middle)

    without = play(RecedingHorizon(p), p, Knowledge(truth)).carbon_g
    told = play(RecedingHorizon(p), p, Knowledge(truth, foresight=Noise())).carbon_g
    raced_g = play(Race(p), p, Knowledge(truth)).carbon_g
    assert without < 0.9 * raced_g
    assert told < without * 1.03
