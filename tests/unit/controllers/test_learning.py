"""Controllers that adapt while they run: the dual variable, soft Q-learning, and CARL."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest

from ecorl.carbon.series import Series
from ecorl.control import Command, Gear, Why
from ecorl.controllers.horizon.levels import hourly
from ecorl.controllers.horizon.pricing import Hulls
from ecorl.controllers.learning.carl import Carl
from ecorl.controllers.learning.carl_training import (
    CarlAction,
    CarlShape,
    CarlState,
    CarlValues,
    outlook_by_profile,
    recent_mean,
    throttled_speed,
    train,
)
from ecorl.controllers.learning.dual import LAMBDA_MAX, DualPaced, DualSteps, RobustDual
from ecorl.controllers.learning.pace import due_tokens, epoch_of, first_price, pace_end_s
from ecorl.controllers.learning.soft_q import (
    CorrectedCritic,
    PrintedCritic,
    QState,
    SoftQ,
    SoftQShape,
    gibbs,
)
from ecorl.controllers.problem.table import PAUSE
from ecorl.controllers.replay.knowledge import Knowledge
from ecorl.controllers.replay.playing import play
from ecorl.controllers.step import action_of, control_step
from tests.fakes.scripted_feed import HOUR_S
from tests.fakes.training_problems import DAY_S, NOW_S, ahead, past, problem, seen, table

KINDS = {
    "dual": lambda of: DualPaced(of),
    "dual-printed": lambda of: DualPaced(of, printed=True),
    "soft-q": lambda of: SoftQ(of, True),
    "soft-q-printed": lambda of: SoftQ(of, False),
    "carl": lambda of: Carl(of, shape=CarlShape(jobs=16, rounds=3)),
}
EACH = pytest.mark.parametrize("name", KINDS)


def wave(days, low=100.0, high=400.0):
    """Half of each day is clean, and half is dirty."""
    return np.tile(np.repeat([high, low], 12), days)


def weather(days, seed=0):
    hours = np.arange(24 * days)
    noise = np.random.default_rng(seed).normal(0.0, 20.0, len(hours))
    return 300.0 + 120.0 * np.sin(2 * np.pi * hours / 24) + noise


def grid(values, past_days):
    """A recording that begins some days before training may."""
    return Knowledge(Series(NOW_S - past_days * DAY_S, HOUR_S, np.asarray(values, np.float64)))


def played(controller, of, knowledge):
    choices = []
    result = play(controller, of, knowledge, watch=lambda _t, found, _p: choices.append(found))
    return result, choices


# -------------------------------------------------------------------- Algorithm 2, line by line


def test_the_dual_variable_follows_algorithm_2():
    dual = RobustDual(1.0, DualSteps(base=0.5, rho=0.9, warm_epochs=2))
    # k = 0: d = 0.1 * 0.2, s = 0.1, beta = 0.5 * 1 / 2
    assert dual.update(0.2) == pytest.approx(1.0 + 0.25 * 0.1 * 0.02)
    assert (dual.deficit, dual.sign, dual.k) == (pytest.approx(0.02), pytest.approx(0.1), 1)
    # k = 1: d = 0.9 * 0.02 - 0.1 * 0.4 = -0.022, s = 0.09 - 0.1 = -0.01, beta = 0.5 * 2 / 2
    assert dual.update(-0.4) == pytest.approx(1.0005 - 0.5 * 0.01 * 0.022)
    assert (dual.deficit, dual.sign) == (pytest.approx(-0.022), pytest.approx(-0.01))
    # k = 2: d = -0.0198, s = -0.009, beta = 0.5 / sqrt(1)
    assert dual.update(0.0) == pytest.approx(1.00039 - 0.5 * 0.009 * 0.0198)


def test_the_step_size_rises_and_then_falls_with_the_root():
    steps = DualSteps(base=0.8, warm_epochs=4)
    assert [steps.beta(k) for k in range(4)] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert steps.beta(4) == pytest.approx(0.8)
    assert steps.beta(5) == pytest.approx(0.8 / math.sqrt(2))
    assert steps.beta(103) == pytest.approx(0.08)


def test_the_dual_variable_stays_between_0_and_its_largest():
    steps = DualSteps(base=1e9, warm_epochs=1)
    dual = RobustDual(1.0, steps)
    assert [dual.update(1.0) for _ in range(3)][-1] == LAMBDA_MAX == 1e3
    assert [dual.update(-1.0) for _ in range(300)][-1] == 0.0


def test_a_deficit_that_swings_moves_the_dual_variable_less():
    steady, swinging = RobustDual(1.0), RobustDual(1.0)
    for k in range(200):
        steady.update(0.1)
        swinging.update(0.3 if k % 2 else -0.1)
    assert steady.deficit == pytest.approx(swinging.deficit, rel=0.05)
    assert abs(swinging.price - 1.0) < 0.05 * (steady.price - 1.0)


# -------------------------------------------------------------------- schedule and first prices


def test_the_schedule_is_pro_rata_until_the_deadline_that_counts():
    of = problem(hours=48.0)
    assert due_tokens(of, NOW_S + 12 * HOUR_S) == pytest.approx(of.tokens / 4)
    assert (due_tokens(of, NOW_S - 1.0), due_tokens(of, NOW_S + 9e9)) == (0.0, of.tokens)
    soft = replace(of, soft_deadline_s=NOW_S + 36 * HOUR_S)
    assert pace_end_s(soft) == of.deadline_s
    soft = replace(soft, late_g_per_h=1.0)
    assert pace_end_s(soft) == NOW_S + 36 * HOUR_S
    too_soon = replace(soft, soft_deadline_s=NOW_S + 1.0)
    assert pace_end_s(too_soon) == of.earliest_deadline_s()
    assert [epoch_of(of, NOW_S + s) for s in (0.0, 3599.0, 3600.0 - 1e-4)] == [0, 0, 1]


def test_the_first_price_trains_the_budget_on_the_past():
    # 8 workers: FP8 trains 1e5 tokens/s at 8 kW, 0.08 J/token; 40 % of two days are needed of it.
    of = problem(share=0.5)
    what = seen(of, 200.0, past=past(wave(5)))
    found = first_price(of, Hulls.of(of), NOW_S, what)
    j_per_g = 0.08 / 3.6e6
    assert found.reference_g_per_token == pytest.approx(250.0 * j_per_g)
    assert found.warm * 250.0 == pytest.approx(100.0, rel=0.02)  # the clean half is enough
    more = replace(of, tokens=1.6 * of.tokens)
    found = first_price(more, Hulls.of(more), NOW_S, seen(more, 200.0, past=past(wave(5))))
    assert found.warm * 250.0 == pytest.approx(400.0, rel=0.02)  # it is not
    assert first_price(of, Hulls.of(of), NOW_S, seen(of)) is None


def test_a_cap_makes_low_precision_dearer_and_the_memory_keeps_that():
    # Pausing is left out by a tight deadline: only the cap decides between the gears.
    of = problem(share=0.9, low_share=0.3)
    controller = DualPaced(of)
    values = weather(5)
    result, _ = played(controller, of, grid(np.concatenate((values, weather(3, 1))), 5))
    assert result.deficit == 0.0
    assert result.tokens_by_gear[Gear.FP8] <= 0.3 * of.tokens * (1 + 1e-9)
    assert controller.memory()["first"][2] > 0.0


# -------------------------------------------------------------------- pacing


def test_the_price_rises_behind_schedule_and_falls_ahead_of_it():
    of = problem()
    behind, before = DualPaced(of), DualPaced(of)
    for hour in range(30):
        at_s = NOW_S + hour * HOUR_S
        idle = seen(of, 250.0, at_s, past=past(weather(5)))
        busy = replace(idle, progress=replace(of.begin(), tokens_left=0.02 * of.tokens))
        prices = [one.decide(at_s, what) for one, what in ((behind, idle), (before, busy))]
        if not hour:
            first = prices[0].price_g_per_token
    late, early = (found.price_g_per_token for found in prices)
    assert early < first < late


def test_it_does_what_the_price_pays_for():
    of = problem()
    controller = DualPaced(of)
    clean = controller.decide(NOW_S, seen(of, 90.0, past=past(weather(5))))
    dirty = controller.decide(NOW_S, seen(of, 900.0, past=past(weather(5))))
    assert (clean.width, clean.gear, clean.why) == (8, Gear.FP8, Why.PRICED)
    assert (dirty.command, dirty.width) == (Command.PAUSE, 0)


def test_as_printed_the_price_begins_with_nothing_and_only_rises():
    of = problem(hours=240.0)
    knowledge = grid(weather(16), 5)
    _, choices = played(DualPaced(of, printed=True), of, knowledge)
    prices = [found.price_g_per_token for found in choices if found.why is Why.PRICED]
    assert choices[0].command is Command.PAUSE
    assert all(b >= a for a, b in itertools.pairwise(prices))
    assert choices[-1].command is Command.RUN


def test_asked_twice_in_an_epoch_it_counts_once():
    of = problem()
    once, twice = DualPaced(of), DualPaced(of)
    for hour in range(5):
        at_s = NOW_S + hour * HOUR_S
        what = seen(of, 250.0, at_s, past=past(weather(5)))
        once.decide(at_s, what)
        twice.decide(at_s, what)
        twice.decide(at_s + 60.0, what)
    assert once.memory() == twice.memory()


def test_pacing_emits_less_than_full_speed_where_days_are_alike():
    of = problem(hours=240.0, share=0.6)
    knowledge = grid(weather(25), 15)
    paced, _ = played(DualPaced(of), of, knowledge)
    printed, _ = played(DualPaced(of, printed=True), of, knowledge)
    assert paced.deficit == printed.deficit == 0.0
    assert paced.carbon_g < 0.9 * printed.carbon_g


# -------------------------------------------------------------------- soft Q-learning


def test_the_printed_q_moves_by_line_5():
    shape = SoftQShape(1.0, 0.1, 0.5, 0.0, 0.9, 0.5)
    critic, here, there = PrintedCritic(3, shape), QState(0, 0), QState(1, 0)
    critic.learn(0, there, 0, -2.0, there)  # 0 + 0.1 (-2 + 0 - 0)
    assert critic.values(there).tolist() == pytest.approx([-0.2, 0.0, 0.0])
    critic.learn(3, here, 1, 3.0, there)  # step 0.1 / sqrt(4); 3 + 0.5 * -0.2
    assert critic.values(here).tolist() == pytest.approx([0.0, 0.05 * 2.9, 0.0])
    critic.learn(0, here, 1, 3.0, there)
    assert critic.values(here)[1] == pytest.approx(0.145 + 0.1 * (2.9 - 0.145))


def test_the_printed_sign_makes_tokens_a_cost_and_the_corrected_one_a_gain():
    power, rate = np.array([0.0, 0.5, 1.0]), np.array([0.0, 0.6, 1.0])
    printed, corrected = PrintedCritic(3), CorrectedCritic(power, rate)
    at, dual = QState(0, 0), 2.0
    for k in range(500):
        for action in range(3):
            printed.learn(k, at, action, float(power[action] + dual * rate[action]), at)
        corrected.learn(at, 1.0, dual)
    assert np.argmin(printed.values(at)) == 0  # the pause
    assert np.argmin(corrected.values(at)) == 2  # full speed
    assert corrected.values(at).tolist() == pytest.approx([0.0, 0.5 - 1.2, 1.0 - 2.0])


def test_a_corrected_row_is_set_by_its_first_visit_and_moves_by_equation_13():
    critic = CorrectedCritic(np.array([0.0, 1.0]), np.array([0.0, 1.0]))
    at = QState(2, 3)
    critic.learn(at, 0.5, 1.0)
    assert critic.values(at)[1] == pytest.approx(-0.5)
    critic.learn(at, 1.5, 2.0)
    alpha = 2.0**-0.6
    assert critic.values(at)[1] == pytest.approx((1 - alpha) * -0.5 + alpha * (1.5 - 2.0))


def test_a_temperature_of_1_beside_unit_costs_draws_nearly_at_random():
    costs = np.linspace(0.0, 1.0, 9)
    warm, cold = gibbs(costs, 1.0), gibbs(costs, 0.01)
    assert warm.sum() == pytest.approx(1.0)
    assert warm.max() < 3 * warm.min()
    assert cold[0] > 0.999
    assert gibbs(np.array([0.0, np.inf]), 0.01).tolist() == [1.0, 0.0]


def test_as_printed_all_actions_are_drawn_and_lambda_only_rises():
    of = problem(hours=240.0, share=0.2)
    controller, duals = SoftQ(of, False), []
    knowledge, drawn = grid(weather(16), 5), []

    def watch(_now_s, found, _progress):
        if found.why is Why.PRICED:
            drawn.append(action_of(found))
            duals.append(controller.memory()["dual"])

    play(controller, of, knowledge, watch=watch)
    assert set(drawn) == {PAUSE, *of.table.actions()}
    assert all(b > a for a, b in itertools.pairwise(duals))
    assert drawn.count(PAUSE) < 0.3 * len(drawn)


def test_corrected_it_trains_in_clean_hours():
    of = problem(hours=240.0, share=0.5)
    result, choices = played(SoftQ(of, True), of, grid(wave(15), 5))
    assert result.deficit == 0.0
    clean, dirty = (
        np.mean([found.width for found in choices if found.g_per_kwh == value])
        for value in (100.0, 400.0)
    )
    assert clean > 6.0 > 2.0 > dirty


def test_its_seed_decides_what_is_drawn():
    of = problem(hours=96.0)
    knowledge = grid(weather(9), 5)
    first, again, other = (
        [(found.width, found.gear) for found in played(SoftQ(of, False, seed), of, knowledge)[1]]
        for seed in (1, 1, 2)
    )
    assert first == again != other


def test_it_draws_nothing_in_low_precision_once_the_cap_is_used_up():
    of = problem(low_share=0.2)
    progress = replace(of.begin(), low_tokens_left=0.0)
    controller = SoftQ(of, True)
    for hour in range(20):
        at_s = NOW_S + hour * HOUR_S
        found = controller.decide(
            at_s, seen(of, 100.0, at_s, past=past(weather(5)), progress=progress)
        )
        assert found.gear is not Gear.FP8


# -------------------------------------------------------------------- CARL


def carl_state(left_h, time_h, intensity, outlook, utilisation=1.0):
    return CarlState(*(np.array([x]) for x in (left_h, time_h, utilisation, intensity, outlook)))


def test_hours_are_means_and_holes_are_filled():
    nan = math.nan
    values = past([9.0, 1.0, 3.0, nan, nan, 5.0, 7.0], step_s=HOUR_S / 2)
    assert hourly(values).tolist() == [2.0, 2.0, 6.0]
    assert hourly(past([nan, 1.0, nan])).tolist() == [1.0, 1.0]
    assert hourly(past([1.0, 2.0], step_s=2 * HOUR_S)).tolist() == [1.0, 1.0, 2.0, 2.0]
    assert hourly(past([nan, nan])).size == 0


def test_the_outlook_is_that_of_the_last_days_and_of_nothing_later():
    hours = weather(20)
    found = outlook_by_profile(hours)
    at = 300
    expected = np.mean([hours[at - 24 * day + 1 : at - 24 * day + 7].mean() for day in range(1, 8)])
    assert found[at] == pytest.approx(expected)
    assert found[30] == pytest.approx(hours[7:13].mean())
    changed = hours.copy()
    changed[at + 1 :] = 1e3
    assert outlook_by_profile(changed)[: at + 1] == pytest.approx(found[: at + 1])
    assert recent_mean(changed)[: at + 1] == pytest.approx(recent_mean(hours)[: at + 1])
    assert recent_mean(hours)[9] == pytest.approx(hours[:10].mean())


def test_what_an_hour_does_is_as_modelled():
    values = CarlValues(np.zeros(24), 100.0, 3.0, 0.01)
    state = carl_state(10.0, 20.0, 1.5, 1.0, utilisation=0.5)
    effects = values.effects(state, state.intensity)
    assert throttled_speed(np.array([0.5])).tolist() == pytest.approx([0.925])
    assert effects.left_h[:, 0].tolist() == pytest.approx([9.0, 10.0 - 0.925, 10.0])
    assert effects.earned[:, 0].tolist() == pytest.approx([-0.5, 0.925 - 0.8 * 1.5, 0.0])
    # With no hour to spare, an hour's pause leaves one that the deadline finds undone.
    tight = carl_state(5.0, 5.0, 1.5, 1.0)
    after, _ = values.after(tight, values.effects(tight, tight.intensity))
    assert after[CarlAction.DEFER, 0] == pytest.approx(-3.0)
    assert values.best(tight) is CarlAction.PASS


@pytest.mark.parametrize("seed", [0, 1])
def test_it_learns_to_defer_where_cleaner_hours_come(seed):
    learned = train(wave(20), 96.0, seed)
    assert learned is not None
    clean, dirty = 100.0 / 250.0, 400.0 / 250.0
    for left_h, time_h in ((20.0, 60.0), (10.0, 30.0)):
        assert learned.best(carl_state(left_h, time_h, dirty, clean)) is CarlAction.DEFER
        assert learned.best(carl_state(left_h, time_h, clean, dirty)) is not CarlAction.DEFER
    assert learned.best(carl_state(30.0, 30.0, dirty, clean)) is CarlAction.PASS


@pytest.mark.parametrize("seed", [0, 1])
def test_it_learns_not_to_defer_where_nothing_changes(seed):
    of = problem(hours=96.0, share=0.5)
    result, choices = played(Carl(of, seed), of, grid(np.full(24 * 14, 300.0), 10))
    assert result.deficit == 0.0
    assert all(found.command is Command.RUN for found in choices)


def test_it_trains_in_the_clean_half_of_the_day():
    of = problem(hours=96.0, share=0.5)
    result, choices = played(Carl(of), of, grid(wave(14), 10))
    assert result.deficit == 0.0
    ran = [found.g_per_kwh for found in choices if found.command is Command.RUN]
    assert np.mean(np.array(ran) == 100.0) > 0.9


def test_training_is_a_matter_of_the_seed_and_of_the_past():
    short = CarlShape(jobs=16, rounds=3)
    first, again, other = (train(weather(10), 48.0, seed, short) for seed in (3, 3, 4))
    assert first.weights.tolist() == again.weights.tolist() != other.weights.tolist()
    assert train(weather(10, 1), 48.0, 3, short).weights.tolist() != first.weights.tolist()
    assert train(weather(3)[:-1], 48.0, 3, short) is None


def test_with_too_short_a_past_or_no_intensity_it_passes_through():
    of = problem()
    controller = KINDS["carl"](of)
    for what in (seen(of, 300.0), seen(of, 300.0, past=past(weather(2)))):
        found = controller.decide(NOW_S, what)
        assert (action_of(found), found.why) == (of.fastest(of.begin()), Why.UNKNOWN)
        assert controller.memory() == {"values": None}
    known = seen(of, 300.0, past=past(weather(5)))
    assert controller.decide(NOW_S, known).why is Why.PRICED
    assert controller.decide(NOW_S, replace(known, intensity=None)).why is Why.UNKNOWN


def test_throttling_is_asked_for_as_a_clock():
    of = problem(share=0.3)
    controller = Carl(of)
    found = controller.decide(NOW_S, seen(of, 300.0, past=past(np.full(24 * 10, 300.0))))
    assert (found.width, found.gear, found.clock_share) == (8, Gear.FP8, 0.85)
    assert "modelled" in found.reason


def test_a_forecast_counts_where_it_reaches_far_enough():
    of = problem(hours=96.0, share=0.3)
    controller = KINDS["carl"](of)
    what = seen(of, 300.0, past=past(weather(10)))
    assert controller._forecast(NOW_S, replace(what, forecast=ahead([1.0] * 5))) is None
    assert controller._forecast(NOW_S, replace(what, forecast=ahead([1.0] * 5 + [7.0]))) == 2.0
    holed = ahead([1.0, math.nan, *[1.0] * 6])
    assert controller._forecast(NOW_S, replace(what, forecast=holed)) is None
    later = ahead([1.0] * 12, NOW_S + 2 * HOUR_S)
    assert controller._forecast(NOW_S, replace(what, forecast=later)) is None


# -------------------------------------------------------------------- all of them


@EACH
def test_the_budget_is_met(name):
    of = problem(table(WIDE), hours=72.0, share=0.7, width_change_s=120.0)
    result, choices = played(KINDS[name](of), of, grid(weather(9), 6))
    assert result.deficit == 0.0
    assert result.done_s <= of.deadline_s
    assert {found.controller for found in choices} == {name}


WIDE = tuple(range(1, 9))


@EACH
def test_it_goes_on_from_a_memory_that_went_through_json(name):
    of = problem(hours=72.0, share=0.6)
    knowledge = grid(weather(9), 6)
    whole = [(found.width, found.gear) for found in played(KINDS[name](of), of, knowledge)[1]]

    class Resumed:
        def __init__(self):
            self.name, self.inner = name, KINDS[name](of)

        def decide(self, now_s, what):
            kept = json.loads(json.dumps(self.inner.memory()))
            self.inner = KINDS[name](of)
            self.inner.recall(kept)
            return self.inner.decide(now_s, what)

    assert [(found.width, found.gear) for found in played(Resumed(), of, knowledge)[1]] == whole


@EACH
def test_an_unknown_intensity_is_full_speed(name):
    of = problem()
    found = control_step(KINDS[name](of), of, NOW_S, seen(of))
    assert (action_of(found), found.why) == (of.fastest(of.begin()), Why.UNKNOWN)
