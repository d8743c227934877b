"""Weights and gradients that the tests of the optimizer step with."""

from __future__ import annotations

import pytest
import torch

PATHS = {
    "default": {},
    "single": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}
"""The paths of torch's AdamW on a CPU, by the flags that choose them."""

SHAPES = ((5, 3), (7,), (), (2, 3, 4))


class Trial:
    """The same random weights and gradients for any optimizer, from a seed.

    Args:
        dtype: of the weights.
        seed: of weights and gradients.
        shapes: of the weights.
    """

    def __init__(self, dtype=torch.float32, seed=0, shapes=SHAPES):
        self.dtype, self.seed, self.shapes = dtype, seed, shapes

    def weights(self):
        generator = torch.Generator().manual_seed(self.seed)
        return [
            torch.nn.Parameter(torch.randn(s, dtype=self.dtype, generator=generator))
            for s in self.shapes
        ]

    def gradients(self, step):
        generator = torch.Generator().manual_seed(10_000 + 100 * self.seed + step)
        # Of very different sizes, and some of them 0, so that eps and sqrt(v) both count.
        sizes = [10.0 ** (2 - 3 * i) for i in range(len(self.shapes))]
        draw = [torch.randn(s, dtype=self.dtype, generator=generator) for s in self.shapes]
        return [
            torch.where(g.abs() < 0.1, 0, g * size) for g, size in zip(draw, sizes, strict=True)
        ]

    def run(self, optimizer, weights, steps):
        """Take the steps with these numbers, e.g. ``range(20)``."""
        for step in steps:
            for weight, gradient in zip(weights, self.gradients(step), strict=True):
                weight.grad = gradient
            optimizer.step()

    def trained(self, make, n_steps=25):
        """Make an optimizer of fresh weights, and take the steps."""
        weights = self.weights()
        optimizer = make(weights)
        self.run(optimizer, weights, range(n_steps))
        return weights, optimizer


@pytest.fixture
def trial():
    return Trial()


@pytest.fixture(autouse=True)
def _one_thread():
    """With two threads a tensor may be cut elsewhere, and noisy neighbours slow everything."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def assert_equal_bits(ours, theirs):
    """All weights and all of the optimizer's state are the same, bit for bit."""
    (weights_a, optimizer_a), (weights_b, optimizer_b) = ours, theirs
    for a, b in zip(weights_a, weights_b, strict=True):
        assert torch.equal(a, b)
        state_a, state_b = optimizer_a.state[a], optimizer_b.state[b]
        assert state_a.keys() == state_b.keys()
        assert all(torch.equal(state_a[key], state_b[key]) for key in state_a)
