"""Cycles of ``kv_cache_router``; for the assumptions see `ecorl.engines.fpga.cycles.kernels`.

Keys, values and scales of a page are arranged by processes that run side by side, between those
that load and those that store.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ecorl.engines.fpga.cycles.attention import PAGE, page_beats
from ecorl.engines.fpga.cycles.hbm import WORD_BYTES, Memory
from ecorl.engines.fpga.cycles.kernels import CallTotals
from ecorl.engines.fpga.cycles.pipelines import depth
from ecorl.engines.fpga.cycles.vector import token_beats

_JOB_BYTES, _ENTRY_BYTES, _ROW_BYTES = 32, 4, 16


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
    """``kv_cache_router``: pages of equal heads for tokens ``[first, first + n)`` of a sequence.

    Attributes:
        d: head size on the card.
        first: tokens before them, which a shared prompt has written: its whole pages are shared,
            the page in which the two sequences diverge is copied.
        n: tokens.
        heads: whose pages follow one another.
    """

    kernel: ClassVar[str] = "kv_cache_router"
    d: int
    first: int
    n: int
    heads: int = 1

    def counts(self) -> RouterCounts:
        """Loop counts as the kernel's own counters have them."""
        shared, kept = divmod(self.first, PAGE)
        copied = self.heads * (1 if kept else 0)
        jobs, parts, beats = self._jobs, token_beats(self.d), page_beats(self.d)
        written = jobs - self.heads * shared
        token_bytes = 2 * (parts * WORD_BYTES + _ROW_BYTES)
        return RouterCounts(
            calls=1,
            pages_written=written,
            pages_copied=copied,
            pages_shared=self.heads * shared,
            copy_cycles=copied * beats,
            row_cycles=(written * PAGE - self.heads * kept) * parts,
            emit_cycles=written * beats,
            bytes_tokens=jobs * _JOB_BYTES + self._tokens * token_bytes,
            bytes_read=copied * beats * WORD_BYTES,
            bytes_written=written * beats * WORD_BYTES + jobs * _ENTRY_BYTES,
        )

    @property
    def _jobs(self) -> int:
        """Pages of all heads, shared ones among them."""
        return self.heads * -(-(self.first + self.n) // PAGE)

    @property
    def _tokens(self) -> int:
        """New tokens of all heads."""
        return self.heads * self.n

    def ports(self) -> dict[str, int]:
        """Bytes through each memory port; pages are read and written through the same one."""
        c, codes = self.counts(), self._tokens * token_beats(self.d) * WORD_BYTES
        return {
            "keys": codes,
            "values": codes,
            "key_rows": self._tokens * _ROW_BYTES,
            "value_rows": self._tokens * _ROW_BYTES,
            "jobs": self._jobs * _JOB_BYTES,
            "pages": c.bytes_read + c.emit_cycles * WORD_BYTES,
            "table": self._jobs * _ENTRY_BYTES,
        }

    def totals(self) -> CallTotals:
        """See `KernelCall.totals`; its loops move codes and compute no row function."""
        c = self.counts()
        return CallTotals(moved_bytes=c.bytes_tokens + c.bytes_read + c.bytes_written)

    def cycles(self, memory: Memory, ii: int) -> float:
        """See `KernelCall.cycles`.

        A call lasts as long as its slowest process; before it the first job is read, and codes for
        it, of which the arrangement takes a page; after it the values and scales of the last page
        are stored.
        """
        c, parts = self.counts(), token_beats(self.d)
        processes = (
            memory.loop(self._jobs, 1, ii, _JOB_BYTES),
            memory.loop(c.copy_cycles, c.pages_copied, ii),
            memory.loop(self._tokens * parts, c.pages_written, ii),
            memory.loop(self._tokens, c.pages_written, ii, _ROW_BYTES),
            self._arrange(c, ii),
            memory.loop(c.emit_cycles, c.pages_written, ii),
            memory.loop(self._jobs, 1, ii, _ENTRY_BYTES),
        )
        first = 2 * memory.latency_cycles + ii * PAGE * parts + depth("move", "control", "bank")
        return first + max(processes) + ii * (page_beats(self.d) - self.d) + depth("move")

    def _arrange(self, c: RouterCounts, ii: int) -> float:
        """Cycles of the process of the keys; that of the values takes as many, the scales fewer.

        A page's loops follow one another: codes of the page that is copied, codes of new tokens,
        and those that leave.
        """
        trips = (c.pages_copied + c.pages_written) * self.d + c.row_cycles
        loops = c.pages_copied + 2 * c.pages_written
        banks = c.pages_written * depth("bank")
        return ii * trips + loops * depth("move", "control") + banks + self._jobs
