"""vector_ops: its bench, its declarations, and the whole forward through it."""

from __future__ import annotations

import ctypes
import functools
import re

import numpy as np
import pytest

from ecorl.engines.fpga.csim.decoder import Int8Decoder
from ecorl.engines.models.checkpoint import load_decoder
from ecorl.errors import EngineError
from tests.fakes.gemm_library import GemmLibrary
from tests.kernels.decoder_models import VOCAB, same, saved_decoder
from tests.kernels.kernel_benches import (
    check_resources,
    constants_of,
    kernels_chosen,
    qor_of,
    run_alone,
    run_bench,
    uram_of,
)

REWARDS = ("llama64", "llama96", "llama128", "qwen64", "llama_even", "outlier", "extreme")


@pytest.fixture(autouse=True)
def _needs_compiler(require_tool):
    require_tool("gxx")


@functools.cache
def library(build):
    return GemmLibrary.load(build)


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory):
    root = tmp_path_factory.mktemp("kernel-decoders")
    return lambda name: saved_decoder(root, name)


def decoder(folder, build="fast", n_cards=1, threads=1):
    return Int8Decoder(load_decoder(folder), library(build), threads, n_cards=n_cards)


def family(seed=1):
    """Completions of two prompts, and rows of their own; lengths around the blocks' borders."""
    rng = np.random.default_rng(seed)
    rows, counts = [], []
    for prompt in (rng.integers(0, VOCAB, 17), rng.integers(0, VOCAB, 70)):
        for n in (1, 5, 40):
            rows.append(np.concatenate([prompt, rng.integers(0, VOCAB, n)]))
            counts.append(n)
    rows += [rng.integers(0, VOCAB, n) for n in (1, 2, 16, 33)]
    return rows, [*counts, 0, 1, 10, 33]


# ---------------------------------------------------------------- the kernel's folder


@pytest.mark.deep  # test_decoder_bits runs all kernels under sanitisers, too
@pytest.mark.parametrize("build", ["strict", "fast"])
def test_bench_under_sanitisers(require_tool, tmp_path, build):
    require_tool("hls_headers")
    require_tool("make")
    printed = run_bench("vector_ops", build, tmp_path)
    assert re.search(r"PASS vector_ops: 18 .*\b0 wrong", printed)


def test_kernel_stands_alone_as_under_vitis(require_tool, tmp_path):
    require_tool("hls_headers")
    assert "PASS vector_ops" in run_alone("vector_ops", tmp_path)


def test_qor_declares_what_the_source_holds():
    check_resources("vector_ops")


def test_a_block_of_the_longest_rows_is_on_the_chip_once():
    """Sixteen rows of gate and up; their buffer is not doubled."""
    qor, known = qor_of("vector_ops"), constants_of("vector_ops")
    words = known["BLOCK_ROWS"] * 2 * known["MAX_INNER"] // known["LANES"]
    whole = uram_of([{"bits": 512, "depth": words, "banks": 1}], known)
    assert qor["whole_rows"]["uram"] == whole
    assert known["TILE_WORDS"] == words
    assert qor["uram"]["count"] < 2 * whole


# ---------------------------------------------------------------- the forward through the kernels


@pytest.mark.parametrize("name", REWARDS)
def test_rewards_through_the_kernels_have_the_same_bits(folder_of, name):
    """Marks as well: a row that does not fit is NaN either way."""
    model, (rows, counts) = decoder(folder_of(name)), family()
    if name == "outlier":
        rows[2][3] = 7
    positions = [np.arange(len(row)) for row in rows]
    wanted = model.score_at(rows, positions, counts)
    stream = model.hidden(rows)
    with kernels_chosen(library("fast")):
        got = model.score_at(rows, positions, counts)
        assert same(model.hidden(rows), stream)
    assert all(same(a, b) for a, b in zip(got, wanted, strict=True))
    assert np.isnan(np.concatenate(wanted)).any() == (name in ("outlier", "extreme"))


@pytest.mark.parametrize("name", ["llama_even", "llama96"])
def test_strict_kernels_have_the_bits_of_the_fast_schedule(folder_of, name, require_tool):
    require_tool("hls_headers")
    rows = family()[0][-3:]
    wanted = decoder(folder_of(name)).hidden(rows), decoder(folder_of(name)).score(rows)
    model = decoder(folder_of(name), "strict")
    with kernels_chosen(library("strict")):
        assert same(model.hidden(rows), wanted[0])
        assert same(model.score(rows), wanted[1])


def test_two_cards_that_exchange_maxima_have_the_bits_of_one(folder_of):
    folder, (rows, counts) = folder_of("llama_even"), family(2)
    wanted = decoder(folder).score(rows, counts)
    with kernels_chosen(library("fast")):
        assert same(decoder(folder, n_cards=2).score(rows, counts), wanted)


def test_the_kernels_run_in_every_thread(folder_of):
    folder, (rows, counts) = folder_of("qwen64"), family(3)
    wanted = decoder(folder).score(rows, counts)
    with kernels_chosen(library("fast")):
        assert same(decoder(folder, threads=2).score(rows, counts), wanted)


def test_the_products_and_vector_operations_of_a_forward_are_counted(folder_of):
    """One row of n tokens: calls of a layer are NORM twice, HEAD, CONTEXT, GATE, RESIDUAL twice."""
    model, handle = decoder(folder_of("llama64")), library("fast").handle
    n, layers = 50, 2
    with kernels_chosen(library("fast")):
        handle.vector_ops_counters_reset()
        library("fast").reset_counters()
        model.score([np.arange(n)])
        counts = np.zeros(15, np.int64)
        handle.vector_ops_counters(ctypes.c_void_p(counts.ctypes.data))
    calls, rows = counts[:2]
    assert calls == 1 + 7 * layers + 2  # embedding; layers; last norm and the head
    # in the last layer only the last token goes on after its keys and values
    assert rows == n + (layers - 1) * 7 * n + (2 * n + 5) + 2
    assert (counts[2:] > 0).all()
    assert library("fast").counters().calls >= 4 * layers + 1


def test_a_model_that_the_kernels_do_not_take_is_refused(folder_of):
    model = decoder(folder_of("llama64"), n_cards=2)  # 88 intermediate channels on each card
    with kernels_chosen(library("fast")), pytest.raises(EngineError, match="multiple of 16"):
        model.score([np.arange(3)])
