"""Cycles of ``vector_ops``; for the assumptions see `ecorl.engines.fpga.cycles.kernels`.

A word of 16 values of one row passes a chain of processes, one a cycle: arrange, first look, second
look, quantise, arrange. While a row's peaks become scalars its words wait in a FIFO that holds two
of the longest rows, so the next rows come in behind them and a division costs a call its latency
once, after the last row (`VectorCall.cycles`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ecorl.engines.fpga.cycles.hbm import WORD_BYTES, Memory
from ecorl.engines.fpga.cycles.kernels import (
    BLOCK_ROWS,
    CHANNEL_WORDS,
    CallTotals,
    arranged_pause,
    arranged_runs,
    arranged_steps,
    depth,
    product_runs,
    words_of,
)
from ecorl.engines.fpga.kernels.sequence import VectorOperation


class Chain:
    """Processes in the order in which words pass them.

    FIFOs between them are assumed to be deep enough that none waits for the one behind it for lack
    of room.
    """

    def __init__(self) -> None:
        self._begin = 0.0
        self._work: list[tuple[float, float, int]] = []  # begin, duration, first stage behind it
        self._tails: list[float] = []
        self._beside = 0.0

    def stage(self, busy: float, lead: float, tail: float, ready: float = 0.0) -> None:
        """Add the next process.

        Args:
            busy: from its first word in to its last word out, if it never waits.
            lead: from its first word in to its first word out.
            tail: from its last word in to its last word out.
            ready: cycles after which it can begin at the earliest.
        """
        begin = max(self._begin, ready)
        self._tails.append(tail)
        self._work.append((begin, busy, len(self._tails)))
        self._begin = begin + lead

    def feed(self, busy: float) -> None:
        """Add a process beside the chain whose words the next stage takes.

        Args:
            busy: cycles for all that it does, from the beginning on.
        """
        self._work.append((0.0, busy, len(self._tails)))

    def take(self, busy: float, tail: float) -> None:
        """Add a process that takes what the last stage gives, beside those that follow.

        Args:
            busy: cycles for all that it does, from its first word on.
            tail: from its last word in to its end.
        """
        self._beside = max(self._beside, self._begin + busy, self._until() + tail)

    def cycles(self) -> float:
        """Cycles from the beginning to the end of the last process."""
        return max(self._beside, self._until())

    def _until(self) -> float:
        """When the last word of the last stage leaves."""
        return max((b + busy + sum(self._tails[i:]) for b, busy, i in self._work), default=0.0)


_PAIR_LAG = 8  # words from a word to its partners in RoPE
_STEP_CODES, _TABLE_LANES, _MAX_SLICE = 4, 32, 16_384
_ROPE_WORDS, _SCALE_WORDS, _RESULT_WORDS = 4, 4, 2
_HEADER_HEADS, _HEADER_WORDS = 64, 4  # exponents that stand together, and their words

_VALUES = ("embed", "residual", "fixed")  # results are values, not codes
_PEAK, _CODES = 1, 2  # stages of gate and context


def token_beats(d: int) -> int:
    """Words of 64 bytes that hold a token's codes of one head."""
    return -(-d // WORD_BYTES)


@dataclass(frozen=True, slots=True)
class VectorCounts:
    """Loop counts of vector_ops, in the order of its counters."""

    calls: int
    rows: int
    load_cycles: int
    arrange_cycles: int
    side_cycles: int
    open_cycles: int
    first_cycles: int
    pair_cycles: int
    scalar_cycles: int
    factor_cycles: int
    second_cycles: int
    code_cycles: int
    store_cycles: int
    bytes_read: int
    bytes_written: int


@dataclass(frozen=True, slots=True)
class VectorCall:
    """``vector_ops``: one operation on m token rows.

    Attributes:
        op: the operation.
        m: rows.
        n: columns; of one half for ``gate``.
        head: size of a head on the card, for ``head`` and ``context``.
        parts: sums to be added first.
        stages: first and last stage, for ``gate`` and ``context``.
    """

    kernel: ClassVar[str] = "vector_ops"
    op: VectorOperation
    m: int
    n: int
    head: int = 0
    parts: int = 1
    stages: tuple[int, int] = (0, 2)

    # ---- sizes, as in call_of of task.hpp ------------------------------------------------------

    @property
    def _blocks(self) -> int:
        return -(-self.m // BLOCK_ROWS)

    @property
    def _words(self) -> int:
        """Words of a row's values; for ``gate`` of its gates."""
        return words_of(self.n)

    @property
    def _looks(self) -> int:
        """First looks of a row: gates and ups each have their own."""
        return 2 if self.op == "gate" else 1

    @property
    def _heads(self) -> int:
        return self.n // self.head if self.head else 0

    @property
    def _unit(self) -> int:
        """Words of a head."""
        return words_of(self.head)

    @property
    def _panels(self) -> int:
        """Parts of a row that have a scale of their own."""
        return self._heads if self.op == "head" else 1

    @property
    def _panel(self) -> int:
        """Words of a row's products that leave the block buffer together."""
        return self._unit if self.op == "head" else self._looks * self._words

    @property
    def _group(self) -> int:
        """Words of a row's products that stand together in memory."""
        return self._unit if self.op == "context" else 1

    @property
    def _part_words(self) -> int:
        return self._unit if self.op == "head" else self._words

    @property
    def _looks_first(self) -> bool:
        return self.op != "context" or self.stages[1] >= _PEAK

    @property
    def _reads_products(self) -> bool:
        return self.op not in ("embed", "norm") and self._looks_first

    @property
    def _reads_x(self) -> bool:
        return self.op in ("norm", "residual")

    @property
    def _looks_twice(self) -> bool:
        if self.op == "gate":
            return self.stages[1] >= _PEAK
        return self.op not in _VALUES and (self.op != "context" or self.stages[1] >= _CODES)

    @property
    def _gives_codes(self) -> bool:
        return self._looks_twice and (self.op != "gate" or self.stages[1] == _CODES)

    @property
    def _table_words(self) -> int:
        """Words of the table that a row reads."""
        if self.op == "embed":
            return 1 + -(-self.n // _TABLE_LANES)
        return _ROPE_WORDS if self.op == "head" else 0

    @property
    def _steps(self) -> int:
        """Words of codes of a block of rows."""
        return -(-self.n // _STEP_CODES)

    @property
    def _side(self) -> tuple[int, int]:
        """Words of constants, and the bursts in which they are read."""
        if self.op == "context":
            return _RESULT_WORDS * self._heads * self._blocks, self._heads * self._blocks
        if self.op == "norm":
            return self._words, 1
        channels = CHANNEL_WORDS * self._looks * self._words if self.op != "embed" else 0
        headers = -(-self._heads // _HEADER_HEADS) if self.op == "head" else 0
        return channels + _HEADER_WORDS * headers, 2 * headers or 1

    # ---- counts --------------------------------------------------------------------------------

    def counts(self) -> VectorCounts:
        """Loop counts as the kernel's own counters have them."""
        row = self._looks * self._words
        passed = self.m * row * self._looks_first
        ports = self.ports()
        read = sum(ports[name] for name in ("task", "acc", "x", "side", "table", "rows"))
        arranged = arranged_steps(self.m, self._panel, self._panels, self._group)
        pairs = passed + (_PAIR_LAG if self.op == "head" else 0)
        return VectorCounts(
            calls=1,
            rows=self.m,
            load_cycles=ports["acc"] // WORD_BYTES,
            arrange_cycles=arranged * self._reads_products,
            side_cycles=self._side[0],
            open_cycles=self._open_cycles(),
            first_cycles=passed,
            pair_cycles=pairs * self._looks_twice,
            scalar_cycles=self.m * self._panels * self._looks,
            factor_cycles=self._factor_cycles(),
            second_cycles=self.m * self._words * self._looks_twice,
            code_cycles=self._code_cycles() * self._gives_codes,
            store_cycles=ports["codes"] // WORD_BYTES,
            bytes_read=read,
            bytes_written=sum(ports.values()) - read,
        )

    def _open_cycles(self) -> int:
        openings = self._panels
        if self.op == "context" and self._looks_first:
            openings = self._heads
        headers = -(-self._heads // _HEADER_HEADS) if self.op == "head" else 0
        return headers * _HEADER_HEADS + self.m + self.m * openings

    def _factor_cycles(self) -> int:
        if self.op == "norm":
            return self._words + self.m * self._words
        if self.op == "head":
            return self.m * (_ROPE_WORDS + self._unit) + self.m * self._words
        return 0

    def _code_cycles(self) -> int:
        """A block of rows comes in beside the codes of the one before going out."""
        if self.op == "head":
            return self.m * self._words
        last = self.m - (self._blocks - 1) * BLOCK_ROWS
        if self._blocks == 1:
            return last * self._words + self._steps
        whole = (self._blocks - 1) * BLOCK_ROWS * self._words
        return whole + max(last * self._words, self._steps) + self._steps

    def ports(self) -> dict[str, int]:
        """Bytes through each memory port."""
        row = self._looks * self._words
        steps = self._blocks * self._steps
        if self.op == "head":  # a row's codes stand side by side
            steps = self.m * self._heads * token_beats(self.head)
        found = {
            "task": 1,
            "acc": self.m * row * self.parts * self._reads_products,
            "x": self.m * self._words * self._reads_x,
            "side": self._side[0],
            "table": self.m * self._table_words,
            "rows": self.m,
            "codes": steps * self._gives_codes,
            "y": self.m * self._words * (self.op in _VALUES),
            "rows_out": self.m,
            "scales": _SCALE_WORDS * self._heads * self._blocks * (self.op == "head"),
        }
        return {name: n * WORD_BYTES for name, n in found.items()}

    def totals(self) -> CallTotals:
        """See `KernelCall.totals`."""
        c = self.counts()
        return CallTotals(vector_cycles=c.first_cycles, moved_bytes=c.bytes_read + c.bytes_written)

    # ---- cycles --------------------------------------------------------------------------------

    def cycles(self, memory: Memory, ii: int) -> float:
        """See `KernelCall.cycles`.

        The longest process, after those before it have given their first words and before those
        behind it have passed its last ones on. Depths are those of simulated RTL
        (`ecorl.engines.fpga.cycles.kernels`); all operations go through one pipe, so each look
        has the depth of its longest operation.
        """
        c, chain = self.counts(), Chain()
        self._load(chain, memory, ii)
        self._first_look(chain, memory, ii)
        wait = memory.latency_cycles
        if self.op in _VALUES:
            chain.take(memory.loop(self.m * self._words, 1, ii), wait)
        if self._looks_first:
            look = ii * self._looks * self._part_words + depth("peak", "maximum")
            scalars = depth("control", "make_gate")
            chain.stage(ii * c.scalar_cycles + scalars, look + scalars, scalars)
        if self._looks_twice:
            self._second_look(chain, memory, ii)
        if self._gives_codes:
            self._store_codes(chain, memory, ii)
        else:
            chain.take(memory.loop(self.m, 1, ii), depth("control", "times", "times") + wait)
        return chain.cycles()

    def _load(self, chain: Chain, memory: Memory, ii: int) -> None:
        """Rows of products, of the residual stream or of the embedding."""
        c, wait, move = self.counts(), memory.latency_cycles, depth("control", "move")
        pace = max(float(ii), memory.word_cycles())
        row = self._looks * self._words
        if self.op == "embed":
            chain.stage(memory.loop(self.m * self._table_words, self.m, ii), wait + move, 2 * ii)
            chain.stage(ii * self.m * (row + 1) + move, move, move)
        elif self.op == "norm":
            chain.stage(memory.loop(self.m * row, 1, ii), wait + move, move)
        if not self._reads_products:
            return
        runs = sums = product_runs(self.m, row, self.parts)
        if self.op == "context":
            runs = self._heads * self._blocks
        chain.stage(memory.loop(c.load_cycles, runs, ii), wait + move, move)
        chain.stage(ii * c.load_cycles + sums * move, move, move)
        tile = min(self.m, BLOCK_ROWS) * self._panel
        rest = self.m % BLOCK_ROWS
        pause = arranged_pause(rest, self._panel, self._group)
        last = (rest or BLOCK_ROWS) * self._panel + pause
        first = pace * self.parts * tile + (self._heads * wait if self.op == "context" else 0.0)
        arrange = ii * c.arrange_cycles + arranged_runs(self.m, self._panels) * move
        if rest == self.m:  # nothing but the last block
            first += ii * pause
        chain.stage(arrange, first + move, ii * last + move)
        if self._reads_x:
            chain.feed(memory.loop(self.m * row, 1, ii))

    def _first_look(self, chain: Chain, memory: Memory, ii: int) -> None:
        """Dequantise: once records, exponents and constants are there."""
        c, wait, move = self.counts(), memory.latency_cycles, depth("control", "move")
        side, side_runs = self._side
        side_cycles = memory.loop(side, side_runs, ii)
        opened = depth("control", "make_fixed")
        first_rows = min(self.m, BLOCK_ROWS)
        ready = float(wait + move + ii * first_rows + opened)
        openings = ii * c.open_cycles + 2 * self._blocks * move + wait + opened
        if self.op == "context":
            ranked = ii * self._heads * (BLOCK_ROWS + first_rows + 1) + 2 * move
            ready += side_cycles / self._blocks + ranked
            chain.feed(max(side_cycles, self._blocks * ranked) + ii * self._heads * BLOCK_ROWS)
        elif self.op not in ("norm", "embed"):
            ready = max(ready, side_cycles + move)
        chain.feed(openings)
        lanes = depth("control", "first_look")
        chain.stage(ii * c.first_cycles + lanes, lanes, lanes, ready)

    def _second_look(self, chain: Chain, memory: Memory, ii: int) -> None:
        """Norm, rotate or gate; a part begins when its scalars are there."""
        c, wait, move = self.counts(), memory.latency_cycles, depth("control", "move")
        paired = (ii * _PAIR_LAG if self.op == "head" else 0) + move
        chain.stage(ii * c.pair_cycles + move, paired, paired)
        ready = 0.0
        if self.op == "norm":
            ready = memory.loop(self._side[0], 1, ii) + move
            chain.feed(ready + ii * c.factor_cycles + move)
        elif self.op == "head":
            rows = min(self.m, BLOCK_ROWS)
            table = memory.loop(self.m * _ROPE_WORDS, self.m, ii)
            ready = wait + table * rows / self.m + ii * rows * self._unit + move
            chain.feed(wait + max(table, ii * c.factor_cycles + 2 * self._blocks * move))
        lanes = depth("control", "second_look")
        chain.stage(ii * c.second_cycles + lanes, lanes, ii * self._part_words + lanes, ready)

    def _store_codes(self, chain: Chain, memory: Memory, ii: int) -> None:
        """Scales, codes, and what is written."""
        c, wait, move = self.counts(), memory.latency_cycles, depth("control", "move")
        part, parts = ii * self._part_words, ii * self.m * self._panels
        look = depth("peak", "maximum")
        scalars = depth("control", "quantiser")
        chain.stage(parts + look + scalars, part + look + scalars, look + scalars)
        scales = depth("times", "times")
        if self.op == "norm":
            scales = depth("divide_mean", "normalise", "plus", "inverse_root", "times")
        chain.take(memory.loop(self.m, 1, ii), scales + wait)
        runs = self._blocks * self._heads
        if self.op == "head":
            chain.take(memory.loop(_SCALE_WORDS * runs, runs, ii), scales + wait)
        lanes = depth("control", "quantise")
        chain.stage(ii * c.second_cycles + lanes, lanes, part + lanes)
        rows = min(self.m, BLOCK_ROWS)
        if self.op == "head":
            beat = ii * min(self._unit, WORD_BYTES // BLOCK_ROWS) + move
            chain.stage(ii * c.code_cycles + move, beat, move)
        else:
            block, steps = ii * rows * self._words + move, ii * self._steps + move
            chain.stage(ii * c.code_cycles + (self._blocks + 1) * move, block, steps)
            runs = 1
            if self.op == "gate" and self.n > _MAX_SLICE:
                runs = self._blocks * -(-self.n // _MAX_SLICE)
        chain.stage(memory.loop(c.store_cycles, runs, ii), wait + move, wait + move)
