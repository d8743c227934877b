"""Random operands for the golden model's operations, and float64 formulas to hold them against."""

from __future__ import annotations

import numpy as np

from ecorl.engines.fpga.numerics.formats import Scale, integer_linear
from tests.golden import operations as op


def value(scale):
    """A scale as a float; exact, as 31 bits fit."""
    return float(np.ldexp(float(scale.m), scale.e))


def floats(row):
    """A quantised row as float64."""
    return row.codes * value(row.scale)


def steps(row, exact):
    """The largest error of a quantised row, in its steps."""
    return float(np.abs(row.codes - exact / value(row.scale)).max())


def random_scale(rng, low=-4.0, high=4.0):
    """A float32 between 10^low and 10^high, as a scale."""
    return Scale.of(float(np.float32(10.0 ** rng.uniform(low, high))))


def random_linear(rng, n, k, segment=0, spread=1.0, bias=None):
    """A linear map with channel scales within 10^spread, and those scales as float64."""
    codes = rng.integers(-127, 128, (n, k)).astype(np.int8)
    scale = (10.0 ** rng.uniform(-3 - spread, -3, n)).astype(np.float32)
    scale[rng.random(n) < 0.02] = 0
    return integer_linear(codes, scale, segment or n, bias), scale.astype(np.float64)


def random_row(rng, k, **scale):
    """INT8 codes as an activation has them, with 127 among them, and a scale."""
    wide = rng.standard_t(4, k)
    return op.Row(np.rint(wide * (127 / np.abs(wide).max())).astype(np.int64),
                  random_scale(rng, **scale))  # fmt: skip


def random_cache(rng, n, d, low=-0.5, high=0.5):
    """Keys or values of n positions; each position has a scale of its own."""
    return op.Cache.of([random_row(rng, d, low=low, high=high) for _ in range(n)])


def cache_floats(cache):
    return cache.codes * np.ldexp(cache.m.astype(np.float64), cache.e)[:, None]


def rmsnorm(x, gamma, eps):
    return x / np.sqrt((x * x).mean() + eps) * gamma


def turned(v, angles):
    a, b = np.split(v, 2)
    c, s = np.cos(angles), np.sin(angles)
    return np.concatenate([a * c - b * s, b * c + a * s])


def softmax(z):
    weights = np.exp(z - z.max())
    return weights / weights.sum()


def attention(query, keys, values):
    """Softmax attention of one query over all keys."""
    z = cache_floats(keys) @ floats(query) / np.sqrt(len(query.codes))
    return softmax(z) @ cache_floats(values)


def silu(x):
    return x / (1 + np.exp(-x))


def log_softmax(z):
    top = z.max()
    return z - top - np.log(np.exp(z - top).sum())
