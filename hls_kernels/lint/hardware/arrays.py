"""Arrays in banks: how partitions lay them out, and the rules on how they are read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil, gcd, prod

from hls_kernels.lint.elaboration.places import Cell, MemoryPlace
from hls_kernels.lint.elaboration.pragmas import Pragma
from hls_kernels.lint.elaboration.syntax import SourceLine
from hls_kernels.lint.elaboration.trace import Access, ElaborationTrace
from hls_kernels.lint.elaboration.values import Number, Residues, Symbol
from hls_kernels.lint.elaboration.widths import Kind, Type
from hls_kernels.lint.findings import Finding
from hls_kernels.lint.hardware.design import Design, found

_CUT_BY_ITSELF = 4  # elements: arrays of fewer become registers without a pragma
_CHEAP_INPUTS = 8  # three LUTs a bit
_MOST_INPUTS = 16


@dataclass(frozen=True, slots=True)
class Partition:
    """How one dimension is cut: into all its elements, or into a number of banks."""

    kind: str  # complete, cyclic or block
    banks: int


@dataclass(slots=True)
class Memory:
    """An array that pragmas are about: its cuts by dimension, counted from 0."""

    cell: Cell
    type: Type
    pragmas: list[Pragma] = field(default_factory=list)
    cuts: dict[int, Partition] = field(default_factory=dict)
    is_aggregated: bool = False

    @property
    def first_cut(self) -> Pragma | None:
        """The first pragma that cuts it."""
        return next((p for p in self.pragmas if p.name == "ARRAY_PARTITION"), None)

    @property
    def is_registers(self) -> bool:
        """Whether each element of each dimension is apart."""
        whole = [cut.banks >= n for n, cut in self._cuts()]
        return len(whole) == len(self.type.dimensions) and all(whole)

    def _cuts(self) -> Iterator[tuple[int, Partition]]:
        for dimension, cut in self.cuts.items():
            yield self.type.dimensions[dimension], cut

    def indices_of(self, place: MemoryPlace) -> tuple[Number, ...] | None:
        """The indices by which a place is reached in this array, None where it is no part of it."""
        depth = len(self.cell[1])
        inner = place.path[depth : depth + len(self.type.dimensions)]
        is_part = place.cell[0] is self.cell[0] and place.cell[1][:depth] == self.cell[1]
        numbers = tuple(step for step in inner if isinstance(step, Number))
        return numbers if is_part and len(numbers) == len(self.type.dimensions) else None

    def inner_path(self, place: MemoryPlace) -> tuple[str | Number, ...]:
        """The way from an element of the array to a place in it."""
        return place.path[len(self.cell[1]) + len(self.type.dimensions) :]


def memories(trace: ElaborationTrace) -> list[Memory]:
    """The arrays that ARRAY_PARTITION, AGGREGATE or BIND_STORAGE are about."""
    known: dict[Cell, Memory] = {}
    for directive in trace.directives:
        pragma, place = directive.pragma, directive.place
        if place.type.kind is Kind.ARRAY:
            memory = known.setdefault(place.cell, Memory(place.cell, place.type))
            if pragma not in memory.pragmas:
                memory.pragmas.append(pragma)
                _cut(memory, pragma)
    for directive in trace.directives:
        if directive.pragma.name == "AGGREGATE":
            for memory in known.values():
                root, path = directive.place.cell
                if memory.cell[0] is root and memory.cell[1][: len(path)] == path:
                    memory.is_aggregated = True
    return list(known.values())


def _cut(memory: Memory, pragma: Pragma) -> None:
    if pragma.name != "ARRAY_PARTITION":
        return
    options = pragma.options
    kinds = [k for k in ("complete", "cyclic", "block") if k in options or options.get("type") == k]
    dimensions = memory.type.dimensions
    asked = pragma.number("dim")
    chosen = range(len(dimensions)) if asked == 0 else [(asked or 1) - 1]
    for dimension in chosen:
        if dimension < len(dimensions):
            kind = kinds[0] if kinds else "complete"
            count = dimensions[dimension]
            banks = count if kind == "complete" else pragma.number("factor") or count
            memory.cuts[dimension] = Partition(kind, banks)


# ---- aggregate --------------------------------------------------------------------------------


def aggregate(design: Design) -> Iterator[Finding]:
    """An array of structs that is partitioned is aggregated.

    Vitis HLS takes the structs of an array apart: each member becomes an array of its own, and an
    array within the struct one more dimension, which the pragma does not cut. Four codes of one
    element are then four words of one bank, four reads where a bank has two ports. With AGGREGATE
    an element is one word. Structs of plain numbers in registers need none.
    """
    for trace in design.traces:
        for memory in memories(trace):
            cut, element = memory.first_cut, memory.type.element
            if cut is None or memory.is_aggregated or element.kind is not Kind.RECORD:
                continue
            if memory.is_registers and not _has_arrays(element):
                continue
            at = SourceLine(cut.path, cut.line)
            what = (
                f"{_name(memory)} is partitioned and not aggregated, an array of {_last(element)}"
            )
            yield found(at, "aggregate", what)


def _has_arrays(type_: Type) -> bool:
    return any(
        inner.kind is Kind.ARRAY or (inner.kind is Kind.RECORD and _has_arrays(inner))
        for _, inner in type_.fields
    )


def _last(type_: Type) -> str:
    return type_.name.split("<")[0].split("::")[-1]


def _name(memory: Memory) -> str:
    root, path = memory.cell
    return str(MemoryPlace(root, path)).replace(".*", "[]")


# ---- partition --------------------------------------------------------------------------------


def partition(design: Design) -> Iterator[Finding]:
    """A local array that a pipelined loop indexes at run time says how it is stored.

    Without a pragma Vitis HLS decides: it cuts local arrays of fewer than 4 elements into registers
    (`complete_threshold` of config_array_partition), larger ones where it thinks that throughput
    needs it (`throughput_driven`), and the rest are memories of two ports, where 16 reads a cycle
    are an II of 8. An array with ARRAY_PARTITION or BIND_STORAGE is what the pragma says. One
    within the elements of an array with BIND_STORAGE or AGGREGATE is a part of their words. Arrays
    of fewer than 4 elements pass, and so do those whose indices are constants once loops are
    unrolled: they are registers in any case.
    """
    for trace in design.traces:
        known = {memory.cell: memory for memory in memories(trace)}
        words = {
            directive.place.cell
            for directive in trace.directives
            if directive.pragma.name in ("AGGREGATE", "BIND_STORAGE")
        }
        for event in trace.events():
            if (
                isinstance(event, Access)
                and event.place.root in trace.declared
                and event.scope.pipeline() is not None
            ):
                for cell, type_, indices in _arrays_of(event.place):
                    memory = known.get(cell) or Memory(cell, type_)
                    if not _says_how(memory, indices, words):
                        what = f"{_name(memory)} has run-time indices and no pragma of its storage"
                        yield found(cell[0].at, "partition", what)


def _arrays_of(place: MemoryPlace) -> Iterator[tuple[Cell, Type, list[Number]]]:
    """The arrays on the way to a place, each with the indices into it."""
    type_: Type | None = place.root.type.referred
    at = 0
    while type_ is not None and at < len(place.path):
        step = place.path[at]
        if isinstance(step, str):
            type_, at = type_.member(step), at + 1
            continue
        cell = MemoryPlace(place.root, place.path[:at]).cell
        behind = place.path[at : at + len(type_.dimensions)]
        indices = [index for index in behind if isinstance(index, Number)]
        if not indices:
            return
        yield cell, type_, indices
        for _ in indices:
            type_ = type_.inner if type_ is not None else None
        at += len(indices)


def _says_how(memory: Memory, indices: list[Number], words: set[Cell]) -> bool:
    if prod(memory.type.dimensions) < _CUT_BY_ITSELF:
        return True
    root, path = memory.cell
    if any(cell[0] is root and path[: len(cell[1])] == cell[1] for cell in words):
        return True
    return memory.first_cut is not None or not any(index.without_lanes().terms for index in indices)


# ---- mux --------------------------------------------------------------------------------------


def mux(design: Design) -> Iterator[Finding]:
    """An index that run time decides is constant modulo the number of banks.

    A read of ``x[i * 16 + lane]`` in 16 banks finds each lane in a bank that is known when the
    hardware is built. A read of ``x[half + j]`` may find it in any of them: Vitis HLS makes a
    multiplexer of as many inputs as there are banks for each lane, 128:1 for 128 registers. Up to
    8 inputs are three LUTs a bit and pass; up to 16 pass where a cycle reads one element only.
    Writes need no multiplexer of the data, only enables, and pass.
    """
    for trace in design.traces:
        residues = trace.residues()
        cut = [memory for memory in memories(trace) if memory.cuts]
        for event in trace.events():
            if isinstance(event, Access) and not event.is_write:
                for memory in cut:
                    yield from _mux_findings(memory, event, residues)


def _mux_findings(memory: Memory, read: Access, residues: Residues) -> Iterator[Finding]:
    indices = memory.indices_of(read.place)
    for dimension, partition in memory.cuts.items() if indices is not None else ():
        assert indices is not None
        index = indices[dimension]
        inputs = _inputs(index, partition, memory.type.dimensions[dimension], residues)
        copies = copies_of(read, indices)
        if inputs > _MOST_INPUTS or (inputs > _CHEAP_INPUTS and copies > 1):
            reads = f"{copies} reads" if copies > 1 else "a read"
            what = f"{reads} of {_name(memory)} at a run-time index, {inputs} banks each"
            yield found(read.at, "mux", what)
            return


def _inputs(index: Number, partition: Partition, count: int, residues: Residues) -> int:
    """The banks that an index may mean in each copy."""
    rest = index.without_lanes()
    if not rest.terms:
        return 1
    modulus, _ = residues.of(rest) or (1, 0)
    if modulus == 0:
        return 1
    if partition.kind == "cyclic":
        banks = partition.banks // gcd(partition.banks, modulus)
    elif partition.kind == "complete":
        banks = ceil(count / modulus)
    else:
        banks = partition.banks
    spans = [symbol.span for symbol, _ in rest.terms]
    known = [span for span in spans if span is not None]
    return min(banks, prod(known)) if len(known) == len(spans) else banks


def copies_of(access: Access, indices: tuple[Number, ...]) -> int:
    """How many elements unrolled copies of an access reach in a cycle."""
    used: set[Symbol] = {symbol for index in indices for symbol in index.symbols()}
    return prod(
        scope.turns.copies
        for scope in access.scope.around()
        if scope.turns is not None and scope.turns.lane in used
    )
