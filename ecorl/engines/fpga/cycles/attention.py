"""Cycles of ``mha_int8``; for the assumptions see `ecorl.engines.fpga.cycles.kernels`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from ecorl.engines.fpga.cycles.hbm import Memory
from ecorl.engines.fpga.cycles.kernels import CallTotals, depth
from ecorl.engines.fpga.cycles.vector import token_beats

PAGE = 64
"""Keys of one page of the cache."""

QUERY_BLOCK = 64
"""Queries of one block."""

_LANES, _STEP = 8, 4
_QUAD_ROWS, _OPERAND = 4, 16
"""Rows that travel together, and codes of a row in a word of the array's operands."""

_WORD_VALUES = 16
_BEAT = 64
_ENTRY_BYTES, _BLOCK_BYTES, _ROW_BYTES, _RESULT_BYTES = 4, 16, 16, 8
_SCALE_BEATS = 16
_MACS = 3
"""Products of a query and a key for each channel: one for the score, two for the attention weight,
which is two INT8 codes."""

_FIRST_LOOK = ("score", "peak", "maximum")
_SECOND_LOOK = ("weight", "total", "shift_right")
_DIVIDE = ("normalise", "divide_inverse", "shift_left", "product")
"""Pipelines (`pipelines`) of the two looks at scores and of the division of contexts."""


def page_beats(d: int) -> int:
    """Words of 64 bytes of one page: keys, values and their scales."""
    return 2 * d + _SCALE_BEATS


@dataclass(frozen=True, slots=True)
class MhaCounts:
    """Loop counts of mha_int8, in the order of its counters."""

    calls: int = 0
    blocks: int = 0
    pages: int = 0
    turns: int = 0
    array_cycles: int = 0
    score_cycles: int = 0
    context_cycles: int = 0
    arrange_cycles: int = 0
    softmax_cycles: int = 0
    weight_cycles: int = 0
    turn_cycles: int = 0
    accumulate_cycles: int = 0
    emit_cycles: int = 0
    bytes_queries: int = 0
    bytes_pages: int = 0
    bytes_written: int = 0
    macs: int = 0


def _quads(rows: int) -> int:
    """Groups of four rows, which travel together."""
    return -(-rows // _QUAD_ROWS)


@dataclass(frozen=True, slots=True)
class _Turn:
    """What the processes of mha_int8 do in a turn.

    Attributes:
        d: head size on the card.
        score_rows: queries whose scores the array computes.
        softmax_rows: queries of the page scored in the turn before.
        sum_rows: queries of the page scored two turns before, whose values are summed.
        next_rows: queries of the next block that come in.
        is_first: whether the softmax's page is its block's first.
    """

    d: int
    score_rows: int = 0
    softmax_rows: int = 0
    sum_rows: int = 0
    next_rows: int = 0
    is_first: bool = False

    @property
    def score_tile(self) -> int:
        """Cycles of a tile of scores: those of its products, or those in which one leaves."""
        return max(self.d // _STEP, _quads(self.score_rows))

    @property
    def array(self) -> int:
        """Trips of the array's loop: scores or weights that come in, sums, words that leave."""
        scores = PAGE // _LANES * self.score_tile if self.score_rows else 0
        weights = 2 * PAGE // _OPERAND * _quads(self.sum_rows)
        sums = self.d // _LANES * 2 * (PAGE // _STEP) if self.sum_rows else 0
        leave = _quads(self.sum_rows or self.score_rows)
        return max(max(scores, weights) + sums + leave, self.next_rows * self.d // _OPERAND)

    @property
    def quads_in(self) -> int:
        """Quads of scores that leave the array."""
        return PAGE // _LANES * _quads(self.score_rows)

    @property
    def words(self) -> int:
        """Words of the softmax."""
        return PAGE // _STEP * _quads(self.softmax_rows)

    @property
    def arrange(self) -> int:
        """Trips in which scores come in for the next page, beside those of this one."""
        return max(self.quads_in, self.words)

    @property
    def taken(self) -> int:
        """Trips of the first look before its first word: rows of a block, scales of a page."""
        if not self.softmax_rows:
            return 0
        return _SCALE_BEATS + (self.softmax_rows if self.is_first else 0)

    @property
    def softmax(self) -> int:
        """Trips of the first look."""
        return self.taken + self.words

    @property
    def weigh(self) -> int:
        """Trips of the second look, those for the scales of the values included."""
        return _SCALE_BEATS // 2 + self.words if self.softmax_rows else 0

    @property
    def longest(self) -> int:
        """Trips of the process with the most."""
        return max(self.array, self.arrange, self.softmax, self.weigh)

    def cycles(self, ii: int) -> int:
        """Cycles until the array has ended and all weights of the softmax's page are there.

        A turn begins when the one before has ended: its plan goes to the processes through FIFOs
        first. Scores leave beside those that come in, which come at the pace of the array's tiles;
        the second look follows the first by the words of four rows.
        """
        plan = depth("fifo")
        array = plan + ii * self.array + depth("array", "move", "control")
        if not self.softmax_rows:
            return array
        entering = PAGE // _LANES * self.score_tile + _quads(self.score_rows)
        arranged = entering + max(self.words - self.quads_in, 0) if self.score_rows else self.words
        taken = ii * self.taken + 2 * depth("move", "control")
        looked = max(ii * arranged + depth("bank"), taken + ii * self.words) + depth(*_FIRST_LOOK)
        weighed = looked + ii * (PAGE // _STEP) + depth(*_SECOND_LOOK, "control")
        return max(array, plan + weighed)


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
    def page_trips(self) -> int:
        """Trips in which the sums of a page come to those of the pages before."""
        return _quads(self.n) * (1 + self.d // _LANES)

    @property
    def emitted(self) -> int:
        """Words of its contexts."""
        return self.n * (self.d // _WORD_VALUES)

    @property
    def macs(self) -> int:
        """Products of queries with keys that they see, and of weights with their values."""
        return _MACS * self.d * (self.n * (2 * self.first + self.n + 1) // 2)

    def accumulate(self, ii: int) -> int:
        """Cycles to sum up all its pages, and for its contexts to leave."""
        page = ii * self.page_trips + depth("move", "control") + depth("bank", "accumulate")
        emit = ii * self.emitted + depth("bank", "peak", "maximum", "control")
        return self.pages * (page + depth("control")) + emit


@dataclass(frozen=True, slots=True)
class MhaCall:
    """``mha_int8``: attention of equal heads, from queries at positions ``[first, first + n)``.

    Attributes:
        d: head size on the card.
        first: position of the first query.
        n: queries of a head; their blocks hold 64 of them.
        heads: whose blocks follow one another.
    """

    kernel: ClassVar[str] = "mha_int8"
    d: int
    first: int
    n: int
    heads: int = 1

    def counts(self) -> MhaCounts:
        """Loop counts as the kernel's own counters have them."""
        turns, d = self._turns(), self.d
        blocks = self._blocks()
        pages = self._sum(block.pages for block in blocks)
        queries = 2 * _BLOCK_BYTES * len(blocks) + self.n * (_ROW_BYTES + token_beats(d) * _BEAT)
        return MhaCounts(
            calls=1,
            blocks=self._sum(1 for _ in blocks),
            pages=pages,
            turns=sum(turns.values()),
            array_cycles=sum(times * turn.array for turn, times in turns.items()),
            score_cycles=pages * PAGE // _LANES * (d // _STEP),
            context_cycles=pages * (d // _LANES) * 2 * (PAGE // _STEP),
            arrange_cycles=sum(times * turn.arrange for turn, times in turns.items()),
            softmax_cycles=sum(times * turn.softmax for turn, times in turns.items()),
            weight_cycles=sum(times * turn.weigh for turn, times in turns.items()),
            turn_cycles=sum(times * turn.longest for turn, times in turns.items()),
            accumulate_cycles=self._sum(block.pages * block.page_trips for block in blocks),
            emit_cycles=self._sum(block.emitted for block in blocks),
            bytes_queries=self.heads * queries + pages * _ENTRY_BYTES,
            bytes_pages=pages * page_beats(d) * _BEAT,
            bytes_written=self.heads * self.n * (4 * d + _RESULT_BYTES),
            macs=self._sum(block.macs for block in blocks),
        )

    def ports(self) -> dict[str, int]:
        """Bytes through each memory port."""
        c, rows = self.counts(), self.heads * self.n
        return {
            "blocks": 2 * c.blocks * _BLOCK_BYTES,
            "rows": rows * _ROW_BYTES,
            "queries": rows * token_beats(self.d) * _BEAT,
            "table": c.pages * _ENTRY_BYTES,
            "pages": c.bytes_pages,
            "context": 4 * rows * self.d,
            "results": rows * _RESULT_BYTES,
        }

    def totals(self) -> CallTotals:
        """See `KernelCall.totals`."""
        c = self.counts()
        moved = c.bytes_queries + c.bytes_pages + c.bytes_written
        trips = c.softmax_cycles + c.weight_cycles + c.emit_cycles
        return CallTotals(c.array_cycles, trips, c.macs, moved)

    def cycles(self, memory: Memory, ii: int) -> float:
        """See `KernelCall.cycles`.

        Processes run side by side and blocks follow one another without a pause. Before the first
        turn the list of blocks is read, and the first queries; after the last one the contexts of
        the last block are divided and stored.
        """
        blocks, rows = self._blocks(), self.heads * self.n
        n_blocks, pages = self.heads * len(blocks), self._sum(block.pages for block in blocks)
        turns = sum(times * turn.cycles(ii) for turn, times in self._turns().items())
        processes = (
            turns,
            self._sum(block.accumulate(ii) for block in blocks),
            memory.loop(pages * page_beats(self.d), pages, ii),
            memory.loop(pages, n_blocks, ii, _ENTRY_BYTES),
            memory.loop(rows, n_blocks, ii, _ROW_BYTES),
            memory.loop(rows * token_beats(self.d), n_blocks, ii),
            memory.loop(rows * self.d // _WORD_VALUES, n_blocks, ii),
            memory.loop(rows, n_blocks, ii, _RESULT_BYTES),
        )
        begin = memory.loop(n_blocks, 1, ii, _BLOCK_BYTES) + 2 * memory.latency_cycles
        contexts = depth("bank", "peak", "maximum", *_DIVIDE, "move")
        end = ii * blocks[-1].emitted + contexts + memory.latency_cycles
        return begin + max(processes) + end

    def _blocks(self) -> list[_Block]:
        """The blocks of one head."""
        return [
            _Block(self.d, start, min(QUERY_BLOCK, self.first + self.n - start))
            for start in range(self.first, self.first + self.n, QUERY_BLOCK)
        ]

    def _sum(self, each: Iterable[int]) -> int:
        """What each block of a head counts, over all heads."""
        return self.heads * sum(each)

    def _turns(self) -> Counter[_Turn]:
        """All turns, equal ones together.

        The pages of all blocks follow one another through scores, softmax and sums. A turn rests on
        the two before it, so heads between the second and the last have the same turns.
        """
        blocks, turns = self._blocks(), Counter[_Turn]()
        turns[_Turn(self.d, next_rows=blocks[0].n)] += 1
        before, page_before = (0, 0), -1  # rows of the two pages before, number of the last
        listed = min(self.heads, 4)
        for head in range(listed):
            times = 1 + (self.heads - listed) * (head == 2)
            for i, block in enumerate(blocks):
                is_end = head + 1 == listed and i + 1 == len(blocks)
                next_rows = 0 if is_end else blocks[(i + 1) % len(blocks)].n
                for page, pages in _pages(block.pages):
                    turn = _Turn(
                        self.d,
                        block.n,
                        *before,
                        next_rows if page + 1 == block.pages else 0,
                        page_before == 0,
                    )
                    turns[turn] += times * pages
                    before, page_before = (block.n, before[0]), page
        turns[_Turn(self.d, 0, *before, 0, page_before == 0)] += 1
        turns[_Turn(self.d, 0, 0, before[0])] += 1
        return turns


def _pages(n: int) -> Iterator[tuple[int, int]]:
    """Pages of a block whose turns differ, each with how many are like it."""
    for page in (0, 1, 2, n - 1) if n > 3 else range(n):
        yield page, n - 3 if page == 2 and n > 3 else 1
