"""What the next reading is expected to be, by the mean of all and the recent one."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecorl.statistics import FADING_BATCHES, RECENT_ALPHA, expected, recent_weight

MEANS = st.floats(1e-3, 1e3)
SPREADS = st.floats(0.0, 2.0)
AGES = st.floats(0.0, 200.0)


@given(MEANS, MEANS, SPREADS, AGES)
def test_it_lies_between_both_means(recent, mean, spread, age):
    found = expected(recent, mean, spread, age)
    assert min(recent, mean) * (1 - 1e-9) <= found <= max(recent, mean) * (1 + 1e-9)


@given(MEANS, MEANS, SPREADS, AGES)
def test_scatter_and_age_bring_it_nearer_to_the_mean_of_all(recent, mean, spread, age):
    off = abs(expected(recent, mean, spread, age) - mean)
    assert abs(expected(recent, mean, 2.0 * spread, age) - mean) <= off * (1 + 1e-9)
    assert abs(expected(recent, mean, spread, age + 5.0) - mean) <= off * (1 + 1e-9)


def test_a_change_without_scatter_is_believed_in_full_and_fades_when_it_is_not_read_again():
    assert expected(3.0, 1.0, 0.0, 1.0) == 3.0
    assert expected(3.0, 1.0, 0.0, 0.0) == 3.0
    assert expected(3.0, 1.0, 0.0, 1.0 + FADING_BATCHES) == pytest.approx(1.0 + 2.0 / math.e)
    assert expected(3.0, 1.0, 0.0, 1e6) == 1.0


def test_what_scatter_alone_gives_a_recent_mean_says_nothing():
    by_chance = math.sqrt(RECENT_ALPHA / (2.0 - RECENT_ALPHA)) * 0.5
    assert expected(1.0 + 0.99 * by_chance, 1.0, 0.5, 1.0) == 1.0
    assert expected(1.0 - 0.99 * by_chance, 1.0, 0.5, 1.0) == 1.0
    assert 1.0 < expected(1.0 + 1.01 * by_chance, 1.0, 0.5, 1.0) < 1.01


@pytest.mark.parametrize("spread", [0.1, 0.5])
def test_on_readings_that_only_scatter_it_is_nearer_to_the_truth_than_the_recent_mean(spread):
    rng = np.random.default_rng(1)
    off = {"recent": [], "expected": []}
    for _ in range(200):
        readings = rng.lognormal(0.0, spread, 40)
        recent = 0.0
        for n, reading in enumerate(readings, 1):
            recent += recent_weight(float(n)) * (reading - recent)
        scatter = readings.std(ddof=1) / readings.mean()
        found = expected(recent, readings.mean(), scatter, 1.0)
        truth = math.exp(0.5 * spread**2)
        off["recent"].append((recent - truth) ** 2)
        off["expected"].append((found - truth) ** 2)
    assert np.mean(off["expected"]) < 0.6 * np.mean(off["recent"])


def test_a_tenant_who_doubles_the_times_is_believed_within_five_readings():
    rng = np.random.default_rng(2)
    found = []
    for _ in range(200):
        readings = np.concatenate([np.ones(20), np.full(5, 2.0)]) * rng.lognormal(0.0, 0.05, 25)
        recent = 0.0
        for n, reading in enumerate(readings, 1):
            recent += recent_weight(float(n)) * (reading - recent)
        spread = readings.std(ddof=1) / readings.mean()
        found.append(expected(recent, readings.mean(), spread, 1.0))
    assert min(found) > 1.6
