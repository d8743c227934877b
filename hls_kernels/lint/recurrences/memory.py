"""What loads and stores of a loop touch, and after how many iterations they meet."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from hls_kernels.lint.recurrences.compiling import SourceLoop
from hls_kernels.lint.recurrences.ir import Function, Instruction
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
        partitioned: names of arrays that are completely partitioned into registers.
        sizes: places of the arrays that are known.
        constants: tables that never change.
    """

    loop: Loop
    source: SourceLoop
    partitioned: frozenset[str]
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
        if name_of(root) in self.partitioned:
            return "registers"
        return "port" if root in self.loop.function.arguments else "ram"

    def places(self, root: str) -> int:
        """How many places an array has."""
        return self.sizes.get(root, 1)

    def distance(self, root: str) -> int | None:
        """Iterations from a write to a read that may meet it; None where none does."""
        if self.kind(root) == "value":
            return None
        for text in self.source.pragmas:
            found = re.match(r"DEPENDENCE\b.*\bvariable\s*=\s*(\w+)(.*)", text, re.I)
            if found is None or found[1] != name_of(root):
                continue
            if re.search(r"\bfalse\b", found[2], re.I):
                return None
            stated = re.search(r"\bdistance\s*=\s*(\d+)", found[2], re.I)
            if stated is not None:
                return int(stated[1])
        return 1


def name_of(root: str) -> str:
    """The name of a variable in the sources: without what inlining adds, of a static the last."""
    mangled = re.search(r"E(\d+)(\w+)$", root)
    if root.startswith("@") and mangled is not None:
        for at in range(len(root) - 1, 0, -1):
            found = re.match(r"E(\d+)(\w+)$", root[at:])
            if found is not None and len(found[2]) == int(found[1]):
                return found[2]
    return root.lstrip("%@").split(".")[0]


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
