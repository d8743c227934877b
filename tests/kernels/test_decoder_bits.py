"""The whole forward: golden, fast and strict are bit-equal; a row is the same wherever it is."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecorl.engines.fpga.csim.decoder import Int8Decoder
from ecorl.engines.fpga.cycles.attention import MhaCounts
from ecorl.engines.fpga.int8_decoder import LOGPROB_BITS, REWARD_BITS
from ecorl.engines.fpga.numerics.formats import LOG2_E, Scale
from ecorl.engines.models.checkpoint import load_decoder
from ecorl.errors import EngineError
from tests.examples import examples
from tests.kernels.decoder_models import (
    VOCAB,
    decoder,
    golden,
    integers,
    library,
    same,
    saved_decoder,
)
from tests.kernels.gated_models import saved_gated

SHAPES = ("llama64", "llama96", "llama128", "qwen64", "qwen_lm", "llama_lm")


@pytest.fixture(autouse=True)
def _needs_compiler(require_tool):
    require_tool("gxx")


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory):
    root = tmp_path_factory.mktemp("decoders")
    return lambda name: saved_decoder(root, name)


def rows_of(*lengths, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, VOCAB, n) for n in lengths]


def families(seed, prompts, most, n_completions):
    """Rows whose prompts are shared by several completions, in mixed order."""
    rng = np.random.default_rng(seed)
    rows, counts = [], []
    for length in prompts:
        prompt = rng.integers(0, VOCAB, length)
        for _ in range(n_completions):
            n = int(rng.integers(0 if length > 1 else 1, most))
            rows.append(np.concatenate([prompt, rng.integers(0, VOCAB, n)]))
            counts.append(n)
    order = rng.permutation(len(rows))
    return [rows[i] for i in order], [counts[i] for i in order]


# ---------------------------------------------------------------- golden, fast, strict


COUNTS = [0, 3, 62, 10, 64, 100]
TEMPERATURE = 0.7


def blocks_rows():
    """Rows around the borders of the blocks."""
    return rows_of(1, 5, 63, 64, 65, 130, seed=1)


@functools.cache
def golden_answer(folder):
    """Residual stream and results of `blocks_rows`; slow, and the same for both builds."""
    wanted, rows = golden(folder), blocks_rows()
    hidden = np.concatenate([f.hidden for f in wanted.forward(rows)])
    if load_decoder(folder).config.is_reward:
        return hidden, wanted.rewards(rows)
    return hidden, wanted.logprobs(rows, COUNTS, Scale.of(LOG2_E / TEMPERATURE))


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("build", ["fast", "strict"])
def test_every_block_and_result_equals_the_golden_model(folder_of, name, build, require_tool):
    if build == "strict":
        require_tool("hls_headers")
    folder = folder_of(name)
    model, rows = decoder(folder, build), blocks_rows()
    expected, results = golden_answer(folder)
    stream = integers(model.hidden(rows), model.fraction_bits)
    # float32 hands out 24 of up to 30 bits of the stream
    assert np.array_equal(stream.astype(np.float32), expected.astype(np.float32))
    if model.config.is_reward:
        assert not results.marks.any()
        got = integers(model.score(rows), REWARD_BITS)
        assert np.array_equal(got.astype(np.float32), results.values.astype(np.float32))
    else:
        got = model.logprobs(rows, COUNTS, TEMPERATURE)
        for values, result in zip(got, results, strict=True):
            assert not result.marks.any()
            values = integers(values, LOGPROB_BITS).astype(np.float32)
            assert np.array_equal(values, result.values.astype(np.float32))


@settings(max_examples=15, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 140), min_size=1, max_size=4),
    name=st.sampled_from(["llama64", "qwen_lm"]),
    seed=st.integers(0, 2**31),
)
def test_random_rows_equal_the_golden_model(folder_of, lengths, name, seed):
    folder = folder_of(name)
    model, rows = decoder(folder), rows_of(*lengths, seed=seed)
    expected = np.concatenate([f.hidden for f in golden(folder).forward(rows)])
    got = integers(model.hidden(rows), model.fraction_bits)
    assert np.array_equal(got.astype(np.float32), expected.astype(np.float32))


@pytest.mark.parametrize("bits", [128, 256, 512])
def test_the_width_of_the_registers_changes_no_bit(folder_of, bits):
    folder, handle = folder_of("llama96"), library("fast").handle
    rows, counts = families(3, [3, 64, 70], 90, 3)
    wanted = decoder(folder).score(rows, counts)
    if handle.rows_set_width(bits) != 0:
        pytest.skip(f"this CPU has no registers of {bits} bits")
    try:
        assert handle.rows_width() == bits
        assert same(decoder(folder).score(rows, counts), wanted)
    finally:
        handle.rows_set_width(0)
    assert handle.rows_set_width(64) == -1


@contextlib.contextmanager
def through_the_kernels(build):
    """All work by the kernels' own sources, in place of the host's schedule."""
    handle = library(build).handle
    try:
        assert handle.rows_set_width(1) == 0
        assert handle.gemm_int8_set_path(1) == 0
        yield
    finally:
        handle.rows_set_width(0)
        handle.gemm_int8_set_path(0)


def attention_calls(build):
    counts = np.zeros(len(MhaCounts.__slots__), np.int64)
    library(build).handle.mha_int8_counters(ctypes.c_void_p(counts.ctypes.data))
    return counts[0]


@pytest.mark.parametrize(
    ("name", "build", "completions"),
    [("llama96", "fast", 70), ("qwen_lm", "fast", 70), ("qwen64", "strict", 5)],
)
def test_the_kernels_give_the_bits_of_the_host(folder_of, name, build, completions, require_tool):
    if build == "strict":
        require_tool("hls_headers")
    folder = folder_of(name)
    rows, counts = families(8, [3, 60], completions, 2)

    def results(model):
        if model.config.is_reward:
            return model.score(rows, counts)
        return np.concatenate(model.logprobs(rows, counts, 0.7))

    wanted, before = results(decoder(folder)), attention_calls(build)
    assert np.isfinite(wanted).all()
    with through_the_kernels(build):
        assert same(results(decoder(folder, build)), wanted)
    assert attention_calls(build) > before


def test_models_that_the_kernels_do_not_take_are_refused_in_one_line(folder_of, snapshot):
    folder, (row,) = folder_of("llama144"), rows_of(70, seed=6)
    assert np.isfinite(decoder(folder).score([row])).all()
    with (
        through_the_kernels("fast"),
        pytest.raises(EngineError) as caught,
    ):
        decoder(folder).score([row])
    snapshot(str(caught.value))


def test_a_row_of_4096_tokens(folder_of):
    """The last token of a long row sees all of it, and equals the golden model."""
    folder = folder_of("long")
    (row,) = rows_of(4096, seed=2)
    positions = np.array([0, 100, 2047, 4095])
    got = integers(decoder(folder).score_at([row], [positions])[0], REWARD_BITS)
    (wanted,) = golden(folder).rewards_at([row], [positions])
    assert not wanted.marks.any()
    assert np.array_equal(got.astype(np.float32), wanted.values.astype(np.float32))
    changed = row.copy()
    changed[0] = (changed[0] + 1) % VOCAB
    assert not same(decoder(folder).score([changed]), decoder(folder).score([row]))


# ---------------------------------------------------------------- a row is the same everywhere


@settings(max_examples=examples(30), deadline=None)
@given(
    seed=st.integers(0, 2**31),
    prompts=st.lists(st.sampled_from([1, 2, 17, 63, 64, 65, 128, 130]), min_size=1, max_size=4),
    n_completions=st.integers(1, 5),
    n_cards=st.sampled_from([1, 2]),
    micro_batch=st.integers(1, 8),
    threads=st.sampled_from([1, 2]),
)
def test_batch_order_sharing_and_cards_change_no_bit(
    folder_of, seed, prompts, n_completions, n_cards, micro_batch, threads
):
    folder = folder_of("llama64")
    rows, counts = families(seed, prompts, 80, n_completions)
    alone = np.concatenate([decoder(folder).score([row]) for row in rows])
    model = decoder(folder, n_cards=n_cards)
    model.threads = threads
    assert same(model.score(rows), alone)
    assert same(model.score(rows, counts), alone)
    starts = range(0, len(rows), micro_batch)
    parts = [model.score(rows[i : i + micro_batch], counts[i : i + micro_batch]) for i in starts]
    assert same(np.concatenate(parts), alone)


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    prompts=st.lists(st.sampled_from([1, 2, 63, 64, 65, 130]), min_size=1, max_size=3),
    n_completions=st.integers(1, 4),
    n_cards=st.sampled_from([1, 2]),
    temperature=st.sampled_from([0.3, 1.0, 1.7]),
)
def test_logprobs_are_the_same_with_shared_prompts_and_cards(
    folder_of, seed, prompts, n_completions, n_cards, temperature
):
    folder = folder_of("qwen_lm")
    rows, counts = families(seed, prompts, 80, n_completions)
    model = decoder(folder, n_cards=n_cards)
    together = model.logprobs(rows, counts, temperature)
    for row, n, values in zip(rows, counts, together, strict=True):
        assert same(values, decoder(folder).logprobs([row], [n], temperature)[0])
        assert (values <= 0).all()


@settings(max_examples=20, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 90), min_size=1, max_size=6),
    spare=st.integers(0, 70),
    seed=st.integers(0, 2**31),
)
def test_the_side_of_the_padding_changes_no_bit(folder_of, lengths, spare, seed):
    folder, rows = folder_of("llama64"), rows_of(*lengths, seed=seed)
    width = max(lengths) + spare
    left = np.full((len(rows), width), VOCAB - 1)
    right, left_mask, right_mask = left.copy(), left * 0, left * 0
    for i, row in enumerate(rows):
        left[i, width - len(row) :], left_mask[i, width - len(row) :] = row, 1
        right[i, : len(row)], right_mask[i, : len(row)] = row, 1
    model, wanted = decoder(folder), decoder(folder).score(rows)
    for ids, mask in ((left, left_mask), (right, right_mask)):
        padded = zip(ids, mask, strict=True)
        assert same(model.score([row[real != 0] for row, real in padded]), wanted)


@pytest.mark.parametrize("n_cards", [1, 2])
def test_products_in_slices_change_no_bit(folder_of, n_cards, monkeypatch):
    """As Qwen2.5-7B needs them, whose 18,944 inputs are more than the array's buffer holds."""
    folder, rows = folder_of("llama64"), rows_of(3, 70, seed=6)
    wanted = decoder(folder).score(rows)
    monkeypatch.setattr("ecorl.engines.fpga.kernels.sequence.MAX_K", 40)
    sliced = Int8Decoder(load_decoder(folder), library("fast"), n_cards=n_cards)
    assert same(sliced.score(rows), wanted)


def test_process_rewards_are_the_rewards_of_prefixes(folder_of):
    model = decoder(folder_of("llama64"))
    rows, counts = families(4, [30, 64], 90, 4)
    steps = [np.unique(np.linspace(len(r) - 1 - n, len(r) - 1, 5).astype(int)) for r, n in
             zip(rows, counts, strict=True)]  # fmt: skip
    together = model.score_at(rows, steps, counts)
    for row, positions, values in zip(rows, steps, together, strict=True):
        prefixes = [row[: p + 1] for p in positions]
        assert same(values, model.score(prefixes))


# ---------------------------------------------------------------- what does not fit


def test_a_marked_token_spoils_its_own_sequence_from_there_on_and_no_other(folder_of):
    folder = folder_of("outlier")  # token 7 is far beyond the residual stream's format
    model, wanted = decoder(folder), golden(folder)
    rows = [np.array(r) for r in ([1, 2, 3], [1, 2, 7, 3], [4, 5])]
    got = model.score_at(rows, [np.arange(len(r)) for r in rows])
    marks = [
        np.asarray(r.marks) for r in wanted.rewards_at(rows, [np.arange(len(r)) for r in rows])
    ]
    assert [m.tolist() for m in marks] == [[False] * 3, [False, False, True, True], [False] * 2]
    for values, marked in zip(got, marks, strict=True):
        assert np.array_equal(np.isnan(values), marked)
    assert same(got[1][:2], got[0][:2])


def test_extreme_weights_equal_the_golden_model(folder_of):
    """Rows of zeros, of one sign, of 1e-20 and of 1e4, all at once."""
    folder = folder_of("extreme")
    model, rows = decoder(folder), rows_of(1, 40, 70, seed=5)
    forward = golden(folder).forward(rows)
    expected = np.concatenate([f.hidden for f in forward]).astype(np.float32)
    marks = np.concatenate([f.marks for f in forward])
    got = integers(model.hidden(rows), model.fraction_bits).astype(np.float32)
    assert np.array_equal(np.isnan(got).all(axis=1), marks)
    assert np.array_equal(got[~marks], expected[~marks])
    assert np.isfinite(got).any()


SANITIZED = """
import sys
from pathlib import Path
import numpy as np
from ecorl.engines.models.checkpoint import load_decoder
from ecorl.engines.fpga.csim.decoder import Int8Decoder
from ecorl.engines.fpga.csim.library import CsimLibrary
folder, library = sys.argv[1], CsimLibrary(Path(sys.argv[2]))
rng = np.random.default_rng(0)
prompt = rng.integers(0, 90, 70)
rows = [np.concatenate([prompt, rng.integers(0, 90, n)]) for n in (1, 3, 60)]
rows += [rng.integers(0, 90, n) for n in (1, 2, 17, 64, 129)]
counts = [1, 3, 60, 0, 1, 5, 64, 100]
for n_cards in (1, 2):
    model = Int8Decoder(load_decoder(folder), library, n_cards=n_cards)
    gated = Int8Decoder(load_decoder(sys.argv[4]), library, n_cards=n_cards)
    for bits in (1, 128, 256, 512):  # 1: the kernels
        library.handle.rows_set_width(bits)
        values = [*model.logprobs(rows, counts, 1.0), gated.score(rows, counts)]
        np.concatenate(values).tofile(f"{sys.argv[3]}-{n_cards}-{bits}")
"""


def test_the_forward_is_clean_under_address_and_undefined_sanitizers(
    folder_of, tmp_path, sanitized_library
):
    folder = folder_of("lm_even")
    preload, path = sanitized_library
    environment = os.environ | {"ASAN_OPTIONS": "detect_leaks=0", "LD_PRELOAD": preload}
    gated, _ = saved_gated(tmp_path, "gated")
    out = str(tmp_path / "out")
    command = [sys.executable, "-c", SANITIZED, str(folder), str(path), out, str(gated)]
    finished = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr[-2000:]
    assert "runtime error" not in finished.stderr
    results = [p.read_bytes() for p in sorted(tmp_path.glob("out-*"))]
    assert len(results) == 8
    assert len(set(results)) == 1
