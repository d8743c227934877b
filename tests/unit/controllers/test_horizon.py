"""What a token is worth: prices of hulls, fans of what may come, and plans of both."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecorl.carbon.forecasts.forecast import Forecast
from ecorl.carbon.series import Series
from ecorl.control import Gear, Why
from ecorl.controllers.catalogue import build
from ecorl.controllers.horizon.fan import NODES, FanShape, LevelFan
from ecorl.controllers.horizon.levels import learn, weekday
from ecorl.controllers.horizon.pricing import Hulls, Price, PriceCurve
from ecorl.controllers.horizon.receding import RecedingHorizon
from ecorl.controllers.problem.table import TrainingAction
from ecorl.controllers.problem.training import Kept, Progress
from ecorl.controllers.protocol import Seen
from ecorl.controllers.replay.knowledge import Knowledge
from ecorl.controllers.replay.playing import play
from tests.examples import examples
from tests.fakes.training_problems import DAY_S, HOUR_S, NOW_S, past, problem, seen, table


def days(n=60, seed=0, noise=5.0, level=300.0):
    hours = np.arange(n * 24)
    draw = np.random.default_rng(seed).normal(0.0, noise, len(hours))
    return level + 80.0 * np.sin(2 * np.pi * hours / 24) + draw


# -------------------------------------------------------------------- prices


@settings(max_examples=examples(50))
@given(st.integers(0, 1000), st.floats(0.02, 0.98))
def test_a_price_trains_what_it_is_asked_for(seed, share):
    values = np.random.default_rng(seed).uniform(20.0, 600.0, (48, 7))
    p = problem(table(exponent=0.97))
    hulls = Hulls.of(p)
    curve = PriceCurve(hulls, values, 48 * HOUR_S)
    wanted = share * 48 * HOUR_S * p.rate(p.fastest(p.begin()))
    price = curve.price(wanted)
    trained = sum(p.rate(hulls.best(price, c)) for c in values.ravel()) / values.size
    # Between prices the curve is interpolated, and it is a staircase of values.
    assert trained * 48 * HOUR_S == pytest.approx(wanted, rel=0.12, abs=0.02 * wanted / share)


def test_prices_rise_with_the_tokens_and_count_the_pue():
    p = problem(table())
    curve = PriceCurve(Hulls.of(p), days(3), 72 * HOUR_S)
    prices = [curve.price(n * 1e9).g_per_token for n in (1, 5, 10, 15, 20)]
    assert prices == sorted(prices)
    twice = PriceCurve(Hulls.of(replace(p, pue=2.0)), days(3), 72 * HOUR_S)
    assert twice.price(1e9).g_per_token == pytest.approx(2 * prices[0])


def test_grams_are_those_of_the_hours_that_are_run():
    p = problem(table(BF16=100.0))
    values = np.array([100.0, 200.0, 300.0, 400.0])
    curve = PriceCurve(Hulls.of(p), values, 4 * HOUR_S)
    # The two cleanest hours: 8 kW in each.
    assert curve.grams(2 * HOUR_S * 800.0) == pytest.approx(8.0 * 300.0, rel=0.01)


def test_grams_of_part_of_the_hours_that_cost_the_same_are_that_part():
    curve = PriceCurve(Hulls.of(problem(table(BF16=100.0))), np.full(4, 400.0), 4 * HOUR_S)
    for hours in (0.5, 1.0, 3.0):
        assert curve.grams(hours * HOUR_S * 800.0) == pytest.approx(8.0 * 400.0 * hours)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 100), st.floats(0.05, 0.6))
def test_a_cap_has_a_price_of_its_own(seed, low_share):
    values = np.random.default_rng(seed).uniform(20.0, 600.0, 200)
    equal = table(exponent=0.97)
    # At equal power the gears tie in all hours at once, and any share is as good as another.
    of = replace(equal, power_w=equal.power_w * np.array([[1.0], [1.15]]))
    p = problem(of, low_share=low_share, share=0.6, epoch_s=300.0)
    hulls = Hulls.of(p)
    curve = PriceCurve(hulls, values, 48 * HOUR_S)
    price = curve.price(p.tokens, low_share * p.tokens)
    actions = [hulls.best(price, c) for c in values]
    each_s = 48 * HOUR_S / len(values)
    low = sum(p.rate(a) for a in actions if a.is_low) * each_s
    trained = sum(p.rate(a) for a in actions) * each_s
    assert low <= (low_share + 0.05) * p.tokens
    assert trained == pytest.approx(p.tokens, rel=0.1)


@pytest.mark.parametrize("low_share", [1.0, 0.3])
def test_hours_that_come_again_are_priced_as_if_they_stood_there(low_share):
    p = problem(table(exponent=0.97), low_share=low_share)
    fan = LevelFan().fan(past(days(noise=30.0)), NOW_S, NOW_S + (45 + 28) * DAY_S)
    # The first of the rows is the hour under way, which was told: 1,079 are left of 45 days.
    assert fan.times == pytest.approx(2.0, rel=0.002)
    assert len(fan.whole()) == fan.hours
    seconds = fan.hours * HOUR_S
    short = PriceCurve.of(Hulls.of(p), fan, seconds)
    whole = PriceCurve(Hulls.of(p), fan.whole(), seconds)
    for share in (0.1, 0.5, 0.9):
        tokens = share * seconds * p.rate(p.fastest(p.begin()))
        price, expected = (c.price(tokens, low_share * tokens) for c in (short, whole))
        assert price == pytest.approx(expected, rel=0.02)
        grams = [c.grams(tokens) for c in (short, whole)]
        assert grams[0] == pytest.approx(grams[1], rel=0.005)
    assert fan.mean == pytest.approx(fan.whole().mean(), rel=0.001)
    assert fan.first(24).mean == pytest.approx(fan.values[:24].mean())


# -------------------------------------------------------------------- fans


def fan_of(values, ahead_h=48, **kwargs):
    return LevelFan(**kwargs).values(past(values), NOW_S, NOW_S + ahead_h * HOUR_S)


def test_a_fan_begins_with_what_is_known_and_repeats_the_day():
    values = days(noise=0.0)
    # The hour under way has been told.
    told = past(values, end_s=NOW_S + HOUR_S)
    fan = LevelFan().values(told, NOW_S, NOW_S + 48 * HOUR_S)
    assert fan.shape == (48, len(NODES))
    assert fan[0] == pytest.approx(values[-1])
    expected = np.tile(values[-24:], 3)[23 : 23 + 48]
    assert fan.mean(axis=1) == pytest.approx(expected, abs=1.0)


def test_what_comes_late_leaves_the_hour_under_way_unknown():
    values = days()
    early = fan_of(values)
    late = LevelFan().values(past(values, end_s=NOW_S - 2 * HOUR_S), NOW_S, NOW_S + 48 * HOUR_S)
    assert early[0].std() > 0
    assert late[0].std() > early[0].std()


@settings(max_examples=examples(25))
@given(st.integers(0, 1000), st.integers(1, 60 * 24))
def test_a_fan_is_sound_whatever_is_missing(seed, n_missing):
    rng = np.random.default_rng(seed)
    values = np.maximum(1.0, days(seed=seed, noise=100.0))
    values[rng.choice(len(values), n_missing, replace=False)] = np.nan
    fan = fan_of(values, 300)
    if fan is None:
        assert np.isfinite(values).sum() < 48
        return
    assert fan.shape == (300, len(NODES))
    assert np.isfinite(fan).all()
    assert (fan > 0).all()
    assert (np.diff(fan, axis=1) >= 0).all()


def test_too_short_a_past_says_nothing():
    assert fan_of(days(1)) is None
    assert fan_of(np.full(500, np.nan)) is None


def test_the_fan_is_wider_the_further_it_looks_and_ends_with_its_last_fortnight():
    fan = fan_of(days(noise=30.0), 70 * 24)
    width = fan[:, -1] - fan[:, 0]
    assert width[24 * 20] > width[24 * 5] > width[2]
    assert len(fan) == 70 * 24
    assert fan[45 * 24] == pytest.approx(fan[31 * 24])


def test_what_it_remembers_changes_nothing():
    one, values = LevelFan(), days(40)
    for end in (900, 901, 930, 900):
        told = past(values[:end])
        again = one.values(told, NOW_S, NOW_S + DAY_S)
        assert np.array_equal(again, LevelFan().values(told, NOW_S, NOW_S + DAY_S))


def test_a_forecast_without_errors_is_known_and_the_fan_goes_on_from_its_end():
    values, fan = days(), LevelFan()
    middle = np.linspace(500.0, 600.0, 24)
    forecast = Forecast("theirs", NOW_S, NOW_S, HOUR_S, middle, middle, middle)
    found = fan.values(past(values), NOW_S, NOW_S + 72 * HOUR_S, forecast)
    assert found[:24].mean(axis=1) == pytest.approx(forecast.middle)
    assert found[:23].std(axis=1).max() < 1e-9
    without = fan.values(past(values), NOW_S, NOW_S + 72 * HOUR_S)
    assert found[24:].mean() > without[24:].mean() + 20.0


def test_five_minutes_are_taken_in_hours():
    values = days(20)
    fine = np.repeat(values, 12)
    assert fan_of(values) == pytest.approx(fan_of_fine(fine))


def fan_of_fine(values):
    return LevelFan().values(past(values, step_s=300.0), NOW_S, NOW_S + 48 * HOUR_S)


def test_a_grid_that_is_played_faster_has_its_own_days():
    values = days(20)
    fast = past(values, step_s=1.0)
    found = LevelFan(day_s=24.0).values(fast, NOW_S, NOW_S + 48.0)
    shape = replace(FanShape())
    slow = LevelFan(shape).values(past(values), NOW_S, NOW_S + 48 * HOUR_S)
    # The calendar alone tells them apart.
    assert found == pytest.approx(slow, rel=0.05)


# -------------------------------------------------------------------- levels


def test_weekends_that_differ_are_learnt_and_noise_is_not():
    first = 0  # a Monday
    is_weekend = np.arange(70) % 7 >= 5
    level = np.where(is_weekend, 240.0, 300.0)
    clear = learn(np.repeat(level[:, None], 24, axis=1), (10.0,), 60, first)
    assert clear.weekend == pytest.approx(-60.0 / 270.0, rel=0.02)
    assert learn(np.repeat(level[:, None], 24, axis=1), (10.0,), 60, None).weekend == 0.0
    found = []
    for seed in range(30):
        noise = np.random.default_rng(seed).normal(300.0, 40.0, 70)
        found.append(learn(np.repeat(noise[:, None], 24, axis=1), (10.0,), 60, first).weekend)
    assert np.median(np.abs(found)) < 0.01


def test_the_memory_that_foretold_best_counts_most():
    rng = np.random.default_rng(1)
    steady = 300.0 + rng.normal(0.0, 30.0, 120)
    wandering = 300.0 + np.cumsum(rng.normal(0.0, 15.0, 120))

    def weights(level):
        return learn(np.repeat(level[:, None], 24, axis=1), (3.0, 30.0), 60, None).weights

    assert weights(steady)[1] > 0.9
    assert weights(wandering)[0] > 0.9


def test_weekdays_are_those_of_the_calendar():
    assert weekday(1_640_995_200.0) == 5  # 1 January 2022, a Saturday


# -------------------------------------------------------------------- plans


def played(p, values, **kwargs):
    series = Series(NOW_S - 20 * DAY_S, HOUR_S, values)
    return play(RecedingHorizon(p, **kwargs), p, Knowledge(series))


def test_it_runs_in_the_clean_hours():
    p = problem(table(BF16=100.0), hours=96.0, share=0.4)
    result = played(p, days(30))
    even_g = 0.4 * 96.0 * 8.0 * days(30)[20 * 24 : 24 * 24].mean()
    assert result.carbon_g < 0.85 * even_g
    assert result.deficit == 0.0


def test_it_goes_on_where_nothing_is_known():
    p = problem(table(BF16=100.0))
    found = RecedingHorizon(p).decide(NOW_S, seen(p))
    assert (found.why, found.width) == (Why.UNKNOWN, 8)


def test_machines_that_are_given_back_are_not_kept_for_little():
    kept = problem(table(BF16=100.0), hours=240.0, share=0.2, base_w=20e3, kept=Kept.DONE)
    free = problem(table(BF16=100.0), hours=240.0, share=0.2)
    values = days(40)
    assert played(kept, values).done_s < played(free, values).done_s - DAY_S


@pytest.mark.parametrize("slope", [0.0, -0.3, -1.0])
def test_kept_machines_wait_for_no_hour_that_is_hardly_cleaner(slope):
    p = problem(
        table(widths=(8,), BF16=100.0), hours=240.0, share=0.2, idle_w=230.0, kept=Kept.DONE
    )
    # Level until 8 of the 48 hours are left to train, and then cleaner by a little each hour.
    ahead_h = np.arange(40 * 24) - 20 * 24
    result = played(p, 400.0 + slope * np.maximum(0, ahead_h - 40))
    assert result.done_s - NOW_S == pytest.approx(48 * HOUR_S)


def test_a_soft_deadline_that_costs_is_kept():
    p = problem(table(BF16=100.0), hours=240.0, share=0.2)
    soft_s = p.start_s + 72 * HOUR_S
    hasty = replace(p, soft_deadline_s=soft_s, late_g_per_h=1e6)
    values = days(40)
    assert played(hasty, values).done_s <= soft_s + p.epoch_s
    assert played(p, values).done_s > soft_s
    cheap = replace(hasty, late_g_per_h=1e-6)
    assert played(cheap, values).done_s == pytest.approx(played(p, values).done_s, abs=DAY_S)


def test_changes_that_cost_are_made_less_often():
    p = problem(table(BF16=100.0, exponent=0.9), hours=96.0, share=0.4, epoch_s=900.0)
    slow = replace(p, width_change_s=600.0)
    values = days(30, noise=40.0)
    assert played(slow, values).n_width_changes < 0.6 * played(p, values).n_width_changes


def test_the_price_is_what_a_token_less_would_save():
    p = problem(table(BF16=100.0), hours=96.0, share=0.4)
    values = days(30, noise=0.0)
    found = RecedingHorizon(p, is_stochastic=False).decide(
        NOW_S, seen(p, 300.0, past=past(values[: 20 * 24 + 1], end_s=NOW_S + HOUR_S))
    )
    less = replace(p, tokens=0.98 * p.tokens)
    saved_g = played(p, values).carbon_g - played(less, values).carbon_g
    assert found.price_g_per_token == pytest.approx(saved_g / (0.02 * p.tokens), rel=0.1)


def test_the_middle_alone_is_another_controller():
    p = problem(table(BF16=100.0))
    assert RecedingHorizon(p, is_stochastic=False).name == "receding"
    assert RecedingHorizon(p).name == "stochastic"
    progress = Progress(p.tokens, 0.0)
    values = days(noise=40.0)
    prices = {
        name: RecedingHorizon(p, is_stochastic=name)
        .decide(NOW_S, seen(p, 300.0, past=past(values), progress=progress))
        .price_g_per_token
        for name in (True, False)
    }
    assert prices[True] != prices[False]
    assert Gear.BF16 in p.table.gears


@pytest.mark.parametrize("share", [0.5, 0.95, 1.1])
def test_ablations_keep_to_their_width_or_gear_where_the_budget_lets_them(share):
    values = days(50, noise=20.0, level=200.0)
    truth = past(values, end_s=NOW_S + 20 * DAY_S)
    p = problem(table(exponent=0.9), share=share, hours=240.0)
    taken = {}

    def watch(now_s, choice, progress):
        if choice.why is Why.PRICED and choice.width:
            taken.setdefault(choice.controller, set()).add((choice.width, choice.gear))

    played = {
        name: play(build(name, p), p, Knowledge(truth), truth, watch=watch)
        for name in ("stochastic", "width-fixed", "gear-fixed")
    }
    assert {width for width, _ in taken["width-fixed"]} == {p.table.widths[-1]}
    assert {gear for _, gear in taken["gear-fixed"]} == {Gear.BF16}
    assert {found.deficit for found in played.values()} == {0.0}
    # What BF16 cannot train in time, the shield trains in FP8.
    low = played["gear-fixed"].tokens_by_gear.get(Gear.FP8, 0.0)
    assert (low > 0.0) == (share > 1.0)
    best = played["stochastic"].carbon_g
    assert best < played["gear-fixed"].carbon_g
    assert best < 1.02 * played["width-fixed"].carbon_g


def test_where_another_action_is_hardly_better_the_present_one_goes_on():
    p = problem(table(exponent=0.9))
    hulls = Hulls.of(p)
    narrow, wide = hulls.all.actions[1], hulls.all.actions[2]
    edge = Price(float(hulls.all.j_per_token[1]) * 300.0 * hulls.g_per_j)
    just_below = Price(edge.g_per_token * 0.999)
    assert hulls.best(just_below, 300.0) == narrow
    assert hulls.as_good(just_below, 300.0, wide, 0.003)
    assert not hulls.as_good(just_below, 300.0, wide, 0.0005)
    assert not hulls.as_good(just_below, 300.0, hulls.all.actions[-1], 0.003)


@pytest.mark.parametrize("name", ["width-fixed", "gear-fixed"])
def test_without_a_grid_ablations_run_at_full_speed_of_what_they_may(name):
    p = problem(table(exponent=0.9), share=0.95, hours=240.0)
    found = build(name, p).decide(NOW_S, seen(p))
    gear = Gear.BF16 if name == "gear-fixed" else Gear.FP8
    assert (found.why, found.width, found.gear) == (Why.UNKNOWN, p.table.widths[-1], gear)
    only_low = problem(table(FP8=1.25e4), hours=240.0)
    assert build(name, only_low).decide(NOW_S, seen(only_low)).gear is Gear.FP8


def test_an_ablation_keeps_to_its_actions_after_the_budget_has_forced_another():
    p, gears = problem(table(exponent=0.9), hours=240.0, width_change_s=1800.0), set()
    known = past(days(), end_s=NOW_S + 48 * HOUR_S)
    for hour in range(24):
        now_s = NOW_S + hour * HOUR_S
        view = Knowledge(known).at(now_s)
        # Forced before: wide, and in the gear that it is not to take.
        progress = Progress(0.5 * p.tokens, 0.5 * p.tokens, TrainingAction(8, Gear.FP8))
        shown = Seen(view.intensity, view.forecast, view.past, progress)
        gears.add(build("gear-fixed", p).decide(now_s, shown).gear)
    assert Gear.FP8 not in gears
    assert Gear.BF16 in gears
