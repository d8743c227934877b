"""The cycle model's closed forms against the counters of the kernels' own loops."""

from __future__ import annotations

import ctypes
from dataclasses import astuple

import numpy as np
import pytest

from ecorl.engines.fpga.csim.library import CsimLibrary, gemm_counts
from ecorl.engines.fpga.cycles.attention import MhaCall, MhaCounts, page_beats
from ecorl.engines.fpga.cycles.kernel_calls import RouterCall
from ecorl.engines.fpga.cycles.kernels import ScoreCall
from ecorl.engines.fpga.cycles.vector import VectorCall
from ecorl.engines.fpga.kernels.sequence import card_head

WORD, PAGE = 64, 64
OPERATIONS = ("embed", "norm", "residual", "head", "gate", "context", "fixed")
SCALE = 1 << 30
N_MHA_COUNTS = len(MhaCounts.__slots__)


@pytest.fixture(scope="module")
def handle():
    return CsimLibrary.load("fast").handle


@pytest.fixture(autouse=True)
def _needs_compiler(require_tool):
    require_tool("gxx")


def counted(handle, kernel, n_counters, call):
    """Counters of one call."""
    out = np.zeros(n_counters, np.int64)
    getattr(handle, f"{kernel}_counters_reset")()
    call()
    getattr(handle, f"{kernel}_counters")(ctypes.c_void_p(out.ctypes.data))
    return tuple(out.tolist())


def pointers(*arrays):
    return [ctypes.c_void_p(array.ctypes.data) for array in arrays]


def words(n):
    return np.zeros((max(n, 1), WORD // 4), np.int32)


def records(m, n_outputs=0):
    """Records of token rows: scale, mark, token, position, results."""
    rows = words(m)
    rows[:, 0], rows[:, 1], rows[:, 5] = SCALE, -30, n_outputs
    return rows


def run_vector(handle, call: VectorCall, rotated=0, has_bias=False):
    rng = np.random.default_rng(call.m)
    width = 2 * call.n if call.op == "gate" else call.n
    stride = -(-call.m // 16) * 16
    acc = rng.integers(1, 1 << 12, (call.parts * -(-width // 16) * stride, 16)).astype(np.int32)
    x = rng.integers(1, 1 << 12, (call.m * -(-call.n // 16), 16)).astype(np.int32)
    side = words(16 * width + 64 * call.m)
    # Mantissas of channels; exponents of heads, where these stand here.
    side[:] = 3 if call.op == "context" else SCALE
    table = words(64 + call.n)
    task = np.array([
        OPERATIONS.index(call.op), *call.stages, call.m, call.n, call.parts, call.head,
        rotated, has_bias, 4, 12, -30, -30, SCALE, -50, stride,
    ], np.int32)  # fmt: skip
    out = [words(16 * width * (call.m + 16)) for _ in range(2)]
    scales = words(4 * width * (call.m + 16))
    arrays = (task, acc, x, side, table, records(call.m), out[0], out[1], words(call.m), scales)
    handle.vector_ops_krnl(*pointers(*arrays))


@pytest.mark.parametrize("m", [1, 2, 16, 21, 70])
@pytest.mark.parametrize(
    ("op", "n", "more"),
    [
        ("embed", 96, {}),
        ("embed", 50, {}),
        ("norm", 96, {}),
        ("norm", 70, {}),
        ("residual", 96, {}),
        ("residual", 100, {"parts": 3}),
        ("head", 8 * 32, {"head": 32, "rotated": 6}),
        ("head", 4 * 48, {"head": 48, "rotated": 3, "has_bias": True}),
        ("head", 70 * 16, {"head": 16, "rotated": 66}),  # two headers
        ("gate", 112, {}),
        ("gate", 112, {"stages": (0, 0)}),
        ("gate", 112, {"stages": (1, 1)}),
        ("gate", 112, {"stages": (2, 2)}),
        ("gate", 16384 + 48, {}),  # two slices
        ("context", 4 * 64, {"head": 64}),
        ("context", 66 * 16, {"head": 16}),
        ("context", 32, {"head": 32}),
        ("context", 4 * 64, {"head": 64, "stages": (0, 0)}),
        ("context", 4 * 64, {"head": 64, "stages": (1, 1)}),
        ("context", 4 * 64, {"head": 64, "stages": (2, 2)}),
        ("fixed", 1, {}),
        ("fixed", 5, {}),
    ],
)
def test_vector_ops(handle, m, op, n, more):
    # What rotates and whether there is a bias change no cycle.
    free = {key: more[key] for key in ("rotated", "has_bias") if key in more}
    call = VectorCall(op, m, n, **{key: more[key] for key in more if key not in free})
    found = counted(handle, "vector_ops", 15, lambda: run_vector(handle, call, **free))
    assert found == astuple(call.counts())


def run_score(handle, call: ScoreCall):
    is_logits = call.op == "logits"
    acc, side = words(-(-call.n // 16) * call.m), words(3 * call.n)
    per_row = call.n_outputs // call.m
    n_blocks = 0 if is_logits else call.n
    task = np.array([
        0 if is_logits else 1, call.m, call.n if is_logits else 0, 1, 4, -30, SCALE, -30,
        call.n_outputs, 0, 0, n_blocks, 0, 0, 0, 0,
    ], np.int32)  # fmt: skip
    partials = words(4 * max(n_blocks, 1) * -(-call.m // 16))
    partials.reshape(-1, 4)[:, 0] = 1 << 20  # a part's sum, 64 bits; then its largest
    partials.reshape(-1, 4)[:, 3] = 1
    outputs = words(-(-call.n_outputs // 4))
    rows, given, made = records(call.m, per_row), words(call.m), words(len(outputs))
    later = words(len(partials) + 64)
    handle.score_aggregator_krnl(
        *pointers(task, acc, side, words(1), rows, outputs, partials, given, made, later)
    )


@pytest.mark.parametrize("m", [1, 16, 19, 21, 70])
@pytest.mark.parametrize(
    ("op", "n", "results"), [("logits", 96, 1), ("logits", 2048, 2), ("logits", 50, 1),
                             ("logits", 9, 1), ("finish", 1, 1), ("finish", 7, 3)]
)  # fmt: skip
def test_score_aggregator(handle, m, op, n, results):
    call = ScoreCall(op, m, n, results * m)
    found = counted(handle, "score_aggregator", 12, lambda: run_score(handle, call))
    assert found == astuple(call.counts())


def run_mha(handle, call: MhaCall, head_dim):
    rng = np.random.default_rng(call.n)
    n_pages = -(-(call.first + call.n) // PAGE)
    queries = rng.integers(-127, 128, (call.n, head_dim)).astype(np.int8)
    scales = np.tile(np.array([SCALE, -38], np.int32), (call.n, 1))
    positions = np.arange(call.first, call.first + call.n, dtype=np.int32)
    pages = np.zeros((n_pages, page_beats(call.d) * WORD), np.int8)
    table = np.arange(n_pages, dtype=np.int32)
    context = np.zeros((call.n, head_dim), np.int32)
    exponents, marks = np.zeros((2, call.n), np.int32)
    handle.mha_int8(
        *pointers(queries, scales, positions), call.n, head_dim, SCALE, -30,
        *pointers(pages, table, context, exponents, marks),
    )  # fmt: skip


@pytest.mark.parametrize("head_dim", [16, 20, 64, 96, 128])
@pytest.mark.parametrize(
    ("first", "n"), [(0, 1), (0, 63), (0, 64), (0, 65), (0, 200), (63, 1), (64, 5), (70, 130)]
)
def test_mha_int8(handle, head_dim, first, n):
    call = MhaCall(card_head(head_dim), first, n)
    found = counted(handle, "mha_int8", N_MHA_COUNTS, lambda: run_mha(handle, call, head_dim))
    assert found == astuple(call.counts())


def run_heads(handle, call: MhaCall):
    """The top function, with the blocks of all heads as the card's plan lists them."""
    n_pages = -(-(call.first + call.n) // PAGE)
    starts = [(h, first) for h in range(call.heads) for first in range(0, call.n, 64)]
    blocks = np.array([
        (h * call.n + first, min(64, call.n - first), h * n_pages,
         (call.first + min(first + 64, call.n) - 1) // PAGE + 1)
        for h, first in starts
    ], np.int32)  # fmt: skip
    rows = np.zeros((call.heads, call.n, 4), np.int32)
    rows[:] = SCALE, -38, 0, 0
    rows[:, :, 2] = np.arange(call.first, call.first + call.n)
    pages = np.zeros((call.heads * n_pages, page_beats(call.d) * WORD), np.int8)
    table = np.arange(call.heads * n_pages, dtype=np.int32)
    queries = np.zeros((call.heads * call.n, 128), np.int8)
    context = np.zeros((call.heads * call.n, call.d), np.int32)
    results = np.zeros((call.heads * call.n, 2), np.int32)
    handle.mha_int8_krnl(
        *pointers(blocks, rows, queries, table, pages, context, results), len(blocks), call.d,
        SCALE, -30,
    )  # fmt: skip


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 5, 9])
@pytest.mark.parametrize(("first", "n"), [(0, 1), (0, 64), (0, 100), (130, 70), (0, 200)])
@pytest.mark.parametrize("d", [16, 64])
def test_heads_of_mha_int8(handle, d, first, n, heads):
    """The list of all blocks in one call: heads in the middle are like one another."""
    call = MhaCall(d, first, n, heads)
    found = counted(handle, "mha_int8", N_MHA_COUNTS, lambda: run_heads(handle, call))
    assert found == astuple(call.counts())


def jobs_of(call: RouterCall):
    """The router's jobs for tokens behind those that another sequence has written, head by head."""
    jobs, n_pages = [], -(-(call.first + call.n) // PAGE)
    for head in range(call.heads):
        for page in range(n_pages):
            at = page * PAGE
            kept = min(max(call.first - at, 0), PAGE)
            new = min(PAGE, call.first + call.n - at) - kept
            token = head * call.n + max(at - call.first, 0)
            place = len(jobs)
            jobs.append([place, kept, token, new, call.heads * n_pages + place, place, 0, 0])
    return np.array(jobs, np.int32)


def run_router(handle, call: RouterCall, head_dim):
    n_tokens = call.heads * call.n
    codes = np.zeros((2, n_tokens, head_dim), np.int8)
    scales = np.zeros((2, n_tokens, 2), np.int32)
    jobs = jobs_of(call)
    pages = np.zeros((2 * len(jobs), page_beats(call.d) * WORD), np.int8)
    table = np.zeros(len(jobs), np.int32)
    code = handle.kv_cache_router(
        *pointers(codes[0], scales[0], codes[1], scales[1]), n_tokens, head_dim,
        *pointers(jobs), len(jobs), *pointers(pages, table),
    )  # fmt: skip
    assert code == 0


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("head_dim", [16, 20, 64, 96, 128])
@pytest.mark.parametrize(
    ("first", "n"), [(0, 1), (0, 64), (0, 65), (0, 200), (5, 3), (64, 10), (130, 100)]
)
def test_kv_cache_router(handle, head_dim, first, n, heads):
    call = RouterCall(card_head(head_dim), first, n, heads)
    found = counted(handle, "kv_cache_router", 10, lambda: run_router(handle, call, head_dim))
    assert found == astuple(call.counts())


@pytest.mark.parametrize("shape", [(1, 1, 1), (64, 32, 128), (130, 33, 70), (200, 16, 65)])
def test_gemm_int8(handle, shape):
    m, n, k = shape
    a, w, c = np.zeros((m, k), np.int8), np.zeros((n, k), np.int8), np.zeros((m, n), np.int32)
    packed = np.zeros(handle.gemm_int8_packed_bytes(n, k), np.int8)
    found = counted(
        handle, "gemm_int8", 9,
        lambda: handle.gemm_int8(*pointers(a, packed, c), m, n, k) if w.size else None,
    )  # fmt: skip
    assert found == astuple(gemm_counts(m, n, k))
