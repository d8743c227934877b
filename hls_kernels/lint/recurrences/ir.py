"""Reads the text of LLVM's intermediate representation, as far as the analysis needs it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ecorl.errors import BuildError
from hls_kernels.lint.kernels import reached

_NAME = r'%(?:"[^"]+"|[-\w$.]+)'
_VALUE = rf'{_NAME}|@(?:"[^"]+"|[-\w$.]+)'
_FLAGS = r"(?:(?:nuw|nsw|nneg|exact|disjoint|samesign|tail|musttail|notail|inbounds|volatile) )*"


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction: `operands` are names and constants, `text` what follows its opcode.

    `name` is empty where it has no result, `labels` are the blocks that a phi's values come from or
    that a branch leads to, `place` is the metadata of its line, `loop` that of the loop which a
    branch goes round, `number` its place in its block.
    """

    name: str
    opcode: str
    text: str
    operands: tuple[str, ...]
    labels: tuple[str, ...]
    block: str
    place: str
    loop: str = ""
    number: int = 0

    @property
    def bits(self) -> int:
        """Width of its operands; of a choice, of what is chosen from."""
        found = re.findall(r"\bi(\d+)\b", self.text)
        if self.opcode == "select" and len(found) > 1:
            return int(found[1])
        return int(found[0]) if found else 64

    @property
    def key(self) -> str:
        """Its name in a graph; what has no result is named by its place in the block."""
        return self.name or f"{self.block} {self.number}"

    @property
    def called(self) -> str:
        """The function of a call, without its @."""
        found = re.search(r"@([\w.$]+)\(", self.text)
        return found[1] if found is not None and self.opcode == "call" else ""


@dataclass(slots=True)
class Function:
    """A function: its blocks in the order of the text, and every value's instruction."""

    name: str
    arguments: tuple[str, ...]
    blocks: dict[str, list[Instruction]] = field(default_factory=dict)
    values: dict[str, Instruction] = field(default_factory=dict)

    def successors(self, block: str) -> tuple[str, ...]:
        """The blocks that may come next."""
        body = self.blocks[block]
        return body[-1].labels if body and body[-1].opcode in ("br", "switch") else ()


class Place(NamedTuple):
    """A line of a source and its column."""

    path: Path
    line: int
    column: int


class Metadata:
    """Places in the sources, as the metadata of a module tell them."""

    def __init__(self, text: str) -> None:
        def read(pattern: str) -> list[Any]:
            return re.findall(rf"^(!\d+) = {pattern}", text, re.M)

        files = read(r'!DIFile\(filename: "([^"]*)", directory: "([^"]*)"')
        blocks = r"(?:distinct )?!DI(?:Subprogram|LexicalBlock|LexicalBlockFile)"
        places = read(r"(?:distinct )?!DILocation\(line: (\d+), column: (\d+), scope: (!\d+)")
        functions = read(r"distinct !DISubprogram\(.*?\bline: (\d+)")
        self._folders = {name: Path(folder) / file for name, file, folder in files}
        self._scopes: dict[str, str] = dict(read(rf"{blocks}\(.*?\bfile: (!\d+)"))
        self._places = {name: (int(line), int(at), scope) for name, line, at, scope in places}
        self._places |= {name: (int(line), 0, name) for name, line in functions}
        self.loops: list[tuple[str, str, str]] = read(r"distinct !\{!\d+, (!\d+), (!\d+)")
        """The metadata of each loop, of where it begins and of where it ends."""

    def place(self, name: str) -> Place | None:
        """The place that a metadata node names, or None."""
        found = self._places.get(name)
        if found is None or found[2] not in self._scopes:
            return None
        line, column, scope = found
        return Place(self._folders[self._scopes[scope]].resolve(), line, column)


def name_of(root: str) -> str:
    """The name of a variable in the sources: without what inlining adds, of a static the last."""
    name = root.split(".")[0]
    if name.startswith("@"):
        for at in range(len(name) - 1, 0, -1):
            found = re.match(r"E(\d+)(\w+)$", name[at:])
            if found is not None and len(found[2]) == int(found[1]):
                return found[2]
    return name.lstrip("%@")


def read_functions(text: str) -> dict[str, Function]:
    """The functions that a module defines, by name.

    Raises:
        BuildError: a line in a function is none that this reader knows.
    """
    functions = {}
    lines = iter(text.splitlines())
    for line in lines:
        head = re.match(r"define .*?@([\w.$]+)\((.*)", line)
        if head is not None:
            arguments = tuple(re.findall(_NAME + r"(?=[,)])", head[2]))
            functions[head[1]] = _read_body(Function(head[1], arguments), lines)
    return functions


def _read_body(function: Function, lines: Iterator[str]) -> Function:
    block = "%entry"
    function.blocks[block] = []
    for line in lines:
        if line == "}":
            return function
        label = re.match(r'("[^"]+"|[-\w$.]+):', line)
        if label is not None:
            block = f"%{label[1]}"
            if function.blocks == {"%entry": []}:
                function.blocks.clear()
            function.blocks[block] = []
        elif line.startswith("  switch"):
            for more in lines:
                line += more
                if more.strip().startswith("]"):
                    break
        if label is None and line.startswith("  "):
            own = _instruction(line, block, len(function.blocks[block]))
            function.blocks[block].append(own)
            if own.name:
                function.values[own.name] = own
    raise BuildError(f"the function {function.name} has no end")


def _instruction(line: str, block: str, number: int) -> Instruction:
    found = re.match(rf"\s+(?:({_NAME}) = )?{_FLAGS}([a-z_]+)\b(.*)", line)
    if found is None:
        raise BuildError(f"no instruction of LLVM: {line.strip()}")
    name, opcode, rest = found.groups()
    place, loop = _metadata(rest, "dbg"), _metadata(rest, "llvm.loop")
    text = re.split(r", ![a-z.]+ !", rest)[0]
    labels: list[str] = []
    operands: list[str] = []
    if opcode == "phi":
        pairs = re.findall(rf"\[ ([^,\]]+), ({_NAME}) \]", text)
        operands, labels = [value for value, _ in pairs], [label for _, label in pairs]
    elif opcode in ("br", "switch"):
        labels = re.findall(rf"label ({_NAME})", text)
        operands = re.findall(_VALUE, re.sub(rf"label {_NAME}", "", text))
    elif opcode == "call":
        operands = re.findall(rf"({_VALUE}|-?\d+|true|false)(?=[,)])", text)
    elif opcode != "alloca":
        one = rf"{_VALUE}|-?\d+|true|false|null|poison|undef"
        plain = re.sub(r", align \d+", "", text)
        operands = re.findall(rf"(?:^|[\s,])({one})(?=,|$|\)| to )", plain)
    known = tuple(operands), tuple(labels), block, place, loop, number
    return Instruction(name or "", opcode, text.strip(), *known)


def _metadata(text: str, kind: str) -> str:
    found = re.search(rf"!{re.escape(kind)} (!\d+)", text)
    return "" if found is None else found[1]


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop: its blocks in an order in which each comes behind those that lead to it.

    Attributes:
        name: metadata of its branch back.
        header: the block that is entered.
        blocks: all of them, the header first.
        latches: the blocks from which it begins again.
    """

    function: Function
    name: str
    header: str
    blocks: tuple[str, ...]
    latches: tuple[str, ...]

    def instructions(self) -> Iterator[Instruction]:
        """All of its instructions, block by block."""
        return (own for block in self.blocks for own in self.function.blocks[block])

    def inner(self, block: str) -> list[str]:
        """The blocks of an iteration that may follow one."""
        return [b for b in self.function.successors(block) if b in self.blocks and b != self.header]


def loops_of(function: Function) -> list[Loop]:
    """All loops whose branch back has metadata."""
    before: dict[str, list[str]] = {block: [] for block in function.blocks}
    for block in function.blocks:
        for to in function.successors(block):
            before[to].append(block)
    latches: dict[tuple[str, str], list[str]] = {}
    for block, body in function.blocks.items():
        if body and body[-1].loop:
            for to in function.successors(block):
                # whether every way to the block leads through the header
                if next(iter(before)) not in _reaching(before, [block], to):
                    latches.setdefault((body[-1].loop, to), []).append(block)
    return [
        Loop(function, name, header, _ordered(function, header, ends, before), tuple(ends))
        for (name, header), ends in latches.items()
    ]


def _reaching(before: dict[str, list[str]], ends: list[str], header: str) -> set[str]:
    """The blocks that reach `ends` without the header, and the header."""
    return reached([header, *ends], lambda block: [] if block == header else before[block])


def _ordered(
    function: Function, header: str, ends: list[str], before: dict[str, list[str]]
) -> tuple[str, ...]:
    """The blocks of a loop behind those that lead to them."""
    own = _reaching(before, ends, header)
    waits = {block: sum(b in own for b in before[block]) for block in own}
    ready, order = [header], []
    while ready:
        block = ready.pop()
        order.append(block)
        for to in function.successors(block):
            if to in own and to != header:
                waits[to] -= 1
                if waits[to] == 0:
                    ready.append(to)
    return tuple(order)


def _on_all_ways(order: Sequence[str], ways: dict[str, list[str]]) -> dict[str, set[str]]:
    """What stands on every way that leads to each block, itself too."""
    found: dict[str, set[str]] = {}
    for block in order:
        known = [found[way] for way in ways[block]]
        found[block] = {block} | (set.intersection(*known) if known else set())
    return found


class Conditions:
    """Which branches of a loop decide whether a block runs, and which of its ways were taken."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        inner = {block: loop.inner(block) for block in loop.blocks}
        self._before: dict[str, list[str]] = {block: [] for block in loop.blocks}
        for block, following in inner.items():
            for to in following:
                self._before[to].append(block)
        self._dominators = _on_all_ways(loop.blocks, self._before)
        after = _on_all_ways(loop.blocks[::-1], inner)
        # blocks whose branches decide whether a block runs
        self._deciding: dict[str, set[str]] = {block: set() for block in loop.blocks}
        for block, following in inner.items():
            for to in following:
                for later in after[to] - (after[block] - {block}):
                    self._deciding[later].add(block)

    @cache  # noqa: B019 - it lives as long as the loop is looked at
    def of_block(self, block: str) -> list[str]:
        """Conditions on which a block runs."""
        return self._asked(reached(self._deciding[block], self._deciding.__getitem__))

    @cache  # noqa: B019
    def of_join(self, block: str) -> list[str]:
        """Conditions that say by which way a block was reached.

        What branches and meets again before the block's own ways part says nothing of them.
        """
        first = max(self._dominators[block] - {block}, key=lambda b: len(self._dominators[b]))
        found: set[str] = set()
        for way in self._before[block]:
            found |= reached(self._deciding[way], self._deciding.__getitem__)
            if len(self._loop.inner(way)) > 1:
                found.add(way)
        return self._asked({one for one in found if first in self._dominators[one]})

    def _asked(self, blocks: set[str]) -> list[str]:
        ends = (self._loop.function.blocks[block][-1] for block in sorted(blocks))
        # a branch of one way within the loop does nothing but leave it or not
        deciding = [end for end in ends if len(set(end.labels) & set(self._loop.blocks)) > 1]
        return sorted({end.operands[0] for end in deciding if end.operands})
