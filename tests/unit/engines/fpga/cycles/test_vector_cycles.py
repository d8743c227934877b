"""Cycles of vector_ops: a word a cycle, and what a call lasts beyond that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ecorl.devices import load_profile
from ecorl.engines.fpga.cycles.hbm import IDEAL, memory_of
from ecorl.engines.fpga.cycles.kernels import arranged_runs, arranged_steps, depth, product_runs
from ecorl.engines.fpga.cycles.vector import Chain, VectorCall

MEMORY = memory_of(load_profile("u55c"))
CALLS = [
    VectorCall("norm", 160, 576),
    VectorCall("residual", 160, 576),
    VectorCall("head", 160, 15 * 64, head=64),
    VectorCall("context", 160, 9 * 64, head=64),
    VectorCall("gate", 160, 1536),
    VectorCall("fixed", 160, 640),
]


def named(call):
    return call.op


def row_words(call):
    return call.n // 16 * (2 if call.op == "gate" else 1)


@pytest.fixture(autouse=True)
def _needs_compiler(require_tool):
    require_tool("gxx")


def test_a_chain_lasts_as_long_as_its_slowest_process_and_what_is_around_it():
    chain = Chain()
    chain.stage(busy=10, lead=2, tail=3)
    chain.stage(busy=40, lead=5, tail=6)
    chain.stage(busy=20, lead=1, tail=4)
    assert chain.cycles() == 2 + 40 + 4
    chain.feed(100)
    chain.stage(busy=7, lead=1, tail=8)
    assert chain.cycles() == 100 + 8
    chain.take(busy=95, tail=1)
    assert chain.cycles() == 109  # after the last word of the stage before
    chain.take(busy=200, tail=1)
    assert chain.cycles() == 2 + 5 + 1 + 1 + 200


def test_a_stage_waits_until_it_is_ready():
    chain = Chain()
    chain.stage(busy=10, lead=2, tail=0)
    chain.stage(busy=10, lead=1, tail=0, ready=50)
    assert chain.cycles() == 60


def test_some_rows_are_shorter_than_a_root():
    assert min(map(row_words, CALLS)) < depth("inverse_root")


def test_a_block_enters_where_the_one_before_leaves():
    assert arranged_steps(16, 5) == 2 * 16 * 5  # in, then out
    assert arranged_steps(64, 5) == 5 * 16 * 5
    assert arranged_steps(64, 1, panels=5) == (4 * 5 + 1) * 16
    assert arranged_steps(67, 5) == 5 * 16 * 5 + 2 * 3 * 5
    # A place is read 4 steps after it was written at the earliest.
    assert arranged_steps(65, 1) == 5 * 16 + 2 + 3
    assert arranged_steps(1, 2, panels=7) == 7 * (2 + 2 + 2)
    assert arranged_steps(2, 2) == 2 * 4 + 1
    assert arranged_steps(1, 6, unit=3) == 2 * 6
    assert arranged_steps(1, 3, unit=3) == 2 * 3 + 1
    assert (arranged_runs(67), arranged_runs(67, 5), arranged_runs(3), arranged_runs(64)) == (
        2, 6, 1, 1,
    )  # fmt: skip
    assert (product_runs(64, 40, 1), product_runs(64, 40, 3)) == (1, 3 * 10)


@pytest.mark.parametrize("call", CALLS, ids=named)
def test_more_rows_cost_a_cycle_a_word(call):
    """Divisions and roots are hidden, also where a row is shorter than they last."""
    more = replace(call, m=call.m + 1600)
    extra = more.cycles(IDEAL, 1) - call.cycles(IDEAL, 1)
    words = 1600 * row_words(call)
    # RoPE's angles are prepared between blocks, in 8 cycles a row.
    prepared = 8 * 1600 if call.op == "head" else 0
    assert words <= extra <= 1.03 * (words + prepared)


@pytest.mark.parametrize("call", CALLS[:-1], ids=named)
def test_a_single_row_shows_the_latencies(call):
    """With one row nothing hides what comes between its looks."""
    one = replace(call, m=1)
    shown = one.cycles(IDEAL, 1) - row_words(call)
    if call.op == "residual":
        assert depth("first_look") < shown
    else:
        assert depth("quantiser", "quantise") + 2 * one.counts().second_cycles / 16 < shown
    if call.op == "norm":
        assert shown > depth("inverse_root")


@pytest.mark.parametrize("call", CALLS, ids=named)
def test_long_calls_are_bound_by_their_port(call):
    """A port moves 0.85 words a cycle; CONTEXT also waits at each head of 16 rows."""
    long = replace(call, m=6400)
    words = 6400 * row_words(call)
    waits = 400 * 9 * MEMORY.latency_cycles if call.op == "context" else 0
    assert long.cycles(MEMORY, 1) == pytest.approx(
        words * MEMORY.word_cycles() + waits, rel=0.15 if call.op == "head" else 0.02
    )


def test_stages_read_the_products_again():
    gate = VectorCall("gate", 160, 1536)
    apart = [replace(gate, stages=(i, i)) for i in range(3)]
    assert sum(call.ports()["acc"] for call in apart) == 3 * gate.ports()["acc"]
    assert sum(call.cycles(MEMORY, 1) for call in apart) > 2.5 * gate.cycles(MEMORY, 1)
