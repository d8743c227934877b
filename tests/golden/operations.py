"""The operations of hls_kernels/NUMERICS.md, each for one token (attention: one token and head).

Every function takes and gives int64 arrays, Python integers and `Scale`; a function that can clip
gives a mark (bool) as its last result.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ecorl.engines.fpga.numerics.formats import Scale
from tests.golden.arithmetic import (
    LOG2_E,
    MOST_LEFT,
    ZERO,
    bits,
    checked,
    clip,
    exp,
    high,
    int32,
    int64,
    largest,
    log2,
    norm,
    plus,
    product,
    recip,
    rsqrt,
    shift,
    times,
    whole,
)

KEY_BLOCK = 64
VOCABULARY_BLOCK = 2048
MOST_OBJECTIVES = 64
SCORE_BITS = 12
LOWEST = -(2**18)
REWARD_BITS = 16
LEAST_LOGPROB = -2954 << 20  # in units of log2
LN_2 = 1488522236  # 31 fraction bits


class Row(NamedTuple):
    """INT8 codes ``[n]`` and their scale: a token's row, or one head of it."""

    codes: np.ndarray
    scale: Scale


class HeadContext(NamedTuple):
    """What attention gives for one head: ``o[d] * 2**exponent``, ``o`` None for a zero head."""

    o: np.ndarray | None
    exponent: int


def zero_row(n):
    return Row(np.zeros(n, np.int64), ZERO)


# ---------------------------------------------------------------- codes and values


def quantise(v, x):
    """Codes and scale of the values ``v * 2**x``."""
    v = int32(v)
    peak = largest(v)
    if peak == 0:
        return zero_row(len(v))
    n = 30 - bits(peak)
    assert n >= 0
    p = (peak << n) >> 16
    r = (127 << 23) // p
    q = int32(int32(product(v << n >> 16, r)) + 2**22) >> 23
    assert largest(q) <= 127
    m, e = int64((peak << n) << 7) // 127, x - n - 7
    if m >= 2**31:
        m, e = m >> 1, e + 1
    return Row(q, checked(Scale(m, e)))


def accumulate(codes, linear):
    """The exact sums of a row's codes with every channel of a linear map: ``[n]``."""
    return int32(whole(linear.codes) @ whole(codes))


def dequantise(acc, linear):
    """Values ``v[n]`` and the exponent of each segment; the row's scale is left to the caller."""
    k = linear.codes.shape[1]
    g = 16 - (k - 1).bit_length()
    m, down = whole(linear.mantissa), whole(linear.shift)
    v = np.where(m > 0, high(int32(acc) << g, m) >> down, 0)
    assert largest(v) < 2**29
    return v, [int(largest_e) + 32 - g for largest_e in linear.exponents]


def absolute(v, x, s, fraction_bits, b):
    """Values times the row's scale, in fixed point; and the mark."""
    if s.m == 0:
        return np.zeros_like(int32(v)), False
    return shift(high(v, s.m), -(x + s.e + 32 + fraction_bits), b)


def _add(a, b):
    return clip(int32(a) + int32(b), 30)


def _add_bias(y, linear):
    if linear.bias is None:
        return y, False
    return _add(y, linear.bias)


# ---------------------------------------------------------------- the residual stream


def embed(code, exponent, fraction_bits):
    """A token's row of the residual stream, and the mark."""
    return shift(code, -(int(exponent) + fraction_bits), 30)


def rmsnorm(x, weight, eps, fraction_bits):
    """RMSNorm of a row of the residual stream, quantised."""
    x, dim = int32(x), len(x)
    peak = largest(x)
    if peak == 0:
        return zero_row(dim)
    n = 30 - bits(peak)
    xn = int32(x << n)
    v = high(xn, whole(weight.weight))
    total = int64(sum(int(a) * int(a) for a in ((xn >> 15) + 1) >> 1))
    mean = norm(int64(total << 16) // dim, 2 * (16 - n - fraction_bits) - 16)
    q, s = quantise(v, weight.exponent + 32 - n - fraction_bits)
    return Row(q, times(s, rsqrt(plus(mean, eps))))


def residual(x, acc, linear, s, fraction_bits):
    """The residual stream after a projection is added, and the mark."""
    v, (x_v,) = dequantise(acc, linear)
    y, overflow = absolute(v, x_v, s, fraction_bits, 30)
    y, bias_overflow = _add_bias(y, linear)
    x, sum_overflow = _add(x, y)
    return x, overflow or bias_overflow or sum_overflow


# ---------------------------------------------------------------- attention


def heads(acc, linear, s, fraction_bits):
    """Values of each head before it is turned and quantised.

    Gives a list of ``(v[d], x, scale)``: the value is ``v * 2**x * scale``, scale None for 1; and
    the mark.
    """
    v, exponents = dequantise(acc, linear)
    v = v.reshape(len(exponents), linear.segment)
    if linear.bias is None:
        return [(v[h], x, s) for h, x in enumerate(exponents)], False
    bias = whole(linear.bias).reshape(v.shape)
    result, marked = [], False
    for h, x in enumerate(exponents):
        y, overflow = absolute(v[h], x, s, fraction_bits, 30)
        y, bias_overflow = _add(y, bias[h])
        result.append((y, -fraction_bits, None))
        marked |= overflow or bias_overflow
    return result, marked


def value_head(v, x, s):
    """A head of the values, quantised."""
    return _scaled(quantise(v, x), s)


def turned_head(v, x, s, cosine, sine):
    """A head of queries or keys, turned to its position and quantised."""
    v, half = int32(v), len(v) // 2
    peak = largest(v)
    if peak == 0:
        return zero_row(len(v))
    n = 30 - bits(peak)
    a = v << n >> 16
    low, up, c, s_ = a[:half], a[half:], whole(cosine), whole(sine)
    r = np.concatenate([low * c - up * s_, up * c + low * s_])
    return _scaled(quantise(int32(r), x + 2 - n), s)


def _scaled(row, s):
    return row if s is None else Row(row.codes, times(row.scale, s))


class Cache(NamedTuple):
    """Keys or values of one head for positions 0, 1, ...: codes ``[n, d]``, scales ``[n]``."""

    codes: np.ndarray
    m: np.ndarray
    e: np.ndarray

    @classmethod
    def of(cls, rows):
        codes = np.stack([row.codes for row in rows])
        m = np.array([row.scale.m for row in rows], np.int64)
        return cls(codes, m, np.array([row.scale.e for row in rows], np.int64))

    def part(self, start, end):
        return Cache(self.codes[start:end], self.m[start:end], self.e[start:end])


def attention(query, keys, values, score_scale):
    """One head's context for the query at the last position of keys and values; and the mark.

    Keys beyond the query are not in `keys`: NUMERICS.md gives them a score of -2^29, below which no
    other can be, and a weight of 0, so that leaving them out is the same.
    """
    u = times(query.scale, score_scale)
    top, weighted, total = LOWEST, LOWEST, 0
    c, marked = np.zeros(values.codes.shape[1], np.int64), False
    for start in range(0, len(keys.m), KEY_BLOCK):
        block_k = keys.part(start, start + KEY_BLOCK)
        block_v = values.part(start, start + KEY_BLOCK)
        s, overflow = _scores(query.codes, block_k, u)
        marked |= overflow
        block_top = int(s.max() + 4095) >> SCORE_BITS
        if block_top > top:
            total, top = total >> min(block_top - top, 63), block_top
        used = block_v.m > 0
        block_weighted = LOWEST
        if used.any():
            with_values = int32(s + (block_v.e << SCORE_BITS))[used]
            block_weighted = int(with_values.max() + 4095) >> SCORE_BITS
        if block_weighted > weighted:
            c, weighted = _down(c, min(block_weighted - weighted, 31)), block_weighted
        z = int32((top << SCORE_BITS) - s)
        assert (z >= 0).all()
        whole, y = z >> SCORE_BITS, np.minimum(exp((z & 4095) << 4), 32767)
        total = int64(total + int(int32((y << 8) >> np.minimum(whole, 31)).sum()))
        h = 16 + whole + weighted - top - block_v.e
        c = int32(c + _context(y, h, block_v))
    return _head_context(c, total, weighted - top), marked


def _scores(query, keys, u):
    """Scores of a block in units of log2, 12 fraction bits; and the mark."""
    a = int32(keys.codes @ query)
    r = -(u.e + keys.e + 67)
    t = high(int32(a << 9), high(keys.m, np.full_like(keys.m, u.m)))
    s, marked = t >> np.clip(r, 0, 31), False
    for j in np.flatnonzero(r < 0):
        s[j], overflow = shift(t[j], int(r[j]), 29)
        marked |= overflow
    assert largest(s) <= 2**29
    return s, marked


def _down(t, d):
    """The rounding right shift of 32-bit numbers, 0 for more than 30 places."""
    return shift(t, d, 31)[0]


def _context(y, h, values):
    """What a page adds to the context; weights hold their values' scales."""
    used = (values.m > 0) & (h <= 30)
    assert (h[values.m > 0] >= 16).all()
    h = np.clip(h, 0, 30)
    w = int32(int32(y * (values.m >> 16)) + ((1 << h) >> 1)) >> h
    w = np.where(used, w, 0)
    assert ((w >= 0) & (w <= 16383)).all()
    upper, lower = w >> 7, w & 127
    return int32(128 * (upper @ values.codes) + lower @ values.codes + 32) >> 6


def _head_context(c, total, exponent):
    peak = largest(c)
    if peak == 0:
        return HeadContext(None, 0)
    na, nl = 30 - bits(peak), 30 - bits(total)
    r = (2**61 - 1) // (total << nl if nl >= 0 else total >> -nl)
    o = high(c << na, np.full_like(c, r))
    return HeadContext(o, 17 + exponent - na + nl)


def context_row(contexts, head_dim):
    """The heads' contexts of one token, quantised as one row."""
    exponents = [context.exponent for context in contexts if context.o is not None]
    if not exponents:
        return zero_row(len(contexts) * head_dim)
    x = max(exponents)
    v = [
        np.zeros(head_dim, np.int64)
        if context.o is None
        else context.o >> min(x - context.exponent, 31)
        for context in contexts
    ]
    return quantise(np.concatenate(v), x)


# ---------------------------------------------------------------- the MLP


def swiglu(acc, linear, s):
    """``silu(gate) * up`` of the stacked sums of gate and up, quantised; and the mark."""
    v, (xg, xu) = dequantise(acc, linear)
    vg, vu = v[: linear.segment], v[linear.segment :]
    pg, pu = largest(vg), largest(vu)
    if pg == 0 or pu == 0:
        return zero_row(linear.segment), False
    ng, nu = 30 - bits(pg), 30 - bits(pu)
    f, d, marked = sigmoid(vg, xg, s)
    h = high(high(vg << ng, vu << nu), f << 16) >> d
    q, sq = quantise(h, 33 + xg - ng + xu - nu)
    return Row(q, times(times(sq, s), s)), marked


def sigmoid(vg, xg, s):
    """The sigmoid of the gate, as ``f * 2**-15 * 2**-d``; and the mark.

    A clipped gate is so large that the sigmoid is 0 or 1 all the same; but what cannot be shifted
    at all has become 0.
    """
    b = times(s, LOG2_E)
    left = xg + b.e + 48
    z, clipped = shift(high(vg, np.full_like(vg, b.m)), -left, 30)
    y, zi = exp(abs(z) & 65535), np.minimum(abs(z) >> 16, 31)
    r = recip(y >> zi)
    negative = z < 0
    f, d = np.where(negative, int32(y * r) >> 15, r), np.where(negative, zi, 0)
    return f, d, clipped and left > MOST_LEFT


# ---------------------------------------------------------------- results


def reward(acc, linear, s):
    """Outputs of a reward head with 16 fraction bits, and the mark."""
    v, (x,) = dequantise(acc, linear)
    y, overflow = absolute(v, x, s, REWARD_BITS, 30)
    y, bias_overflow = _add_bias(y, linear)
    return y, overflow or bias_overflow


def logits(acc, linear, s, inverse_temperature):
    """Logits over the temperature in units of log2, 16 fraction bits; and the mark.

    `inverse_temperature` is the scale of ``log2(e) / temperature``.
    """
    v, (x,) = dequantise(acc, linear)
    b = times(s, inverse_temperature)
    return shift(high(v, np.full_like(v, b.m)), -(x + b.e + 48), 29)


def log_sum_exp(z):
    """log2 of the sum of 2^z, 20 fraction bits, a Python integer of 64 bits."""
    assert largest(z) <= 2**29
    blocks = [z[at : at + VOCABULARY_BLOCK] for at in range(0, len(z), VOCABULARY_BLOCK)]
    tops = [int(block.max() + 65535) >> 16 for block in blocks]
    top, total = max(tops), 0
    for block, block_top in zip(blocks, tops, strict=True):
        d = int32((block_top << 16) - block)
        part = int64(int(((exp(d & 65535) << 14) >> np.minimum(d >> 16, 31)).sum()))
        total = int64(total + (part >> min(top - block_top, 63)))
    return int64((top << 20) + log2(total) - (29 << 20))


def logprob(z, target):
    """The log-prob of one token, nats, 20 fraction bits, at least -2^31; and the mark."""
    difference = (int(z[target]) << 4) - log_sum_exp(z)
    if difference < LEAST_LOGPROB:
        return -(2**31), True
    value = min(int64(difference * LN_2) >> 31, 0)
    return max(value, -(2**31)), value < -(2**31)


def gated_reward(rewards, z):
    """The mean of rewards by the weights ``2**z`` of their gates, a Python integer."""
    assert 1 <= len(z) == len(rewards) <= MOST_OBJECTIVES
    assert largest(z) < 2**29
    assert largest(rewards) < 2**30
    top = max(int(value) + 65535 for value in z) >> 16
    total = weighted = 0
    for reward_i, value in zip(rewards, z, strict=True):
        d = (top << 16) - int(value)
        p = int(exp(np.array([d & 65535]))[0]) >> min(d >> 16, 31)
        total += p
        weighted = int64(weighted + p * int(reward_i))
    assert total >= 2**14
    return abs(weighted) // total * (1 if weighted >= 0 else -1)
