"""What loads and stores of a loop touch, and after how many iterations they meet."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from hls_kernels.lint.recurrences.compiling import REGISTERS, SourceLoop
from hls_kernels.lint.recurrences.ir import Function, Instruction, name_of
from hls_kernels.lint.recurrences.loops import Loop

_POINTERS = frozenset(("getelementptr", "bitcast", "addrspacecast", "freeze", "phi", "select"))


@dataclass(frozen=True, slots=True)
class Access:
    """An instruction that reads or writes an array, by its address."""

    instruction: Instruction
    root: str
    address: str
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
            Access(own, root, address, is_write)
            for own in self.loop.instructions()
            for address, is_write in _addresses(own)
            for root in sorted(_roots(self.loop.function, address))
        ]

    @cached_property
    def _of_iteration(self) -> set[str]:
        """Local variables that begin anew in each iteration, and what FIFOs hand over."""
        return {
            own.operands[-1]
            for own in self.loop.instructions()
            if own.called.startswith("llvm.lifetime.start")
        }

    def kind(self, root: str) -> str:
        """How an array is held: value, registers, constants, ram or port."""
        if root in self._of_iteration:
            return "value"
        if root in self.constants:
            return "constants"
        if REGISTERS in root.split(".")[1:]:
            return "registers"
        return "port" if root in self.loop.function.arguments else "ram"

    def places(self, root: str) -> int:
        """How many places an array has."""
        return self.sizes.get(root, 1)

    def distance(self, root: str) -> int | None:
        """Iterations from a write to a read that may meet it; None where none does.

        A DEPENDENCE pragma says so only where it speaks of reads after writes of other iterations.
        """
        if self.kind(root) == "value":
            return None
        for text in self.source.pragmas:
            found = re.match(r"DEPENDENCE\b(.*)\bvariable\s*=\s*(\w+)(.*)", text, re.I)
            if found is None or found[2] != name_of(root):
                continue
            said = found[1] + found[3]
            if re.search(r"\b(intra|WAR|WAW)\b", said, re.I):
                continue
            if re.search(r"\bfalse\b", said, re.I):
                return None
            stated = re.search(r"\bdistance\s*=\s*(\d+)", said, re.I)
            if stated is not None:
                return int(stated[1])
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
    found: set[str] = set()
    seen: set[str] = set()
    todo = [address]
    while todo:
        one = todo.pop()
        own = function.values.get(one)
        if one in seen:
            continue
        seen.add(one)
        if own is None or own.opcode not in _POINTERS:
            found.add(one)
        elif own.opcode == "phi":
            todo += own.operands
        elif own.opcode == "select":
            todo += own.operands[1:]
        else:
            todo.append(own.operands[0])
    return found
