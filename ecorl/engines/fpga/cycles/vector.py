"""Cycles of ``vector_ops``; for the assumptions see `ecorl.engines.fpga.cycles.kernels`.

It processes 16 token rows at a time, and of them panels of columns that fit on the chip. Rows
follow one another: the next is loaded and the last is stored while one is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from ecorl.engines.fpga.cycles.hbm import WORD_BYTES, Memory
from ecorl.engines.fpga.cycles.kernels import DIVISION, EXP_DEPTH, LOOP_DEPTH, ROOT, CallTotals
from ecorl.engines.fpga.kernels.sequence import VectorOperation

LANES = 16
BLOCK_ROWS = 16
_MAX_COLUMNS, _MAX_HEADS = 8192, 64
CHANNEL_WORDS = 3
"""Words of constants for 16 channels: mantissas, shifts, biases."""

_STEP_CODES, _TABLE_LANES, _ROPE_WORDS, _EXPONENT_WORDS = 4, 32, 4, 4
_SCALE_WORDS, _RESULT_WORDS = 4, 2  # of a head's 16 rows: scales going out, exponents coming in
_ROW_SCALARS = 8  # a row's record, read and written by loops without a pipeline

_VALUES = ("embed", "residual", "fixed")  # results are values, not codes
_PEAKS, _CODES = 0, 2  # stages of gate and context


def token_beats(d: int) -> int:
    """Words of 64 bytes that hold a token's codes of one head."""
    return -(-d // WORD_BYTES)


def words_of(n: int) -> int:
    """Words of 16 values."""
    return -(-n // LANES)


@dataclass(frozen=True, slots=True)
class VectorCounts:
    """Loop counts of vector_ops, in the order of its counters."""

    calls: int
    rows: int
    load_cycles: int
    turn_cycles: int
    side_cycles: int
    take_cycles: int
    work_cycles: int
    give_cycles: int
    code_cycles: int
    bytes_read: int
    bytes_written: int


@dataclass(frozen=True, slots=True)
class _Loops:
    """Loops of a row function.

    Attributes:
        trips: of all loops together.
        entries: how many loops there are.
        scalars: cycles outside of loops.
    """

    trips: int
    entries: int
    scalars: int = 0

    def cycles(self, ii: int) -> int:
        return ii * self.trips + self.entries * LOOP_DEPTH + self.scalars


def turned_words(m: int, panels: Sequence[int], parts: int) -> int:
    """Trips of a buffer into which a panel is written while the one before is read.

    Args:
        m: rows; each block of 16 goes through all panels.
        panels: words of a row in each panel.
        parts: partial sums that are added when they are loaded.
    """
    if not panels or m < 1:
        return 0

    def within(rows: int) -> int:
        return sum(rows * max(parts * b, a) for a, b in pairwise(panels))

    full, last = divmod(m, BLOCK_ROWS)
    first_rows, last_rows = min(m, BLOCK_ROWS), last or BLOCK_ROWS
    total = first_rows * parts * panels[0] + last_rows * panels[-1]
    total += full * within(BLOCK_ROWS) + (within(last) if last else 0)
    if full > 1:
        total += (full - 1) * BLOCK_ROWS * max(parts * panels[0], panels[-1])
    if full and last:
        total += max(last * parts * panels[0], BLOCK_ROWS * panels[-1])
    return total


@dataclass(frozen=True, slots=True)
class VectorCall:
    """``vector_ops``: one operation on m token rows.

    Attributes:
        op: the operation.
        m: rows.
        n: columns; of one half for ``gate``.
        head: size of a head on the card, for ``head`` and ``context``.
        turned: heads that RoPE turns, for ``head``.
        has_bias: for ``head``.
        parts: sums to be added first.
        stages: first and last stage, for ``gate`` and ``context``.
    """

    kernel: ClassVar[str] = "vector_ops"
    op: VectorOperation
    m: int
    n: int
    head: int = 0
    turned: int = 0
    has_bias: bool = False
    parts: int = 1
    stages: tuple[int, int] = (0, 2)

    # ---- how a task is cut into blocks, panels and stages --------------------------------------

    @property
    def _blocks(self) -> int:
        return -(-self.m // BLOCK_ROWS)

    @property
    def _reads_products(self) -> bool:
        return self.op not in ("embed", "norm")

    @property
    def _reads_x(self) -> bool:
        return self.op in ("norm", "residual")

    @property
    def _halves(self) -> int:
        return 2 if self.op == "gate" else 1

    @property
    def _columns(self) -> list[int]:
        """Columns of each panel."""
        width = _MAX_COLUMNS // self._halves
        if self.op in ("head", "context"):
            width = _MAX_HEADS * self.head
        return [min(width, self.n - at) for at in range(0, self.n, width)]

    @property
    def _stages(self) -> range:
        if self.op == "gate":
            return range(self.stages[0], self.stages[1] + 1)
        if self.op == "context":
            return range(max(self.stages[0], 1), self.stages[1] + 1)
        return range(1)

    @property
    def _code_stages(self) -> int:
        if self.op in _VALUES:
            return 0
        return 1 if self.op not in ("gate", "context") else int(_CODES in self._stages)

    @property
    def _n_heads(self) -> int:
        return self.n // self.head if self.head else 0

    @property
    def _scale_words(self) -> int:
        return _SCALE_WORDS * self._n_heads * self._blocks * (self.op == "head")

    @property
    def _table_words(self) -> int:
        """Words of the table that a row reads."""
        if self.op == "embed":
            return 1 + -(-self.n // _TABLE_LANES)
        return _ROPE_WORDS if self.op == "head" else 0

    @property
    def _channel_words(self) -> int:
        """Words of constants for 16 channels."""
        if self.op == "norm":
            return 1
        return 0 if self.op in ("embed", "context") else CHANNEL_WORDS

    def _side(self) -> tuple[int, int]:
        """Words of constants, and how many loops read them."""
        if self.op == "context":
            return _RESULT_WORDS * self._n_heads * self._blocks, self._blocks
        if not self._channel_words:
            return 0, 0
        columns = self._columns
        header = _EXPONENT_WORDS if self.op == "head" else 0
        once = self._halves * sum(header + self._channel_words * words_of(c) for c in columns)
        times = self._blocks * len(self._stages) if len(columns) > 1 else 1
        return times * once, times * self._halves * len(columns)

    def _row(self, stage: int, columns: int) -> _Loops:
        """The row functions on one row of a panel."""
        words = words_of(columns)
        if self.op == "norm":
            return _Loops(3 * words, 3, 2 * DIVISION + ROOT)
        if self.op == "gate":
            loops = {_PEAKS: 2, 1: 3, _CODES: 4}[stage]
            scalars = (loops > 2) * (EXP_DEPTH - LOOP_DEPTH) + (loops > 3) * DIVISION
            return _Loops(loops * words, loops, scalars)
        if self.op == "context":
            heads, loops = columns // self.head, 1 if stage < _CODES else 2
            return _Loops(loops * heads * words_of(self.head), loops * heads, DIVISION)
        return _Loops(words, 1)

    def _heads(self) -> _Loops:
        """The row functions on one row of all heads."""
        passes, words = 2 + int(self.has_bias), words_of(self.head)
        turned = min(self.turned, self._n_heads)
        trips = self._n_heads * passes * words + turned * words_of(self.head // 2)
        entries = self._n_heads * passes + turned
        return _Loops(trips, entries, self._n_heads * DIVISION)

    def _row_loops(self) -> list[tuple[int, _Loops]]:
        """Words that one row loads, and its loops, for each stage and panel."""
        columns = self._columns
        if self.op == "head":  # its panels share the heads: only the sum over them matters
            return [(sum(self._loaded(c) for c in columns), self._heads())]
        return [(self._loaded(c), self._row(s, c)) for s in self._stages for c in columns]

    def _loaded(self, columns: int) -> int:
        """Words of a panel that one row loads: products, residual stream or table."""
        products = self._halves * self._reads_products
        return max(max(products, int(self._reads_x)) * words_of(columns), self._table_words)

    # ---- counts and cycles --------------------------------------------------------------------

    def counts(self) -> VectorCounts:
        """Loop counts as the kernel's own counters have them."""
        words = sum(words_of(c) for c in self._columns)
        stages, rows = len(self._stages), self._row_loops()
        panels = [self._halves * words_of(c) for c in self._columns] * stages
        side, _ = self._side()
        ports = self.ports()
        read = sum(ports[name] for name in ("task", "acc", "x", "side", "table", "rows"))
        stored = self.m * words * (1 if self.op in _VALUES else self._code_stages)
        return VectorCounts(
            calls=1,
            rows=self.m,
            load_cycles=ports["acc"] // WORD_BYTES,
            turn_cycles=turned_words(self.m, panels, self.parts) * self._reads_products,
            side_cycles=side,
            take_cycles=self.m * sum(loaded for loaded, _ in rows),
            work_cycles=self.m * sum(loops.trips for _, loops in rows),
            give_cycles=stored,
            code_cycles=ports["codes"] // WORD_BYTES,
            bytes_read=read,
            bytes_written=sum(ports.values()) - read,
        )

    def ports(self) -> dict[str, int]:
        """Bytes through each memory port."""
        words = words_of(self.n)
        panels = sum(words_of(c) for c in self._columns) * len(self._stages)
        steps = self._blocks * sum(-(-c // _STEP_CODES) for c in self._columns)
        if self.op == "head":  # a row's codes stand side by side
            steps = self.m * self._n_heads * token_beats(self.head)
        found = {
            "task": 1,
            "acc": self.m * panels * self._halves * self.parts * self._reads_products,
            "x": self.m * words * self._reads_x,
            "side": self._side()[0],
            "table": self.m * len(self._columns) * self._table_words,
            "rows": self.m,
            "codes": self._code_stages * steps,
            "y": self.m * words * (self.op in _VALUES),
            "rows_out": self.m,
            "scales": self._scale_words,
        }
        return {name: n * WORD_BYTES for name, n in found.items()}

    def totals(self) -> CallTotals:
        """See `KernelCall.totals`."""
        c = self.counts()
        return CallTotals(vector_cycles=c.work_cycles, moved_bytes=c.bytes_read + c.bytes_written)

    def cycles(self, memory: Memory, ii: int) -> float:
        """See `KernelCall.cycles`.

        The slowest process, after the first panel has been loaded and before the last is stored.
        """
        c = self.counts()
        stages, blocks = len(self._stages), self._blocks
        # Bursts of a block's rows: a panel of gemm_int8's products, 16 columns of it where parts
        # are added, or a head of mha_int8's.
        widest = self._halves * words_of(self._columns[0])
        groups = self._halves * len(self._columns) * stages
        if self.parts > 1:
            groups = self._halves * sum(words_of(n) for n in self._columns) * stages
        if self.op == "context":
            groups = self._n_heads * stages
        first_groups = widest if self.parts > 1 or self.op == "context" else self._halves
        side_words, side_loops = self._side()
        x = self.m * words_of(self.n) * self._reads_x
        table = self.m * len(self._columns)
        units = self._n_heads if self.op == "head" else len(self._columns)
        values = c.give_cycles if self.op in _VALUES else 0
        processes = (
            memory.loop(c.load_cycles, blocks * groups * self.parts, ii),
            ii * c.turn_cycles + blocks * stages * len(self._columns) * LOOP_DEPTH,
            memory.loop(x, 1, ii),
            memory.loop(side_words, side_loops, ii),
            memory.loop(table * self._table_words, table, ii),
            self._compute(ii),
            memory.loop(c.code_cycles, blocks * units * self._code_stages, ii),
            memory.loop(values, 1, ii),
            memory.loop(self.m, 1, ii),
            memory.loop(self._scale_words, 1, ii),
        )
        rows = min(self.m, BLOCK_ROWS)
        first = memory.loop(rows * widest, first_groups if self._reads_products else 1, ii)
        return first + max(processes) + memory.loop(rows * words_of(self._columns[-1]), 1, ii)

    def _compute(self, ii: int) -> float:
        """Cycles of the row functions.

        Rows of a panel overlap (the next is loaded, the last is stored while one is computed);
        panels and blocks follow one another.
        """
        side, _ = self._side()
        panels = self._row_loops()
        rows = self.m * sum(
            max(ii * loaded + LOOP_DEPTH, loops.cycles(ii)) for loaded, loops in panels
        )
        # The first row of a panel is loaded and the last one stored with nothing beside them.
        alone = sum(2 * (ii * loaded + LOOP_DEPTH) for loaded, _ in panels)
        ends = self.m * (_ROW_SCALARS + (DIVISION if self.op in ("gate", "context") else 0))
        return rows + self._blocks * alone + ii * (side + self._scale_words) + ends
