"""Scales and functions of hls_kernels/NUMERICS.md in whole numbers.

Values are int64 arrays or Python integers; a float is refused. `int32` is the check that a number
fits the 32 bits that the kernels have for it, `product` that a product fits 64.
"""

from __future__ import annotations

import math

import numpy as np

from ecorl.engines.fpga.numerics.formats import Scale

ZERO = Scale(0, 0)
LOG2_E = Scale(1549082005, -30)

MOST_LEFT = 16

_EXP = (224, -1744, 7846, -22708, 32768)
_RECIP = (-3528, 13959, -25486, 31329, -32655, 32766)
_RSQRT = tuple(math.isqrt(2**37 // (2 * i + 1)) for i in range(16, 64))


def whole(values):
    """Values as an int64 array; anything but integers is a mistake."""
    array = np.asarray(values)
    assert array.dtype.kind == "i", f"{array.dtype} is no integer type"
    return array.astype(np.int64)


def int32(values):
    """Values as an int64 array, checked to fit 32 bits."""
    array = whole(values)
    assert ((array >= -(2**31)) & (array < 2**31)).all(), "beyond 32 bits"
    return array


def int64(value):
    """A Python integer, checked to fit 64 bits with sign."""
    assert isinstance(value, int), type(value)
    assert -(2**63) <= value < 2**63, "beyond 64 bits"
    return value


def product(a, b):
    """The product of two arrays, checked to fit 64 bits with sign."""
    a, b = whole(a), whole(b)
    assert largest(a) * largest(b) < 2**63, "a product beyond 64 bits"
    return a * b


def largest(values):
    """The largest magnitude, a Python integer; 0 of nothing."""
    array = whole(values)
    return max(abs(int(array.min(initial=0))), abs(int(array.max(initial=0))))


def high(a, b):
    """``(a * b) >> 32`` of 32-bit numbers."""
    return int32(product(int32(a), int32(b)) >> 32)


def bits(v):
    """``floor(log2 v)`` of a positive Python integer."""
    assert isinstance(v, int), type(v)
    assert v > 0
    return v.bit_length() - 1


# ---------------------------------------------------------------- shift and clip


def shift(t, s, b):
    """``t * 2**-s`` within ``b`` bits: the values, and whether any was clipped."""
    t = int32(t)
    if s > 30:
        return np.zeros_like(t), False
    if s >= 0:
        return int32(t + (2**s >> 1)) >> s, False
    left = -s
    limit = (2**b - 1) >> left if left <= MOST_LEFT else 0
    clipped = np.clip(t, -limit, limit)
    return int32(clipped << min(left, MOST_LEFT)), bool((clipped != t).any())


def clip(v, b):
    """Values within ``b`` bits, and whether any was clipped."""
    v = int32(v)
    limit = 2**b - 1
    clipped = np.clip(v, -limit, limit)
    return clipped, bool((clipped != v).any())


# ---------------------------------------------------------------- scales


def checked(scale):
    """A scale, checked to be in its format."""
    assert scale.m == 0 or 2**30 <= scale.m < 2**31, scale
    assert isinstance(scale.m, int), scale
    assert isinstance(scale.e, int), scale
    return scale


def norm(v, e):
    """The scale of ``v * 2**e`` for v >= 0."""
    if int64(v) == 0:
        return ZERO
    move = 30 - bits(v)
    return checked(Scale(v << move if move >= 0 else v >> -move, e - move))


def times(a, b):
    """The product of two scales."""
    if checked(a).m == 0 or checked(b).m == 0:
        return ZERO
    m, e = int64(a.m * b.m) >> 30, a.e + b.e + 30
    if m >= 2**31:
        m, e = m >> 1, e + 1
    return checked(Scale(m, e))


def plus(a, b):
    """The sum of two scales."""
    if checked(a).m == 0:
        return checked(b)
    if checked(b).m == 0:
        return a
    e = max(a.e, b.e)
    return norm((a.m >> min(e - a.e, 63)) + (b.m >> min(e - b.e, 63)), e)


def rsqrt(scale):
    """One over the square root of a scale that is not zero."""
    assert checked(scale).m > 0
    m, e = scale.m, scale.e
    if e % 2:
        m, e = 2 * m, e - 1
    y = _RSQRT[(m >> 26) - 16] << 15
    for _ in range(3):
        y2 = int64(y * y) >> 32
        ty = int64((m >> 1) * y2) >> 31
        y = int64(y * ((3 << 28) - ty)) >> 29
    return norm(y, -46 - e // 2)


# ---------------------------------------------------------------- functions


def _horner(coefficients, g):
    """A polynomial in ``g / 2**15``, highest coefficient first, all in 32 bits."""
    y = np.full_like(g, coefficients[0])
    for coefficient in coefficients[1:]:
        y = int32(coefficient + (int32(y * g) >> 15))
    return y


def exp(f):
    """EXP: about ``2**15 * 2**(-f / 2**16)`` for f in 0..65535."""
    f = int32(f)
    assert ((f >= 0) & (f <= 65535)).all()
    return _horner(_EXP, f >> 1)


def recip(e):
    """RECIP: about ``2**15 / (1 + e / 2**15)`` for e in 0..32768."""
    e = int32(e)
    assert ((e >= 0) & (e <= 32768)).all()
    return _horner(_RECIP, e)


def log2(v):
    """LOG2 of a positive Python integer of 64 bits, with 20 fraction bits."""
    k = bits(int64(v))
    m = v << (30 - k) if k <= 30 else v >> (k - 30)
    result = k
    for _ in range(20):
        m = int64(m * m) >> 30
        bit = int(m >= 2**31)
        m >>= bit
        result = 2 * result + bit
    return result
