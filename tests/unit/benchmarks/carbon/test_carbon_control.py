"""The study of controllers along a grid: bounds, regrets, savings, and the figures made of them."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("scipy")

from benchmarks.carbon_control import decision_times, made_up_hours
from benchmarks.studies.carbon.control.grid_study import study_grid
from benchmarks.studies.carbon.control.harder import harder_cases
from benchmarks.studies.carbon.control.scenario import Study, cases, filled, regrets
from ecorl.carbon.series import Series
from ecorl.control import Gear
from ecorl.controllers.planning.foresight import AS_ARCHIVED, KIND, MadeUpForesight

ROOT = Path(__file__).resolve().parents[4]
SMALL = Study(days=3.0, history_days=10, epoch_s=3600.0)


@pytest.fixture(scope="module")
def hours():
    return made_up_hours(40, seed=3)


def least_g(problem, values):
    """The optimum by hand: steps of the hull in the cleanest hours, cheapest first."""
    table = problem.table
    row = table.gears.index(Gear.FP8)
    rates = np.concatenate(([0.0], table.tokens_per_s[row]))
    watts = np.concatenate(([0.0], table.power_w[row]))
    per_token = np.diff(watts) / np.diff(rates)
    costs = (values[:, None] * per_token).ravel() / 3.6e6
    tokens = np.tile(np.diff(rates) * 3600.0, len(values))
    order = np.argsort(costs, kind="stable")
    taken = np.clip(problem.tokens - (np.cumsum(tokens[order]) - tokens[order]), 0, tokens[order])
    base_g = problem.base_w / 1e3 * values.sum()
    return float((costs[order] * taken).sum() + base_g)


def test_the_bound_is_the_optimum_by_hand(hours):
    for case in cases(SMALL, hours, [10, 20, 30]):
        values = hours.values[case.day * 24 : case.day * 24 + 72]
        assert case.bound_g == pytest.approx(least_g(case.problem, values), rel=1e-9)
        assert case.race_g >= case.bound_g


def test_nobody_is_below_the_bound_and_the_budget_is_met(hours):
    chosen = cases(SMALL, hours, SMALL.starts(hours, 7))
    for name in ("stochastic", "receding", "carbonscaler", "dual", "race"):
        found = regrets(name, chosen, hours)
        assert min(found.by_day.values()) >= 0.0
        assert found.deficit == 0.0
    race = regrets("race", chosen, hours)
    assert race.captured == pytest.approx(0.0, abs=1e-12)


def test_racing_keeps_to_a_cap(hours):
    free, capped = (
        cases(replace(SMALL, slack=3.0), hours, [12], low_share=share)[0] for share in (1.0, 0.3)
    )
    assert capped.race_g > free.race_g
    assert capped.bound_g > free.bound_g


@pytest.mark.parametrize("shape", [KIND, AS_ARCHIVED])
def test_made_up_forecasts_err_as_much_as_they_say(shape):
    truth = made_up_hours(300)
    foresight = MadeUpForesight(truth, shape)
    errors = []
    for n_known in range(24, 200 * 24, 24):
        made = foresight.after(n_known)
        came = truth.values[n_known : n_known + shape.hours]
        errors.append(np.abs(made.middle - came) / came)
    mean = np.mean(errors, axis=0)
    assert mean[0] == pytest.approx(shape.first, rel=0.2)
    assert mean[-1] == pytest.approx(shape.last, rel=0.2)


def test_an_hours_forecast_moves_within_an_issue_by_getting_nearer_alone():
    truth = made_up_hours(40)
    one, again = (MadeUpForesight(truth, seed=2) for _ in range(2))
    late, early = again.after(30), one.after(24)
    came = truth.values[30:120]
    assert np.array_equal(one.after(30).middle, late.middle)
    signs = np.sign(early.middle[6:96] - came) * np.sign(late.middle[:90] - came)
    assert (signs > 0).all()


def test_harder_cases_are_played_against_their_own_bounds(hours):
    usual = {"archived_forecast", "idle_nodes", "changes", "low_share", "late"}
    assert set(harder_cases(SMALL, hours, [12])) == usual
    marginal = replace(hours, values=900.0 - hours.values)
    found = harder_cases(SMALL, hours, [12, 25], marginal)
    assert set(found) == usual | {"marginal", "marginal_late"}
    bounds = [run.case.bound_g for run in found["marginal"].regrets.runs]
    assert bounds == [case.bound_g for case in cases(SMALL, marginal, [12, 25])]
    for one in found.values():
        assert one.regrets.deficit == 0.0
        assert min(one.regrets.by_day.values()) > -1e-9
        assert one.race >= 0.0
    low = found["low_share"].regrets.runs[0].played
    assert low.tokens_by_gear[Gear.FP8] <= 0.37 * low.tokens * (1 + 1e-9)


def test_holes_are_filled_with_what_stood_before():
    series = Series(0.0, 3600.0, np.array([np.nan, 2.0, np.nan, 4.0]))
    assert list(filled(series).values) == [2.0, 2.0, 2.0, 4.0]


def test_decisions_are_timed_at_every_epoch():
    times = decision_times(days=0.1)
    assert times["n"] == 29
    assert 0 < times["median_ms"] <= times["p99_ms"]


def test_figures_of_a_grid(hours, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    benchmark = importlib.import_module("benchmarks.carbon_control")
    found = study_grid(hours, SMALL, 1000.0)
    figures = {f.id: f for f in benchmark.grid_figures("CISO", found)}
    missing = {f.id for f in benchmark.missing_figures("CISO", "no data")}
    assert set(figures) == missing
    assert str(figures["carbon.regret_CISO_history"].target) == "<= 0.022"
    assert figures["carbon.regret_CISO_history_h2"].value is None
    assert figures["carbon.saving_vs_static_bf16_CISO_1.67"].value > 0.25
    few = benchmark.grid_figures("CISO", replace(found, n_left_out=3))
    assert all(f.target is None for f in few)
    assert "3 left out" in few[0].note
    assert study_grid(made_up_hours(12), SMALL, 1.0) is None
