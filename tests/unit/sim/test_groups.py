"""Rows that share a prompt: what is drawn varies more, and at one row a prompt nothing changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecorl.errors import ConfigError
from ecorl.sim.scenario import Scenario
from ecorl.sim.tasks import N_TASKS, PROMPT_STD
from tests.fakes.scenarios import SCENARIO, draw

CALM = {"drift_std": 0.0, "noise_std": 0.0}
CONCENTRATIONS = st.floats(1e-2, 1e6)
PROMPTS, SIZES = st.integers(2, 200), st.integers(2, 64)


def grouped(concentration, n_prompts, size):
    n_rows = n_prompts * size
    return Scenario("g", n_rows=n_rows, group_size=size, concentration=concentration)


@given(concentration=CONCENTRATIONS, noise_std=st.floats(0.0, 10.0), n_rows=st.integers(1, 10_000))
def test_one_row_a_prompt_leaves_all_as_it_is_to_the_bit(concentration, noise_std, n_rows):
    made = Scenario("one", n_rows=n_rows, concentration=concentration, noise_std=noise_std)
    assert made.group_size == 1
    assert made.batch_concentration == concentration
    assert made.batch_noise_std == noise_std


def test_the_default_draws_the_mix_that_it_names():
    """The very numbers of a Dirichlet by gamma variates, the first that an episode takes."""
    drawn = np.random.default_rng(5).standard_gamma(
        np.array(SCENARIO.mix) * SCENARIO.concentration, size=(SCENARIO.n_iterations, 3, N_TASKS)
    )
    drawn += 1e-12
    assert np.array_equal(draw(seed=5, n=3).shares, drawn / drawn.sum(axis=-1, keepdims=True))


@given(concentration=CONCENTRATIONS, n_prompts=PROMPTS, size=SIZES)
def test_a_group_is_of_one_task_and_groups_are_as_alike_as_prompts_were(
    concentration, n_prompts, size
):
    made = grouped(concentration, n_prompts, size)
    n = made.n_rows
    alike = (1.0 / (1.0 + concentration) - 1.0 / n) / (1.0 - 1.0 / n)
    variance = size / n + (1.0 - size / n) * alike
    assert 1.0 / (1.0 + made.batch_concentration) == pytest.approx(variance, rel=1e-9)
    assert 0.0 < made.batch_concentration < concentration


@given(concentration=CONCENTRATIONS, n_large=PROMPTS, size=SIZES, factor=st.integers(2, 8))
def test_larger_groups_vary_more(concentration, n_large, size, factor):
    small = grouped(concentration, n_large * factor, size)
    large = grouped(concentration, n_large, size * factor)
    assert large.n_rows == small.n_rows
    assert large.batch_concentration < small.batch_concentration
    assert large.batch_noise_std > small.batch_noise_std > small.noise_std


def test_the_spread_is_that_of_prompts_drawn_one_by_one():
    """Proportions by Dirichlet, then the task of each prompt: counted, with and without groups."""
    rng, n_rows, size = np.random.default_rng(2), 64, 16
    proportions = rng.dirichlet(np.array(SCENARIO.mix) * 6.0, size=40_000)

    def counted(n_prompts):
        return (rng.multinomial(n_prompts, proportions) / n_prompts).var(axis=0)

    # The concentration that batches of different prompts show, as a calibration would find it.
    even = np.array(SCENARIO.mix) * (1.0 - np.array(SCENARIO.mix))
    seen = float((even.sum() / counted(n_rows).sum()) - 1.0)
    made = replace(SCENARIO, n_rows=n_rows, group_size=size, concentration=seen)
    drawn = draw(made, n=400, n_iterations=100).shares
    assert drawn.var(axis=(0, 1)) == pytest.approx(counted(n_rows // size), rel=0.06)


def test_the_mix_stays_the_same_in_the_mean():
    spread = []
    for size in (1, 8, 16, 128):
        trace = draw(n=400, n_iterations=50, group_size=size, max_length=1e9, **CALM)
        assert trace.shares.mean(axis=(0, 1)) == pytest.approx(SCENARIO.mix, abs=0.015)
        assert np.isfinite(trace.length).all()
        spread.append(trace.shares.std(axis=(0, 1)).mean())
    assert spread == sorted(spread)
    assert spread[-1] > 1.5 * spread[0]


def test_the_mean_length_of_fewer_prompts_is_less_foreseen():
    """By the square root of the number of prompts."""
    calm = {"n_rows": 1024, "mix": (1.0, 0.0, 0.0, 0.0), "max_length": 1e9, **CALM}
    for size in (4, 64):
        trace = draw(n=300, n_iterations=40, group_size=size, **calm)
        error = np.log(trace.length / trace.expected_length)
        per_prompt = PROMPT_STD / np.sqrt(1024 / size)
        assert error.std() == pytest.approx(per_prompt * np.sqrt(1 - 1 / size), rel=0.03)
        assert trace.surprise == pytest.approx(error.std(), rel=0.03)
    assert np.array_equal(*(getattr(draw(n=3, **calm), k) for k in ("length", "expected_length")))


@pytest.mark.parametrize(("n_rows", "size"), [(256, 0), (256, -4), (256, 7), (256, 256), (8, 16)])
def test_groups_that_do_not_fill_a_batch_are_refused(n_rows, size):
    with pytest.raises(ConfigError) as caught:
        Scenario("bad", n_rows=n_rows, group_size=size)
    assert (caught.value.key, caught.value.value) == ("scenario.group_size", size)


def test_a_single_row_needs_no_group():
    assert Scenario("one", n_rows=1).batch_concentration == Scenario("one").concentration
