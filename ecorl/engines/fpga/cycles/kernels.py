"""What one call of a kernel takes, in cycles: closed forms of the loops as they are written.

Loop counts are those of the sources (`hls_kernels`), and equal the counters of the C-simulation.
Between counts and cycles stands what only a synthesis could tell, and is assumed here:

- a loop with the label ``II = i`` in its source starts a trip every ``i x ii`` cycles, where ``ii``
  is 1 unless a sweep asks for more;
- each time that a loop is entered, its pipeline fills and drains: `LOOP_DEPTH` cycles, and
  `EXP_DEPTH` where it evaluates an exponential; loops that follow one another do not overlap;
- a division takes `DIVISION` cycles and a reciprocal root `ROOT`, once a row or a head;
- the processes of one kernel overlap: a call takes the longest of them, and what must come in
  before the first result and go out after the last;
- calls follow one another.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Protocol

from ecorl.engines.fpga.csim.library import TILE_K, TILE_M, TILE_N, gemm_counts
from ecorl.engines.fpga.cycles.hbm import IDEAL, WORD_BYTES, Memory

LOOP_DEPTH = 16
"""Cycles of a pipeline beyond one a trip; assumed: a 32-bit product over DSPs takes 5 to 6, reading
and writing block RAM 4, shifts, a comparison and the loop's exit the rest."""

EXP_DEPTH = 48
"""The same with an exponential or a reciprocal: four to six products one after the other."""

DIVISION = 40
"""Cycles of a 32-bit division, a bit a cycle; assumed."""

ROOT = 80
"""Cycles of NUMERICS.md's rsqrt: three steps of three products each and what stands around them;
assumed."""


class KernelCall(Protocol):
    """One call of a kernel; hashable."""

    kernel: ClassVar[str]

    def cycles(self, memory: Memory, ii: int) -> float:
        """From the kernel's start to its end."""

    def work(self) -> KernelWork:
        """What the call does, whatever its speed."""

    def ports(self) -> dict[str, int]:
        """Bytes through each memory port."""


@dataclass(frozen=True, slots=True)
class KernelWork:
    """What a call does.

    Attributes:
        array_cycles: trips of the MAC array, waits for its first operands included.
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

    def work(self) -> KernelWork:
        """See `KernelWork`."""
        c = gemm_counts(self.m, self.n, self.k)
        moved = c.bytes_a + c.bytes_w + c.bytes_c
        return KernelWork(c.mac_cycles + c.fill_cycles, 0, c.macs, moved)

    def ports(self) -> dict[str, int]:
        """Bytes through each memory port."""
        c = gemm_counts(self.m, self.n, self.k)
        return {"a": c.bytes_a, "w": c.bytes_w, "c": c.bytes_c}

    def cycles(self, memory: Memory, ii: int) -> float:
        """First activations, then the longest of weights, array, later activations and results."""
        c = gemm_counts(self.m, self.n, self.k)
        blocks, words_a = -(-self.m // TILE_M), c.bytes_a // WORD_BYTES
        first = -(-min(self.m, TILE_M) // TILE_N) * -(-self.k // TILE_K)
        a_cycles = memory.loop(words_a, 1, ii)
        fill = memory.loop(first, 1, ii) + LOOP_DEPTH
        rest = (c.fill_cycles - first) * max(float(ii), memory.word_cycles())
        array = ii * c.mac_cycles + c.tiles * LOOP_DEPTH + rest
        weights = memory.loop(
            c.bytes_w // WORD_BYTES, blocks, ii, channels=memory.weight_channels
        )  # fmt: skip
        results = memory.loop(c.bytes_c // WORD_BYTES, c.tiles, ii)
        last = memory.loop(self.m - (blocks - 1) * TILE_M, 1, ii) + LOOP_DEPTH
        return fill + max(array, weights, a_cycles, results) + last


@lru_cache(maxsize=8192)
def call_cost(call: KernelCall, memory: Memory, ii: int, n_arrays: int) -> CallCost:
    """Cycles of a call on a card.

    Args:
        call: what is asked of the kernel.
        memory: of the card.
        ii: factor on every loop's initiation interval.
        n_arrays: copies of each kernel; they share a product's columns, and the rows, blocks or
            pages of all else.
    """
    work = own = call.work()
    part, share = call, float(n_arrays)
    if isinstance(call, GemmCall):
        part, share = GemmCall(call.m, -(-call.n // n_arrays), call.k), 1.0
        own = part.work()
    whole = max(part.cycles(memory, ii) / share, work.moved_bytes / WORD_BYTES / memory.all_words)
    return CallCost(
        cycles=whole,
        stall_cycles=whole - part.cycles(IDEAL, ii) / share,
        array_cycles=ii * own.array_cycles / share,
        vector_cycles=ii * own.vector_cycles / share,
        macs=work.macs,
        moved_bytes=work.moved_bytes,
    )
