"""The golden model's gating and gated rewards against float64."""

from __future__ import annotations

import numpy as np
import pytest

from ecorl.engines.fpga.numerics.formats import LOG2_E, IntegerGate, Scale, integer_linear
from tests.golden import gating
from tests.golden import operations as op
from tests.kernels.golden.golden_references import floats, random_linear, random_row, softmax, value

UNIT = 2.0**-16


def random_layer(rng, n, k, biased=True):
    """A linear map whose outputs are of the size of its inputs, and its floats."""
    linear, scale = random_linear(rng, n, k, spread=0.3)
    linear, scale = integer_linear(linear.codes, (2 * scale).astype(np.float32), n), 2 * scale
    bias = rng.normal(size=n) * 0.3 if biased else np.zeros(n)
    if biased:
        codes = np.rint(bias * 65536).astype(np.int32)
        linear = integer_linear(linear.codes, scale.astype(np.float32), n, codes)
        bias = codes * UNIT
    return linear, linear.codes * scale.astype(np.float32).astype(np.float64)[:, None], bias


@pytest.mark.parametrize("seed", range(20))
def test_a_hidden_layer(seed):
    rng = np.random.default_rng(seed)
    row = random_row(rng, 100, low=-2, high=-1)
    linear, weight, bias = random_layer(rng, 48, 100)
    h, marked = gating.fixed(op.accumulate(row.codes, linear), linear, row.scale)
    wanted = weight @ floats(row) + bias
    assert not marked
    assert np.abs(h * UNIT - wanted).max() <= UNIT
    kept = op.quantise(h * (h > 0), -16)
    exact = np.maximum(wanted, 0)
    assert np.abs(floats(kept) - exact).max() <= 0.516 * value(kept.scale) + UNIT


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("temperature", [1.5, 10.0])
def test_gates_of_a_row(seed, temperature):
    """The last layer alone is within two units; the rest is the error of codes between layers."""
    rng = np.random.default_rng(seed)
    row = random_row(rng, 100, low=-2, high=-1)
    layers = [random_layer(rng, 64, 100), random_layer(rng, 64, 64)]
    by = LOG2_E / temperature
    last, weight, _ = random_layer(rng, 19, 64, biased=False)
    gate = IntegerGate((*(linear for linear, _, _ in layers), last), Scale.of(by))
    z, marked = gating.gates(row, gate)
    assert not marked
    x, seen = floats(row), row
    for linear, w, b in layers:
        x = np.maximum(w @ x + b, 0)
        h, _ = gating.fixed(op.accumulate(seen.codes, linear), linear, seen.scale)
        seen = op.quantise(np.maximum(h, 0), -16)
    assert np.abs(z * UNIT - by * (weight @ floats(seen))).max() <= 2 * UNIT
    wanted = by * (weight @ x)
    assert np.sqrt(np.mean((z * UNIT - wanted) ** 2)) < 0.02 * np.sqrt(np.mean(wanted**2))


@pytest.mark.parametrize("spread", [0.1, 1, 5, 30])
@pytest.mark.parametrize("n", [1, 2, 19, 64])
def test_the_gated_reward(spread, n):
    rng = np.random.default_rng(n)
    for _ in range(50):
        rewards = np.rint(rng.normal(size=n) * 3 * 65536).astype(np.int64)
        z = np.rint(rng.normal(size=n) * spread * 65536).astype(np.int64)
        got = op.gated_reward(rewards, z)
        wanted = softmax(z * UNIT * np.log(2)) @ rewards
        assert abs(got - wanted) <= 1.2e-3 * np.abs(rewards).max() + 1
        assert abs(got) <= np.abs(rewards).max()


def test_the_gated_reward_at_the_ends_of_its_formats():
    most = 2**30 - 1
    rewards, z = np.full(64, most), np.full(64, 2**29 - 1)
    assert op.gated_reward(rewards, z) == most
    assert op.gated_reward(-rewards, -z) == -most
    z[1:] = -(2**29 - 1)
    assert op.gated_reward(np.arange(64) - 5, z) == -5
    # truncated towards zero, on both sides
    assert op.gated_reward(np.array([1, 0]), np.array([0, 0])) == 0
    assert op.gated_reward(np.array([-1, 0]), np.array([0, 0])) == 0


def test_gates_beyond_their_formats_mark():
    codes = np.full((2, 4), 127, np.int8)
    row = op.Row(np.full(4, 127), Scale.of(1.0))
    wide = integer_linear(codes, np.ones(2, np.float32), 2)
    fine = integer_linear(codes[:, :2], np.full(2, 1e-9, np.float32), 2)
    z, marked = gating.gates(row, IntegerGate((wide, fine), Scale.of(1.0)))  # 64,516 in layer 1
    assert marked
    last = integer_linear(codes, np.full(2, 0.15, np.float32), 2)  # 9,677, beyond 2^29 alone
    z, marked = gating.gates(row, IntegerGate((last,), Scale.of(1.0)))
    assert marked
    assert z.tolist() == [2**29 - 1] * 2
    z, marked = gating.gates(row, IntegerGate((last,), Scale.of(0.8)))
    assert not marked
    assert z * UNIT == pytest.approx(0.8 * 0.15 * 4 * 127**2, rel=1e-6)


def test_a_gate_of_zeros_is_the_mean():
    first, last = (
        integer_linear(np.zeros((3, k), np.int8), np.zeros(3, np.float32), 3) for k in (4, 3)
    )
    for row in (op.Row(np.full(4, 9), Scale.of(1.0)), op.zero_row(4)):
        z, marked = gating.gates(row, IntegerGate((first, last), Scale.of(0.1)))
        assert not marked
        assert z.tolist() == [0, 0, 0]
        assert op.gated_reward(np.array([3, 4, 5]), z) == 4
