"""Cycles of ``score_aggregator``; for the assumptions see `ecorl.engines.fpga.cycles.kernels`.

It processes 16 token rows at a time, as `ecorl.engines.fpga.cycles.vector` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ecorl.engines.fpga.cycles.hbm import WORD_BYTES, Memory
from ecorl.engines.fpga.cycles.kernels import EXP_DEPTH, LOOP_DEPTH, CallTotals
from ecorl.engines.fpga.cycles.vector import (
    BLOCK_ROWS,
    CHANNEL_WORDS,
    turned_words,
    words_of,
)
from ecorl.engines.fpga.kernels.sequence import ScoreOperation

_LOG_CYCLES = 120  # NUMERICS.md's LOG2: 20 bits, a product each


@dataclass(frozen=True, slots=True)
class ScoreCounts:
    """Loop counts of score_aggregator, in the order of its counters."""

    calls: int
    rows: int
    outputs: int
    load_cycles: int
    turn_cycles: int
    side_cycles: int
    take_cycles: int
    work_cycles: int
    partial_cycles: int
    bytes_read: int
    bytes_written: int


@dataclass(frozen=True, slots=True)
class ScoreCall:
    """``score_aggregator``: a block of the vocabulary, or the end of the log-probs.

    Attributes:
        op: ``logits`` of one block, or ``finish``.
        m: rows.
        n: outputs of the block; for ``finish`` blocks of the vocabulary.
        n_outputs: results of all rows.
    """

    kernel: ClassVar[str] = "score_aggregator"
    op: ScoreOperation
    m: int
    n: int
    n_outputs: int

    def counts(self) -> ScoreCounts:
        """Loop counts as the kernel's own counters have them."""
        is_logits, blocks = self.op == "logits", -(-self.m // BLOCK_ROWS)
        words = words_of(self.n) if is_logits else 0
        side = CHANNEL_WORDS * words
        partials = blocks * (BLOCK_ROWS // 4) * (1 if is_logits else self.n)
        ports = self.ports()
        read = sum(ports[p] for p in ("task", "acc", "side", "rows", "outputs", "partials"))
        return ScoreCounts(
            calls=1,
            rows=self.m,
            outputs=self.n_outputs,
            load_cycles=self.m * words,
            turn_cycles=turned_words(self.m, [words] if words else [], 1),
            side_cycles=side,
            take_cycles=self.m * words,
            work_cycles=self.m * 2 * (words or self.n),
            partial_cycles=partials,
            bytes_read=read,
            bytes_written=sum(ports.values()) - read,
        )

    def ports(self) -> dict[str, int]:
        """Bytes through each memory port."""
        is_logits, blocks = self.op == "logits", -(-self.m // BLOCK_ROWS)
        words, outputs = words_of(self.n) * is_logits, -(-self.n_outputs // 4)
        partials = blocks * (BLOCK_ROWS // 4)
        found = {
            "task": 1,
            "acc": self.m * words,
            "side": CHANNEL_WORDS * words,
            "rows": self.m,
            "outputs": outputs,
            "partials": 0 if is_logits else self.n * partials,
            "rows_out": self.m,
            "outputs_out": outputs,
            "partials_out": partials * is_logits,
        }
        return {name: n * WORD_BYTES for name, n in found.items()}

    def totals(self) -> CallTotals:
        """See `KernelCall.totals`."""
        c = self.counts()
        return CallTotals(vector_cycles=c.work_cycles, moved_bytes=c.bytes_read + c.bytes_written)

    def cycles(self, memory: Memory, ii: int) -> float:
        """See `KernelCall.cycles`; the slowest process, after a first block has been loaded."""
        c = self.counts()
        is_logits, blocks = self.op == "logits", -(-self.m // BLOCK_ROWS)
        words = words_of(self.n) if is_logits else 0
        results = ii * c.outputs + self.m * LOOP_DEPTH
        if is_logits:
            row = max(ii * words, 2 * ii * words + 2 * EXP_DEPTH)
        else:
            row = 2 * ii * self.n + 2 * LOOP_DEPTH + _LOG_CYCLES
        loaded = ii * (c.side_cycles + 2 * c.partial_cycles + 2 * self.m)
        loops = blocks * (1 if is_logits else self.n)
        processes = (
            memory.loop(c.load_cycles, blocks, ii),
            ii * c.turn_cycles,
            memory.loop(c.side_cycles, 1, ii),
            memory.loop(c.partial_cycles, loops, ii),
            memory.loop(c.outputs, 1, ii, WORD_BYTES // 4),
            self.m * row + results + loaded,
            memory.loop(self.m, 1, ii),
        )
        return memory.loop(min(self.m, BLOCK_ROWS) * words, 1, ii) + max(processes)
