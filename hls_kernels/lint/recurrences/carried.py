"""What each iteration of a loop waits for: its values, conditions and arrays as one graph."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from hls_kernels.lint.kernels import reached
from hls_kernels.lint.recurrences.compiling import REGISTERS, SourceLoop
from hls_kernels.lint.recurrences.graph import DelayGraph
from hls_kernels.lint.recurrences.ir import Conditions, Function, Instruction, Loop, name_of

_CONSTANT = re.compile(r"-?\d+|true|false|null|poison|undef")
_LUT_INPUTS, _LUT_CHOICES = 6, 4
_NARROW_PRODUCT = 35  # bits of a product in two DSPs
_WIRES = frozenset(
    (
        *("zext", "sext", "trunc", "freeze", "bitcast", "ptrtoint", "inttoptr", "addrspacecast"),
        *("extractvalue", "insertvalue", "alloca", "br", "switch", "ret", "unreachable"),
    )
)
_DIVISIONS = frozenset(("sdiv", "udiv", "srem", "urem"))


def is_constant(operand: str) -> bool:
    """Whether an operand is a number."""
    return _CONSTANT.fullmatch(operand) is not None


def _levels(n: int, of_one: int) -> int:
    """Levels of a tree in which a node takes `of_one` of `n`."""
    return math.ceil(math.log(n, of_one) - 1e-9) if n > 1 else 0


@dataclass(frozen=True, slots=True)
class Operators:
    """Delays in nanoseconds, latencies in cycles, and the clock that they are held against."""

    clock_mhz: float
    uncertainty: float
    ns: dict[str, dict[str, float]]
    cycles: dict[str, int]
    assumptions: list[str]

    @property
    def period_ns(self) -> float:
        """What the clock leaves for logic."""
        return 1e3 / self.clock_mhz * (1 - self.uncertainty)

    def of(self, kind: str, bits: int = 0, levels: int = 0) -> float:
        """The delay of an operator of a width, or of a tree of levels."""
        fixed, bit, level = (self.ns[kind].get(part, 0.0) for part in ("fixed", "bit", "level"))
        return fixed + bit * bits + level * levels

    def choice(self, n_values: int, n_conditions: int) -> float:
        """One of several values, by conditions that are combined first."""
        logic = self.of("logic", levels=_levels(n_conditions, _LUT_INPUTS))
        return self.of("choose", levels=_levels(n_values, _LUT_CHOICES)) + logic

    def latency(self, what: str) -> float:
        """Cycles of a memory or a pipeline as a delay."""
        return self.cycles[what] * self.period_ns

    def delay(self, own: Instruction) -> float:
        """The delay of an instruction that is neither a phi nor an access of memory."""
        op, bits = own.opcode, own.bits
        by = own.operands[-1] if own.operands else ""
        shift = 0.0 if is_constant(by) else self.of("shift", levels=_levels(bits, _LUT_CHOICES))
        has_constant = any(is_constant(operand) for operand in own.operands)
        if op in _WIRES:
            return 0.0
        if op in ("add", "sub"):
            return self.of("add", bits)
        if op == "icmp":
            return self._comparison(own, bits)
        if op in ("and", "or", "xor"):
            is_wire = has_constant or own.text.startswith("disjoint ")
            return 0.0 if is_wire else self.of("logic", levels=1)
        if op in ("shl", "lshr", "ashr"):
            return shift
        if op == "select":
            return self.of("logic" if bits == 1 else "choose", levels=1)
        if op == "getelementptr":
            n = sum(not is_constant(operand) for operand in own.operands[1:])
            return self.of("add", 16) * max(n - 1, 0)  # rows and columns of an array
        if op == "mul":
            return self.latency("multiply" if bits <= _NARROW_PRODUCT else "multiply_wide")
        if op in _DIVISIONS:
            return self._division(own, bits)
        if op != "call":
            raise KeyError(f"no delay of {own.opcode}: {own.text}")
        for known, delay in (
            (r"ecorl_fifo_", self.of("fifo")),
            (r"llvm\.[su](min|max)\.", self.of("compare", bits) + self.of("choose", levels=1)),
            (r"llvm\.abs\.", self.of("add", bits) + self.of("choose", levels=1)),
            (r"llvm\.(ctlz|cttz|ctpop)\.", self.of("logic", levels=_levels(bits, 2))),
            (r"llvm\.(bswap|bitreverse|assume|lifetime|memcpy|memset|memmove|experimental)\b", 0.0),
            (r"llvm\.fsh[lr]\.", shift),
        ):
            if re.match(known, own.called):
                return delay
        raise KeyError(f"no delay of a call: {own.text}")

    def _comparison(self, own: Instruction, bits: int) -> float:
        how = own.text.removeprefix("samesign ").split()[0]
        if how in ("eq", "ne"):
            return self.of("equal", bits)
        if (how, own.operands[1]) in {("slt", "0"), ("sgt", "-1"), ("sge", "0"), ("sle", "-1")}:
            return 0.0  # the sign
        return self.of("compare", bits)

    def _division(self, own: Instruction, bits: int) -> float:
        by = own.operands[1]
        if is_constant(by) and int(by) & (int(by) - 1) == 0:  # a sum before the shift, for the sign
            return self.of("add", bits) * (2 if own.opcode == "srem" else 1)
        return self.latency("divide") + bits * self.latency("divide_bit")


def read_operators() -> Operators:
    """The table of the operators' delays."""
    path = Path(__file__).with_name("operators.json")
    return Operators(**json.loads(path.read_text(encoding="utf-8")))


_POINTERS = frozenset(("getelementptr", "bitcast", "addrspacecast", "freeze", "phi", "select"))


@dataclass(frozen=True, slots=True)
class Access:
    """An instruction that reads or writes an array, by its address."""

    instruction: Instruction
    root: str
    is_write: bool


@dataclass(frozen=True)
class Memory:
    """The accesses of a loop.

    Attributes:
        loop: as compiled.
        source: the same loop in the sources, with its pragmas.
        sizes: places of the arrays that are known.
        constants: tables that never change.
    """

    loop: Loop
    source: SourceLoop
    sizes: dict[str, int]
    constants: frozenset[str]

    @cached_property
    def accesses(self) -> list[Access]:
        """All of them, in the order of an iteration."""
        return [
            Access(own, root, is_write)
            for own in self.loop.instructions()
            for address, is_write in _addresses(own)
            for root in sorted(_roots(self.loop.function, address))
        ]

    @cached_property
    def _of_iteration(self) -> set[str]:
        """Local variables that begin anew in each iteration, and what FIFOs hand over."""
        begun = (i for i in self.loop.instructions() if i.called.startswith("llvm.lifetime.start"))
        return {own.operands[-1] for own in begun}

    def kind(self, root: str) -> str:
        """How an array is held: value, registers, constants, ram or port."""
        if root in self._of_iteration:
            return "value"
        if root in self.constants:
            return "constants"
        if REGISTERS in root.split(".")[1:]:
            return "registers"
        return "port" if root in self.loop.function.arguments else "ram"

    def distance(self, root: str) -> int | None:
        """Iterations from a write to a read that may meet it; None where none does.

        A DEPENDENCE pragma says so only where it speaks of reads after writes of other iterations.
        """
        if self.kind(root) == "value":
            return None
        for pragma in self.source.pragmas:
            is_other = any(pragma.says(word) for word in ("intra", "war", "waw"))
            if pragma.name != "DEPENDENCE" or pragma.variable != name_of(root) or is_other:
                continue
            stated = pragma.number("distance")
            if pragma.says("false") or stated is not None:
                return None if pragma.says("false") else stated
        return 1


def _addresses(own: Instruction) -> Iterator[tuple[str, bool]]:
    """The addresses of an instruction, and whether it writes there."""
    if own.opcode == "load":
        yield own.operands[-1], False
    elif own.opcode == "store":
        yield own.operands[-1], True
    elif own.called.startswith(("llvm.memcpy", "llvm.memmove")):
        yield own.operands[1], False
        yield own.operands[0], True
    elif own.called.startswith("llvm.memset"):
        yield own.operands[0], True
    elif own.called == "ecorl_fifo_read":
        yield own.operands[1], True
    elif own.called == "ecorl_fifo_write":
        yield own.operands[1], False


def _roots(function: Function, address: str) -> set[str]:
    """The variables into which an address may point."""

    def bases(pointer: str) -> tuple[str, ...]:
        own = function.values.get(pointer)
        if own is None or own.opcode not in _POINTERS:
            return ()
        if own.opcode == "select":
            return own.operands[1:]
        return own.operands if own.opcode == "phi" else own.operands[:1]

    return {pointer for pointer in reached([address], bases) if not bases(pointer)}


_NO_HARDWARE = ("llvm.lifetime", "llvm.assume", "llvm.experimental")


def graph_of(memory: Memory, operators: Operators) -> DelayGraph:
    """The graph of a loop: instructions with their delays, distances in iterations.

    A value that is carried is a phi of the header. All other phis are choices by the conditions of
    the branches before them; stores and accesses of FIFOs wait for the conditions on which they
    run, and the next iteration for the one on which the loop goes on.
    """
    loop = memory.loop
    conditions = Conditions(loop)
    own = {i.key: i for i in loop.instructions() if not i.called.startswith(_NO_HARDWARE)}
    names = {i.name: key for key, i in own.items() if i.name}
    graph = DelayGraph()
    touched: dict[str, list[Access]] = {}
    for access in memory.accesses:
        touched.setdefault(access.instruction.key, []).append(access)

    carried = {key for key, i in own.items() if i.opcode == "phi" and i.block == loop.header}
    for key, one in own.items():
        waits_for = list(one.operands)
        delay = 0.0
        if key in carried:
            for value, label in zip(one.operands, one.labels, strict=True):
                if label in loop.latches and value in names:
                    graph.connect(names[value], key, 1)
            waits_for = []
        elif one.opcode == "phi":
            asked = conditions.of_join(one.block)
            waits_for += asked
            delay = operators.choice(len(set(one.operands)), len(asked))
        elif key in touched:
            delay = sum(_latency(memory, access, operators) for access in touched[key])
            if one.called.startswith("ecorl_fifo"):
                delay += operators.of("fifo")
        else:
            delay = operators.delay(one)
        if one.called.startswith("ecorl_fifo") or any(a.is_write for a in touched.get(key, [])):
            waits_for += conditions.of_block(one.block)
        if one.opcode in ("br", "switch") and not set(one.labels) <= set(loop.blocks):
            for begun in carried:
                graph.connect(key, begun, 1)
        graph.delays[key] = delay
        for value in waits_for:
            if value in names:
                graph.connect(names[value], key)
    _connect_arrays(graph, memory)
    return graph


def _connect_arrays(graph: DelayGraph, memory: Memory) -> None:
    """Reads wait for writes: of this iteration that come before them, and of earlier ones.

    A node for what an array holds stands between, one for each write and one for each iteration
    before, so that a bank with many accesses makes few edges.
    """
    held: dict[str, str] = {}
    for access in memory.accesses:
        key, root = access.instruction.key, access.root
        if access.is_write:
            after = f"{root} after {key}"
            graph.delays[after] = 0.0
            graph.connect(key, after)
            if root in held:
                graph.connect(held[root], after)
            held[root] = after
        elif root in held:
            graph.connect(held[root], key)
    for access in memory.accesses:
        distance = memory.distance(access.root)
        if not access.is_write and distance is not None and access.root in held:
            graph.connect(held[access.root], access.instruction.key, distance)


def _latency(memory: Memory, access: Access, operators: Operators) -> float:
    kind = memory.kind(access.root)
    if kind == "value":
        return 0.0
    if kind in ("ram", "port"):
        return operators.latency(f"{kind}_{'write' if access.is_write else 'read'}")
    n = memory.sizes.get(access.root, 1)
    return operators.choice(2 if access.is_write else n, math.ceil(math.log2(n)) if n > 1 else 1)
