"""mha_int8: the bits of NUMERICS.md over pages, whoever wrote them, and what it counts."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_sources import badly_formatted
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

from tests.examples import examples
from tests.kernels.kernel_benches import check_resources, constants_of, qor_of, run_alone, run_bench

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


@pytest.mark.deep
@pytest.mark.parametrize("build", ["strict", "fast"])
def test_bench_under_sanitisers(require_tool, tmp_path, build):
    require_tool("hls_headers")
    require_tool("make")
    printed = run_bench("mha_int8", build, tmp_path)
    assert re.search(r"PASS mha_int8: 43 .*\b0 wrong", printed)


def test_kernel_stands_alone_as_under_vitis(require_tool, tmp_path):
    require_tool("hls_headers")
    assert run_alone("mha_int8", tmp_path).startswith("PASS")


def test_sources_are_formatted(require_tool):
    require_tool("clang_format")
    own = ("array", "finish", "load", "softmax", "turns", "types")
    more = (*(f"mha_int8/{name}.hpp" for name in own), "sim/card_pages.hpp", "sim/card_pages.cpp")
    assert badly_formatted("mha_int8", *more) == ""


def test_qor_declares_what_the_source_holds():
    check_resources("mha_int8")
    qor, known = qor_of("mha_int8"), constants_of("mha_int8")
    macs = known["QUERY_ROWS"] * known["ARRAY_LANES"] * known["MAC_STEP"]
    assert qor["dsp"]["macs_per_cycle"] == macs


# ---------------------------------------------------------------- bits


@pytest.mark.parametrize("build", ["fast", "strict"])
@settings(max_examples=examples(25), deadline=None)
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


def quads(rows):
    return -(-rows // 4)


def array_trips(d, scored, summed, entering):
    """Trips of the array in a turn with so many rows of each kind."""
    scores = 8 * max(d // 4, quads(scored)) if scored else 0
    sums = d // 8 * 32 if summed else 0
    leaving = quads(summed) if summed else quads(scored)
    return max(max(scores, 8 * quads(summed)) + sums + leaving, entering * d // 16)


def turns_of(d, pages):
    """Trips of array, arranging and the two looks in each turn.

    `pages` are those of all blocks, as (rows, number of the page, rows that come in beside it).
    """
    none = (0, -1, 0)
    listed = [none, none, (0, -1, pages[0][2]), *pages[1:], none, none]
    for (summed, *_), (soft, page, _), (scored, _, entering) in zip(
        listed, listed[1:], listed[2:], strict=False
    ):
        words = 16 * quads(soft)
        yield (
            array_trips(d, scored, summed, entering),
            max(8 * quads(scored), words),
            words + 16 * (soft > 0) + soft * (page == 0),
            words + 8 * (soft > 0),
        )


def expected_counts(d, asked):
    """Counts of a call for queries at ascending positions, in closed form."""
    parts, n = 1 if d <= 64 else 2, len(asked)
    blocks = [asked[first : first + 64] for first in range(0, n, 64)]
    rows = [len(block) for block in blocks]
    n_pages = [block[-1] // PAGE + 1 for block in blocks]
    pages = [(0, -1, rows[0])]
    for block, own in enumerate(n_pages):
        after = rows[block + 1] if block + 1 < len(rows) else 0
        pages += [(rows[block], p, after if p + 1 == own else 0) for p in range(own)]
    turns = list(turns_of(d, pages))
    array, arrange, softmax, weight = (sum(turn[i] for turn in turns) for i in range(4))
    total = sum(n_pages)
    each = list(zip(rows, n_pages, strict=True))
    return {
        "calls": 1,
        "blocks": len(blocks),
        "pages": total,
        "turns": total + 3,
        "array_cycles": array,
        "score_cycles": total * 2 * d,
        "context_cycles": total * 4 * d,
        "arrange_cycles": arrange,
        "softmax_cycles": softmax,
        "weight_cycles": weight,
        "turn_cycles": sum(map(max, turns)),
        "accumulate_cycles": sum(p * quads(m) * (1 + d // 8) for m, p in each),
        "emit_cycles": n * d // 16,
        "bytes_queries": 32 * len(blocks) + 4 * total + n * (16 + 64 * parts),
        "bytes_pages": total * (2 * d + 16) * 64,
        "bytes_written": n * (4 * d + 8),
        "macs": 3 * d * sum(position + 1 for position in asked),
    }


@pytest.mark.parametrize("d", [32, 64, 96, 128])
@pytest.mark.parametrize("n", [1, 64, 130])
def test_counters_in_closed_form(d, n):
    keys, values, queries = head(9, n, d)
    memory = in_pages(library(), keys, values)

    def call():
        return memory.attend(queries, range(n), score_scale(d))

    _, counts = counted(memory.lib, "mha_int8", MHA_COUNTS, call)
    assert counts == expected_counts(d, list(range(n)))


def test_the_array_is_busy_over_long_sequences():
    """A full block over 64 pages: the softmax hides behind the array."""
    keys, values, queries = head(10, 4096, 128)
    memory = in_pages(library(), keys, values)
    asked = range(4032, 4096)

    def call():
        return memory.attend(queries[list(asked)], asked, score_scale(128))

    _, counts = counted(memory.lib, "mha_int8", MHA_COUNTS, call)
    products = counts["score_cycles"] + counts["context_cycles"]
    assert products == 64 * 6 * 128
    # Beside them the last words of each turn leave, and the first queries come in; in the last but
    # one turn of scores and the one after it the array waits for the softmax or for weights.
    assert counts["turns"] == 67
    assert products < counts["array_cycles"] < 1.04 * products
    assert counts["turn_cycles"] < counts["array_cycles"] + 300


def test_blocks_follow_one_another_without_a_pause():
    """Three blocks of one page each take the array little longer than their products."""
    keys, values, queries = head(12, 64, 128)
    memory = in_pages(library(), keys, values)
    three = queries.then(queries).then(queries)

    def call():
        return memory.attend(three, [*range(64)] * 3, score_scale(128))

    got, counts = counted(memory.lib, "mha_int8", MHA_COUNTS, call)
    alone = memory.attend(queries, range(64), score_scale(128))
    assert same(got, [np.concatenate([part] * 3) for part in alone])
    products = counts["score_cycles"] + counts["context_cycles"]
    assert products == 3 * 6 * 128
    assert counts["turns"] == 3 + 3


def test_a_call_beyond_the_limits_does_nothing():
    memory = in_pages(library(), *head(11, 3, 32)[:2])
    queries = head(11, 3, 32)[2]
    for positions in ([0, 1, -1], [0, 1, 65536]):
        _, exponents, _ = memory.attend(queries, positions, score_scale(32))
        assert exponents.tolist() == [7, 7, 7]
