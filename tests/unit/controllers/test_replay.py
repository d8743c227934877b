"""A training played along a recording: its accounts, and what a controller is told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ecorl.carbon.series import Series
from ecorl.control import Gear
from ecorl.controllers.problem.table import PAUSE, TrainingAction
from ecorl.controllers.problem.training import Kept
from ecorl.controllers.replay.knowledge import Knowledge
from ecorl.controllers.replay.playing import Training, outcome, play
from ecorl.controllers.rules.reactive import Race
from ecorl.errors import ConfigError
from tests.fakes.training_problems import HOUR_S, NOW_S, problem, table

FULL, HALF = TrainingAction(8, Gear.BF16), TrainingAction(4, Gear.BF16)
FP8 = TrainingAction(8, Gear.FP8)


def series(*values, start_s=NOW_S, step_s=HOUR_S):
    return Series(start_s, step_s, np.array(values, np.float64))


def small(hours=4.0, share=0.5, **terms):
    """Workers of 1 kW that make a token a second each, and FP8 twice as many."""
    return problem(table(BF16=1.0, FP8=2.0), hours=hours, share=share, **terms)


def run(p, truth, actions):
    training = Training(p, truth)
    for action in actions:
        training.run(action)
    training.keep_until_deadline()
    return training, outcome("by hand", training)


def test_each_epoch_counts_at_its_own_intensity():
    p = small(base_w=500.0, idle_w=100.0, pue=2.0, share=1.0)
    truth = series(100.0, 200.0, 300.0, 400.0)
    _, found = run(p, truth, [FULL, PAUSE, HALF, FULL])
    draws_w = [8500.0, 1300.0, 4900.0, 8500.0]
    assert found.energy_j == pytest.approx(sum(draws_w) * HOUR_S)
    grams = sum(w / 1e3 * g for w, g in zip(draws_w, [100, 200, 300, 400], strict=True))
    assert found.carbon_g == pytest.approx(2.0 * grams)
    assert found.deficit == pytest.approx(p.tokens - 20 * HOUR_S)
    assert (found.n_pauses, found.n_width_changes, found.done_s) == (1, 4, None)
    assert found.worker_s == 20 * HOUR_S


@pytest.mark.parametrize("kept", Kept)
def test_the_last_token_ends_what_is_drawn_or_does_not(kept):
    p = small(base_w=1000.0, kept=kept, share=0.375)  # an hour and a half at full speed
    _, found = run(p, series(100.0, 200.0, 400.0, 800.0), [FULL, FULL])
    assert found.deficit == 0.0
    assert found.done_s == pytest.approx(NOW_S + 1.5 * HOUR_S)
    trained_g = 9.0 * 100 + 4.5 * 200
    kept_g = 0.5 * 200 + 400 + 800 if kept is Kept.DEADLINE else 0.0
    assert found.carbon_g == pytest.approx(trained_g + kept_g)


def test_a_change_costs_time_at_the_wider_draw():
    p = small(width_change_s=600.0, gear_change_s=60.0, share=1.0)
    training, found = run(p, series(100.0, 100.0, 100.0, 100.0), [FULL, FP8, HALF, HALF])
    tokens = 8 * 3000.0 + 16 * 3540.0
    assert found.tokens_by_gear[Gear.FP8] == pytest.approx(16 * 3540.0)
    assert found.tokens == pytest.approx(min(p.tokens, tokens + 4 * (3000.0 + 3600.0)))
    assert (found.n_width_changes, found.n_gear_changes) == (2, 1)
    # All eight draw while the width becomes four.
    assert training.energy_j == pytest.approx(
        (8 * 7200.0 + 8 * 600.0 + 4 * 6600.0) * 1000.0, rel=0.1
    )


def test_tokens_in_low_precision_stop_at_the_cap():
    p = small(share=1.0, low_share=0.25)
    training, found = run(p, series(1.0, 1.0, 1.0, 1.0), [FP8, FP8, FP8, FP8])
    assert found.tokens_by_gear[Gear.FP8] == pytest.approx(0.25 * p.tokens)
    assert training.progress.low_tokens_left == 0.0


def test_lateness_counts_from_the_soft_deadline_to_the_last_token():
    p = small(share=0.5, soft_deadline_s=NOW_S + 1.5 * HOUR_S, late_g_per_h=1000.0)
    _, found = run(p, series(1.0, 1.0, 1.0, 1.0), [FULL, FULL])
    assert found.late_g == pytest.approx(500.0)
    assert found.cost_g == found.carbon_g + found.late_g


def test_epochs_may_be_parts_of_an_interval():
    p = small(share=1.0)
    whole = run(p, series(100.0, 200.0, 300.0, 400.0), [FULL, PAUSE, FULL, FULL])[1]
    fine = replace(p, epoch_s=300.0)
    parts = [FULL] * 12 + [PAUSE] * 12 + [FULL] * 24
    found = run(fine, series(100.0, 200.0, 300.0, 400.0), parts)[1]
    assert found.carbon_g == pytest.approx(whole.carbon_g)
    assert found.tokens == pytest.approx(whole.tokens)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"epoch_s": 7000.0}, "carbon.control.epoch_s"),
        ({"epoch_s": 1234.0}, "carbon.control.epoch_s"),
        ({"start_s": NOW_S + 60.0}, "carbon.control.start"),
        ({"deadline_s": NOW_S + 9 * HOUR_S}, "carbon.control.deadline"),
        ({"start_s": NOW_S - HOUR_S}, "carbon.control.deadline"),
    ],
)
def test_a_recording_that_does_not_fit_is_refused_in_one_line(change, key):
    p = replace(small(), **change)
    with pytest.raises(ConfigError) as caught:
        Training(p, series(1.0, 1.0, 1.0, 1.0))
    assert caught.value.key == key


def test_a_missing_value_is_refused():
    with pytest.raises(ConfigError, match=r"\b1 .*missing"):
        Training(small(), series(1.0, np.nan, 1.0, 1.0))


def test_what_is_told_is_what_has_begun():
    truth = series(100.0, 200.0, np.nan, 400.0, 500.0)
    knowledge = Knowledge(truth)
    view = knowledge.at(NOW_S + 1.5 * HOUR_S)
    assert view.intensity.g_per_kwh == 200.0
    assert list(view.past.values) == [100.0, 200.0]
    # A hole: the newest value still counts.
    assert knowledge.at(NOW_S + 2.0 * HOUR_S).intensity.g_per_kwh == 200.0


def test_what_comes_late_is_told_late_and_grows_stale():
    truth = series(100.0, 200.0, *[np.nan] * 8)
    knowledge = Knowledge(truth, late=2)
    assert knowledge.at(NOW_S + HOUR_S).intensity is None
    assert knowledge.at(NOW_S + 3 * HOUR_S).intensity.g_per_kwh == 200.0
    assert list(knowledge.at(NOW_S + 2 * HOUR_S).past.values) == [100.0]
    assert knowledge.at(NOW_S + 8 * HOUR_S).intensity is None


def test_truth_may_be_another_series_than_what_is_told():
    p = small(share=0.5)
    found = play(Race(p), p, Knowledge(series(*[np.nan] * 4)), series(100.0, 100.0, 100.0, 100.0))
    assert found.deficit == 0.0
    # An hour of eight workers in FP8.
    assert found.carbon_g == pytest.approx(800.0)


def test_each_epoch_is_watched():
    p = small(share=0.5)
    told = []

    def watch(now_s, choice, progress):
        told.append((now_s, choice.width, progress))

    play(Race(p), p, Knowledge(series(1.0, 1.0, 1.0, 1.0)), watch=watch)
    assert [t for t, _, _ in told] == [NOW_S]
    assert told[0][2].tokens_left == p.tokens


@pytest.mark.parametrize("rest_h", [0.25, 0.5, 0.75])
def test_what_is_kept_ends_with_the_deadline_within_an_epoch_too(rest_h):
    hours = 3.0 + rest_h
    p = small(hours=hours, share=1.0 / hours, base_w=1000.0)
    _, found = run(p, series(100.0, 100.0, 100.0, 400.0), [FULL])
    assert found.energy_j == pytest.approx((9000.0 + 1000.0 * (2.0 + rest_h)) * HOUR_S)
    assert found.carbon_g == pytest.approx(900.0 + 200.0 + 400.0 * rest_h)
