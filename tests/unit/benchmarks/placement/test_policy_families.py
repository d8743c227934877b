"""Figures of the policy benchmark, from comparisons that can be told in the head."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks import policy as families
from ecorl.policy.evaluation.comparison import RULES, PolicyComparison, ScenarioResult, Scores
from ecorl.sim.scenario import Limits, Scenario

GUARDED = Limits(8.0, 8192.0, 0.0)


def scores(score, energy=1.0, time=1.0, without_cards=1.02):
    ones = np.ones(2)
    return Scores(score * ones, (score - 0.01) * ones, energy * ones, time * ones,
                  energy * without_cards * ones)  # fmt: skip


def comparison(ours=0.02, n=5):
    results = []
    for i in range(n):
        found = {name: scores(-0.01) for name in RULES}
        found |= {
            "always_gpu": scores(0.0),
            "lookahead": scores(0.01 + 0.001 * i),
            "learned": scores(ours + 0.001 * i, energy=0.97),
            "planner": scores(0.04, energy=0.95, time=0.9),
            "dp": scores(0.05, energy=0.95, time=0.9),
        }
        results.append(ScenarioResult(Scenario(f"s-{i}", limits=GUARDED), found))
    return PolicyComparison(tuple(results), tuple(results[0].scores))


def by_id(figures):
    return {f.id: f for f in figures}


def test_value_is_against_the_same_gpus_without_cards():
    found = by_id(families.values("drift", comparison()))
    assert found["policy.value_drift_energy"].value == pytest.approx(100 * (1 - 0.95 * 1.02))
    assert found["policy.value_drift_time"].value == pytest.approx(10.0)


def test_the_gain_is_over_the_best_rule_and_its_lower_end_carries_the_target():
    found = by_id(families.gains("drift", comparison()))
    gain = found["policy.gain_vs_best_rule_drift"]
    assert gain.value == pytest.approx(0.01)
    assert gain.spread["best_rule"] == "lookahead"
    assert found["policy.gain_vs_best_rule_drift_low"].holds is True
    untuned = found["policy.gain_vs_untuned_drift"]
    assert (untuned.spread["best_rule"], untuned.holds) == ("lookahead", None)
    worse = by_id(families.gains("drift", comparison(ours=0.009)))
    assert worse["policy.gain_vs_best_rule_drift_low"].holds is False
    elsewhere = by_id(families.gains("mixed", comparison(ours=0.009)))
    assert elsewhere["policy.gain_vs_best_rule_mixed_low"].holds is True


def test_a_tuned_rule_is_no_rule_as_it_comes():
    tuned = comparison()
    for result in tuned.results:
        result.scores["static"] = scores(0.03)
    found = by_id(families.gains("drift", tuned))
    assert found["policy.gain_vs_best_rule_drift"].spread["best_rule"] == "static"
    assert found["policy.gain_vs_best_rule_drift"].value == pytest.approx(-0.008)
    assert found["policy.gain_vs_untuned_drift"].spread["best_rule"] == "lookahead"
    assert found["policy.gain_vs_untuned_drift"].value == pytest.approx(0.01)


def test_the_share_of_the_planner_counts_only_what_gains():
    found = by_id(families.figures_of({"drift": comparison()}))
    share = found["policy.share_of_true_planner_drift"]
    assert share.value == pytest.approx(0.022 / 0.04)
    assert share.holds is False
    none = by_id(families.figures_of({"mixed": comparison()}))
    assert none["policy.share_of_true_planner_drift"].value is None


def test_energies_are_told_against_idle_cards_and_against_none():
    results = list(comparison().results)
    dear = {**results[0].scores, "learned": scores(0.02, energy=1.01)}
    results[0] = replace(results[0], scores=dear)
    found = by_id(families.energies(results))
    assert found["policy.energy_over_idle_device_worst"].value == pytest.approx(1.01)
    assert found["policy.energy_over_idle_device_worst"].holds is False
    alone = found["policy.energy_over_gpus_alone_worst"]
    assert alone.value == pytest.approx(1.01 * 1.02)
    assert alone.spread["standing_by_there"] == pytest.approx(1.02)
    free = [replace(r, scenario=Scenario(r.scenario.name)) for r in results]
    assert by_id(families.energies(free))["policy.energy_over_idle_device_worst"].value is None
