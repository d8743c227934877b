"""The golden model's operations against float64 formulas, and at their extremes.

Errors of codes are in steps (the row's scale); a perfect quantisation has 0.5. The bounds are those
of the table at the end of hls_kernels/NUMERICS.md; each is the largest error that was measured over
many more seeds than run here, rounded up.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from golden_references import (
    attention,
    cache_floats,
    floats,
    log_softmax,
    random_cache,
    random_linear,
    random_row,
    rmsnorm,
    silu,
    steps,
    turned,
    value,
)

from ecorl.engines.fpga.numerics.formats import LOG2_E, Scale, integer_linear, integer_norm
from tests.golden import operations as op
from tests.golden.arithmetic import ZERO, largest

EPS = Scale.of(1e-5)
UNIT = 2.0**-16


def score_scale(d):
    return Scale.of(LOG2_E / math.sqrt(d))


# ---------------------------------------------------------------- values of a product


@pytest.mark.parametrize("k", [1, 2, 3, 64, 65, 4096, 16384])
@pytest.mark.parametrize("sign", [1, -1])
def test_dequantise_of_the_largest_sums(k, sign):
    linear = integer_linear(np.full((2, k), 127, np.int8), np.array([0.1, 3e-5], np.float32), 2)
    v, (x,) = op.dequantise(op.accumulate(np.full(k, 127 * sign), linear), linear)
    exact = sign * 127 * 127 * k * np.array([0.1, 3e-5])
    np.testing.assert_allclose(v * 2.0**x, exact, rtol=1e-6, atol=2.0**x)
    assert largest(v) < 2**29


@pytest.mark.parametrize("seed", range(10))
def test_dequantise_is_within_two_units(seed):
    rng = np.random.default_rng(seed)
    linear, scale = random_linear(rng, 60, int(rng.integers(1, 900)), 20, spread=9)
    acc = op.accumulate(random_row(rng, linear.codes.shape[1]).codes, linear)
    v, x = op.dequantise(acc, linear)
    error = np.abs(v * 2.0 ** np.repeat(x, 20) - acc * scale) / 2.0 ** np.repeat(x, 20)
    assert error.max() <= 2  # the product is cut, then the shifted number is
    assert not v[scale == 0].any()


@pytest.mark.parametrize("F", [0, 14, 24])
def test_embed(F):
    code, exponent = np.array([32767, -32767, 1, 0]), -15
    got, marked = op.embed(code, exponent, F)
    assert not marked
    assert (np.abs(got * 2.0**-F - code * 2.0**exponent) <= 2.0 ** -(F + 1)).all()


# ---------------------------------------------------------------- rmsnorm


@pytest.mark.parametrize("seed", range(60))
def test_rmsnorm(seed):
    rng = np.random.default_rng(seed)
    n, F = int(rng.integers(1, 600)), int(rng.integers(0, 25))
    x = np.rint(rng.normal(size=n) * 2.0 ** rng.uniform(3, 22)).astype(np.int64)
    x[rng.integers(n)] = 127 * int(rng.integers(1, 2**16))
    gamma = rng.uniform(0.5, 1.5, n).astype(np.float32)
    gamma[rng.integers(n)] *= 20
    row = op.rmsnorm(x, integer_norm(gamma), EPS, F)
    assert steps(row, rmsnorm(x * 2.0**-F, gamma.astype(np.float64), 1e-5)) <= 0.53


def test_rmsnorm_of_rows_of_one_sign_with_an_outlier():
    """The squares are of cut 15-bit numbers; cutting does not cancel in such a row."""
    worst = 0.0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        x = np.rint(np.abs(rng.normal(size=896)) * 2.0 ** rng.uniform(6, 16)).astype(np.int64)
        x[3] = largest(x) * 10 ** rng.uniform(0, 4)
        row = op.rmsnorm(x, integer_norm(np.ones(896, np.float32)), EPS, 14)
        exact = rmsnorm(x * 2.0**-14, 1.0, 1e-5)
        worst = max(worst, abs(value(row.scale) * 127 / exact.max() - 1))
    assert worst <= 1e-3


@pytest.mark.parametrize("x", [1, -1, 2**30 - 1, 1 - 2**30])
@pytest.mark.parametrize("n", [1, 2, 4096, 16384])
def test_rmsnorm_of_equal_values(x, n):
    row = op.rmsnorm(np.full(n, x), integer_norm(np.full(n, -2, np.float32)), EPS, 14)
    exact = rmsnorm(np.full(n, x * 2.0**-14), -2.0, 1e-5)
    np.testing.assert_allclose(floats(row), exact, rtol=1.3e-4)


def test_rmsnorm_of_zeros():
    ones, zeros = (integer_norm(np.full(8, g, np.float32)) for g in (1, 0))
    assert op.rmsnorm(np.zeros(8, int), ones, EPS, 14).scale == ZERO
    assert op.rmsnorm(np.arange(8), zeros, EPS, 14).scale == ZERO


# ---------------------------------------------------------------- heads


def head_operands(seed, has_bias):
    rng = np.random.default_rng(seed)
    d, F = int(rng.choice([2, 8, 64, 96, 128])), int(rng.integers(16, 22))
    row = random_row(rng, int(rng.integers(30, 300)), low=-2, high=0)
    bias = np.rint(rng.normal(size=2 * d) * 2.0**F).astype(np.int32) if has_bias else None
    linear, scale = random_linear(rng, 2 * d, len(row.codes), d, bias=bias)
    acc = op.accumulate(row.codes, linear)
    heads, marked = op.heads(acc, linear, row.scale, F)
    assert not marked
    exact = acc * scale * value(row.scale) + (bias * 2.0**-F if has_bias else 0)
    angles = int(rng.integers(0, 4096)) * 10000.0 ** -(np.arange(0, d, 2) / d)
    return heads, exact.reshape(2, d), angles, 2.0**-F


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("seed", range(60))
def test_heads(seed, has_bias):
    heads, exact, angles, unit = head_operands(seed, has_bias)
    cosine, sine = (np.rint(f(angles) * 2**14).astype(np.int64) for f in (np.cos, np.sin))
    for head, wanted in zip(heads, exact, strict=True):
        plain, row = op.value_head(*head), op.turned_head(*head, cosine, sine)
        # a head with a bias is in fixed point: half a unit more
        spare = unit / value(plain.scale) if has_bias else 0
        assert steps(plain, wanted) <= 0.516 + spare
        assert steps(row, turned(wanted, angles)) <= 0.53 + 1.5 * spare


def test_a_bias_that_leaves_the_fixed_point_marks():
    bias = np.array([2**30 - 1, 0], np.int32)
    linear = integer_linear(np.full((2, 4), 127, np.int8), np.ones(2, np.float32), 2, bias)
    acc = op.accumulate(np.full(4, 127), linear)
    ((v, x, s),), marked = op.heads(acc, linear, Scale.of(1e-3), 14)
    assert marked
    assert v[0] == 2**30 - 1
    assert v[1] * 2.0**x == pytest.approx(127 * 127 * 4 * 1e-3, abs=1e-3)
    assert s is None


# ---------------------------------------------------------------- attention


@pytest.mark.parametrize("sharp", [-4, -3, -2, -1.5])
@pytest.mark.parametrize("seed", range(12))
def test_attention(seed, sharp):
    """Queries from flat (10^-4) to sharp; the largest over 100 seeds each was 0.0036."""
    rng = np.random.default_rng(seed)
    d, n = int(rng.choice([64, 96, 128])), int(rng.integers(1, 300))
    query = random_row(rng, d, low=sharp, high=sharp)
    keys, values = (random_cache(rng, n, d, low=low, high=low + 1) for low in (-2, -1))
    (o, x), marked = op.attention(query, keys, values, score_scale(d))
    assert not marked
    wanted = attention(query, keys, values)
    assert np.linalg.norm(o * 2.0**x - wanted) <= 0.005 * np.linalg.norm(wanted)


@pytest.mark.parametrize("n", [1, 64, 65, 4096, 65536])
def test_the_widths_of_attention_hold(n):
    """The largest weights and values: all scores equal, all mantissas and codes at their limits."""
    d, zero = 128, np.zeros(n, np.int64)
    keys = op.Cache(np.full((n, d), 127), zero, zero)
    values = op.Cache(np.full((n, d), -127), zero + 2**31 - 1, zero - 40)
    (o, x), marked = op.attention(op.Row(keys.codes[0], Scale.of(1.0)), keys, values, ZERO)
    assert not marked
    np.testing.assert_allclose(o * 2.0**x, -127 * 2.0**-9, rtol=2e-4)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_scores(sign):
    """All codes +-127, and scales up to where 2^29 is passed."""
    n, d = 70, 128
    query = op.Row(np.full(d, 127 * sign), Scale(2**31 - 1, -33))
    m, e = np.full(n, 2**31 - 1), np.full(n, -33)
    keys, values = op.Cache(np.full((n, d), 127), m, e), op.Cache(np.full((n, d), 127), m, e)
    (o, x), marked = op.attention(query, keys, values, Scale(2**31 - 1, -31))
    assert not marked
    np.testing.assert_allclose(o * 2.0**x, 127 * 2.0**-2, rtol=4e-4)
    for factor in (Scale(2**30, -29), Scale(2**30, -9)):
        _, marked = op.attention(query, keys, values, factor)
        assert marked


def test_scores_that_are_large_but_fit_do_not_mark():
    """As a model with large key biases has them: scales that are far up, sums that are not."""
    rng, d = np.random.default_rng(6), 128
    query = op.Row(rng.integers(-9, 10, d), Scale.of(1.0))
    keys, values = random_cache(rng, 99, d, 0.5, 0.5), random_cache(rng, 99, d)
    (o, x), marked = op.attention(query, keys, values, score_scale(d))
    assert not marked
    wanted = attention(query, keys, values)
    assert np.linalg.norm(o * 2.0**x - wanted) <= 0.005 * np.linalg.norm(wanted)


def test_rising_scores_rescale_the_state():
    """Each block has a higher maximum than the one before; then a block far below all."""
    rng, d = np.random.default_rng(5), 64
    query = op.Row(np.eye(1, d, dtype=np.int64)[0] * 127, Scale.of(1.0))
    keys, values = random_cache(rng, 64 * 6, d, 0, 0), random_cache(rng, 64 * 6, d)
    level = np.repeat([-90, -60, 0, 9, 11, -120], 64)
    keys.codes[:] = 0
    keys.codes[:, 0] = level + rng.integers(-3, 4, len(level))
    keys.m[:], keys.e[:] = 2**30, -30 - 9
    (o, x), marked = op.attention(query, keys, values, score_scale(d))
    assert not marked
    wanted = attention(query, keys, values)
    assert np.linalg.norm(o * 2.0**x - wanted) <= 0.002 * np.linalg.norm(wanted)


@pytest.mark.parametrize("n", [64, 1024])
@pytest.mark.parametrize("gap", [8, 12, 14, 16, 18])
def test_attention_beside_a_sink(n, gap):
    """One key far above all others with a small value does not push the others out."""
    d, rng = 64, np.random.default_rng(1)
    query = op.Row(np.eye(1, d, dtype=np.int64)[0] * 127, Scale.of(8 / 127))
    keys, values = random_cache(rng, n, d), random_cache(rng, n, d, 0, 0)
    keys.codes[:] = 0
    keys.codes[1:, 0] = -127
    step = Scale.of(gap / LOG2_E / 127)
    keys.m[:], keys.e[:], values.e[0] = step.m, step.e, values.e[0] - 7
    (o, x), marked = op.attention(query, keys, values, score_scale(d))
    assert not marked
    wanted = attention(query, keys, values)
    assert np.linalg.norm(o * 2.0**x - wanted) <= 1e-3 * np.linalg.norm(wanted)


def test_zero_queries_keys_and_values():
    rng, d = np.random.default_rng(2), 64
    query, zero = random_row(rng, d, low=-2, high=-2), op.zero_row(d)
    keys, values = random_cache(rng, 70, d, -2, -1), random_cache(rng, 70, d)
    (o, x), marked = op.attention(zero, keys, values, score_scale(d))
    assert not marked
    mean = cache_floats(values).mean(axis=0)
    np.testing.assert_allclose(o * 2.0**x, mean, atol=1e-3 * np.abs(mean).max())
    nothing = op.Cache.of([zero] * 70)
    (o, x), marked = op.attention(query, nothing, values, score_scale(d))
    assert not marked
    np.testing.assert_allclose(o * 2.0**x, mean, atol=1e-3 * np.abs(mean).max())
    assert op.attention(query, keys, nothing, score_scale(d)) == ((None, 0), False)


def test_scores_beyond_their_format_mark():
    rng, d = np.random.default_rng(3), 64
    query, cache = random_row(rng, d, low=1, high=1), random_cache(rng, 3, d, 2, 2)
    (o, _), marked = op.attention(query, cache, cache, score_scale(d))
    assert marked
    assert o is not None


def test_context_row():
    rng = np.random.default_rng(4)
    parts = [rng.integers(-(2**30), 2**30, 8) for _ in range(3)]
    contexts = [op.HeadContext(part, x) for part, x in zip(parts, (-40, -33, -90), strict=True)]
    contexts.insert(1, op.HeadContext(None, 0))
    row = op.context_row(contexts, 8)
    exact = np.concatenate([parts[0] * 2.0**-40, np.zeros(8), parts[1] * 2.0**-33, np.zeros(8)])
    assert steps(row, exact) <= 0.516
    assert op.context_row([op.HeadContext(None, 0)] * 2, 8).scale == ZERO


# ---------------------------------------------------------------- swiglu


@pytest.mark.parametrize("spread", [0.5, 3])
@pytest.mark.parametrize("seed", range(60))
def test_swiglu(seed, spread):
    rng = np.random.default_rng(seed)
    n, row = int(rng.integers(1, 200)), random_row(rng, int(rng.integers(4, 200)), low=-3, high=0)
    linear, scale = random_linear(rng, 2 * n, len(row.codes), n, spread=spread)
    acc = op.accumulate(row.codes, linear)
    gate, up = np.split(acc * scale * value(row.scale), 2)
    got, marked = op.swiglu(acc, linear, row.scale)
    assert not marked
    if gate.any() and up.any():
        assert steps(got, silu(gate) * up) <= 0.53
    else:
        assert got.scale == ZERO


def test_the_sigmoid_over_its_range():
    """log2 of the gate from -20 to 20: relative error, also where it is small."""
    v = np.arange(-(2**28), 2**28, 2**19 - 1)
    f, d, marked = op.sigmoid(v, -28, Scale.of(20.0))
    assert not marked
    wanted = 1 / (1 + np.exp(-20 * v * 2.0**-28))
    assert np.abs(f * 2.0 ** (-15.0 - d) / wanted - 1).max() <= 3e-4


@pytest.mark.parametrize(("scale", "left"), [(1e3, False), (3e3, False), (1e5, True)])
def test_swiglu_with_gates_of_great_magnitude(scale, left):
    """Clipped gates are harmless; those beyond any shift mark."""
    codes = np.array([[127], [-127], [1], [127], [127], [127]], np.int8)
    linear = integer_linear(codes, np.ones(6, np.float32), 3)
    row = op.Row(np.array([127]), Scale.of(scale))
    got, marked = op.swiglu(op.accumulate(row.codes, linear), linear, row.scale)
    assert marked == left
    if not marked:
        assert got.codes.tolist() == [127, 0, 1]
        assert floats(got)[0] == pytest.approx((127 * 127 * scale) ** 2, rel=1e-3)


# ---------------------------------------------------------------- results


@pytest.mark.parametrize("seed", range(20))
def test_reward(seed):
    rng = np.random.default_rng(seed)
    row = random_row(rng, 300, low=-2, high=-1)
    bias = rng.integers(-(2**18), 2**18, 3).astype(np.int32)
    linear, scale = random_linear(rng, 3, 300, bias=bias)
    acc = op.accumulate(row.codes, linear)
    got, marked = op.reward(acc, linear, row.scale)
    assert not marked
    assert np.abs(got * UNIT - acc * scale * value(row.scale) - bias * UNIT).max() <= UNIT


def test_a_reward_beyond_its_format_marks():
    linear = integer_linear(np.full((1, 4), -127, np.int8), np.ones(1, np.float32), 1)
    (got,), marked = op.reward(op.accumulate(np.full(4, 127), linear), linear, Scale.of(1.0))
    assert marked
    assert -(2**30) < got <= -(2**29)


@pytest.mark.parametrize("seed", range(20))
def test_logprobs_of_quantised_logits(seed):
    rng = np.random.default_rng(seed)
    n, temperature = int(rng.choice([5, 97, 3000])), rng.uniform(0.3, 2)
    row = random_row(rng, 100, low=-3.5, high=-1)
    linear, scale = random_linear(rng, n, 100)
    acc = op.accumulate(row.codes, linear)
    z, marked = op.logits(acc, linear, row.scale, Scale.of(LOG2_E / temperature))
    assert not marked
    wanted = log_softmax(acc * scale * value(row.scale) / temperature)
    for token in [*rng.integers(0, n, 4), acc.argmax(), acc.argmin()]:
        got, marked = op.logprob(z, token)
        assert not marked
        assert abs(got * 2.0**-20 - wanted[token]) <= 1.5e-4


@pytest.mark.parametrize("offset", [0, 1, 20_000, 65_535, -(2**29), 2**29])
def test_logprobs_of_a_large_flat_vocabulary(offset):
    got, marked = op.logprob(np.full(131_072, offset), 99)
    assert not marked
    assert got * 2.0**-20 == pytest.approx(-math.log(131_072), abs=1.2e-4)


def test_logprobs_of_a_peaked_vocabulary():
    z = np.full(5000, -40 * 2**16)
    z[3000] = 60 * 2**16 + 77
    assert op.logprob(z, 3000) == (pytest.approx(0, abs=60), False)
    got, marked = op.logprob(z, 7)
    assert not marked
    assert got * 2.0**-20 == pytest.approx(-(100 + 77 * UNIT) * math.log(2), abs=1.2e-4)


@pytest.mark.parametrize("spread", [1, 10, 100])
def test_probabilities_add_up_to_one(spread):
    z = np.rint(np.random.default_rng(0).normal(size=300) * spread * 2**16).astype(np.int64)
    total = sum(math.exp(op.logprob(z, token)[0] * 2.0**-20) for token in range(300))
    assert total == pytest.approx(1, abs=1.5e-4)


@pytest.mark.parametrize(
    ("gap", "marked"), [(2950, False), (2960, True), (3001, True), (16383, True)]
)
def test_a_logprob_below_its_format_marks(gap, marked):
    z = np.array([2**29, 2**29 - gap * 2**16])
    got, mark = op.logprob(z, 1)
    assert mark == marked
    assert got == (-(2**31) if marked else pytest.approx(-gap * math.log(2) * 2**20, rel=1e-6))
