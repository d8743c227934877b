"""The noise of a gear's gradients against closed forms, and what measuring it leaves alone."""

from __future__ import annotations

import contextlib
import gc
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ecorl.trainer.optimizer.noise import GradientNoise, gradient_noise
from tests.examples import examples

K = 5
plain = contextlib.nullcontext


class Switched:
    """Losses that are linear in the weight: their gradients are known, and differ by gear.

    Args:
        exact: gradient of each micro-batch in the reference gear.
        rounded: the same in the gear.
    """

    def __init__(self, exact, rounded):
        self.exact, self.rounded, self.in_gear = exact, rounded, False
        self.weight = nn.Parameter(torch.zeros(exact.shape[1:], dtype=exact.dtype))
        self.losses = [lambda i=i: self._loss(i) for i in range(len(exact))]

    def _loss(self, i):
        return (self.weight * (self.rounded if self.in_gear else self.exact)[i]).sum()

    @contextlib.contextmanager
    def gear(self):
        self.in_gear = True
        yield
        self.in_gear = False

    def noise(self, **options):
        return gradient_noise(self.losses, [self.weight], plain, self.gear, **options)


@given(
    seed=st.integers(0, 10_000),
    n=st.integers(2, 9),
    rounding=st.floats(1e-3, 10.0),
    offset=st.floats(-5.0, 5.0),
)
@settings(max_examples=examples(40), deadline=None)
def test_the_variances_are_those_of_the_closed_form(seed, n, rounding, offset):
    rng = np.random.default_rng(seed)
    g = rng.normal(3.0, 1.0, (n, 4, 3))
    h = g + rng.normal(offset, rounding, g.shape)
    noise = Switched(torch.tensor(g), torch.tensor(h)).noise()

    mean = g.mean(axis=0)
    assert noise.n_micro_batches == n
    factor = n / (n - 1)
    assert noise.reference_variance == pytest.approx(factor * ((g - mean) ** 2).sum())
    # n times the unbiased variance of one micro-batch: that of a sum of n.
    assert noise.reference_variance == pytest.approx(n * g.var(axis=0, ddof=1).sum())
    d = h - g
    off = (d.mean(axis=0) ** 2).sum() - d.var(axis=0, ddof=1).sum() / n
    scatter = factor * ((h - h.mean(axis=0)) ** 2).sum()
    assert noise.gear_variance == pytest.approx(scatter + n * max(0.0, off), rel=1e-6)
    assert noise.quantisation_variance == pytest.approx((d**2).sum())
    assert noise.reference_norm == pytest.approx(np.linalg.norm(g.sum(axis=0)))
    assert noise.shift_norm == pytest.approx(np.linalg.norm((h - g).sum(axis=0)))
    ratio = math.sqrt(noise.gear_variance / noise.reference_variance)
    assert noise.ratio == ratio
    assert noise.gamma == max(1.0, ratio)
    assert noise.time_s > 0.0


def test_rounding_that_drowns_in_the_samples_costs_nothing_and_rounding_that_rules_does():
    """Why gamma goes by all noise: of the rounding alone it would be the same in both."""
    generator = torch.Generator().manual_seed(0)
    fine = 0.001 * torch.randn(500, 50, generator=generator)
    coarse = 0.1 * torch.randn(500, 50, generator=generator)

    def gamma(scatter):
        samples = 1.0 + scatter * torch.randn(500, 50, generator=generator)
        return Switched(samples + fine, samples + coarse).noise().gamma

    assert gamma(10.0) == pytest.approx(1.0, abs=0.001)
    assert gamma(0.1) == pytest.approx(math.sqrt(2.0), rel=0.02)
    assert gamma(0.0) == pytest.approx(100.0, rel=0.02)


@pytest.mark.parametrize("n", [2, 8])
@pytest.mark.parametrize("offset", [0.0, 0.4])
def test_variances_have_no_bias_however_few_micro_batches_there_are(n, offset):
    generator = torch.Generator().manual_seed(3)
    size, rounding = 60_000, 0.3
    g = torch.randn(n, size, generator=generator, dtype=torch.float64)
    d = offset + rounding * torch.randn(n, size, generator=generator, dtype=torch.float64)
    noise = Switched(g, g + d).noise()
    excess = noise.gear_variance / noise.reference_variance - 1.0
    assert excess == pytest.approx(rounding**2 + offset**2, abs=0.02)
    expected = n * size * (rounding**2 + offset**2)
    assert noise.quantisation_variance == pytest.approx(expected, rel=0.02)


def test_the_length_of_the_shift_tells_a_gear_that_is_wrong_in_the_mean():
    generator = torch.Generator().manual_seed(1)
    g = torch.randn(64, 1000, generator=generator)
    error = 0.1 * torch.randn(64, 1000, generator=generator)
    right, wrong = Switched(g, g + error).noise(), Switched(g, g + error + 0.1).noise()
    assert right.shift_norm == pytest.approx(math.sqrt(right.quantisation_variance), rel=0.1)
    assert wrong.shift_norm > 5 * math.sqrt(wrong.quantisation_variance)


# ---------------------------------------------------------------- real gears


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.5), nn.Linear(32, 4))


def losses_of(model, factor=1.0):
    rows = torch.randn(K, 8, 16, generator=torch.Generator().manual_seed(2))
    return [lambda x=x: factor * model(x).float().pow(2).mean() for x in rows]


def autocast(dtype):
    return lambda: torch.autocast("cpu", dtype)


def test_a_gear_that_is_the_reference_has_a_ratio_of_exactly_one_also_with_dropout():
    model = network()
    for gear in (plain, autocast(torch.bfloat16)):
        noise = gradient_noise(losses_of(model), list(model.parameters()), gear, gear)
        assert noise.quantisation_variance == noise.shift_norm == 0.0
        assert noise.reference_variance == noise.gear_variance > 0.0
        assert noise.ratio == noise.gamma == 1.0


def test_each_micro_batch_draws_anew():
    model = network()
    same = [losses_of(model)[0]] * K
    noise = gradient_noise(same, list(model.parameters()), plain, plain)
    assert noise.reference_variance > 0.0
    model.eval()
    still = gradient_noise(same, list(model.parameters()), plain, plain)
    assert still.reference_variance == pytest.approx(0.0, abs=1e-9)


def test_bf16_rounds_more_than_fp16_with_its_scale():
    model = network().eval()

    def rounding(gear, **options):
        noise = gradient_noise(losses_of(model), list(model.parameters()), plain, gear, **options)
        return noise.quantisation_variance

    assert rounding(autocast(torch.bfloat16)) > 10 * rounding(autocast(torch.float16)) > 0.0
    assert rounding(plain, scale=2.0**16) == 0.0


def test_the_scale_keeps_small_gradients_of_fp16_alive():
    model = network().eval()
    weights, gear = list(model.parameters()), autocast(torch.float16)
    small = losses_of(model, factor=1e-6)
    lost = gradient_noise(small, weights, plain, gear)
    kept = gradient_noise(small, weights, plain, gear, scale=2.0**14)
    assert kept.quantisation_variance < 0.01 * lost.quantisation_variance
    assert kept.reference_variance == lost.reference_variance


@pytest.mark.parametrize("outer", [torch.bfloat16, torch.float16])
def test_a_context_of_the_trainers_own_changes_nothing(outer):
    """Autocast keeps weights of the other type until its outermost context ends."""
    model = network().eval()
    gears = (autocast(torch.bfloat16), autocast(torch.float16))
    alone = gradient_noise(losses_of(model), list(model.parameters()), *gears)
    with torch.autocast("cpu", outer):
        model(torch.ones(2, 16))
        within = gradient_noise(losses_of(model), list(model.parameters()), *gears)
    for name in ("reference_variance", "gear_variance", "quantisation_variance", "shift_norm"):
        assert getattr(within, name) == getattr(alone, name)


# ---------------------------------------------------------------- what is left alone


@pytest.mark.parametrize("fails", [False, True])
def test_the_random_state_is_as_if_nothing_had_been_measured(fails):
    model, losses = network(), []
    losses = losses_of(model)
    if fails:
        losses[3] = lambda: torch.rand(1) * math.nan / torch.empty(0, 2).argmax()
    torch.manual_seed(11)
    wanted = torch.rand(4)
    torch.manual_seed(11)
    with pytest.raises(IndexError) if fails else plain():
        gradient_noise(losses, list(model.parameters()), plain, plain)
    assert torch.equal(torch.rand(4), wanted)


def test_gradients_hooks_and_weights_are_not_touched():
    model, ran = network(), []
    weights = list(model.parameters())
    weights[0].grad = torch.full_like(weights[0], 7.0)
    for weight in weights:
        weight.register_post_accumulate_grad_hook(lambda _: ran.append(1))
    before = [w.detach().clone() for w in weights]
    gradient_noise(losses_of(model), weights, plain, autocast(torch.bfloat16))
    assert torch.equal(weights[0].grad, torch.full_like(weights[0], 7.0))
    assert all(weight.grad is None for weight in weights[1:])
    assert ran == []
    assert all(torch.equal(a, b) for a, b in zip(before, weights, strict=True))


def test_it_measures_where_gradients_are_switched_off():
    model = network().eval()
    with torch.no_grad():
        noise = gradient_noise(losses_of(model), list(model.parameters()), plain, plain)
    assert noise.ratio == 1.0


def test_weights_without_a_part_in_a_loss_and_frozen_ones():
    used, unused = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(4))
    frozen = nn.Parameter(torch.ones(3), requires_grad=False)
    losses = [lambda: (used * frozen).sum(), lambda: (2 * used).sum() + unused.sum()]
    noise = gradient_noise(losses, [used, unused, frozen], plain, plain)
    # Gradients 1 and 2 of three numbers, 0 and 1 of four: variances of the sum of the two.
    assert noise.reference_variance == pytest.approx(2 * (3 * 0.5 + 4 * 0.5))
    assert noise.reference_norm == pytest.approx(math.sqrt(3 * 9 + 4 * 1))


def test_one_gradient_for_two_weights_and_sparse_gradients():
    """Autograd may answer with the same tensor twice, and an embedding with a sparse one."""
    a, b = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    table = nn.Embedding(5, 2, sparse=True)

    def loss(i):
        return ((a + b) * float(i)).sum() + table(torch.tensor([i, i])).sum()

    losses = [lambda i=i: loss(i) for i in range(2)]
    noise = gradient_noise(losses, [a, b, table.weight], plain, plain, scale=4.0)
    assert noise.ratio == 1.0
    assert noise.reference_variance == pytest.approx(2 * (6 * 0.5 + 4 * 2.0))


def test_the_memory_does_not_grow_with_the_micro_batches():
    size, alive = 100_003, []
    generator = torch.Generator().manual_seed(0)
    model = Switched(*(torch.randn(2, 10, size, generator=generator)))

    def counted(loss):
        def call():
            alive.append(
                sum(1 for o in gc.get_objects() if type(o) is torch.Tensor and o.shape == (size,))
            )
            return loss()

        return call

    model.losses = [counted(loss) for loss in model.losses]
    gc.collect()
    gc.freeze()  # what is there already is not looked at
    try:
        assert model.noise().ratio is not None
    finally:
        gc.unfreeze()
    assert len(alive) == 20
    assert max(alive[4:]) == max(alive[4:8]) <= 4


# ---------------------------------------------------------------- missing is None


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gear_that_overflows_has_no_gamma(bad):
    g = torch.randn(K, 3, generator=torch.Generator().manual_seed(0))
    h = g.clone()
    h[2, 1] = bad
    noise = Switched(g, h).noise()
    assert noise.gear_variance is noise.quantisation_variance is noise.shift_norm is None
    assert noise.ratio is noise.gamma is None
    assert noise.reference_variance > 0.0
    turned = Switched(h, g).noise()
    assert turned.reference_variance is turned.ratio is turned.gamma is None


def test_a_reference_without_noise_has_no_ratio():
    g = torch.ones(K, 3)
    noise = Switched(g, g + torch.arange(K)[:, None]).noise()
    assert noise.reference_variance == 0.0
    assert noise.gear_variance > 0.0
    assert noise.ratio is noise.gamma is None


def test_gamma_is_never_below_one():
    quiet = GradientNoise(4, 4.0, 1.0, 1.0, 1.0, 1.0, 0.1)
    assert quiet.ratio == 0.5
    assert quiet.gamma == 1.0
    # Neither figure is infinite, and their ratio is.
    assert GradientNoise(4, 5e-324, 1e308, 1.0, 1.0, 1.0, 0.1).ratio is None


def test_one_micro_batch_has_no_variance():
    with pytest.raises(ValueError, match="1 micro-batches"):
        Switched(torch.ones(1, 3), torch.ones(1, 3)).noise()
