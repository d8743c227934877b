"""score_aggregator: its bench, its declarations, log-probs through it, and gated rewards."""

from __future__ import annotations

import ctypes
import functools
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecorl.engines.fpga.csim.decoder import Int8Decoder
from ecorl.engines.fpga.csim.library import CsimLibrary
from ecorl.engines.fpga.numerics.formats import LOG2_E, IntegerLinear, Scale
from ecorl.engines.models.checkpoint import load_decoder
from tests.examples import examples
from tests.golden.arithmetic import clip, times
from tests.golden.gating import LOGIT_BITS, fixed
from tests.golden.operations import gated_reward
from tests.kernels.decoder_models import VOCAB, same, saved_decoder
from tests.kernels.kernel_benches import check_resources, kernels_chosen, run_alone, run_bench

K = 1024  # inputs of the gating head
MOST = 2**30 - 1  # of a bias and of a reward
WIDTHS = (0, 1, 128, 256, 512)  # of the row functions; 1: the kernel


@pytest.fixture(autouse=True)
def _needs_compiler(require_tool):
    require_tool("gxx")


@functools.cache
def library(build):
    return CsimLibrary.load(build)


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory):
    root = tmp_path_factory.mktemp("scored-decoders")
    return lambda name: saved_decoder(root, name)


def decoder(folder, build="fast", n_cards=1):
    return Int8Decoder(load_decoder(folder), library(build), n_cards=n_cards)


def rows_of(*lengths, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, VOCAB, n) for n in lengths]


# ---------------------------------------------------------------- the kernel's folder


@pytest.mark.deep  # test_decoder_bits runs all kernels under sanitisers, too
@pytest.mark.parametrize("build", ["strict", "fast"])
def test_bench_under_sanitisers(require_tool, tmp_path, build):
    require_tool("hls_headers")
    require_tool("make")
    printed = run_bench("score_aggregator", build, tmp_path)
    assert re.search(r"PASS score_aggregator: 81 .*\b0 wrong", printed)


def test_kernel_stands_alone_as_under_vitis(require_tool, tmp_path):
    require_tool("hls_headers")
    assert "PASS score_aggregator" in run_alone("score_aggregator", tmp_path)


def test_qor_declares_what_the_source_holds():
    check_resources("score_aggregator")


# ---------------------------------------------------------------- log-probs through the kernels


@pytest.mark.parametrize("name", ["qwen_lm", "llama_lm", "lm_even"])
def test_logprobs_through_the_kernels_have_the_same_bits(folder_of, name):
    """Several completions of one prompt: their first tokens follow the same row."""
    (prompt,) = rows_of(20, seed=1)
    rows = [np.concatenate([prompt, row]) for row in rows_of(1, 7, 70, seed=2)] + rows_of(1, 30)
    counts, model = [1, 7, 70, 0, 29], decoder(folder_of(name))
    wanted = model.logprobs(rows, counts, 0.7)
    with kernels_chosen(library("fast")):
        got = model.logprobs(rows, counts, 0.7)
    assert all(same(a, b) for a, b in zip(got, wanted, strict=True))
    assert np.isfinite(np.concatenate(wanted)).all()


def test_strict_kernels_have_the_bits_of_the_fast_schedule(folder_of, require_tool):
    require_tool("hls_headers")
    rows, counts = rows_of(3, 18, seed=3), [2, 17]
    wanted = decoder(folder_of("qwen_lm")).logprobs(rows, counts, 1.0)
    model = decoder(folder_of("qwen_lm"), "strict")
    with kernels_chosen(library("strict")):
        got = model.logprobs(rows, counts, 1.0)
    assert all(same(a, b) for a, b in zip(got, wanted, strict=True))


def test_a_vocabulary_over_two_cards_has_the_bits_of_one(folder_of):
    folder, rows, counts = folder_of("lm_even"), rows_of(40, 17, 2, seed=4), [30, 16, 1]
    wanted = decoder(folder).logprobs(rows, counts, 1.3)
    with kernels_chosen(library("fast")):
        got = decoder(folder, n_cards=2).logprobs(rows, counts, 1.3)
    assert all(same(a, b) for a, b in zip(got, wanted, strict=True))


# ---------------------------------------------------------------- gated rewards


def gating_head(rng, n, sharpness):
    """A head's constants: exponents that put its gates around 2^sharpness units of log2."""
    mantissa = rng.integers(2**30, 2**31, n).astype(np.int32)
    mantissa[rng.random(n) < 0.1] = 0
    shift = np.where(mantissa > 0, rng.integers(0, 12, n), 0).astype(np.int32)
    exponents = np.array([sharpness - 36], np.int32)
    return IntegerLinear(np.zeros((n, K), np.int8), mantissa, shift, exponents, n)


def gated_rewards(build, linear, acc, scales, factor, rewards):
    """The library's rewards and marks, by every width that this build and CPU have, all equal."""
    m, n = acc.shape
    handle = library(build).handle
    pairs = np.array([(s.m, s.e) for s in scales], np.int32)
    exponent = int(linear.exponents[0]) + 32 - linear.input_shift
    results = []
    try:
        for width in WIDTHS:
            if handle.rows_set_width(width) != 0:
                continue
            out, marks = np.zeros(m, np.int32), np.zeros(m, np.int32)
            code = handle.score_gated_rewards(
                address(acc), address(linear.mantissa), address(linear.shift),
                None if linear.bias is None else address(linear.bias), linear.input_shift,
                exponent, address(pairs), factor.m, factor.e, address(rewards), m, n, address(out),
                address(marks),
            )  # fmt: skip
            assert code == 0
            results.append((out.tolist(), marks.tolist()))
    finally:
        handle.rows_set_width(0)
    assert len(results) >= 3  # the widest, the kernel, and 128 bits, which every CPU has
    assert all(result == results[0] for result in results)
    return results[0]


def address(array):
    assert array.flags.c_contiguous
    assert array.dtype == np.int32
    return ctypes.c_void_p(array.ctypes.data)


def golden_rewards(linear, acc, scales, factor, rewards):
    values, marks = [], []
    for own, row, s in zip(rewards, acc, scales, strict=True):
        z, overflow = fixed(row, linear, times(s, factor))
        z, beyond = clip(z, LOGIT_BITS)
        values.append(gated_reward(own, z))
        marks.append(int(overflow or beyond))
    return values, marks


def problem(seed, m, n, sharpness, largest, largest_bias=None):
    rng = np.random.default_rng(seed)
    linear = gating_head(rng, n, sharpness)
    if largest_bias is not None:
        bias = rng.integers(-largest_bias, largest_bias + 1, n).astype(np.int32)
        linear = replace(linear, bias=bias)
    acc = rng.integers(-(2**23), 2**23, (m, n)).astype(np.int32)
    acc[rng.random(m) < 0.2] = 0
    scales = [Scale(int(rng.integers(2**30, 2**31)), -30) for _ in range(m)]
    rewards = rng.integers(-largest, largest + 1, (m, n)).astype(np.int32)
    return linear, acc, scales, Scale.of(LOG2_E / rng.uniform(0.2, 10)), rewards


@settings(max_examples=examples(40), deadline=None)
@given(
    seed=st.integers(0, 2**31),
    m=st.sampled_from([1, 2, 16, 17, 35]),
    n=st.sampled_from([1, 2, 10, 15, 16, 17, 19, 64]),
    sharpness=st.integers(-30, 6),
    largest=st.sampled_from([0, 1, 2**16, MOST]),
    largest_bias=st.sampled_from([None, 0, 2**16, 2**20, 2**29 - 1, MOST]),
)
def test_gated_rewards_equal_the_golden_model(seed, m, n, sharpness, largest, largest_bias):
    drawn = problem(seed, m, n, sharpness, largest, largest_bias)
    assert gated_rewards("fast", *drawn) == golden_rewards(*drawn)


def test_gated_rewards_of_the_strict_build(require_tool):
    require_tool("hls_headers")
    for n, sharpness, largest_bias in (
        (1, 0, None),
        (19, -8, 2**18),
        (19, -8, None),
        (64, 4, MOST),
    ):
        drawn = problem(n, 17, n, sharpness, 2**24, largest_bias)
        assert gated_rewards("strict", *drawn) == golden_rewards(*drawn)


def test_a_bias_of_zeros_is_no_bias_and_another_one_counts():
    linear, *rest = problem(3, 35, 19, -18, 2**24)
    plain = gated_rewards("fast", linear, *rest)
    zeros = np.zeros(19, np.int32)
    assert gated_rewards("fast", replace(linear, bias=zeros), *rest) == plain
    first = zeros.copy()
    first[4] = 40 << 16  # the gate of one objective is far above the others
    values, marks = gated_rewards("fast", replace(linear, bias=first), *rest)
    assert values == rest[-1][:, 4].tolist()
    assert not any(marks)


# A gate's sum, which counts 2^10; its bias; the gate before it is clipped to 2^29; the mark.
@pytest.mark.parametrize(
    ("acc", "bias", "z", "marked"),
    [
        (0, 2**29 - 1, 2**29 - 1, False),
        (0, 2**29, 2**29, True),
        (0, 1 - 2**29, 1 - 2**29, False),
        (0, -(2**29), -(2**29), True),
        (0, MOST, MOST, True),
        (0, -MOST, -MOST, True),
        (2**19, 0, 2**29, True),
        (2**19, -1, 2**29 - 1, False),
        (2**19, -(2**29), 0, False),
        (2**19, -MOST, 1 - 2**29, False),
        (-(2**19), MOST, 2**29 - 1, False),
        (2**19, MOST, MOST, True),
        (-(2**19), -MOST, -MOST, True),
        (2**20, -MOST, -255, True),  # clipped to 30 bits before the bias
        (-(2**20), MOST, 255, True),
    ],
)
@pytest.mark.parametrize("build", ["fast", "strict"])
def test_biases_at_the_ends_of_their_formats(build, acc, bias, z, marked, require_tool):
    if build == "strict":
        require_tool("hls_headers")
    mantissa, shift = np.full(2, 2**30, np.int32), np.zeros(2, np.int32)
    biases, exponents = np.array([bias, 0], np.int32), np.array([-36], np.int32)
    linear = IntegerLinear(np.zeros((2, K), np.int8), mantissa, shift, exponents, 2, biases)
    one, sums = Scale(2**30, -30), np.array([[acc, 0]], np.int32)
    assert fixed(sums[0], linear, one)[0].tolist() == [z, 0]
    asked = linear, sums, [one], one, np.array([[1000, -7]], np.int32)
    values, marks = gated_rewards(build, *asked)
    assert (values, marks) == golden_rewards(*asked)
    assert marks == [int(marked)]
    if abs(z) > 40 << 16:  # one weight is 0
        assert values == [1000 if z > 0 else -7]
    else:
        assert values[0] == pytest.approx((1000 - 7) / 2, abs=2)


def test_equal_gates_give_the_mean_truncated_towards_zero():
    linear = IntegerLinear(
        np.zeros((3, K), np.int8),
        np.full(3, 2**30, np.int32),
        np.zeros(3, np.int32),
        np.array([-36], np.int32),
        3,
    )
    acc = np.zeros((2, 3), np.int32)
    rewards = np.array([[1, 1, 3], [-1, -1, -3]], np.int32)
    scales = [Scale(2**30, -30)] * 2
    wanted = [1, -1], [0, 0]
    assert wanted == gated_rewards("fast", linear, acc, scales, Scale.of(LOG2_E), rewards)


@pytest.mark.parametrize("n", [0, 65])
def test_a_number_of_objectives_beyond_the_kernel_is_refused(n):
    code = library("fast").handle.score_gated_rewards(
        None, None, None, None, 6, 0, None, 0, 0, None, 1, n, None, None
    )
    assert code == -1
