"""kv_cache_router: pages as documented, prefixes written once, and what it counts."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_benches import ports_of
from kernel_sources import badly_formatted, bench_output, output_alone, qor, worth
from kv_attention import (
    PAGE,
    ROUTER_COUNTS,
    Memory,
    Rows,
    counted,
    jobs_of,
    library,
    random_rows,
    wanted_page,
)

from ecorl.engines.fpga.csim.build import kernel_root
from tests.examples import examples

N_COMPLETIONS = 8
MAX_HEAD, BEAT = 128, 64


@pytest.fixture(autouse=True)
def _needs_compiler(require_tool):
    require_tool("gxx")


def page_of(memory, entry):
    return memory.pages[memory.table[entry]]


def has_pages(memory, keys, values, entry=0):
    return all(
        np.array_equal(page_of(memory, entry + page), wanted_page(keys, values, page))
        for page in range(-(-len(keys) // PAGE))
    )


@pytest.mark.deep  # test_decoder_bits runs all kernels under sanitisers, too
@pytest.mark.parametrize("build", ["strict", "fast"])
def test_bench_under_sanitisers(require_tool, tmp_path, build):
    require_tool("hls_headers")
    require_tool("make")
    output = bench_output("kv_cache_router", build, tmp_path)
    assert re.search(r"PASS kv_cache_router: 31 .*\b0 wrong", output)


def test_kernel_stands_alone_as_under_vitis(require_tool, tmp_path):
    require_tool("hls_headers")
    assert output_alone("kv_cache_router", tmp_path).startswith("PASS")


def test_sources_are_formatted(require_tool):
    require_tool("clang_format")
    more = (
        "include/kv_pages.hpp",
        "sim/counters.hpp",
        *(f"kv_cache_router/{name}.hpp" for name in ("arrange", "memory")),
    )
    assert badly_formatted("kv_cache_router", *more) == ""


def test_qor_declares_what_the_source_holds():
    declared = qor("kv_cache_router")
    header = (kernel_root() / "include" / "kv_pages.hpp").read_text()
    source = (kernel_root() / "kv_cache_router" / "kv_cache_router.cpp").read_text()
    for name, value in (("HEAD_UNIT", "head_unit"), ("MAX_HEAD", "max_head")):
        assert f"constexpr int {name} = {declared['page'][value]};" in header
    assert declared["page"]["positions"] == PAGE
    for kind in ("dsp", "uram"):
        assert worth(declared[kind]) == declared[kind]["count"] == 0
    assert f"void {declared['top']}(" in source


def test_qor_declares_the_block_ram_of_the_source():
    bram = qor("kv_cache_router")["bram_18k"]
    source = (kernel_root() / "kv_cache_router" / "kv_cache_router.cpp").read_text()
    bound = re.findall(r"BIND_STORAGE variable = (\w+) type = fifo impl = bram", source)
    assert bound == [fifo["name"] for fifo in bram["fifos"]]
    assert re.search(r"constexpr int CODE_BEATS = PAGE \* MAX_HEAD / BEAT;", source)
    for fifo in bram["fifos"]:
        assert f"hls::stream<beat_t, CODE_BEATS> {fifo['name']}(" in source
        assert fifo["words"] == PAGE * MAX_HEAD // BEAT
    ports = [{k: v for k, v in port.items() if k != "bits"} for port in bram["ports"]]
    assert ports == [
        {"name": port["port"], "burst": port["burst"], "outstanding": port["outstanding"]}
        for port in ports_of("kv_cache_router")
    ]
    words = [(f["bits"], f["words"]) for f in bram["fifos"]]
    words += [(p["bits"], p["burst"] * p["outstanding"]) for p in bram["ports"]]
    assert bram["count"] == sum(-(-bits // 36) * -(-n // 512) for bits, n in words)


@pytest.mark.parametrize(
    ("head_dim", "n_bytes"),
    [(1, 3072), (16, 3072), (32, 5120), (64, 9216), (96, 13312), (128, 17408), (129, 0), (0, 0)],
)
def test_bytes_of_a_page(head_dim, n_bytes):
    assert library().kv_cache_router_page_bytes(head_dim) == n_bytes


@pytest.mark.parametrize("build", ["fast", "strict"])
@settings(max_examples=examples(25), deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.sampled_from([1, 2, 63, 64, 65, 127, 128, 130, 200]),
    d=st.sampled_from([16, 32, 64, 96, 128]),
    zeros=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_pages_are_as_documented(build, seed, n, d, zeros):
    if build == "strict":
        n = min(n, 65)
    rng = np.random.default_rng(seed)
    keys, values = (random_rows(rng, n, d, spread=9, zeros=zeros) for _ in range(2))
    memory = Memory(library(build), d, 5)
    memory.route(keys, values, jobs_of(n, 0))
    assert has_pages(memory, keys, values)


@pytest.mark.parametrize("d", [20, 2, 100])
def test_other_head_sizes_are_filled_up_with_zeros(d):
    rng = np.random.default_rng(d)
    keys, values = (random_rows(rng, 70, d) for _ in range(2))
    memory = Memory(library(), d, 2)
    memory.route(keys, values, jobs_of(70, 0))
    wide = -(-d // 16) * 16
    filled = [Rows(np.pad(r.codes, ((0, 0), (0, wide - d))), r.scales) for r in (keys, values)]
    assert has_pages(memory, *filled)


def test_the_whole_range_of_codes_passes():
    full = np.full((65, 32), -128, np.int8)
    scales = np.tile(np.array([[2**31 - 1, -128]], np.int32), (65, 1))
    memory = Memory(library(), 32, 2)
    memory.route(Rows(full, scales), Rows(full, scales), jobs_of(65, 0))
    assert has_pages(memory, Rows(full, scales), Rows(full, scales))


@pytest.mark.parametrize("n_prompt", [1, 63, 64, 65, 130])
@pytest.mark.parametrize("n_more", [5, 70])
def test_a_shared_prefix_is_written_once(n_prompt, n_more):
    d, rng = 64, np.random.default_rng(n_prompt)
    prompt = [random_rows(rng, n_prompt, d, spread=9, zeros=0.3) for _ in range(2)]
    rest = [
        [random_rows(rng, n_more, d, spread=9, zeros=0.3) for _ in range(2)]
        for _ in range(N_COMPLETIONS)
    ]
    n = n_prompt + n_more
    whole, parted, each = n_prompt // PAGE, n_prompt % PAGE, -(-n // PAGE)
    memory = Memory(library(), d, 64)

    def write():
        memory.route(*prompt, jobs_of(n_prompt, 0))
        table, first = memory.table.copy(), -(-n_prompt // PAGE)
        for i, (keys, values) in enumerate(rest):
            jobs = jobs_of(n, first, entry=16 * (i + 1), source=table, kept=n_prompt)
            memory.route(keys, values, jobs)
            first += each - whole

    _, counts = counted(memory.lib, "kv_cache_router", ROUTER_COUNTS, write)
    own = -(-n_prompt // PAGE) + N_COMPLETIONS * (each - whole)
    entries = -(-n_prompt // PAGE) + N_COMPLETIONS * each
    copied = N_COMPLETIONS if parted else 0
    assert counts["calls"] == 1 + N_COMPLETIONS
    assert counts["pages_written"] == own
    assert counts["pages_shared"] == N_COMPLETIONS * whole
    assert counts["pages_copied"] == copied
    assert counts["bytes_written"] == own * memory.page_bytes + 4 * entries
    assert counts["bytes_read"] == copied * memory.page_bytes
    n_tokens = n_prompt + N_COMPLETIONS * n_more
    assert counts["bytes_tokens"] == n_tokens * 2 * (64 + 16) + 32 * entries
    assert counts["emit_cycles"] == own * memory.page_bytes // 64
    assert counts["copy_cycles"] == copied * memory.page_bytes // 64
    kept = N_COMPLETIONS * parted
    assert counts["row_cycles"] == own * PAGE - kept

    assert has_pages(memory, *prompt)
    for i, (keys, values) in enumerate(rest):
        entry = 16 * (i + 1)
        assert has_pages(memory, prompt[0].then(keys), prompt[1].then(values), entry)
        assert np.array_equal(memory.table[entry : entry + whole], memory.table[:whole])
        if parted:
            assert memory.table[entry + whole] != memory.table[whole]


def test_a_sequence_goes_on_in_its_own_page():
    """Token by token, as in generation: the last page is its own source."""
    d, rng = 32, np.random.default_rng(3)
    keys, values = (random_rows(rng, 68, d, spread=9) for _ in range(2))
    memory = Memory(library(), d, 2)
    memory.route(keys[:62], values[:62], jobs_of(62, 0))
    for t in range(62, 68):
        jobs = jobs_of(t + 1, t // PAGE, source=memory.table, kept=t)
        for job in jobs:
            if 0 < job["kept"] < PAGE:
                job["destination"] = job["source"]
        memory.route(keys[t : t + 1], values[t : t + 1], jobs)
        assert has_pages(memory, keys[: t + 1], values[: t + 1])


def test_a_call_with_nothing_to_do_does_nothing():
    memory = Memory(library(), 32, 1)
    before = memory.pages.copy()
    none = random_rows(np.random.default_rng(0), 1, 32)
    memory.lib.kv_cache_router(None, None, None, None, 0, 32, None, 0, None, None)
    memory.d = 129
    memory.route(none, none, jobs_of(1, 0))
    assert np.array_equal(memory.pages, before)
    assert memory.table[0] == -1
