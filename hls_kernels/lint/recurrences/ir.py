"""Reads the text of LLVM's intermediate representation, as far as the analysis needs it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ecorl.errors import BuildError

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
    is_disjoint: bool = False
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


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a source and its column."""

    path: Path
    line: int
    column: int


class Metadata:
    """Places in the sources, as the metadata of a module tell them."""

    def __init__(self, text: str) -> None:
        self._folders = {
            name: Path(folder) / file
            for name, file, folder in re.findall(
                r'^(!\d+) = !DIFile\(filename: "([^"]*)", directory: "([^"]*)"', text, re.M
            )
        }
        self._scopes = dict(
            re.findall(
                r"^(!\d+) = (?:distinct )?!DI(?:Subprogram|LexicalBlock|LexicalBlockFile)"
                r"\(.*?\bfile: (!\d+)",
                text,
                re.M,
            )
        )
        self._places = {
            name: (int(line), int(column), scope)
            for name, line, column, scope in re.findall(
                r"^(!\d+) = (?:distinct )?!DILocation\(line: (\d+), column: (\d+), scope: (!\d+)",
                text,
                re.M,
            )
        }
        self._places |= {
            name: (int(line), 0, name)
            for name, line in re.findall(
                r"^(!\d+) = distinct !DISubprogram\(.*?\bline: (\d+)", text, re.M
            )
        }
        self.loops: dict[str, tuple[str, str]] = {
            name: (start, end)
            for name, start, end in re.findall(
                r"^(!\d+) = distinct !\{!\d+, (!\d+), (!\d+)", text, re.M
            )
            if start in self._places and end in self._places
        }
        """Where each loop begins and ends, by its metadata."""

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
            function.blocks[block].append(_instruction(line, block, len(function.blocks[block])))
        elif line.startswith("  "):
            own = _instruction(line, block, len(function.blocks[block]))
            function.blocks[block].append(own)
            if own.name:
                function.values[own.name] = own
    raise BuildError(f"the function {function.name} has no end")


def _instruction(line: str, block: str, number: int) -> Instruction:
    found = re.match(rf"\s+(?:({_NAME}) = )?({_FLAGS})([a-z_]+)\b(.*)", line)
    if found is None:
        raise BuildError(f"no instruction of LLVM: {line.strip()}")
    name, _, opcode, rest = found.groups()
    place = re.search(r"!dbg (!\d+)", rest)
    loop = re.search(r"!llvm\.loop (!\d+)", rest)
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
    elif opcode == "alloca":
        pass
    else:
        operands = re.findall(
            rf"(?:^|[\s,])({_VALUE}|-?\d+|true|false|null|poison|undef)(?=,|$|\)| to )",
            re.sub(r", align \d+", "", text),
        )
    return Instruction(
        name or "",
        opcode,
        text.strip(),
        tuple(operands),
        tuple(labels),
        block,
        "" if place is None else place[1],
        "" if loop is None else loop[1],
        " disjoint " in line,
        number,
    )
