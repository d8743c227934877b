"""Estimates over seeds and paired comparisons."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from ecorl.policy.evaluation.comparison import (
    RULES,
    PolicyComparison,
    ScenarioResult,
    Scores,
    estimate,
    paired,
    ratio_values,
)
from ecorl.sim.scenario import Scenario


def episodes(n=10, seed=0):
    return np.random.default_rng(seed).normal(1.0, 0.3, n)


def test_a_pair_shows_what_the_spread_of_episodes_hides():
    base = episodes()
    better = base + 0.01 + np.random.default_rng(1).normal(0.0, 0.005, 10)
    assert stats.ttest_ind(better, base, equal_var=False).pvalue > 0.9
    found = paired(better, base)
    assert found.significant
    assert found.p_value == pytest.approx(stats.ttest_rel(better, base).pvalue)
    interval = stats.ttest_rel(better, base).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.low <= found.mean <= found.high
    assert paired(base, better).mean == pytest.approx(-found.mean)


def test_several_comparisons_share_the_level():
    base = episodes()
    near = base + np.random.default_rng(3).normal(0.0, 0.1, 10)
    one, five = paired(base, near), paired(base, near, 5)
    assert five.level == pytest.approx(0.01)
    assert five.p_value == one.p_value
    assert five.high - five.low > one.high - one.low
    assert not five.significant
    # Significant is what the interval at the corrected level says.
    for found in (one, five):
        assert found.significant == (found.low > 0 or found.high < 0)


def test_where_nothing_varies_there_is_no_p():
    base = episodes()
    same = paired(base, base)
    assert (same.mean, same.p_value, same.significant) == (0.0, None, False)
    # A shift that is the same in every episode differs by rounding alone.
    shifted = paired(base + 0.1, base)
    assert shifted.mean == pytest.approx(0.1)
    assert (shifted.p_value, shifted.significant) == (None, True)


def test_too_little_is_refused():
    with pytest.raises(ValueError, match="two values"):
        paired(np.ones(1), np.ones(1))
    with pytest.raises(ValueError, match="as many"):
        paired(np.ones(3), np.ones(2))
    with pytest.raises(ValueError, match="one comparison"):
        paired(np.ones(3), np.ones(3), 0)


def test_a_share_is_as_certain_as_resampled_episodes_say():
    rng = np.random.default_rng(5)
    best = rng.gamma(4.0, 0.25, 40)
    ours = 0.95 * best + rng.normal(0.0, 0.02, 40)
    found = estimate(ratio_values(ours, best))
    assert found.mean == pytest.approx(ours.mean() / best.mean())
    picked = rng.integers(0, 40, (4000, 40))
    resampled = ours[picked].mean(axis=1) / best[picked].mean(axis=1)
    assert found.error == pytest.approx(resampled.std(), rel=0.15)
    # Far below what the spread of the episodes would say.
    assert found.error < 0.1 * (ours / best.mean()).std(ddof=1) / 40**0.5


def test_shares_of_several_scenarios_and_their_difference():
    def scored(values):
        return Scores(values, values, *3 * [np.ones(len(values))])

    results = []
    for seed in (1, 2):
        best = episodes(10, seed)
        noise = np.random.default_rng(seed + 10).normal(0.0, 0.01, (2, 10))
        scores = {
            "learned": 0.98 * best + noise[0], "lookahead": 0.96 * best + noise[1], "dp": best,
        }  # fmt: skip
        scores = {name: scored(values) for name, values in scores.items()}
        results.append(ScenarioResult(Scenario(f"s-{seed}"), scores))
    found = PolicyComparison(tuple(results), ("learned", "lookahead", "dp"))
    share = found.mean_share("learned", results=results)
    assert share.mean == pytest.approx(np.mean([r.share("learned") for r in results]))
    assert share.error < 0.005
    (difference,) = found.differences("learned", results=results).values()
    lookahead = found.mean_share("lookahead", results=results).mean
    assert difference.mean == pytest.approx(share.mean - lookahead)
    assert difference.significant
    assert found.mean_share("learned", results=[]) is None
    assert found.differences("learned", results=[]) == {}


def test_a_gain_over_the_best_rule_is_paired_by_scenario():
    def scored(values):
        return Scores(values, values, *3 * [np.ones(len(values))])

    results = []
    for i in range(6):
        rules = {name: scored(np.full(3, -0.1)) for name in RULES}
        best = np.full(3, 0.01 * i)
        scores = rules | {"static": scored(best), "learned": scored(best + 0.002)}
        results.append(ScenarioResult(Scenario(f"s-{i}"), scores | {"dp": scored(best + 0.01)}))
    found = PolicyComparison(tuple(results), tuple(results[0].scores))
    assert found.best_rule() == "static"
    gain = found.gain("learned", "static")
    assert gain.mean == pytest.approx(0.002)
    assert gain.low == pytest.approx(0.002)
    energy, time = found.value()
    assert energy == pytest.approx(np.zeros(6))
    assert time == pytest.approx(np.zeros(6))
