"""Pages of the KV cache and causal attention in NumPy integers, and the two kernels by ctypes.

The arithmetic is that of the golden model, the layout of pages is written from
hls_kernels/include/kv_pages.hpp; nothing here calls the code under test but `route` and `attend`.
"""

from __future__ import annotations

import ctypes
import functools
import math
from dataclasses import dataclass

import numpy as np

from ecorl.engines.fpga.csim.library import CsimLibrary
from ecorl.engines.fpga.numerics.formats import Scale
from tests.golden.operations import Cache, Row, attention

PAGE = 64
NO_EXPONENT = -(1 << 20)
JOB = ("source", "kept", "first_token", "n_tokens", "destination", "entry")
ROUTER_COUNTS = (
    *("calls", "pages_written", "pages_copied", "pages_shared"),
    *("copy_cycles", "row_cycles", "emit_cycles", "bytes_tokens", "bytes_read", "bytes_written"),
)
MHA_COUNTS = (
    *("calls", "blocks", "pages", "turns", "array_cycles", "score_cycles", "context_cycles"),
    *("arrange_cycles", "softmax_cycles", "weight_cycles", "turn_cycles"),
    *("accumulate_cycles", "emit_cycles", "bytes_queries", "bytes_pages", "bytes_written", "macs"),
)


@functools.cache
def library(build="fast"):
    handle = CsimLibrary.load(build).handle
    handle.kv_cache_router_page_bytes.restype = ctypes.c_int64
    return handle


@dataclass
class Rows:
    """Codes ``[n, d] int8`` and scales ``[n, 2] int32`` of the tokens of one head."""

    codes: np.ndarray
    scales: np.ndarray

    def __len__(self):
        return len(self.codes)

    def __getitem__(self, part):
        return Rows(self.codes[part], self.scales[part])

    def then(self, more):
        codes = np.concatenate([self.codes, more.codes])
        return Rows(codes, np.concatenate([self.scales, more.scales]))


def random_rows(rng, n, d, exponent=-38, spread=2, zeros=0.0):
    codes = rng.integers(-127, 128, (n, d)).astype(np.int8)
    scales = np.empty((n, 2), np.int32)
    scales[:, 0] = rng.integers(1 << 30, 1 << 31, n)
    scales[:, 1] = exponent + rng.integers(-spread, spread + 1, n)
    empty = rng.random(n) < zeros
    codes[empty], scales[empty] = 0, 0
    return Rows(codes, scales)


# ---------------------------------------------------------------- the kernels


def p(array):
    assert array.flags.c_contiguous
    return ctypes.c_void_p(array.ctypes.data)


class Memory:
    """A card's pages and one page table, of garbage at first."""

    def __init__(self, lib, d, n_pages, n_entries=1024):
        self.lib, self.d = lib, d
        self.page_bytes = lib.kv_cache_router_page_bytes(d)
        self.pages = np.random.default_rng(1).integers(-128, 128, (n_pages, self.page_bytes))
        self.pages = self.pages.astype(np.int8)
        self.table = np.full(n_entries, -1, np.int32)

    def route(self, keys, values, jobs):
        """One call of kv_cache_router; `jobs` are dicts of `JOB`."""
        fields = np.array([[job[name] for name in JOB] + [0, 0] for job in jobs], np.int32)
        self.lib.kv_cache_router(
            p(keys.codes), p(keys.scales), p(values.codes), p(values.scales), len(keys), self.d,
            p(fields), len(jobs), p(self.pages), p(self.table),
        )  # fmt: skip

    def attend(self, queries, positions, score, entry=0):
        """Context ``[m, d]``, exponents and marks of queries that share a page table."""
        m, positions = len(queries), np.asarray(positions, np.int32)
        context = np.full((m, self.d), 7, np.int32)
        exponents, marks = np.full(m, 7, np.int32), np.full(m, 7, np.int32)
        table = self.table[entry:].copy()
        self.lib.mha_int8(
            p(queries.codes), p(queries.scales), p(positions), m, self.d, *score, p(self.pages),
            p(table), p(context), p(exponents), p(marks),
        )  # fmt: skip
        return context, exponents, marks


def jobs_of(n, first_page, entry=0, source=None, kept=0):
    """Jobs of a sequence of n tokens, of which the first `kept` are those of another's pages.

    `source` is the other's page table. Pages of its own are numbered from `first_page`.
    """
    jobs = []
    for page in range(-(-n // PAGE)):
        old = min(max(kept - page * PAGE, 0), PAGE)
        jobs.append(
            {
                "source": int(source[page]) if old else -1,
                "kept": old,
                "first_token": max(page * PAGE - kept, 0),
                "n_tokens": min(n - page * PAGE, PAGE) - old,
                "destination": first_page,
                "entry": entry + page,
            }
        )
        first_page += old < PAGE
    return jobs


def counted(lib, name, names, call):
    """What `call` adds to a kernel's counters, by name."""
    counts = np.zeros(len(names), np.int64)
    getattr(lib, f"{name}_counters_reset")()
    result = call()
    getattr(lib, f"{name}_counters")(p(counts))
    return result, dict(zip(names, counts.tolist(), strict=True))


# ---------------------------------------------------------------- pages


def turned(rows):
    """A matrix ``[8 n, 8 k]`` in beats of 8 x 8: ``[n][k][2][8][4]`` bytes, flat."""
    n, k = rows.shape
    return rows.reshape(n // 8, 8, k // 8, 2, 4).transpose(0, 2, 3, 1, 4).reshape(-1)


def wanted_page(keys, values, page):
    """Bytes of a page of a sequence; d is a multiple of 16."""
    first, n, d = page * PAGE, len(keys), keys.codes.shape[1]
    live = min(n - first, PAGE)
    codes = np.zeros((2, PAGE, d), np.int8)
    ints = np.zeros((4, PAGE), np.int32)
    for which, rows in enumerate((keys, values)):
        codes[which, :live] = rows.codes[first : first + live]
        ints[2 * which : 2 * which + 2, :live] = rows.scales[first : first + live].T
    ints[2] >>= 16
    parts = (turned(codes[0]), turned(np.ascontiguousarray(codes[1].T)), ints.view(np.int8).ravel())
    return np.concatenate(parts)


# ---------------------------------------------------------------- attention


def score_scale(d):
    """``log2(e) / sqrt(d)`` as (m, e)."""
    fraction, e = math.frexp(math.log2(math.e) / math.sqrt(d))
    return int(fraction * 2**31), e - 31


def cache(rows):
    m, e = rows.scales.astype(np.int64).T
    return Cache(rows.codes.astype(np.int64), m, e)


def one_context(query, scale, keys, values, score):
    """Context ``[d]``, exponent and mark of one query that sees all of keys and values."""
    row = Row(query.astype(np.int64), Scale(*scale.tolist()))
    (o, exponent), mark = attention(row, cache(keys), cache(values), Scale(*score))
    return (np.zeros(len(query)), NO_EXPONENT, mark) if o is None else (o, exponent, mark)


def wanted_contexts(queries, positions, keys, values, score):
    """As `Memory.attend`."""
    each = [
        one_context(queries.codes[i], queries.scales[i], keys[: t + 1], values[: t + 1], score)
        for i, t in enumerate(positions)
    ]
    context, exponents, marks = zip(*each, strict=True)
    return np.array(context), np.array(exponents), np.array(marks, np.int64)


def same(got, want):
    return all(np.array_equal(a, b) for a, b in zip(got, want, strict=True))
