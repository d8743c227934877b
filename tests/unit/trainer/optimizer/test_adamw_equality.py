"""At gamma = 1 the optimizer is torch's AdamW to the last bit, on each of torch's paths."""

from __future__ import annotations

import importlib

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.optim import AdamW

from ecorl.trainer import PrecisionAdaptiveAdamW
from tests.examples import examples
from tests.unit.trainer.optimizer.conftest import PATHS, Trial, assert_equal_bits


def both(trial, n_steps=25, **options):
    """Train by ours and by torch's, and compare."""
    ours = trial.trained(lambda w: PrecisionAdaptiveAdamW(w, **options), n_steps)
    theirs = trial.trained(lambda w: AdamW(w, **options), n_steps)
    assert_equal_bits(ours, theirs)
    started = trial.weights()
    assert not all(torch.equal(a, b) for a, b in zip(ours[0], started, strict=True))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_it_is_torchs_to_the_last_bit(path, amsgrad, maximize, dtype):
    options = {"amsgrad": amsgrad, "maximize": maximize, "weight_decay": 0.1, "lr": 0.01}
    both(Trial(dtype), eps=1e-3 if dtype is torch.float16 else 1e-8, **options, **PATHS[path])


@given(
    path=st.sampled_from(sorted(PATHS)),
    lr=st.floats(1e-6, 1.0),
    beta1=st.floats(0.0, 0.999),
    beta2=st.floats(0.0, 0.9999),
    eps=st.floats(1e-12, 1e-2),
    weight_decay=st.one_of(st.just(0.0), st.floats(1e-6, 1.0)),
    amsgrad=st.booleans(),
    maximize=st.booleans(),
    seed=st.integers(0, 1000),
)
@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_it_is_torchs_at_any_setting(path, beta1, beta2, seed, **options):
    both(Trial(seed=seed), 4, betas=(beta1, beta2), **options, **PATHS[path])


@pytest.mark.parametrize("path", ["default", "single", "fused"])
def test_a_learning_rate_in_a_tensor_is_neither_copied_nor_changed(trial, path):
    rate = torch.tensor(0.01)
    both(trial, lr=rate, **PATHS[path])
    assert rate == torch.tensor(0.01)


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("gamma", [1.0, 1.7])
def test_the_path_of_cuda_graphs_has_the_same_arithmetic(trial, monkeypatch, foreach, gamma):
    """torch refuses `capturable` on a CPU by the device alone: the arithmetic runs there."""
    adam = importlib.import_module("torch.optim.adam")
    monkeypatch.setattr(adam, "_get_capturable_supported_devices", lambda **_: ["cpu"])
    options = {"lr": torch.tensor(0.01), "capturable": True, "foreach": foreach}
    captured, _ = trial.trained(lambda w: PrecisionAdaptiveAdamW(w, gamma=gamma, **options))
    if gamma == 1.0:
        plain, _ = trial.trained(lambda w: AdamW(w, **options))
        assert all(torch.equal(a, b) for a, b in zip(captured, plain, strict=True))
    other, _ = trial.trained(lambda w: PrecisionAdaptiveAdamW(w, lr=0.01, gamma=gamma))
    for a, b in zip(captured, other, strict=True):
        torch.testing.assert_close(a, b)


def test_several_groups_with_settings_of_their_own(trial):
    def groups(weights):
        return [
            {"params": weights[:2], "lr": 0.1, "weight_decay": 0.0},
            {"params": weights[2:], "betas": (0.5, 0.6), "amsgrad": True},
        ]

    for flags in PATHS.values():
        ours = trial.trained(lambda w, f=flags: PrecisionAdaptiveAdamW(groups(w), lr=0.01, **f))
        theirs = trial.trained(lambda w, f=flags: AdamW(groups(w), lr=0.01, **f))
        assert_equal_bits(ours, theirs)


@pytest.mark.parametrize("path", ["single", "foreach"])
def test_complex_weights(path):
    both(Trial(torch.complex64), lr=0.01, amsgrad=True, **PATHS[path])


def test_weights_that_do_not_lie_in_one_piece_and_weights_of_several_types():
    def weights():
        generator = torch.Generator().manual_seed(3)
        draw = torch.randn(6, 4, 2, generator=generator)
        return [
            torch.nn.Parameter(draw[..., 0]),
            torch.nn.Parameter(draw[:, 1].t()),
            torch.nn.Parameter(draw[0].to(torch.bfloat16)),
            torch.nn.Parameter(draw[1].double()),
        ]

    for flags in PATHS.values():
        results = []
        for kind in (PrecisionAdaptiveAdamW, AdamW):
            own = weights()
            optimizer = kind(own, lr=0.01, **flags)
            for step in range(10):
                for weight in own:
                    weight.grad = torch.cos(weight.detach() * (step + 1))
                optimizer.step()
            results.append((own, optimizer))
        assert_equal_bits(*results)


def test_sparse_gradients_are_refused_as_torch_refuses_them():
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.sparse_coo_tensor([[1]], [2.0], (3,))
    optimizer = PrecisionAdaptiveAdamW([weight], gamma=2.0)
    with pytest.raises(RuntimeError, match="sparse"):
        optimizer.step()
    # The user's numbers are back in the group, whatever happened.
    assert optimizer.param_groups[0]["lr"] == 1e-3
    assert optimizer.param_groups[0]["eps"] == 1e-8


def test_weights_without_a_gradient_stand_still(trial):
    weights = trial.weights()
    optimizer = PrecisionAdaptiveAdamW(weights, lr=0.1, gamma=2.0)
    weights[0].grad = torch.ones_like(weights[0])
    optimizer.step()
    started = trial.weights()
    assert [torch.equal(a, b) for a, b in zip(weights, started, strict=True)] == [
        False,
        True,
        True,
        True,
    ]
    assert list(optimizer.state) == [weights[0]]


def test_a_closure_is_called_once_with_the_users_own_numbers(trial):
    def run(kind, **options):
        weights = trial.weights()
        optimizer = kind(weights, lr=0.05, **options)
        seen, losses = [], []

        def closure():
            assert torch.is_grad_enabled()
            optimizer.zero_grad()
            loss = sum((w**2).sum() for w in weights)
            loss.backward()
            seen.append(optimizer.param_groups[0]["lr"])
            return loss

        with torch.no_grad():
            losses += [float(optimizer.step(closure)) for _ in range(10)]
        return weights, optimizer, losses, seen

    ours, theirs = run(PrecisionAdaptiveAdamW), run(AdamW)
    assert_equal_bits(ours[:2], theirs[:2])
    assert ours[2] == theirs[2]
    slowed = run(PrecisionAdaptiveAdamW, gamma=2.0)
    assert slowed[3] == [0.05] * 10
    assert slowed[2][-1] > ours[2][-1]


def test_gradients_through_the_optimizer(trial):
    """The differentiable path: the derivative of a loss after three steps by the learning rate."""

    def derivative(kind, rate, **options):
        lr = torch.tensor(rate, dtype=torch.float64, requires_grad=True)
        weight = torch.linspace(-1, 1, 5, dtype=torch.float64).requires_grad_().clone()
        optimizer = kind([weight], lr=lr, differentiable=True, **options)
        for step in range(3):
            weight.grad = torch.sin(torch.arange(5.0, dtype=torch.float64) + step)
            optimizer.step()
        loss = (weight**2).sum()
        return float(loss.detach()), float(torch.autograd.grad(loss, lr)[0])

    assert derivative(PrecisionAdaptiveAdamW, 0.1) == derivative(AdamW, 0.1)
    (low, _), (high, _) = (
        derivative(PrecisionAdaptiveAdamW, 0.1 + d, gamma=3.0) for d in (-1e-6, 1e-6)
    )
    _, exact = derivative(PrecisionAdaptiveAdamW, 0.1, gamma=3.0)
    assert exact == pytest.approx((high - low) / 2e-6, rel=1e-6)
