"""Gating of hls_kernels/NUMERICS.md for one token; the gated reward is in `operations`."""

from __future__ import annotations

from tests.golden.arithmetic import clip, int32, times
from tests.golden.operations import (
    REWARD_BITS,
    Row,
    absolute,
    accumulate,
    dequantise,
    quantise,
)

LOGIT_BITS = 29


def fixed(acc, linear, s):
    """Outputs of a map with 16 fraction bits, the bias added; and the mark."""
    v, (x,) = dequantise(acc, linear)
    y, marked = absolute(v, x, s, REWARD_BITS, 30)
    if linear.bias is not None:
        y, overflow = clip(int32(y) + int32(linear.bias), 30)
        marked |= overflow
    return y, marked


def gates(row, gate):
    """The gates ``z[n]`` of a token's row after the final norm; and the mark."""
    marked = False
    for linear in gate.layers[:-1]:
        h, overflow = fixed(accumulate(row.codes, linear), linear, row.scale)
        row = Row(*quantise(h * (h > 0), -REWARD_BITS))
        marked |= overflow
    last = gate.layers[-1]
    z, overflow = fixed(accumulate(row.codes, last), last, times(row.scale, gate.scale))
    z, beyond = clip(z, LOGIT_BITS)
    return z, marked or overflow or beyond
