"""The cycle model against the kernel's counters, against physics and by hand."""

from __future__ import annotations

import ctypes
import functools
from collections import Counter
from dataclasses import astuple, replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from int8_models import batch_of, card_file, decoder, library, rows_of

from ecorl.devices import check_throughput, load_profile
from ecorl.engines.fpga.card.image import CardModel, place_model
from ecorl.engines.fpga.card.plan import lay_out
from ecorl.engines.fpga.card.plan_builder import plan_rewards
from ecorl.engines.fpga.csim.library import gemm_counts
from ecorl.engines.fpga.cycles.attention import MhaCall, MhaCounts
from ecorl.engines.fpga.cycles.hbm import IDEAL, Memory, memory_of
from ecorl.engines.fpga.cycles.kernel_calls import (
    GROUP_TOKENS,
    BatchShape,
    RouterCall,
    RouterCounts,
    attention_calls,
    forward_calls,
    kernel_starts,
)
from ecorl.engines.fpga.cycles.kernels import GemmCall, ScoreCall, call_cost, depth
from ecorl.engines.fpga.cycles.model import KERNELS, CycleModel
from ecorl.engines.fpga.cycles.vector import VectorCall
from ecorl.engines.fpga.engine import FpgaEngine
from ecorl.engines.fpga.int8_decoder import segments_of
from ecorl.engines.fpga.kernels.sequence import LAYER_STARTS
from ecorl.engines.fpga.numerics.formats import integer_decoder
from ecorl.engines.models.checkpoint import load_decoder
from ecorl.errors import ConfigError
from ecorl.records import ModelShape, Provenance, Stage
from tests.examples import examples
from tests.fakes.card_calls import calls_s


@pytest.fixture(autouse=True)
def _needs_compiler(require_tool):
    require_tool("gxx")


U55C = load_profile("u55c")
SHAPE_7B = ModelShape(32, 4096, 11008, 32, 32, 128, 32000, 6_738_415_616, 6_607_343_616)


def small_shape(layers, hidden, heads, head_dim):
    per_layer = hidden * (4 * heads * head_dim + 6 * hidden)
    n = layers * per_layer
    return ModelShape(layers, hidden, 2 * hidden, heads, heads, head_dim, 500, n, n)


@settings(max_examples=examples(60), deadline=None)
@given(
    lengths=st.lists(st.integers(1, 700), min_size=1, max_size=20),
    layers=st.integers(1, 4),
    heads=st.integers(1, 8),
    head_dim=st.sampled_from([16, 64, 128]),
    head_rows=st.sampled_from([1, 500]),
    device=st.sampled_from(["u55c", "twice"]),
    data=st.data(),
)
def test_never_above_the_physical_bound(
    tmp_path_factory, lengths, layers, heads, head_dim, head_rows, device, data
):
    if device == "twice":
        device = card_file(tmp_path_factory.getbasetemp(), n_dsp_used=2 * 3136)
    profile = load_profile(device)
    model = small_shape(layers, heads * head_dim, heads, head_dim)
    limits = [1 if head_rows == 1 else n - 1 for n in lengths]
    wanted = tuple(data.draw(st.integers(min(1, n), n)) for n in limits)
    card = CycleModel(model, profile).batch(BatchShape(tuple(lengths), wanted, head_rows))
    peak = profile.value("n_dsp_used") * profile.value("macs_per_dsp") * profile.value("clock_hz")
    assert card.macs <= peak * card.array_s * (1 + 1e-9)
    assert card.kernel_s >= max(card.array_s, card.memory_s, card.vector_s) * (1 - 1e-9)
    assert card.time_s == pytest.approx(card.kernel_s + card.launch_s + card.link_s)
    assert card.energy_j == pytest.approx(profile.value("active_w") * card.time_s)
    if sum(wanted):
        check_throughput(profile, 2.0 * card.macs, card.memory_bytes, card.time_s,
                         Provenance.MODELLED)  # fmt: skip


def test_the_papers_rate_is_out_of_reach():
    """Table 2 claims 142 tokens/ms for 7 B; the array as written bounds it at about 157 per s.

    What is modelled lies between a half of that bound and the bound: vector_ops takes the rest.
    """
    batch = BatchShape((256,) * 32, (1,) * 32, 1)
    card = CycleModel(SHAPE_7B, load_profile("u55c")).batch(batch)
    tokens_per_s = 32 * 256 / card.time_s
    bound = 4096 * 245e6 / 6.4e9
    assert bound / 2 < tokens_per_s < bound


def trips(c):
    """Trips of the array's loop."""
    return c.mac_cycles + c.fill_cycles + c.drain_cycles


def test_products_are_those_that_the_kernel_counts(models):
    """One row of 64 tokens is one block everywhere: the model must equal the kernel's counters.

    The host's schedule brings attention to the same kernel, as products with one page: these come
    on top of what the card leaves to mha_int8.
    """
    folder, _ = models("llama_reward")
    engine, csim = FpgaEngine(folder, Stage.REWARD), library("fast")
    batch = batch_of(rows_of(64))
    csim.reset_counters()
    decoder(folder).score(batch.token_ids)
    counts, gemm = csim.counters(), engine.modelled(batch).of("gemm_int8")
    s = engine.model
    attention = [
        gemm_counts(*shape)
        for queries, layers in ((64, s.n_layers - 1), (1, 1))
        for shape in ((queries, 64, s.head_dim), (2 * queries, s.head_dim, 64))
        for _ in range(layers * s.n_heads)
    ]
    assert gemm.calls == counts.calls - len(attention)
    assert gemm.macs == counts.macs - sum(c.macs for c in attention)
    moved = counts.bytes_a + counts.bytes_w + counts.bytes_c
    assert gemm.moved_bytes == moved - sum(c.bytes_a + c.bytes_w + c.bytes_c for c in attention)
    assert gemm.array_cycles == trips(counts) - sum(trips(c) for c in attention)


@pytest.fixture
def kernel_path():
    """The library with the forward going through the kernels' own top functions."""
    csim = library("fast")
    # Not skipped: every library that a compiler makes of these sources has this path.
    assert csim.handle.rows_set_width(1) == 0
    yield csim
    assert csim.handle.rows_set_width(0) == 0


def counted(handle, kernel, kind):
    out = np.zeros(len(kind.__slots__), np.int64)
    getattr(handle, f"{kernel}_counters")(ctypes.c_void_p(out.ctypes.data))
    return kind(*out.tolist())


EXTRA_TURNS = 3
"""Turns of a call of mha_int8 beside one for each page."""

JOINED = ("array_cycles", "arrange_cycles", "turn_cycles")
"""Counts of mha_int8 that depend on what stands beside a page in a turn."""


def expected(calls, kind, kernel):
    """Counts of all calls of one kernel."""
    found = [(astuple(call.counts()), n) for call, n in calls if call.kernel == kernel]
    return kind(*(sum(n * own[i] for own, n in found) for i in range(len(kind.__slots__))))


@pytest.mark.parametrize("name", ["llama_reward", "qwen_reward"])
def test_a_whole_forwards_attention_is_what_the_kernels_count(kernel_path, models, name):
    """Rows behind a shared prompt and rows alone, longer than a block and shorter."""
    folder, _ = models(name)
    shape, handle = FpgaEngine(folder, Stage.REWARD).model, kernel_path.handle
    prompt, *ends, alone = rows_of(130, 3, 90, 70)
    rows, n_completion = [np.concatenate([prompt, end]) for end in ends] + [alone], (3, 90, 6)
    handle.mha_int8_counters_reset()
    handle.kv_cache_router_counters_reset()
    kernel_path.reset_counters()
    decoder(folder).score(rows, n_completion)
    batch = segments_of(rows, n_completion).shape((1,) * 3, 1)
    calls = forward_calls(shape, batch)
    # Two groups of rows: in every layer one start of attention each, and one of the router for
    # rows without a shared prompt, one for those behind it.
    starts = {"mha_int8": 2 * shape.n_layers, "kv_cache_router": 3 * shape.n_layers}
    routed = expected(calls, RouterCounts, "kv_cache_router")
    assert counted(handle, "kv_cache_router", RouterCounts) == replace(
        routed, calls=starts["kv_cache_router"]
    )
    attended = expected(calls, MhaCounts, "mha_int8")
    found = counted(handle, "mha_int8", MhaCounts)
    # The kernel has all runs of queries of a layer in one start, the model each by itself: what a
    # call begins and ends with comes less often.
    assert found.turns == attended.turns - EXTRA_TURNS * (attended.calls - starts["mha_int8"])
    joined = {name: getattr(found, name) for name in ("turns", *JOINED)}
    assert found == replace(attended, calls=starts["mha_int8"], **joined)
    for name in JOINED:
        assert getattr(found, name) <= getattr(attended, name) <= 1.25 * getattr(found, name)
    # Products are the same as well; the host only cuts them into blocks of rows.
    card = CycleModel(shape, U55C).batch(batch)
    assert kernel_path.counters().macs == card.of("gemm_int8").macs


@pytest.mark.parametrize("n_prompt", [0, 20])
def test_a_layer_has_thirteen_starts(kernel_path, models, n_prompt):
    """A forward through the top functions, which gathers wanted tokens on the host; few enough for
    one group and one block of rows; behind a shared prompt and alone."""
    folder, _ = models("llama_reward")
    shape, handle = FpgaEngine(folder, Stage.REWARD).model, kernel_path.handle
    prompt = rows_of(n_prompt, seed=3)[0] if n_prompt else np.array([], np.int32)
    rows, n_completion = [np.concatenate([prompt, end]) for end in rows_of(3, 9)], (3, 9)
    counters = {"vector_ops": 15, "mha_int8": len(MhaCounts.__slots__), "kv_cache_router": 10}
    for kernel in counters:
        getattr(handle, f"{kernel}_counters_reset")()
    kernel_path.reset_counters()
    decoder(folder).score(rows, n_completion)
    calls = kernel_path.counters().calls
    for kernel, n in counters.items():
        out = np.zeros(n, np.int64)
        getattr(handle, f"{kernel}_counters")(ctypes.c_void_p(out.ctypes.data))
        calls += int(out[0])
    assert calls == shape.n_layers * (LAYER_STARTS + bool(n_prompt)) + 4


@functools.cache
def card_model(folder):
    integers = integer_decoder(load_decoder(folder))
    return CardModel.of(integers, place_model(integers, 256))


# The ends of pages are frequent: how often the router starts rests on what begins there.
prompts = st.one_of(st.integers(1, 150), st.sampled_from([1, 2, 63, 64, 65, 66, 127, 128, 129]))
completions = st.one_of(st.integers(0, 90), st.sampled_from([0, 1, 2, 63, 64, 65, 66]))


@settings(deadline=None, max_examples=examples(100))
@given(st.lists(st.tuples(prompts, st.lists(completions, max_size=4)), min_size=1))
@example([(64, [1, 2])])  # wanted tokens inside a page, behind a prompt that ends with one
@example([(66, [0, 2])])  # the most: a prompt in two parts, and a row in two behind it
@example([(10, [0]), (65, [1, 2])])  # what a row alone waits for does not delay those behind others
@example([(65, [1, 2]), (10, [0])])
def test_the_starts_that_are_priced_are_those_of_the_host(models, families):
    """Rewards of rows with and without a shared prompt: as many as the card's plans have."""
    folder, _ = models("llama_reward")
    rng = np.random.default_rng(0)
    rows, counts = [], []
    for n_prompt, ends in families:
        prompt = rng.integers(0, 90, n_prompt)
        for n in ends or [0]:
            rows.append(np.concatenate([prompt, rng.integers(0, 90, n)]))
            counts.append(n)
    segments = segments_of(rows, counts)
    card = card_model(folder)
    shape = card.config.shape
    last = [segments.tokens(i, np.asarray([len(row) - 1])) for i, row in enumerate(rows)]
    wanted = np.sort(np.concatenate(last))
    plan = plan_rewards(card, lay_out(segments, 0, len(segments.parent), wanted))
    n_starts = len(plan.before) + len(plan.attend) + len(plan.after)
    priced = kernel_starts(shape, segments.shape_at(last, len(rows)))
    n_groups = -(-segments.n_tokens // GROUP_TOKENS)
    assert priced == n_groups * n_starts


def test_two_arrays_halve_the_array_time(tmp_path):
    one, two = (
        CycleModel(SHAPE_7B, load_profile(card_file(tmp_path, n_dsp_used=n))) for n in (2048, 4096)
    )
    batch = BatchShape((128,) * 8, (1,) * 8, 1)
    assert (one.card.n_arrays, two.card.n_arrays) == (1, 2)
    assert one.batch(batch).array_s / two.batch(batch).array_s == pytest.approx(2, rel=0.01)


def test_link_and_launch_terms():
    profile = load_profile("u55c")
    model = CycleModel(small_shape(3, 64, 4, 16), profile)
    score = model.batch(BatchShape((10, 20), (1, 1), 1))
    assert score.link_s == pytest.approx((128 * 30 + 128 * 2) / 1.2e10 + 7 * 3e-5)
    # 14 starts a layer, since wanted tokens begin inside a page; embedding and head on top.
    assert score.launch_s == pytest.approx((3 * 14 + 4) / 13 * profile.value("launch_s"))
    logprobs = model.batch(BatchShape((10, 20), (5, 7), 500))
    assert logprobs.link_s == pytest.approx((128 * 30 + 32 * 12) / 1.2e10 + 7 * 3e-5)
    assert logprobs.macs > score.macs
    # Embedding, last norm, product, logits and what ends them.
    assert logprobs.launch_s == pytest.approx((3 * 14 + 5) / 13 * profile.value("launch_s"))
    behind = model.batch(BatchShape((10, 20), (0, 1), 1, (0, 10)))
    # The router three times: the prompt, the rows behind it, and their wanted tokens.
    assert behind.launch_s == pytest.approx((3 * 15 + 4) / 13 * profile.value("launch_s"))
    nothing = model.batch(BatchShape((), (), 1))
    assert nothing.time_s == nothing.energy_j == 0.0


ARRAY, MOVE = depth("control", "array"), depth("move")


def test_one_product_by_hand():
    """[64, 128] x [32, 128]^T: 2 tiles of 32 steps, after 4 x 32 words of activations."""
    counts = gemm_counts(64, 32, 128)
    assert counts.mac_cycles == 2 * 32
    assert counts.fill_cycles == 4 * 32 + 8
    # Each tile waits until the 64 rows of the one before have left, and those of the last leave.
    assert counts.drain_cycles == 2 * 32 + 64
    # Of the last rows 48 of both tiles wait for the burst of the first 16, which are there at once.
    fill, array, last = 128 + 8 + MOVE, 3 * 64 + ARRAY, 16 + 2 * 48 + MOVE
    assert GemmCall(64, 32, 128).cycles(IDEAL, 1) == fill + array + last
    # At half the pace the activations, too, come every second cycle.
    depths = ARRAY + 2 * MOVE
    assert GemmCall(64, 32, 128).cycles(IDEAL, 2) == 2 * (136 + 192 + 112) + depths


@pytest.mark.parametrize("n_tiles", [2, 10])
def test_a_product_that_the_array_bounds_by_hand(n_tiles):
    """[64, 4096] x [n, 4096]^T: tiles of 1,024 steps, in a loop that is entered once."""
    fill, array = 4 * 1024 + 8 + MOVE, n_tiles * 1024 + 64 + ARRAY
    last = 16 + n_tiles * 48 + MOVE
    assert GemmCall(64, 16 * n_tiles, 4096).cycles(IDEAL, 1) == fill + array + last


def test_a_product_that_its_results_bound_by_hand():
    """[64, 16] x [512, 16]^T: 32 tiles of 4 steps, whose 2,048 words leave in 8 bursts of 256."""
    memory = Memory(0.5, 1.0, latency_cycles=64)  # a word every second cycle
    fill = 64 + 2 * 16 + 8 + MOVE
    results, last = 2 * 2048 + 8 * 64, 2 * (16 + 16 * 48) + 4 * 64 + MOVE
    assert GemmCall(64, 512, 16).cycles(memory, 1) == fill + results + last


def test_weights_wait_for_one_channel_and_not_for_two():
    """A word of 64 bytes a cycle at 245 MHz is 15.7 GB/s; a channel gives 13.3 of its 14.4."""
    call, (one, two) = GemmCall(512, 4096, 4096), (memory_of(U55C, n) for n in (1, 2))
    wait = 64 * 245e6 / (460e9 / 32 * 425 / 460)
    assert one.word_cycles() == two.word_cycles() == pytest.approx(wait)
    assert (one.word_cycles(channels=1), two.word_cycles(channels=2)) == (pytest.approx(wait), 1.0)
    costs = [call_cost(call, memory, 1, 1) for memory in (one, two)]
    words = 8 * 256 * 1024
    assert costs[0].cycles == pytest.approx(words * wait, rel=0.01)
    assert costs[0].stall_cycles == pytest.approx(words * (wait - 1), rel=0.02)
    assert costs[1].stall_cycles < 0.01 * costs[1].cycles
    # Twice the interval asks for half the rate.
    assert call_cost(call, one, 2, 1).stall_cycles < 0.01 * costs[0].cycles


def test_without_channels_only_their_sum_is_a_limit():
    figures = {k: v for k, v in U55C.figures.items() if k != "memory_channels"}
    memory = memory_of(replace(U55C, figures=figures))
    assert memory.word_cycles() == 1.0
    assert memory.all_words == pytest.approx(32 * memory_of(U55C).channel_words)


@settings(max_examples=examples(60), deadline=None)
@given(
    call=st.one_of(
        st.builds(GemmCall, st.integers(1, 300), st.integers(1, 300), st.integers(1, 600)),
        st.builds(VectorCall, st.sampled_from(["embed", "norm", "residual", "gate", "fixed"]),
                  st.integers(1, 80), st.integers(1, 9000)),
        st.builds(lambda op, m, heads, d: VectorCall(op, m, heads * d, head=d),
                  st.sampled_from(["head", "context"]), st.integers(1, 80), st.integers(1, 130),
                  st.sampled_from([16, 64, 128])),
        st.builds(MhaCall, st.sampled_from([16, 64, 128]), st.integers(0, 300),
                  st.integers(1, 300)),
        st.builds(RouterCall, st.sampled_from([16, 64, 128]), st.integers(0, 300),
                  st.integers(1, 300), st.integers(1, 3)),
        st.builds(ScoreCall, st.sampled_from(["logits", "finish"]), st.integers(1, 80),
                  st.integers(1, 128), st.integers(1, 200)),
    )
)  # fmt: skip
def test_no_call_is_faster_than_its_memory_its_array_or_a_smaller_interval(call):
    memory = memory_of(U55C)
    one, two, four = (call_cost(call, memory, ii, 1) for ii in (1, 2, 4))
    assert 0 < one.cycles <= two.cycles <= four.cycles <= 4 * one.cycles
    assert 0 <= one.stall_cycles < one.cycles
    assert one.cycles >= max(one.array_cycles, one.macs / (2 * 2048))
    assert one.cycles >= one.moved_bytes / (460e9 * 425 / 460 / 245e6) * (1 - 1e-9)
    assert two.array_cycles == 2 * one.array_cycles
    assert sum(call.ports().values()) == four.moved_bytes == one.moved_bytes
    halves = call_cost(call, memory, 1, 2)
    assert halves.cycles <= one.cycles
    assert halves.moved_bytes == one.moved_bytes


def test_a_batch_is_the_sum_of_its_kernels_and_their_stalls():
    batch = BatchShape((70, 130), (20, 64), 32000)
    card = CycleModel(SHAPE_7B, U55C).batch(batch)
    assert [k.kernel for k in card.kernels] == list(KERNELS)
    assert card.kernel_s == pytest.approx(sum(k.time_s for k in card.kernels))
    assert card.stall_s == pytest.approx(sum(k.stall_cycles for k in card.kernels) / 245e6)
    assert card.macs == sum(k.macs for k in card.kernels)
    assert card.link_bytes == 128 * 200 + 32 * 84
    reward = CycleModel(SHAPE_7B, U55C).batch(BatchShape((70,), (1,), 1))
    assert reward.of("score_aggregator") is None
    assert CycleModel(SHAPE_7B, U55C, ii=4).batch(batch).time_s < 4 * card.time_s


@pytest.mark.parametrize("key", ["ii", "weight_channels"])
def test_what_is_no_interval_or_no_stripe_is_refused(key):
    with pytest.raises(ConfigError, match=rf"{key} = 0: "):
        CycleModel(SHAPE_7B, U55C, **{key: 0})


def test_a_long_product_comes_in_slices_and_its_parts_are_added():
    shape = replace(SHAPE_7B, intermediate_size=20_000)
    calls = Counter()
    for call, times in forward_calls(shape, BatchShape((64,), (64,), 1)):
        calls[call] += times
    assert calls[GemmCall(64, 4096, 16_384)] == calls[GemmCall(64, 4096, 20_000 - 16_384)] == 32
    assert calls[VectorCall("residual", 64, 4096, parts=2)] == 32
    assert calls[VectorCall("residual", 64, 4096)] == 32


def test_a_shared_prompt_is_routed_and_multiplied_once():
    """Two rows of 100 + 30 tokens, alone and behind one prompt."""
    model = CycleModel(SHAPE_7B, U55C)
    alone = model.batch(BatchShape((130, 130), (1, 1), 1))
    shared = model.batch(BatchShape((100, 30, 30), (0, 1, 1), 1, (0, 100, 100), 2))
    assert shared.time_s < 0.7 * alone.time_s
    assert shared.link_bytes == 128 * (160 + 2)
    routed = [call for call, _ in attention_calls(
        SHAPE_7B, BatchShape((100, 30, 30), (0, 1, 1), 1, (0, 100, 100))
    ) if isinstance(call, RouterCall)]  # fmt: skip
    assert {(r.first, r.n) for r in routed} == {(0, 100), (100, 30)}


@pytest.mark.parametrize("layers", [1, 3])
def test_equal_rows_are_counted_as_often_as_they_come(layers):
    """Rows longer than a block are never joined: a batch's attention is the sum of its rows'."""
    shape = small_shape(layers, 64, 4, 16)
    model = CycleModel(shape, load_profile("u55c"))
    rows = [(65, 1), (200, 30), (65, 1), (200, 31), (65, 1)]

    def batch(rows):
        return BatchShape(tuple(n for n, _ in rows), tuple(w for _, w in rows), 500)

    together = calls_s(model, attention_calls(shape, batch(rows)))
    apart = sum(calls_s(model, attention_calls(shape, batch([row]))) for row in rows)
    assert together == pytest.approx(apart)
    assert model.batch(batch(rows)).macs == model.batch(batch(rows[::-1])).macs
