"""Cycles of ``score_aggregator``; for the assumptions see `ecorl.engines.fpga.cycles.kernels`.

Its processes run side by side: a call lasts as long as the longest of them, after the first row has
come through the others. A row waits in a FIFO between its two looks, so that the first look of the
next runs beside the second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ecorl.engines.fpga.cycles.hbm import WORD_BYTES, Memory
from ecorl.engines.fpga.cycles.kernels import (
    BLOCK_ROWS,
    CallTotals,
    arranged_runs,
    arranged_steps,
    depth,
    words_of,
)
from ecorl.engines.fpga.cycles.vector import CHANNEL_WORDS
from ecorl.engines.fpga.kernels.sequence import ScoreOperation

_BLOCK_PARTIALS = BLOCK_ROWS // 4
_FIRST_LOOK = ("dequantise", "fixed", "peak", "maximum")
_SECOND_LOOK = ("log_term", "total")


@dataclass(frozen=True, slots=True)
class ScoreCounts:
    """Loop counts of score_aggregator, in the order of its counters."""

    calls: int
    rows: int
    outputs: int
    load_cycles: int
    arrange_cycles: int
    side_cycles: int
    first_cycles: int
    second_cycles: int
    merge_cycles: int
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
        is_logits = self.op == "logits"
        words, ports = self._words, self.ports()
        read = sum(ports[p] for p in ("task", "acc", "side", "rows", "outputs", "partials"))
        return ScoreCounts(
            calls=1,
            rows=self.m,
            outputs=self.n_outputs,
            load_cycles=self.m * words,
            arrange_cycles=arranged_steps(self.m, words),
            side_cycles=CHANNEL_WORDS * words,
            first_cycles=self.m * words,
            second_cycles=self.m * words,
            merge_cycles=0 if is_logits else 2 * self.m * self.n,
            partial_cycles=self._blocks * _BLOCK_PARTIALS * (1 if is_logits else self.n),
            bytes_read=read,
            bytes_written=sum(ports.values()) - read,
        )

    @property
    def _blocks(self) -> int:
        """Blocks of 16 rows, the last perhaps with fewer."""
        return -(-self.m // BLOCK_ROWS)

    @property
    def _words(self) -> int:
        """Words of a row of products."""
        return words_of(self.n) if self.op == "logits" else 0

    def ports(self) -> dict[str, int]:
        """Bytes through each memory port."""
        is_logits, words = self.op == "logits", self._words
        outputs, partials = -(-self.n_outputs // 4), self._blocks * _BLOCK_PARTIALS
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
        trips = c.first_cycles + c.second_cycles + c.merge_cycles
        return CallTotals(vector_cycles=trips, moved_bytes=c.bytes_read + c.bytes_written)

    def cycles(self, memory: Memory, ii: int) -> float:
        """See `KernelCall.cycles`."""
        c = self.counts()
        bursts = self._blocks * (1 if self.op == "logits" else self.n)
        both_ways = (
            memory.loop(c.load_cycles, 1, ii),
            memory.loop(c.side_cycles, 1, ii),
            memory.loop(self.m, 1, ii),
            memory.loop(-(-c.outputs // 4), 1, ii),
            memory.loop(c.partial_cycles, bursts, ii),
        )
        if self.op == "logits":
            return self._looks(memory, ii, both_ways)
        take = self._blocks * (ii * _BLOCK_PARTIALS * self.n + depth("move", "control"))
        row = 2 * (ii * self.n + depth("control")) + depth("peak", "normalise", "log2")
        results = c.outputs * ii + self.m * depth("move", "control")
        return memory.latency_cycles + max(*both_ways, take + self.m * row) + results / self.m

    def _looks(self, memory: Memory, ii: int, both_ways: tuple[float, ...]) -> float:
        """Cycles of a block of the vocabulary: the longest process after the first row."""
        c, words = self.counts(), self._words
        arrange = ii * c.arrange_cycles + arranged_runs(self.m) * depth("bank", "control")
        # The constants are taken before the first row; the looks then never pause.
        first = ii * (c.side_cycles + c.first_cycles) + depth("move", "control", *_FIRST_LOOK)
        second = ii * c.second_cycles + depth(*_SECOND_LOOK)
        answer = self.m * (ii * words + depth("move", "control")) + ii * c.outputs
        answer += self.m * depth("move", "control")
        # Until the slowest starts: the products of a block of rows, and a row through each look.
        block = min(self.m, BLOCK_ROWS) * words
        fill = memory.loop(block, 1, ii) + 2 * ii * words
        fill += depth("bank", *_FIRST_LOOK, *_SECOND_LOOK)
        return fill + max(*both_ways, arrange, first, second, answer)
