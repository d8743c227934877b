"""Bounds lie below whatever is played, and the replay of the linear one comes close to it."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from benchmarks.studies.carbon.bound.lagrangian import (
    ScriptedActions,
    lagrangian_bound,
    played_actions,
)
from benchmarks.studies.carbon.bound.programme import milp_bound
from ecorl.carbon.series import Series
from ecorl.control import Gear
from ecorl.controllers.clairvoyant.lp import lp_bound
from ecorl.controllers.horizon.receding import RecedingHorizon
from ecorl.controllers.problem.table import PAUSE
from ecorl.controllers.problem.training import Kept
from ecorl.controllers.replay.knowledge import Knowledge
from ecorl.controllers.replay.playing import play
from ecorl.errors import ConfigError, MissingToolError
from tests.examples import examples
from tests.fakes.training_problems import table as made_up
from tests.oracles.clairvoyant import (
    HOUR_S,
    START_S,
    cheapest_of_all,
    dense_g,
    knapsack_g,
    problem_of,
    raw,
    series_of,
    table_of,
)

pytest.importorskip("scipy")

BELOW = 1.0 + 1e-7
"""Costs of the same schedule differ by less, in whatever order they are summed."""


GEARS = st.sampled_from([(Gear.BF16,), (Gear.FP8, Gear.FP32), (Gear.BF16, Gear.FP8), tuple(Gear)])
WIDTHS = st.sampled_from([(1,), (1, 2, 4), (2, 5), tuple(range(1, 13))])
TABLES = st.builds(table_of, GEARS, WIDTHS, st.integers(0, 9999))
SLACKS = st.sampled_from([1.0, 1.02, 1.3, 2.5, 9.0])
SEEDS = st.integers(0, 9999)
KEEPING = st.fixed_dictionaries({
    "kept": st.sampled_from(Kept),
    "base_w": st.sampled_from([0.0, 2e3]),
    "idle_share": st.sampled_from([0.0, 0.3, 1.0]),
    "pue": st.sampled_from([1.0, 1.3]),
    "low_share": st.sampled_from([0.0, 0.3, 0.8, 1.0]),
})  # fmt: skip
WITHOUT_A_CAP = KEEPING.map(lambda keeping: {**keeping, "low_share": 1.0})
SOFT = st.sampled_from([None, (0.5, 2e3), (0.31, 1e5), (-0.2, 500.0)])


def softened(problem, soft):
    """With a soft deadline at a share of the time, and grams an hour."""
    if soft is None:
        return problem
    share, late_g_per_h = soft
    at_s = problem.start_s + share * (problem.deadline_s - problem.start_s)
    return replace(problem, soft_deadline_s=at_s, late_g_per_h=late_g_per_h)


def has_high(table, keeping):
    return keeping["low_share"] == 1.0 or any(not gear.is_low for gear in table.gears)


# -------------------------------------------------------------------- the linear bound


@settings(deadline=None, max_examples=examples(60))
@given(table=TABLES, slack=SLACKS, seed=SEEDS, cut=st.sampled_from([(0.0, 12.0), (0.3, 9.7)]))
def test_it_is_what_a_knapsack_gives(table, slack, seed, cut):
    problem = problem_of(table, hours=cut[1] - cut[0], slack=slack, base_w=500.0, idle_w=20.0)
    moved = replace(
        problem,
        start_s=problem.start_s + cut[0] * HOUR_S,
        deadline_s=problem.deadline_s + cut[0] * HOUR_S,
    )
    truth = series_of(12, seed)
    bound = lp_bound(moved, truth)
    assert bound.cost_g == pytest.approx(knapsack_g(moved, truth), rel=1e-7)
    assert bound.late_g == 0.0


@settings(deadline=None, max_examples=examples(60))
@given(table=TABLES, slack=SLACKS, seed=SEEDS, keeping=KEEPING, soft=SOFT)
def test_it_is_what_a_programme_of_all_actions_and_ends_gives(table, slack, seed, keeping, soft):
    assume(has_high(table, keeping))
    problem = softened(problem_of(table, hours=7.0, slack=slack, **keeping), soft)
    truth = series_of(7, seed)
    bound = lp_bound(problem, truth)
    assert bound.cost_g == pytest.approx(dense_g(problem, truth), rel=1e-6)


@pytest.mark.parametrize("kept", Kept)
@pytest.mark.parametrize("low_share", [0.4, 1.0])
def test_its_schedule_trains_the_budget_for_what_the_bound_says(kept, low_share):
    table = table_of((Gear.BF16, Gear.FP8), (1, 2, 4), 1)
    problem = problem_of(table, hours=30.0, base_w=3e3, kept=kept, low_share=low_share)
    truth = series_of(30, 2)
    bound = lp_bound(problem, truth)
    costs = truth.values / 3.6e6
    drawn_g = tokens = low = total = 0.0
    for action, share in bound.shares.items():
        extra_w = problem.draw_w(action) - problem.draw_w(PAUSE)
        drawn_g += float((share * bound.seconds_each * costs * extra_w).sum())
        made = float((share * bound.seconds_each).sum()) * problem.rate(action)
        tokens, low, total = tokens + made, low + made * action.is_low, total + share
    kept_s = np.clip(bound.end_s - bound.begins_s, 0.0, bound.seconds_each)
    if kept is Kept.DEADLINE:
        kept_s = bound.seconds_each
    idle_g = float((kept_s * costs).sum()) * problem.draw_w(PAUSE)
    assert tokens == pytest.approx(problem.tokens)
    assert low <= low_share * problem.tokens * BELOW
    assert np.max(total) <= 1.0 + 1e-9
    assert drawn_g + idle_g == pytest.approx(bound.carbon_g, rel=1e-7)


@pytest.mark.parametrize("kept", Kept)
@pytest.mark.parametrize("low_share", [0.3, 1.0])
def test_its_price_is_what_one_token_less_saves(kept, low_share):
    table = made_up(BF16=1e4, FP8=1.3e4)
    problem = problem_of(table, hours=48.0, base_w=2e3, kept=kept, low_share=low_share)
    truth, less = series_of(48, 4), 1e-6
    bound = lp_bound(problem, truth)
    # The cap stays as many tokens as it was.
    kept_share = min(1.0, low_share / (1.0 - less))
    fewer = replace(problem, tokens=problem.tokens * (1.0 - less), low_share=kept_share)
    fewer = lp_bound(fewer, truth)
    saved = (bound.cost_g - fewer.cost_g) / (problem.tokens * less)
    assert bound.price_g_per_token == pytest.approx(saved, rel=1e-3)
    assert (bound.low_price_g_per_token > 0.0) == (low_share < 1.0)


@settings(deadline=None, max_examples=examples(30))
@given(table=TABLES, seed=SEEDS, keeping=KEEPING)
def test_more_time_never_costs_more_where_machines_are_let_go(table, seed, keeping):
    assume(has_high(table, keeping))
    problem = problem_of(table, hours=10.0, slack=1.2, **{**keeping, "kept": Kept.DONE})
    truth = series_of(16, seed)
    costs = []
    for later_h in range(6):
        later = replace(problem, deadline_s=problem.deadline_s + later_h * HOUR_S)
        bound = lp_bound(later, truth)
        costs.append(bound.cost_g)
    assert np.all(np.diff(costs) <= 1e-7 * costs[0])


@settings(deadline=None, max_examples=20)
@given(seed=SEEDS, slack=SLACKS, kept=st.sampled_from(Kept))
def test_a_cap_of_nothing_is_no_low_precision(seed, slack, kept):
    table = table_of((Gear.FP8, Gear.BF16), (1, 2, 4), seed)
    capped = problem_of(table, slack=slack, base_w=500.0, kept=kept, low_share=0.0)
    without = replace(capped, table=table.only(gears=(Gear.BF16,)), low_share=1.0)
    truth = series_of(12, seed + 1)
    assert lp_bound(capped, truth).cost_g == pytest.approx(lp_bound(without, truth).cost_g)


# -------------------------------------------------------------------- nobody is below


@settings(deadline=None, max_examples=examples(60))
@given(
    table=TABLES,
    slack=SLACKS,
    seed=SEEDS,
    keeping=WITHOUT_A_CAP,
    changes=st.sampled_from([(0.0, 0.0), (120.0, 30.0), (900.0, 600.0), (1200.0, 100.0)]),
)
def test_nobody_plays_below_the_bounds(table, slack, seed, keeping, changes):
    wide_s, gear_s = changes
    terms = {"width_change_s": wide_s, "gear_change_s": gear_s, "epoch_s": 1200.0, **keeping}
    problem = problem_of(table, slack=slack, **terms)
    truth = series_of(12, seed)
    rng = np.random.default_rng(seed)
    choices = (PAUSE, *table.actions())
    found = [play(RecedingHorizon(problem), problem, Knowledge(truth))]
    for stretch in (1, 4, 12):
        picks = np.repeat(rng.integers(0, len(choices), 36), stretch)[:36]
        actions = [choices[pick] for pick in picks]
        found += [
            raw(problem, truth, actions),
            play(ScriptedActions(problem, actions), problem, Knowledge(truth)),
        ]
    free, changed = lp_bound(problem, truth), lagrangian_bound(problem, truth)
    assert free.cost_g <= changed.cost_g * BELOW
    for one in (*found, changed.played):
        if one.deficit == 0.0:
            assert changed.cost_g <= one.cost_g * BELOW


@settings(deadline=None, max_examples=examples(25))
@given(
    seed=SEEDS,
    slack=st.sampled_from([1.3, 2.2, 4.0]),
    keeping=WITHOUT_A_CAP,
    changes=st.sampled_from([(0.0, 0.0), (300.0, 60.0), (900.0, 900.0), (3600.0, 0.0)]),
)
def test_no_sequence_at_all_is_below_the_programme(seed, slack, keeping, changes):
    wide_s, gear_s = changes
    table = table_of((Gear.BF16, Gear.FP8), (1, 3), seed)
    terms = {"width_change_s": wide_s, "gear_change_s": gear_s, **keeping}
    problem = problem_of(table, hours=5.0, slack=slack, **terms)
    truth = series_of(5, seed + 1)
    bound = milp_bound(problem, truth)
    assert bound.lp_g <= bound.lagrangian_g * BELOW
    assert bound.lagrangian_g <= bound.cost_g * BELOW
    best_g = cheapest_of_all(problem, truth, 5)
    assert bound.cost_g <= best_g * BELOW
    if bound.played.deficit == 0.0:
        assert bound.played.cost_g >= best_g / BELOW
    if bound.is_optimal:
        assert bound.cost_g == pytest.approx(best_g, rel=2e-6)


# -------------------------------------------------------------------- a month


def month(seed=7, step_s=HOUR_S, **terms):
    table = table_of((Gear.BF16, Gear.FP8), (64, 128, 256, 512), seed)
    problem = problem_of(table, hours=720.0, slack=1.67, epoch_s=300.0, **terms)
    return problem, series_of(720, seed, spread=0.15, step_s=step_s)


def test_with_changes_a_schedule_is_found_near_the_bound():
    problem, truth = month(width_change_s=200.0, gear_change_s=30.0)
    bound = lagrangian_bound(problem, truth)
    assert bound.played.deficit == 0.0
    assert bound.free.cost_g < bound.cost_g <= bound.played.cost_g
    assert bound.played.cost_g < 1.002 * bound.cost_g


def test_the_programme_finds_the_optimum_of_some_days():
    table = table_of((Gear.BF16, Gear.FP8), (1, 2, 4), 10)
    problem = problem_of(table, hours=72.0, width_change_s=300.0, epoch_s=900.0, base_w=1e3)
    truth = series_of(72, 11)
    bound = milp_bound(problem, truth)
    assert bound.is_optimal
    assert bound.incumbent_g == pytest.approx(bound.played.cost_g, rel=1e-9)
    assert played_actions(problem, truth, bound.actions).cost_g == bound.played.cost_g


# -------------------------------------------------------------------- what it refuses


def test_it_refuses_a_series_that_lacks_something():
    problem = problem_of(table_of((Gear.BF16,), (1, 2), 12), hours=6.0)
    truth = series_of(6, 13)
    with pytest.raises(ConfigError, match=r"deadline = '0.25 days on'.* 0.208"):
        lp_bound(problem, Series(START_S, HOUR_S, truth.values[:5]))
    for value in (np.nan, -1.0):
        values = truth.values.copy()
        values[3] = value
        with pytest.raises(ConfigError, match="negative"):
            lp_bound(problem, Series(START_S, HOUR_S, values))


@pytest.mark.parametrize(
    "changes", [{"low_share": 0.5}, {"soft_deadline_s": START_S + HOUR_S, "late_g_per_h": 1.0}]
)
def test_the_bound_of_changes_refuses_a_cap_and_a_soft_deadline(changes):
    problem = replace(problem_of(table_of((Gear.BF16, Gear.FP8), (1, 2), 12), hours=6.0), **changes)
    with pytest.raises(ValueError, match="cap"):
        lagrangian_bound(problem, series_of(6, 13))


def test_without_scipy_it_says_what_to_install(monkeypatch):
    problem = problem_of(table_of((Gear.BF16,), (1, 2), 12), hours=6.0)
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(MissingToolError, match=r"ecorl\[carbon\]"):
        lp_bound(problem, series_of(6, 13))
