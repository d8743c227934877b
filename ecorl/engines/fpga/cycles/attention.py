"""Cycles of ``kv_cache_router`` and ``mha_int8``.

For the assumptions see `ecorl.engines.fpga.cycles.kernels`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from ecorl.engines.fpga.cycles.hbm import Memory
from ecorl.engines.fpga.cycles.kernels import DIVISION, EXP_DEPTH, LOOP_DEPTH, CallTotals
from ecorl.engines.fpga.cycles.vector import token_beats

PAGE = 64
"""Keys of one page of the cache."""

QUERY_BLOCK = 64
"""Queries of one block."""

_LANES, _STEP = 8, 4
_BEAT = 64
_JOB_BYTES, _ENTRY_BYTES = 32, 4
_BLOCK_BYTES, _ROW_BYTES, _RESULT_BYTES = 16, 16, 8
_SCALE_BEATS = 16
_SOFTMAX_II, _FINISH_II = 4, 8
_MACS = 3
"""Products of a query and a key for each channel: one for the score, two for the attention weight,
which is two INT8 codes."""


def page_beats(d: int) -> int:
    """Words of 64 bytes of one page: keys, values and their scales."""
    return 2 * d + _SCALE_BEATS


@dataclass(frozen=True, slots=True)
class RouterCounts:
    """Loop counts of kv_cache_router, in the order of its counters."""

    calls: int
    pages_written: int
    pages_copied: int
    pages_shared: int
    copy_cycles: int
    row_cycles: int
    emit_cycles: int
    bytes_tokens: int
    bytes_read: int
    bytes_written: int


@dataclass(frozen=True, slots=True)
class RouterCall:
    """``kv_cache_router``: pages of one head for tokens ``[first, first + n)`` of a sequence.

    Attributes:
        d: head size on the card.
        first: tokens before them, which a shared prompt has written: its whole pages are shared,
            the page in which the two sequences diverge is copied.
        n: tokens.
    """

    kernel: ClassVar[str] = "kv_cache_router"
    d: int
    first: int
    n: int

    def counts(self) -> RouterCounts:
        """Loop counts as the kernel's own counters have them."""
        shared, kept = divmod(self.first, PAGE)
        copied = 1 if kept else 0
        jobs = -(-(self.first + self.n) // PAGE)
        written, parts = jobs - shared, token_beats(self.d)
        beats = page_beats(self.d)
        token_bytes = 2 * (parts * _BEAT + _ROW_BYTES)
        return RouterCounts(
            calls=1,
            pages_written=written,
            pages_copied=copied,
            pages_shared=shared,
            copy_cycles=copied * beats,
            row_cycles=(written * PAGE - kept) * parts,
            emit_cycles=written * beats,
            bytes_tokens=jobs * _JOB_BYTES + self.n * token_bytes,
            bytes_read=copied * beats * _BEAT,
            bytes_written=written * beats * _BEAT + jobs * _ENTRY_BYTES,
        )

    def ports(self) -> dict[str, int]:
        """Bytes through each memory port; pages are read and written through the same one."""
        c = self.counts()
        jobs, codes = c.pages_written + c.pages_shared, self.n * token_beats(self.d) * _BEAT
        return {
            "keys": codes,
            "values": codes,
            "key_rows": self.n * _ROW_BYTES,
            "value_rows": self.n * _ROW_BYTES,
            "jobs": jobs * _JOB_BYTES,
            "pages": c.bytes_read + c.emit_cycles * _BEAT,
            "table": jobs * _ENTRY_BYTES,
        }

    def totals(self) -> CallTotals:
        """See `KernelCall.totals`; its loops move codes and compute no row function."""
        c = self.counts()
        return CallTotals(moved_bytes=c.bytes_tokens + c.bytes_read + c.bytes_written)

    def cycles(self, memory: Memory, ii: int) -> float:
        """See `KernelCall.cycles`.

        Load, pack and store overlap; before them the first page is loaded, after them the last one
        is stored.
        """
        c = self.counts()
        jobs, parts = c.pages_written + c.pages_shared, token_beats(self.d)
        load = (
            memory.loop(jobs, jobs, 1, _JOB_BYTES)
            + memory.loop(c.copy_cycles, c.pages_copied, ii)
            + memory.loop(self.n * parts, c.pages_written, ii)
            + memory.loop(self.n, c.pages_written, ii, _ROW_BYTES)
        )
        trips = c.copy_cycles + c.row_cycles + c.emit_cycles + c.row_cycles // parts
        loops = 5 * c.pages_written + 3 * c.pages_copied
        pack = ii * trips + loops * LOOP_DEPTH + jobs
        emitted = memory.loop(c.emit_cycles, c.pages_written, ii)
        store = emitted + memory.loop(jobs, jobs, 1, _ENTRY_BYTES)
        fill = memory.loop(min(self.n, PAGE) * parts, 1, ii) + LOOP_DEPTH
        return fill + max(load, pack, store) + memory.loop(page_beats(self.d), 1, ii)


@dataclass(frozen=True, slots=True)
class MhaCounts:
    """Loop counts of mha_int8, in the order of its counters."""

    calls: int = 0
    blocks: int = 0
    pages: int = 0
    turns: int = 0
    fill_cycles: int = 0
    score_cycles: int = 0
    context_cycles: int = 0
    softmax_cycles: int = 0
    drain_cycles: int = 0
    turn_cycles: int = 0
    finish_cycles: int = 0
    bytes_queries: int = 0
    bytes_pages: int = 0
    bytes_written: int = 0
    macs: int = 0


@dataclass(frozen=True, slots=True)
class _Block:
    """One block of mha_int8: up to 64 neighbouring queries of a head, from position `first` on."""

    d: int
    first: int
    n: int

    @property
    def pages(self) -> int:
        return (self.first + self.n - 1) // PAGE + 1

    @property
    def softmax(self) -> int:
        return _SCALE_BEATS + _SOFTMAX_II * self.n

    @property
    def score_drain(self) -> int:
        return -(-self.n // _LANES) * (PAGE // _LANES)

    @property
    def sum_drain(self) -> int:
        return -(-self.n // 2) * (self.d // _LANES)

    @property
    def fill(self) -> int:
        beats = self.n * token_beats(self.d)
        return beats + -(-self.n // _LANES) * (self.d // _LANES)

    def turns(self) -> Iterator[tuple[int, int, int, int]]:
        """Kinds of turns of the pipeline over pages.

        While the array scores one page, the softmax works on the page before and the array then
        sums the values of the page before that, so the first and last turns have less to do.

        Yields:
            How many turns there are, and trips of array, softmax and drain in one.
        """
        score, total = PAGE // _LANES * (self.d // _STEP), self.d // _LANES * 2 * (PAGE // _STEP)
        p, soft, scores, sums = self.pages, self.softmax, self.score_drain, self.sum_drain
        yield 1, score, 0, scores
        if p > 1:
            yield 1, score, soft, scores
            yield p - 2, score + total, soft, scores + sums
            yield 1, total, soft, sums
        else:
            yield 1, 0, soft, 0
        yield 1, total, 0, sums

    def counts(self, call: int) -> MhaCounts:
        """Loop counts of the block; `call` is 1 where it is a call by itself."""
        p, d, n = self.pages, self.d, self.n
        queries = _BLOCK_BYTES + p * _ENTRY_BYTES + n * (_ROW_BYTES + token_beats(d) * _BEAT)
        return MhaCounts(
            calls=call,
            blocks=1,
            pages=p,
            turns=p + 2,
            fill_cycles=n + self.fill,
            score_cycles=p * PAGE // _LANES * (d // _STEP),
            context_cycles=p * (d // _LANES) * 2 * (PAGE // _STEP),
            softmax_cycles=p * self.softmax,
            drain_cycles=p * (self.score_drain + self.sum_drain),
            turn_cycles=sum(times * max(rest) for times, *rest in self.turns()),
            finish_cycles=_FINISH_II * n,
            bytes_queries=queries,
            bytes_pages=p * (2 * d + _SCALE_BEATS) * _BEAT,
            bytes_written=n * (d * 4 + _RESULT_BYTES),
            macs=_MACS * d * (n * (2 * self.first + n + 1) // 2),
        )

    def load(self, memory: Memory, ii: int) -> float:
        """Cycles to load the queries and their lists, then the pages, in three pieces each."""
        pages = memory.loop(self.pages * (2 * self.d + _SCALE_BEATS), 3 * self.pages, ii)
        return self.queries(memory, ii) + pages

    def queries(self, memory: Memory, ii: int) -> float:
        """Cycles to load the queries, their scales and their page table."""
        return (
            memory.loop(1, 1, 1, _BLOCK_BYTES)
            + memory.loop(self.pages, 1, ii, _ENTRY_BYTES)
            + memory.loop(self.n, 1, ii, _ROW_BYTES)
            + memory.loop(self.n * token_beats(self.d), 1, ii)
        )

    def compute(self, ii: int) -> float:
        """Cycles of filling the array with queries, all turns, and the division at the end.

        A turn ends when its last sums have been drained from the array.
        """
        turns = sum(
            times * max(ii * max(array, drain) + 2 * LOOP_DEPTH, ii * soft + EXP_DEPTH)
            for times, array, soft, drain in self.turns()
        )
        fill = ii * (self.n + self.fill) + 3 * LOOP_DEPTH
        return fill + turns + ii * _FINISH_II * self.n + 2 * DIVISION

    def store(self, memory: Memory, ii: int) -> float:
        """Cycles to store the contexts and their exponents."""
        return memory.loop(self.n * self.d // 16, 1, ii) + memory.loop(self.n, 1, ii, _RESULT_BYTES)


@dataclass(frozen=True, slots=True)
class MhaCall:
    """``mha_int8``: attention of one head, from queries at positions ``[first, first + n)``.

    Attributes:
        d: head size on the card.
        first: position of the first query.
        n: queries; their blocks hold 64 of them.
    """

    kernel: ClassVar[str] = "mha_int8"
    d: int
    first: int
    n: int

    def counts(self) -> MhaCounts:
        """Loop counts as the kernel's own counters have them.

        Each block is a call, as the C-simulation makes them.
        """
        found = [block.counts(1) for block in self._blocks()]
        names = MhaCounts.__slots__
        return MhaCounts(*(sum(getattr(c, name) for c in found) for name in names))

    def ports(self) -> dict[str, int]:
        """Bytes through each memory port."""
        c = self.counts()
        return {
            "blocks": c.blocks * _BLOCK_BYTES,
            "rows": self.n * _ROW_BYTES,
            "queries": self.n * token_beats(self.d) * _BEAT,
            "table": c.pages * _ENTRY_BYTES,
            "pages": c.bytes_pages,
            "context": 4 * self.n * self.d,
            "results": self.n * _RESULT_BYTES,
        }

    def totals(self) -> CallTotals:
        """See `KernelCall.totals`."""
        c = self.counts()
        moved = c.bytes_queries + c.bytes_pages + c.bytes_written
        return CallTotals(c.score_cycles + c.context_cycles, c.softmax_cycles, c.macs, moved)

    def cycles(self, memory: Memory, ii: int) -> float:
        """See `KernelCall.cycles`; load, compute and store overlap, blocks follow one another."""
        blocks = list(self._blocks())
        compute = sum(block.compute(ii) for block in blocks)
        load = sum(block.load(memory, ii) for block in blocks)
        store = sum(block.store(memory, ii) for block in blocks)
        first, last = blocks[0].queries(memory, ii), blocks[-1].store(memory, ii)
        return first + max(compute, load, store) + last

    def _blocks(self) -> Iterator[_Block]:
        for start in range(self.first, self.first + self.n, QUERY_BLOCK):
            yield _Block(self.d, start, min(QUERY_BLOCK, self.first + self.n - start))
