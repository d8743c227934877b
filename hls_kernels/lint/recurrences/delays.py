"""Delays of operators, by the table of ``operators.json``."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path

from hls_kernels.lint.recurrences.ir import Instruction

_TABLE = Path(__file__).with_name("operators.json")
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
    assumptions: tuple[str, ...]

    @property
    def period_ns(self) -> float:
        """What the clock leaves for logic."""
        return 1e3 / self.clock_mhz * (1 - self.uncertainty)

    def of(self, kind: str, bits: int = 0, levels: int = 0) -> float:
        """The delay of an operator of a width, or of a tree of levels."""
        table = self.ns[kind]
        return (
            table.get("fixed", 0.0) + table.get("bit", 0.0) * bits
            + table.get("level", 0.0) * levels
        )  # fmt: skip

    def choice(self, n_values: int, n_conditions: int) -> float:
        """One of several values, by conditions that are combined first."""
        logic = _levels(n_conditions, _LUT_INPUTS) if n_conditions > 1 else 0
        return self.of("choose", levels=_levels(n_values, _LUT_CHOICES)) + self.of(
            "logic", levels=logic
        )

    def latency(self, what: str) -> float:
        """Cycles of a memory or a pipeline as a delay."""
        return self.cycles[what] * self.period_ns

    def delay(self, own: Instruction) -> float:
        """The delay of an instruction that is neither a phi nor an access of memory."""
        op, bits = own.opcode, own.bits
        has_constant = any(is_constant(operand) for operand in own.operands)
        if op in _WIRES:
            return 0.0
        if op in ("add", "sub"):
            return self.of("add", bits)
        if op == "icmp":
            return self._comparison(own, bits)
        if op in ("and", "or", "xor"):
            return 0.0 if has_constant or own.is_disjoint else self.of("logic", levels=1)
        if op in ("shl", "lshr", "ashr"):
            if is_constant(own.operands[1]):
                return 0.0
            return self.of("shift", levels=_levels(bits, _LUT_CHOICES))
        if op == "select":
            return self.of("logic" if bits == 1 else "choose", levels=1)
        if op == "getelementptr":
            n = sum(not is_constant(operand) for operand in own.operands[1:])
            return self.of("add", 16) * max(n - 1, 0)  # rows and columns of an array
        if op == "mul":
            return self.latency("multiply" if bits <= _NARROW_PRODUCT else "multiply_wide")
        if op in _DIVISIONS:
            return self._division(own, bits)
        return self._function(own, bits)

    def _comparison(self, own: Instruction, bits: int) -> float:
        how = own.text.split()[0 if own.text.split()[0] != "samesign" else 1]
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

    def _function(self, own: Instruction, bits: int) -> float:
        if own.opcode != "call":
            raise KeyError(f"no delay of {own.opcode}: {own.text}")
        name = own.called
        if name.startswith("ecorl_fifo_"):
            return self.of("fifo")
        for known, delay in (
            (r"llvm\.[su](min|max)\.", self.of("compare", bits) + self.of("choose", levels=1)),
            (r"llvm\.abs\.", self.of("add", bits) + self.of("choose", levels=1)),
            (r"llvm\.(ctlz|cttz|ctpop)\.", self.of("logic", levels=_levels(bits, 2))),
            (r"llvm\.(bswap|bitreverse|assume|lifetime|memcpy|memset|memmove|experimental)\b", 0.0),
        ):
            if re.match(known, name):
                return delay
        if re.match(r"llvm\.fsh[lr]\.", name):
            is_wire = is_constant(own.operands[2])
            return 0.0 if is_wire else self.of("shift", levels=_levels(bits, _LUT_CHOICES))
        raise KeyError(f"no delay of a call: {own.text}")


def read_operators(path: Path = _TABLE) -> Operators:
    """The table of the operators' delays."""
    table = json.loads(path.read_text(encoding="utf-8"))
    return Operators(
        table["clock_mhz"],
        table["uncertainty"],
        table["ns"],
        table["cycles"],
        tuple(table["assumptions"]),
    )
