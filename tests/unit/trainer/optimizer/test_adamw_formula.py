"""What gamma does to a step, against float64 NumPy; and Eq. 11 as it is printed."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ecorl.trainer import PrecisionAdaptiveAdamW
from tests.examples import examples
from tests.oracles.adamw import adamw_weights
from tests.unit.trainer.optimizer.conftest import PATHS, Trial

ROUNDING = {torch.float64: 1e-11, torch.float32: 2e-5}
"""Relative differences that 20 steps of rounding make."""


def check(trial, n_steps, gamma, flags, *, literal=False, **options):
    form = "literal" if literal else "decelerate"
    weights, _ = trial.trained(
        lambda w: PrecisionAdaptiveAdamW(w, gamma=gamma, form=form, **options, **flags), n_steps
    )
    columns = zip(*(trial.gradients(step) for step in range(n_steps)), strict=True)
    for got, start, gradients in zip(weights, trial.weights(), columns, strict=True):
        wanted = adamw_weights(
            start.detach().double().numpy(),
            [g.double().numpy() for g in gradients],
            gamma=gamma,
            literal=literal,
            **options,
        )
        scale = ROUNDING[trial.dtype] * max(1.0, float(np.abs(wanted).max()))
        np.testing.assert_allclose(got.detach().double().numpy(), wanted, rtol=0, atol=scale)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("gamma", [1.0, 1.3, 4.0])
@pytest.mark.parametrize("literal", [False, True])
def test_a_step_is_the_formula(path, dtype, amsgrad, gamma, literal):
    options = {"lr": 0.02, "eps": 1e-5, "weight_decay": 0.1, "amsgrad": amsgrad}
    check(Trial(dtype), 20, gamma, PATHS[path], literal=literal, **options)


@given(
    path=st.sampled_from(sorted(PATHS)),
    gamma=st.floats(1.0, 100.0),
    lr=st.floats(1e-5, 0.1),
    eps=st.floats(1e-9, 1e-2),
    weight_decay=st.floats(0.0, 0.5),
    amsgrad=st.booleans(),
    maximize=st.booleans(),
    literal=st.booleans(),
    seed=st.integers(0, 1000),
)
@settings(max_examples=examples(60), deadline=None)
def test_it_is_the_formula_at_any_setting(path, gamma, literal, seed, **options):
    check(Trial(torch.float64, seed), 4, gamma, PATHS[path], literal=literal, **options)


@pytest.mark.parametrize("path", ["default", "single", "fused"])
def test_a_learning_rate_in_a_tensor_is_divided_and_left_as_it_was(trial, path):
    rate = torch.tensor(0.01)
    tensor, _ = trial.trained(
        lambda w: PrecisionAdaptiveAdamW(w, lr=rate, gamma=2.0, **PATHS[path])
    )
    plain, _ = trial.trained(lambda w: PrecisionAdaptiveAdamW(w, lr=0.01, gamma=2.0, **PATHS[path]))
    assert rate == torch.tensor(0.01)
    for a, b in zip(tensor, plain, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("path", PATHS)
def test_a_larger_gamma_takes_shorter_steps_and_the_printed_equation_longer_ones(path):
    def first_step(**options):
        weight = torch.nn.Parameter(torch.zeros(4, dtype=torch.float64))
        weight.grad = torch.full((4,), 0.5, dtype=torch.float64)
        PrecisionAdaptiveAdamW([weight], lr=1.0, eps=0.0, **options, **PATHS[path]).step()
        return -float(weight.detach()[0])

    assert first_step(gamma=1.0) == pytest.approx(1.0)
    assert first_step(gamma=4.0) == pytest.approx(0.25)
    assert first_step(gamma=4.0, form="literal") == pytest.approx(4.0)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("gamma", [1.0, 4.0])
def test_the_decay_does_not_depend_on_the_gear(path, gamma):
    def decayed(lr, **options):
        weight = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
        weight.grad = torch.zeros(3, dtype=torch.float64)
        PrecisionAdaptiveAdamW(
            [weight], lr=lr, weight_decay=0.1, gamma=gamma, **options, **PATHS[path]
        ).step()
        return float(weight.detach()[0])

    assert decayed(0.5) == pytest.approx(1.0 - 0.5 * 0.1, abs=1e-15)
    # As printed the weights grow, and the learning rate has no part in it, also where it is 0.
    assert decayed(0.5, form="literal") == pytest.approx(1.1, abs=1e-15)
    assert decayed(0.0, form="literal") == pytest.approx(1.1, abs=1e-15)


def test_gamma_changes_between_steps_and_the_moments_go_on(trial):
    """The moments are those of plain AdamW, whatever gamma was: a switch loses nothing."""
    weights = trial.weights()
    optimizer = PrecisionAdaptiveAdamW(weights, lr=0.01)
    for step, gamma in enumerate([1.0, 4.0, 1.0, 2.5]):
        optimizer.decelerate(gamma)
        trial.run(optimizer, weights, [step])
    plain_weights, plain = trial.trained(lambda w: torch.optim.AdamW(w, lr=0.01), 4)
    for a, b in zip(weights, plain_weights, strict=True):
        for key in ("step", "exp_avg", "exp_avg_sq"):
            assert torch.equal(optimizer.state[a][key], plain.state[b][key])
        assert not torch.equal(a, b)


def test_each_group_has_its_own_gamma(trial):
    weights, optimizer = trial.trained(
        lambda w: PrecisionAdaptiveAdamW(
            [{"params": w[:2]}, {"params": w[2:], "gamma": 3.0}], lr=0.01
        )
    )
    assert optimizer.gamma is None
    slow, _ = trial.trained(lambda w: PrecisionAdaptiveAdamW(w, lr=0.01, gamma=3.0))
    fast, _ = trial.trained(lambda w: PrecisionAdaptiveAdamW(w, lr=0.01))
    for got, wanted in zip(weights, [*fast[:2], *slow[2:]], strict=True):
        assert torch.equal(got, wanted)
    optimizer.decelerate(2)
    assert optimizer.gamma == 2.0
    assert isinstance(optimizer.param_groups[0]["gamma"], float)


@pytest.mark.parametrize("gamma", [0.999, 0.0, -1.0, math.nan, math.inf])
def test_a_gamma_that_would_hurry_is_refused_everywhere(trial, gamma):
    weights = trial.weights()
    with pytest.raises(ValueError, match=f"gamma = {gamma}"):
        PrecisionAdaptiveAdamW(weights, gamma=gamma)
    with pytest.raises(ValueError, match="gamma"):
        PrecisionAdaptiveAdamW([{"params": weights, "gamma": gamma}])
    optimizer = PrecisionAdaptiveAdamW(weights[:2], gamma=2.0)
    with pytest.raises(ValueError, match="gamma"):
        optimizer.decelerate(gamma)
    with pytest.raises(ValueError, match="gamma"):
        optimizer.add_param_group({"params": weights[2:], "gamma": gamma})
    assert optimizer.gamma == 2.0
    assert len(optimizer.param_groups) == 1


def test_an_unknown_form_is_refused(trial):
    with pytest.raises(ValueError, match=r"'printed'.*'decelerate'.*'literal'"):
        PrecisionAdaptiveAdamW(trial.weights(), form="printed")
