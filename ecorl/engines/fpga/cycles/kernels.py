"""Cycles of one kernel call: the common terms, the share of several arrays, and two kernels.

Closed forms of the loops as the sources write them, here those of ``gemm_int8`` and
``score_aggregator``.

Loop counts are those of the sources (`hls_kernels`), and equal the counters of the C-simulation.
What turns counts into cycles only a synthesis could tell; no kernel was synthesised, so it is
assumed here:

- a loop with the label ``II = i`` in its source starts a trip every ``i x ii`` cycles, where ``ii``
  is 1 unless a sweep asks for more;
- each time that a loop is entered, its pipeline fills and drains: the depth of what it computes,
  by RTL that is simulated (`depth`); loops of one process that follow one another do not overlap;
- divisions and roots are pipelines of processes of their own, which take a row or a head a cycle;
- the processes of one kernel overlap: a call lasts as long as the longest, plus what passes before
  its first word and after its last (`ecorl.engines.fpga.cycles.vector.Chain`);
- calls follow one another.

The processes of ``score_aggregator`` run side by side too; a row waits in a FIFO between its two
looks, so that the first look of the next runs beside the second.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Protocol

from ecorl.engines.fpga.csim import library
from ecorl.engines.fpga.csim.build import kernel_root
from ecorl.engines.fpga.cycles.hbm import IDEAL, WORD_BYTES, Memory
from ecorl.engines.fpga.kernels.sequence import ScoreOperation
from ecorl.errors import SynthesisReportError

LANES = 16
BLOCK_ROWS = 16
CHANNEL_WORDS = 3
"""Words of constants for 16 channels: mantissas, shifts, biases."""

SUM_WORDS = 256
"""Words of a part that are read before those of the next."""

PLACE_STEPS = 4
"""Steps from a write to a read of the same place of the buffer, at least."""


def words_of(n: int) -> int:
    """Words of 16 values."""
    return -(-n // LANES)


def product_runs(m: int, words: int, parts: int) -> int:
    """Count the bursts in which products are read.

    Args:
        m: rows.
        words: of a row.
        parts: sums that are added.
    """
    return 1 if parts == 1 else parts * -(-m * words // SUM_WORDS)


def arranged_steps(m: int, panel: int, panels: int = 1, unit: int = 1) -> int:
    """Steps of the buffer in which blocks of products become rows.

    A block of 16 rows comes in where the one before leaves; the last block, if it has fewer rows,
    comes in and then leaves, with a pause in between where it is very small.

    Args:
        m: rows.
        panel: words of a row that leave together.
        panels: of a row.
        unit: words of a row that stand together as they come in.
    """
    whole, rest = divmod(m, BLOCK_ROWS)
    tiles = whole * panels
    together = (tiles + 1) * BLOCK_ROWS if tiles else 0
    pauses = panels * arranged_pause(rest, panel, unit)
    return (together + 2 * panels * rest) * panel + pauses


def arranged_pause(rest: int, panel: int, unit: int = 1) -> int:
    """Steps between the way in and the way out of the last block's words.

    Args:
        rest: rows of the last block; 0 where it is whole.
        panel: words of a row that leave together.
        unit: words of a row that stand together as they come in.
    """
    if rest == 0 or panel == 0:
        return 0
    soonest = (rest + panel // unit - 1) * unit
    return max(PLACE_STEPS - soonest, 0)


def arranged_runs(m: int, panels: int = 1) -> int:
    """Count how often that buffer's loop begins: for whole blocks once, for each panel of the rest.

    Args:
        m: rows.
        panels: of a row.
    """
    whole, rest = divmod(m, BLOCK_ROWS)
    return bool(whole) + bool(rest) * panels


@lru_cache(maxsize=1)
def _latencies() -> dict[str, int]:
    """Cycles from operand to result of each pipeline in ``rtl/qor.json``."""
    path = kernel_root() / "rtl" / "qor.json"
    try:
        pipelines = json.loads(path.read_text("utf-8"))["pipelines"]
        return {pipeline["name"]: int(pipeline["latency"]) for pipeline in pipelines}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SynthesisReportError(f"{path} cannot be used: {error}") from error


def depth(*names: str) -> int:
    """Cycles from operand to result through pipelines that follow one another.

    All of them start a new operand every cycle, so a loop of ``n`` trips over them lasts
    ``n + depth(...)`` cycles.

    Args:
        names: pipelines of ``hls_kernels/rtl/qor.json``, such as ``"dequantise"``.

    Raises:
        SynthesisReportError: when ``qor.json`` cannot be read.
        KeyError: when it has no such pipeline.
    """
    latencies = _latencies()
    return sum(latencies[name] for name in names)


class KernelCall(Protocol):
    """One call of a kernel with its shape; hashable."""

    kernel: ClassVar[str]

    def cycles(self, memory: Memory, ii: int) -> float:
        """Cycles from the kernel's start to its end.

        Args:
            memory: the card's memory.
            ii: factor on the initiation interval of every loop.
        """

    def totals(self) -> CallTotals:
        """Trips, products and bytes of the call, which do not depend on the card's speed."""

    def ports(self) -> dict[str, int]:
        """Bytes through each memory port."""


@dataclass(frozen=True, slots=True)
class CallTotals:
    """Trips, products and bytes of a call.

    Attributes:
        array_cycles: trips of the MAC array's loop, those included in which it waits for operands
            or for results to leave.
        vector_cycles: trips of the row functions' loops.
        macs: useful multiply-accumulates.
        moved_bytes: through the card's memory.
    """

    array_cycles: int = 0
    vector_cycles: int = 0
    macs: int = 0
    moved_bytes: int = 0


@dataclass(frozen=True, slots=True)
class CallCost:
    """Cycles of one call, on all arrays of the card together.

    Attributes:
        cycles: from start to end.
        stall_cycles: of them, waits for memory.
        array_cycles: trips of the MAC array at the initiation interval.
        vector_cycles: trips of the row functions' loops at the initiation interval.
        macs: useful multiply-accumulates.
        moved_bytes: through the card's memory.
    """

    cycles: float
    stall_cycles: float
    array_cycles: float
    vector_cycles: float
    macs: int
    moved_bytes: int


@dataclass(frozen=True, slots=True)
class GemmCall:
    """``gemm_int8``: one product ``[m, k] x [n, k]^T``."""

    kernel: ClassVar[str] = "gemm_int8"
    m: int
    n: int
    k: int

    def totals(self) -> CallTotals:
        """See `KernelCall.totals`."""
        c = library.gemm_counts(self.m, self.n, self.k)
        moved = c.bytes_a + c.bytes_w + c.bytes_c
        trips = c.mac_cycles + c.fill_cycles + c.drain_cycles
        return CallTotals(trips, 0, c.macs, moved)

    def ports(self) -> dict[str, int]:
        """Bytes through each memory port."""
        c = library.gemm_counts(self.m, self.n, self.k)
        return {"a": c.bytes_a, "w": c.bytes_w, "c": c.bytes_c}

    def cycles(self, memory: Memory, ii: int) -> float:
        """See `KernelCall.cycles`.

        The first activations, then the longest of weights, array and results, then those results
        that wait for a burst before them.
        """
        c = library.gemm_counts(self.m, self.n, self.k)
        blocks, n_tiles = -(-self.m // library.TILE_M), -(-self.n // library.TILE_N)
        first = -(-min(self.m, library.TILE_M) // library.TILE_N) * -(-self.k // library.TILE_K)
        fill = memory.loop(first, 1, ii) + ii * library.SETTLE_TRIPS + depth("move")
        # Activations of later blocks hold the array's loop to the pace of their port.
        beside = c.bytes_a // WORD_BYTES - first
        waits = beside * (max(float(ii), memory.word_cycles()) - ii)
        trips = c.mac_cycles + c.drain_cycles + c.fill_cycles - first - library.SETTLE_TRIPS
        array = ii * trips + waits + depth("control", "array")
        weights = memory.loop(
            c.bytes_w // WORD_BYTES, blocks, ii, channels=memory.weight_channels
        )  # fmt: skip
        bursts = -(-self.m // library.TILE_N) * -(-n_tiles // library.BURST_TILES)
        results = memory.loop(c.bytes_c // WORD_BYTES, bursts, ii)
        return fill + max(array, weights, results) + self._last(memory, ii) + depth("move")

    def _last(self, memory: Memory, ii: int) -> float:
        """Cycles of the store after the array's last trip.

        The first 16 rows of the last block leave while its last tiles are made; their last words
        and those of its other rows come after them, in a burst for each 16 rows.
        """
        rows = (self.m - 1) % library.TILE_M + 1
        tiles = (-(-self.n // library.TILE_N) - 1) % library.BURST_TILES + 1
        first = min(rows, library.TILE_N)
        return memory.loop(first + tiles * (rows - first), -(-rows // library.TILE_N), ii)


@lru_cache(maxsize=8192)
def call_cost(call: KernelCall, memory: Memory, ii: int, n_arrays: int) -> CallCost:
    """Cycles of a call on a card.

    Args:
        call: the call.
        memory: of the card.
        ii: factor on every loop's initiation interval.
        n_arrays: copies of each kernel; they share a product's columns, and the rows, blocks or
            pages of all else.
    """
    totals = per_array = call.totals()
    part, share = call, float(n_arrays)
    if isinstance(call, GemmCall):
        # Each array reads all activations and multiplies a part of the columns, so a product does
        # not speed up by the number of arrays; rows and blocks of the other kernels do.
        part, share = GemmCall(call.m, -(-call.n // n_arrays), call.k), 1.0
        per_array = part.totals()
    # However many ports there are, together they move no more than the memory's whole rate.
    bandwidth_cycles = totals.moved_bytes / WORD_BYTES / memory.all_words
    whole = max(part.cycles(memory, ii) / share, bandwidth_cycles)
    return CallCost(
        cycles=whole,
        stall_cycles=whole - part.cycles(IDEAL, ii) / share,
        array_cycles=ii * per_array.array_cycles / share,
        vector_cycles=ii * per_array.vector_cycles / share,
        macs=totals.macs,
        moved_bytes=totals.moved_bytes,
    )


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
