"""Statistics against known answers, and the order of alternating arms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecorl.bench.rounds import (
    MIN_ROUNDS,
    TimeBox,
    balanced_order,
    round_ratios,
    timed_rounds,
)
from ecorl.bench.stats import (
    LEAST_VALUES,
    bootstrap_interval,
    gain_in_errors,
    mad,
    median,
    spread_of,
)
from ecorl.report.model import PairedGain


def test_median_and_mad():
    values = [1.0, 1.0, 2.0, 2.0, 4.0, 6.0, 9.0]
    assert (median(values), mad(values)) == (2.0, 1.0)
    with pytest.raises(ValueError, match="no values"):
        median([])


def test_interval_is_reproducible_and_needs_enough_values():
    values = [float(n) for n in range(LEAST_VALUES)]
    assert bootstrap_interval(values) == bootstrap_interval(values)
    assert spread_of(values)["interval_95"] == list(bootstrap_interval(values))
    few = values[:-1]
    assert bootstrap_interval(few) is None
    told = spread_of(few)
    assert (told["interval_95"], told["min"], told["max"]) == (None, min(few), max(few))


@given(st.lists(st.floats(-1e6, 1e6), min_size=LEAST_VALUES, max_size=12))
def test_interval_lies_within_the_values_and_around_the_median(values):
    low, high = bootstrap_interval(values)
    assert min(values) <= low <= median(values) <= high <= max(values)


@pytest.mark.parametrize("n_values", [LEAST_VALUES, 15])
def test_interval_covers_the_true_median_about_as_often_as_it_says(n_values):
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        low, high = bootstrap_interval(list(rng.normal(1.0, 0.2, n_values)))
        covered += low <= 1.0 <= high
    assert 0.88 <= covered / 200 <= 1.0


def gain(value, error):
    return PairedGain("reward", "before", "after", 0.0, value, value, error, 256, None)


def test_gain_in_errors():
    assert gain_in_errors(gain(0.6, 0.2)) == pytest.approx(3.0)
    assert gain_in_errors(gain(-0.6, 0.2)) == pytest.approx(-3.0)
    assert gain_in_errors(gain(0.6, 0.0)) is None
    assert gain_in_errors(gain(0.6, None)) is None
    assert gain_in_errors(gain(None, None)) is None


def test_a_steady_drift_cancels_in_the_balanced_order():
    order = [arm for arms in balanced_order(("a", "b"), 6) for arm in arms]
    assert order[:4] == ["a", "b", "b", "a"]
    mean_place = {arm: np.mean([i for i, x in enumerate(order) if x == arm]) for arm in "ab"}
    assert mean_place["a"] == mean_place["b"]


def test_a_box_that_is_used_ends_the_rounds_after_enough_of_them():
    used, endless = TimeBox(0.0), TimeBox(None)
    assert len(list(balanced_order(("a", "b"), 40, used))) == MIN_ROUNDS
    assert len(list(balanced_order(("a", "b"), 3, used))) == 3
    assert len(list(balanced_order(("a", "b"), 41, endless))) == 41
    assert MIN_ROUNDS % 2 == 0
    times = timed_rounds({"a": lambda: None}, 40, box_s=0.0)
    assert len(times["a"]) == MIN_ROUNDS


def test_a_box_has_room_for_what_ends_within_it():
    box = TimeBox(1000.0)
    assert box.has_room(900.0)
    assert not box.has_room(1001.0)
    assert TimeBox(None).has_room(1e9)


def test_every_arm_is_warmed_once_and_timed_each_round():
    calls = []
    times = timed_rounds({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 3)
    assert calls == ["a", "b", "a", "b", "b", "a", "a", "b"]
    assert {name: len(t) for name, t in times.items()} == {"a": 3, "b": 3}
    assert all(t >= 0 and math.isfinite(t) for t in times["a"])


def test_ratios_are_taken_within_a_round():
    assert round_ratios([2.0, 9.0], [1.0, 3.0]) == [2.0, 3.0]
    with pytest.raises(ValueError, match="zip"):
        round_ratios([1.0], [1.0, 2.0])
