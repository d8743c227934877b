"""mha_int8: the bits of NUMERICS.md over pages, whoever wrote them, and what it counts."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_sources import badly_formatted, bench_output, output_alone, qor, worth
from kv_attention import (
    MHA_COUNTS,
    NO_EXPONENT,
    PAGE,
    Memory,
    Rows,
    counted,
    jobs_of,
    library,
    random_rows,
    same,
    score_scale,
    wanted_contexts,
)

from ecorl.engines.fpga.csim.build import kernel_root

N_COMPLETIONS = 8


@pytest.fixture(autouse=True)
def _needs_compiler(require_tool):
    require_tool("gxx")


def head(seed, n, d, zeros=0.0, spread=2):
    """Keys, values and queries of n tokens."""
    rng = np.random.default_rng(seed)
    keys, queries = (random_rows(rng, n, d, zeros=zeros) for _ in range(2))
    return keys, random_rows(rng, n, d, exponent=-36, spread=spread, zeros=zeros), queries


def in_pages(lib, keys, values):
    n, d = keys.codes.shape
    memory = Memory(lib, d, -(-n // PAGE))
    memory.route(keys, values, jobs_of(n, 0))
    return memory


# ---------------------------------------------------------------- sources


@pytest.mark.parametrize("build", ["strict", "fast"])
def test_bench_under_sanitisers(require_tool, tmp_path, build):
    require_tool("hls_headers")
    require_tool("make")
    assert "PASS mha_int8: 31 problems, 0 wrong rows" in bench_output("mha_int8", build, tmp_path)


def test_kernel_stands_alone_as_under_vitis(require_tool, tmp_path):
    require_tool("hls_headers")
    assert output_alone("mha_int8", tmp_path).startswith("PASS")


def test_sources_are_formatted(require_tool):
    require_tool("clang_format")
    more = ("mha_int8/turn.hpp", "sim/card_pages.hpp", "sim/card_pages.cpp")
    assert badly_formatted("mha_int8", *more) == ""


def test_qor_declares_what_the_source_holds():
    declared = qor("mha_int8")
    root = kernel_root()
    headers = (root / "include" / "kv_pages.hpp").read_text()
    headers += (root / "mha_int8" / "mha_int8.hpp").read_text()
    source = (root / "mha_int8" / "mha_int8.cpp").read_text()
    tile = declared["tile"]
    names = {"BLOCK_ROWS": "rows", "ARRAY_LANES": "lanes", "MAC_STEP": "step"}
    names |= {"MAX_HEAD": "max_head", "MAX_PAGES": "max_pages"}
    for name, key in names.items():
        assert f"constexpr int {name} = {tile[key]};" in headers
    assert tile["page"] == PAGE
    for kind in ("dsp", "bram_18k", "uram"):
        assert worth(declared[kind], **tile) == declared[kind]["count"]
    dsp = declared["dsp"]
    assert dsp["macs_per_cycle"] == tile["rows"] * tile["lanes"] * tile["step"]
    interval = {loop["label"]: loop["ii"] for loop in declared["loops"]}
    assert dsp["softmax_lanes"] == PAGE // interval["SOFTMAX"]
    assert dsp["finish_lanes"] == tile["max_head"] // interval["FINISH_ROWS"]
    bound = re.findall(r"BIND_STORAGE variable = (\w+) type = fifo impl = bram", source)
    assert len(bound) == declared["bram_18k"]["fifos"]
    rows, columns = re.findall(r"state.context cyclic factor = (\d+)", source)
    assert int(rows) * int(columns) == declared["bram_18k"]["context_banks"]
    assert f"void {declared['top']}(" in source


# ---------------------------------------------------------------- bits


@pytest.mark.parametrize("build", ["fast", "strict"])
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.sampled_from([1, 2, 31, 63, 64, 65, 128, 130, 200]),
    d=st.sampled_from([2, 16, 20, 32, 64, 96, 128]),
    zeros=st.sampled_from([0.0, 0.4, 1.0]),
    spread=st.sampled_from([2, 20]),
)
def test_against_numpy(build, seed, n, d, zeros, spread):
    if build == "strict":
        n, d = min(n, 65), min(d, 32)
    keys, values, queries = head(seed, n, d, zeros, spread)
    score = score_scale(d)
    asked = np.unique(np.random.default_rng(seed).integers(0, n, 12)).tolist()
    got = in_pages(library(build), keys, values).attend(queries[asked], asked, score)
    assert same(got, wanted_contexts(queries[asked], asked, keys, values, score))


def test_one_token_is_its_value():
    keys, values, queries = head(5, 1, 64)
    context, exponents, marks = in_pages(library(), keys, values).attend(
        queries, [0], score_scale(64)
    )
    value = values.codes[0] * np.ldexp(float(values.scales[0, 0]), int(values.scales[0, 1]))
    got = np.ldexp(context[0].astype(np.float64), int(exponents[0]))
    assert np.abs(got - value).max() <= 2e-3 * np.abs(value).max()
    assert marks[0] == 0


def test_4096_tokens():
    keys, values, queries = head(6, 4096, 64)
    asked = [0, 1, 63, 64, 2047, 2048, 4032, *range(4080, 4096)]
    score = score_scale(64)
    memory = in_pages(library(), keys, values)
    got = memory.attend(queries[asked], asked, score)
    assert same(got, wanted_contexts(queries[asked], asked, keys, values, score))


def test_extremes():
    """All codes at their ends, and scores that do not fit: the same bits, and marked."""
    n, d = 70, 128
    for codes in (-128, 127):
        full = np.full((n, d), codes, np.int8)
        keys = Rows(full, np.tile(np.array([[2**31 - 1, -38]], np.int32), (n, 1)))
        for exponent, marked in ((-38, False), (10, True)):
            queries = Rows(full, np.tile(np.array([[2**31 - 1, exponent]], np.int32), (n, 1)))
            got = in_pages(library(), keys, keys).attend(queries, range(n), score_scale(d))
            assert same(got, wanted_contexts(queries, range(n), keys, keys, score_scale(d)))
            assert got[2].tolist() == [int(marked)] * n


def test_zero_heads():
    keys, values, queries = head(7, 66, 32, zeros=1.0)
    context, exponents, marks = in_pages(library(), keys, values).attend(
        queries, range(66), score_scale(32)
    )
    assert not context.any()
    assert (exponents == NO_EXPONENT).all()
    assert not marks.any()


@pytest.mark.parametrize("n_prompt", [1, 63, 64, 65, 130])
def test_shared_pages_give_the_bits_of_pages_of_ones_own(n_prompt):
    d, n_more, score = 64, 9, score_scale(64)
    prompt = head(n_prompt, n_prompt, d)
    rest = [head(100 + i, n_more, d) for i in range(N_COMPLETIONS)]
    n = n_prompt + n_more
    memory = Memory(library(), d, 64)
    memory.route(*prompt[:2], jobs_of(n_prompt, 0))
    table, first = memory.table.copy(), -(-n_prompt // PAGE)
    for i, (keys, values, queries) in enumerate(rest):
        entry = 16 * (i + 1)
        jobs = jobs_of(n, first, entry=entry, source=table, kept=n_prompt)
        memory.route(keys, values, jobs)
        first += sum(job["kept"] < PAGE for job in jobs)
        shared = memory.attend(queries, range(n_prompt, n), score, entry)
        whole = [a.then(b) for a, b in zip(prompt, (keys, values, queries), strict=True)]
        own = in_pages(library(), *whole[:2]).attend(whole[2], range(n), score)
        assert same(shared, [part[n_prompt:] for part in own])


def test_query_heads_may_share_a_block():
    """Grouped queries: rows of three heads, in any order, are what they are alone."""
    d, n, score = 32, 70, score_scale(32)
    keys, values, _ = head(8, n, d)
    heads = [head(20 + h, n, d)[2] for h in range(3)]
    memory = in_pages(library(), keys, values)
    alone = [memory.attend(queries, range(n), score) for queries in heads]
    order = np.random.default_rng(0).permutation(3 * n)
    joined = heads[0].then(heads[1]).then(heads[2])
    got = memory.attend(joined[order], order % n, score)
    want = [np.concatenate(parts)[order] for parts in zip(*alone, strict=True)]
    assert same(got, want)


# ---------------------------------------------------------------- counters


def expected_counts(n_tokens, d, asked):
    """Counts for queries at ascending positions, in closed form."""
    counts = dict.fromkeys(MHA_COUNTS, 0)
    parts = 1 if d <= 64 else 2
    for first in range(0, len(asked), 64):
        block = asked[first : first + 64]
        m, pages = len(block), block[-1] // PAGE + 1
        score, context = 2 * d, 4 * d
        softmax, drains = 16 + 4 * m, (-(-m // 8) * 8, -(-m // 2) * d // 8)
        turns = []
        for t in range(pages + 2):
            keys, rows, sums = t < pages, 0 < t <= pages, t > 1
            array = keys * score + sums * context
            turns.append(max(array, rows * softmax, keys * drains[0] + sums * drains[1]))
        for name, count in (
            ("calls", 1),
            ("blocks", 1),
            ("pages", pages),
            ("turns", pages + 2),
            ("fill_cycles", m + m * parts + -(-m // 8) * d // 8),
            ("score_cycles", pages * score),
            ("context_cycles", pages * context),
            ("softmax_cycles", pages * softmax),
            ("drain_cycles", pages * sum(drains)),
            ("turn_cycles", sum(turns)),
            ("finish_cycles", 8 * m),
            ("bytes_queries", 16 + 4 * pages + m * (16 + 64 * parts)),
            ("bytes_pages", pages * (2 * d + 16) * 64),
            ("bytes_written", m * (4 * d + 8)),
            ("macs", 3 * d * sum(position + 1 for position in block)),
        ):
            counts[name] += count
    return counts


@pytest.mark.parametrize("d", [32, 64, 96, 128])
@pytest.mark.parametrize("n", [1, 64, 130])
def test_counters_in_closed_form(d, n):
    keys, values, queries = head(9, n, d)
    memory = in_pages(library(), keys, values)

    def call():
        return memory.attend(queries, range(n), score_scale(d))

    _, counts = counted(memory.lib, "mha_int8", MHA_COUNTS, call)
    assert counts == expected_counts(n, d, list(range(n)))


def test_the_array_is_busy_over_long_sequences():
    """A full block over 64 pages: softmax and drain hide behind the array."""
    keys, values, queries = head(10, 4096, 128)
    memory = in_pages(library(), keys, values)
    asked = range(4032, 4096)

    def call():
        return memory.attend(queries[list(asked)], asked, score_scale(128))

    _, counts = counted(memory.lib, "mha_int8", MHA_COUNTS, call)
    array = counts["score_cycles"] + counts["context_cycles"]
    assert array == 64 * 6 * 128
    # but for the second turn, in which the array has no values yet
    assert counts["turn_cycles"] == array + (16 + 4 * 64) - 2 * 128
    assert counts["turns"] == 66


def test_a_call_beyond_the_limits_does_nothing():
    memory = in_pages(library(), *head(11, 3, 32)[:2])
    queries = head(11, 3, 32)[2]
    for positions in ([0, 1, -1], [0, 1, 65536]):
        _, exponents, _ = memory.attend(queries, positions, score_scale(32))
        assert exponents.tolist() == [7, 7, 7]
