"""The golden model's arithmetic and quantisation against exact fractions and float64.

The bounds are those of the table at the end of hls_kernels/NUMERICS.md.
"""

from __future__ import annotations

import ast
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tests.golden
from ecorl.engines.fpga.numerics import formats
from ecorl.engines.fpga.numerics.formats import Scale
from tests.golden import arithmetic as ar
from tests.golden import operations as op

SCALES = st.builds(Scale, st.integers(2**30, 2**31 - 1), st.integers(-200, 200))
CODES = st.lists(st.integers(-(2**31) + 1, 2**31 - 1), min_size=1, max_size=40)


def exact(scale):
    return Fraction(scale.m) * Fraction(2) ** scale.e


# ---------------------------------------------------------------- functions


def test_exp():
    f = np.arange(2**16)
    wanted = 2.0**15 * 2.0 ** (-f / 2**16)
    got = ar.exp(f)
    assert got[0] == got.max() == 32768
    assert got.min() == 16384
    assert np.abs(got - wanted).max() <= 1.9
    assert np.abs(got / wanted - 1).max() <= 1.13e-4


def test_recip():
    e = np.arange(2**15 + 1)
    got = ar.recip(e)
    assert np.abs(got - 2.0**15 / (1 + e / 2**15)).max() <= 2.9
    assert got.max() == 32766  # so that shifted left by 16 it fits 32 bits


@pytest.mark.parametrize("e", [-60, -59, 0, 1])
def test_rsqrt_over_all_leading_16_bits(e):
    worst = 0
    for top in range(2**14, 2**15):
        for m in (top << 16, (top << 16) + 65535):
            y = ar.rsqrt(Scale(m, e))
            # relative error of y, from y^2 m = 1 + 2 error
            error = exact(y) ** 2 * exact(Scale(m, e)) - 1
            worst = max(worst, abs(error) / 2)
    assert worst <= Fraction(8, 2**31)


@given(st.integers(1, 2**63 - 1))
@example(1)
@example(2**31 - 1)
@example(2**63 - 1)
def test_log2(v):
    error = ar.log2(v) / 2**20 - math.log2(v)
    assert -1.01 * 2**-20 <= error <= 1e-13


# ---------------------------------------------------------------- scales


@given(SCALES, SCALES)
def test_times(a, b):
    error = 1 - exact(ar.times(a, b)) / (exact(a) * exact(b))
    assert 0 <= error < Fraction(1, 2**30)


@given(SCALES, SCALES)
def test_plus(a, b):
    error = 1 - exact(ar.plus(a, b)) / (exact(a) + exact(b))
    assert 0 <= error < Fraction(1, 2**29)
    assert ar.plus(a, b) == ar.plus(b, a)


@given(st.integers(1, 2**63 - 1), st.integers(-99, 99))
def test_norm(v, e):
    error = 1 - exact(ar.norm(v, e)) / (v * Fraction(2) ** e)
    assert 0 <= error < Fraction(1, 2**30)


@given(SCALES)
def test_zero_among_scales(a):
    assert ar.norm(0, 5) == ar.ZERO
    assert ar.times(a, ar.ZERO) == ar.times(ar.ZERO, a) == ar.ZERO
    assert ar.plus(a, ar.ZERO) == ar.plus(ar.ZERO, a) == a
    assert ar.plus(ar.ZERO, ar.ZERO) == ar.ZERO


@given(st.floats(2.0**-126, 2.0**127, width=32))
def test_a_float32_is_a_scale_exactly(value):
    assert exact(Scale.of(value)) == Fraction(value)


def test_the_constants():
    assert Scale.of(formats.LOG2_E) == ar.LOG2_E
    assert abs(op.LN_2 - math.log(2) * 2**31) <= 0.5


# ---------------------------------------------------------------- shift and clip


@given(st.integers(-(2**30), 2**30), st.integers(0, 40))
def test_shift_to_the_right_rounds(t, s):
    got, marked = ar.shift(t, s, 30)
    assert not marked
    if s > 30:
        assert got == 0
    else:
        assert abs(int(got) - Fraction(t, 2**s)) <= Fraction(1, 2)


@given(
    st.integers(0, 30).flatmap(lambda b: st.integers(-(2**b), 2**b)),
    st.integers(1, 40),
    st.sampled_from([29, 30]),
)
def test_shift_to_the_left_is_exact_or_marked(t, s, b):
    got, marked = ar.shift(t, -s, b)
    fits = t == 0 or (s <= 16 and abs(t) << s <= 2**b - 1)
    assert marked == (not fits)
    if fits:
        assert got == t << s
    elif s <= 16:
        assert got == ((2**b - 1) >> s << s) * np.sign(t)
    else:
        assert got == 0


@given(st.integers(-(2**31), 2**31 - 1))
def test_clip(v):
    got, marked = ar.clip(v, 30)
    assert got == min(max(v, 1 - 2**30), 2**30 - 1)
    assert marked == (got != v)


# ---------------------------------------------------------------- quantise


def quantise_error(v, x):
    """Largest error in steps, exact; and the codes."""
    codes, scale = op.quantise(np.array(v), x)
    step = exact(scale)
    values = [Fraction(value) * Fraction(2) ** x for value in v]
    return max(abs(b - int(a) * step) for a, b in zip(codes, values, strict=True)) / step, codes


@given(CODES, st.integers(-100, 100))
def test_quantise_any_values(v, x):
    if not any(v):
        codes, scale = op.quantise(np.array(v), x)
        assert scale == ar.ZERO
        assert not codes.any()
        return
    error, codes = quantise_error(v, x)
    assert error <= Fraction(516, 1000)
    assert abs(int(codes[np.abs(v).argmax()])) == 127
    assert int(np.abs(codes).max()) == 127


@pytest.mark.parametrize("seed", range(30))
def test_quantise_random_rows_of_many_magnitudes(seed):
    rng = np.random.default_rng(seed)
    v = np.rint(rng.normal(size=200) * 2.0 ** rng.uniform(2, 28)).astype(np.int64)
    error, codes = quantise_error(v.tolist(), int(rng.integers(-90, 90)))
    assert error <= Fraction(51, 100)
    assert np.abs(codes).max() == 127


@pytest.mark.parametrize("p", [*range(2**14, 2**15, 999), 16513])
def test_quantise_where_codes_change(p):
    """The values on both sides of each change of a code, where the error is largest."""
    r = (127 << 23) // p
    first = [-((2**22 - q * 2**23) // r) for q in range(-126, 128)]  # a of the first value of q
    for peak in (p << 16, (p << 16) + 65535):
        edges = [v for a in first for v in ((a << 16) - 1, a << 16) if abs(v) <= peak]
        error, _ = quantise_error([peak, *edges], 0)
        assert Fraction(1, 2) <= error <= Fraction(516, 1000)


def test_quantise_of_one_value_and_of_the_smallest():
    for v in (1, -1, 3, 2**30, 1 - 2**31):
        codes, scale = op.quantise(np.array([v]), 0)
        assert codes.tolist() == [127 * (1 if v > 0 else -1)]
        assert exact(scale) * 127 == pytest.approx(abs(v), rel=1e-9)


# ---------------------------------------------------------------- no float


def test_there_is_no_float_in_the_golden_model():
    files = sorted(Path(tests.golden.__file__).parent.glob("*.py"))
    assert len(files) == 5
    for file in files:
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            assert not isinstance(node, ast.Div), file
            assert not (isinstance(node, ast.Constant) and isinstance(node.value, float)), file
            assert not (isinstance(node, ast.Attribute) and node.attr.startswith("float")), file
            assert not (isinstance(node, ast.Name) and node.id == "float"), file


@pytest.mark.parametrize("function", [ar.whole, ar.int32, ar.exp])
def test_floats_are_refused(function):
    with pytest.raises(AssertionError, match="integer type"):
        function(np.array([1.0]))


@settings(max_examples=20)
@given(st.integers(2**31, 2**40))
def test_what_does_not_fit_is_noticed(v):
    with pytest.raises(AssertionError, match="32 bits"):
        ar.int32(v)
    with pytest.raises(AssertionError, match="64 bits"):
        ar.product(v, 2**33)
