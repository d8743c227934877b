"""The vector operations: right against NumPy, and the same bits for every width and build."""

from __future__ import annotations

import ctypes
import functools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecorl.engines.fpga.gemm import CsimLibrary

WIDTHS = (32, 128, 256, 512)
F32, I8, I32 = np.float32, np.int8, np.int32


class LogSumExp(ctypes.Structure):
    _fields_ = (("maximum", ctypes.c_float), ("sum", ctypes.c_double))


@functools.cache
def load(build):
    library = CsimLibrary.load(build).handle
    for name in ("vec_rope_quantise", "vec_softmax_quantise"):
        getattr(library, name).restype = ctypes.c_float
    library.vec_log.restype, library.vec_log.argtypes = ctypes.c_double, [ctypes.c_double]
    return library


@pytest.fixture
def lib(require_tool):
    require_tool("gxx")
    library = load("fast")
    yield library
    library.vec_set_width(0)


def p(array):
    assert array is None or array.flags.c_contiguous
    return None if array is None else ctypes.c_void_p(array.ctypes.data)


def padded(array):
    """A copy that is readable up to the next multiple of 16, with garbage there."""
    n = -(-len(array) // 16) * 16
    out = np.full(n, 77, array.dtype)
    out[: len(array)] = array
    return out


def rmsnorm_quantise(lib, x, weight, eps):
    q, scale = np.empty(x.shape, I8), np.empty(len(x), F32)
    lib.vec_rmsnorm_quantise(p(x), p(weight), ctypes.c_float(eps), p(q), p(scale), *x.shape)
    return q, scale


def quantise(lib, x):
    q, scale = np.empty(x.shape, I8), np.empty(len(x), F32)
    lib.vec_quantise(p(x), p(q), p(scale), *x.shape)
    return q, scale


def swiglu(lib, acc, row_scale, channel_scale):
    m, n = acc.shape[0], acc.shape[1] // 2
    q, scale, scratch = np.empty((m, n), I8), np.empty(m, F32), np.empty(n, F32)
    lib.vec_swiglu_quantise(
        p(acc), p(row_scale), p(channel_scale), p(q), p(scale), p(scratch), m, n
    )
    return q, scale


def rope(lib, acc, row_scale, channel_scale, bias, cosine, sine):
    q = np.empty(len(acc), I8)
    scale = lib.vec_rope_quantise(
        p(acc), ctypes.c_float(row_scale), p(channel_scale), p(bias), p(cosine), p(sine), p(q),
        len(acc),
    )  # fmt: skip
    return q, F32(scale)


def softmax(lib, scores, key_scale, value_scale, beta):
    n = len(scores)
    f, q = padded(np.zeros(n, F32)), padded(np.zeros(n, I8))
    scores, key_scale, value_scale = (padded(a) for a in (scores, key_scale, value_scale))
    lib.vec_scale_scores(p(scores), p(key_scale), p(f), n)
    worth = lib.vec_softmax_quantise(p(f), p(value_scale), ctypes.c_float(beta), p(q), n)
    return q[:n], F32(worth)


def log_sum_exp(lib, acc, row_scale, channel_scale, block):
    state = LogSumExp(-math.inf, 0.0)
    z = np.empty(len(acc), F32)
    for at in range(0, len(acc), block):
        n = min(block, len(acc) - at)
        lib.vec_log_sum_exp(
            p(acc[at:]), ctypes.c_float(row_scale), p(channel_scale[at:]), p(z[at:]),
            ctypes.byref(state), n,
        )  # fmt: skip
    return z, state.maximum, state.sum


def bits(results):
    return [np.ascontiguousarray(r).tobytes() for r in results]


# ---------------------------------------------------------------- exp and log


def test_exp_is_accurate_over_its_range(lib):
    x = np.linspace(-87.3, 88.3, 200_001).astype(F32)
    y = np.empty_like(x)
    lib.vec_exp(p(x), p(y), len(x))
    error = np.abs(y.astype(np.float64) / np.exp(x.astype(np.float64)) - 1)
    assert error.max() < 2e-7


def test_exp_at_its_edges(lib):
    x = np.array([0.0, -0.0, -1e9, -np.inf, np.nan, 1e9], F32)
    y = np.empty_like(x)
    lib.vec_exp(p(x), p(y), len(x))
    assert y[0] == y[1] == 1.0
    assert 0 < y[2] < 2e-38
    assert y[3] == y[2]
    assert np.isnan(y[4])
    assert np.isfinite(y[5])
    assert y[5] > 1e38


@given(st.floats(min_value=1e-300, max_value=1e300))
def test_log_agrees_with_libm(x):
    assert load("fast").vec_log(x) == pytest.approx(math.log(x), rel=1e-14, abs=1e-15)


# ---------------------------------------------------------------- quantisation


def test_quantise_rounds_half_to_even(lib):
    # with max 127 the scale is 1 and each value is its own integer
    x = np.array([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5, 3.49]], F32)
    q, scale = quantise(lib, x)
    assert scale[0] == 1.0
    assert q[0].tolist() == [127, 0, 2, 2, 0, -2, -2, 126, 3]


def test_quantise_error_is_at_most_half_a_step(lib):
    x = np.random.default_rng(1).normal(size=(7, 53)).astype(F32)
    q, scale = quantise(lib, x)
    assert np.abs(q).max(axis=1).tolist() == [127] * 7
    assert (np.abs(q * scale[:, None] - x) <= scale[:, None] * 0.50001).all()


def test_rows_of_zeros_and_rows_that_are_not_finite(lib):
    x = np.ones((5, 40), F32)
    x[0], x[1, 39], x[2, 3], x[3] = 0.0, np.nan, -np.inf, 1e-35
    q, scale = quantise(lib, x)
    assert scale[0] == 0
    assert scale[3] == 0
    assert np.isnan(scale[[1, 2]]).all()
    assert not q[:4].any()
    assert (q[4] == 127).all()
    q, scale = rmsnorm_quantise(lib, x, np.ones(40, F32), 1e-6)
    assert np.isnan(scale[[1, 2]]).all()
    assert not q[:3].any()
    assert np.isfinite(scale[[0, 3, 4]]).all()


def test_an_outlier_leaves_finite_results(lib):
    x = np.random.default_rng(2).normal(size=(1, 64)).astype(F32)
    x[0, 5] = 3e4
    q, scale = rmsnorm_quantise(lib, x, np.ones(64, F32), 1e-6)
    assert q[0, 5] == 127
    assert np.isfinite(scale[0])


@pytest.mark.parametrize("n", [1, 15, 16, 17, 64, 100])
def test_rmsnorm_against_numpy(lib, n):
    rng = np.random.default_rng(n)
    x, weight = rng.normal(size=(3, n)).astype(F32), rng.normal(size=n).astype(F32)
    q, scale = rmsnorm_quantise(lib, x, weight, 1e-5)
    wide = x.astype(np.float64)
    exact = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-5) * weight
    assert (np.abs(q * scale[:, None] - exact) <= scale[:, None] * 0.5001).all()


# ---------------------------------------------------------------- rope, swiglu, residual


@pytest.mark.parametrize("d", [2, 16, 32, 64, 80])
@pytest.mark.parametrize("has_bias", [False, True])
def test_rope_against_numpy(lib, d, has_bias):
    rng = np.random.default_rng(d)
    acc = rng.integers(-(2**20), 2**20, d).astype(I32)
    channel = rng.uniform(1e-3, 2e-3, d).astype(F32)
    bias = rng.normal(size=d).astype(F32) if has_bias else None
    angle = rng.uniform(0, 100, d // 2)
    c, s = np.cos(angle).astype(F32), np.sin(angle).astype(F32)
    q, scale = rope(lib, acc, 0.01, channel, bias, c, s)
    x = acc * channel.astype(np.float64) * 0.01 + (bias if has_bias else 0)
    a, b = x[: d // 2], x[d // 2 :]
    exact = np.concatenate([a * c - b * s, b * c + a * s])
    assert (np.abs(q * scale - exact) <= scale * 0.501).all()


def test_swiglu_against_numpy(lib):
    rng = np.random.default_rng(3)
    acc = rng.integers(-(2**20), 2**20, (4, 2 * 37)).astype(I32)
    row, channel = rng.uniform(1e-4, 1e-2, 4).astype(F32), rng.uniform(1e-3, 2e-3, 74).astype(F32)
    q, scale = swiglu(lib, acc, row, channel)
    x = acc * channel.astype(np.float64) * row[:, None]
    gate, up = x[:, :37], x[:, 37:]
    exact = gate / (1 + np.exp(-gate)) * up
    assert (np.abs(q * scale[:, None] - exact) <= scale[:, None] * 0.501).all()


def test_dequantise_add_against_numpy(lib):
    rng = np.random.default_rng(4)
    acc = rng.integers(-(2**20), 2**20, (3, 21)).astype(I32)
    row, channel, bias = (rng.uniform(0.1, 1, n).astype(F32) for n in (3, 21, 21))
    start = rng.normal(size=(3, 21)).astype(F32)
    for b in (None, bias):
        out = start.copy()
        lib.vec_dequantise_add(p(acc), p(row), p(channel), p(b), p(out), 3, 21)
        exact = start + acc * channel.astype(np.float64) * row[:, None] + (0 if b is None else b)
        np.testing.assert_allclose(out, exact, rtol=1e-6, atol=1e-2)


# ---------------------------------------------------------------- softmax, log-sum-exp


@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 200])
def test_softmax_against_numpy(lib, n):
    rng = np.random.default_rng(n)
    scores = rng.integers(-60000, 60000, n).astype(I32)
    key, value = rng.uniform(0.01, 0.02, n).astype(F32), rng.uniform(0.5, 1, n).astype(F32)
    q, worth = softmax(lib, scores, key, value, 0.005)
    z = scores * key.astype(np.float64) * 0.005
    weights = np.exp(z - z.max())
    exact = weights / weights.sum() * value
    assert (q >= 0).all()
    assert (np.abs(q * worth - exact) <= worth * 0.5 + 1e-6).all()


def test_softmax_of_one_key_is_exact(lib):
    q, worth = softmax(lib, np.array([-5], I32), np.array([0.1], F32), np.array([0.25], F32), 0.3)
    assert q.tolist() == [127]
    assert worth * 127 == pytest.approx(0.25, rel=1e-6)


@pytest.mark.parametrize("spoilt", ["key", "value", "beta"])
def test_softmax_passes_a_fault_on(lib, spoilt):
    key, value, beta = np.ones(20, F32), np.ones(20, F32), 0.1
    if spoilt == "key":
        key[7] = np.nan
    elif spoilt == "value":
        value[19] = np.nan
    else:
        beta = math.nan
    q, worth = softmax(lib, np.arange(20, dtype=I32), key, value, beta)
    assert np.isnan(worth)
    assert not q.any()


@pytest.mark.parametrize("block", [16, 50, 64, 1000])
def test_log_sum_exp_over_blocks(lib, block):
    rng = np.random.default_rng(block)
    acc = rng.integers(-(2**20), 2**20, 333).astype(I32)
    channel = rng.uniform(1e-3, 2e-3, 333).astype(F32)
    z, maximum, total = log_sum_exp(lib, acc, 0.01, channel, block)
    exact = acc * channel.astype(np.float64) * F32(0.01)
    np.testing.assert_allclose(z, exact, rtol=1e-6)
    wanted = exact.max() + math.log(np.exp(exact - exact.max()).sum())
    assert maximum + math.log(total) == pytest.approx(wanted, abs=3e-6)


def test_log_sum_exp_passes_a_fault_on(lib):
    channel = np.ones(40, F32)
    channel[33] = np.nan
    _, _, total = log_sum_exp(lib, np.ones(40, I32), 1.0, channel, 16)
    assert math.isnan(total)


# ---------------------------------------------------------------- the same bits everywhere


def every_operation(lib, seed, n):
    """Results of all operations on random data of width n, as bytes."""
    rng = np.random.default_rng(seed)
    d = 2 * n
    x = (rng.normal(size=(2, n)) * 10.0 ** rng.integers(-3, 4)).astype(F32)
    weight, row = rng.normal(size=n).astype(F32), rng.uniform(1e-3, 1, 2).astype(F32)
    wide = rng.integers(-(2**22), 2**22, (2, d)).astype(I32)
    channel, bias = rng.uniform(1e-6, 1e-4, d).astype(F32), rng.normal(size=d).astype(F32)
    c, s = np.cos(weight), np.sin(weight)
    out = np.tile(bias, (2, 1))
    lib.vec_dequantise_add(p(wide), p(row), p(channel), p(bias), p(out), 2, d)
    y, wider = np.empty_like(bias), bias * F32(20)
    lib.vec_exp(p(wider), p(y), d)
    positive = np.abs(weight) + F32(0.1)
    results = [
        *rmsnorm_quantise(lib, x, weight, 1e-6),
        *quantise(lib, x),
        *swiglu(lib, wide, row, channel),
        *rope(lib, wide[0], row[0], channel, bias, c, s),
        *softmax(lib, wide[1, :n].copy(), channel[:n].copy(), positive, 0.7),
        *log_sum_exp(lib, wide[0], 0.5, channel, 48),
        out,
        y,
    ]
    return bits(results)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 90))
def test_every_width_gives_the_same_bits(seed, n):
    lib = load("fast")
    assert lib.vec_set_width(32) == 0
    plain = every_operation(lib, seed, n)
    tried = [w for w in WIDTHS[1:] if lib.vec_set_width(w) == 0 and _matches(lib, seed, n, plain)]
    lib.vec_set_width(0)
    assert tried  # at least one vector width exists wherever g++ does


def _matches(lib, seed, n, plain):
    assert every_operation(lib, seed, n) == plain
    return True


def test_strict_and_fast_builds_give_the_same_bits(lib, require_tool):
    require_tool("hls_headers")
    for n in (1, 16, 37, 80):
        assert every_operation(load("strict"), n, n) == every_operation(lib, n, n)


def test_an_unknown_width_is_refused(lib):
    assert lib.vec_set_width(64) == -1
