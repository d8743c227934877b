"""Arrays in banks: how partitions lay them out, and the rules on how they are read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from math import ceil, gcd, prod

from hls_kernels.lint.compiling import Pragma
from hls_kernels.lint.elaboration import values
from hls_kernels.lint.elaboration.syntax import OTHER, Kind, Type
from hls_kernels.lint.elaboration.trace import Access, ElaborationTrace, Report, Scope
from hls_kernels.lint.elaboration.values import ANY, Cell, MemoryPlace, Number, Residues, Step

_CUT_BY_ITSELF = 4  # elements: arrays of fewer become registers without a pragma
_CHEAP_INPUTS = 8  # three LUTs a bit
_MOST_INPUTS = 16
_PORTS = 2


@dataclass(slots=True)
class Memory:
    """An array that pragmas are about, and the first of them that cuts it.

    Its `cuts` are by dimension, counted from 0: complete, cyclic or block, and the banks.
    """

    cell: Cell
    type: Type
    first_cut: Pragma | None = None
    cuts: dict[int, tuple[str, int]] = field(default_factory=dict)
    is_aggregated: bool = False

    @property
    def name(self) -> str:
        """The array as sources write it."""
        return str(MemoryPlace(*self.cell)).replace(".*", "[]")

    @property
    def is_registers(self) -> bool:
        """Whether each element of each dimension is apart."""
        sizes = self.type.dimensions
        return all(d in self.cuts and self.cuts[d][1] >= size for d, size in enumerate(sizes))

    def split(self, place: MemoryPlace) -> tuple[tuple[Number, ...], tuple[Step, ...]] | None:
        """The indices by which a place is reached in this array, and the way on from the element.

        None where the place is no part of the array.
        """
        rank, rest = len(self.type.dimensions), place.path[len(self.cell[1]) :]
        numbers = tuple(step for step in rest[:rank] if isinstance(step, Number))
        is_part = values.is_within(place.cell, self.cell) and len(numbers) == rank
        return (numbers, rest[rank:]) if is_part else None


def memories(trace: ElaborationTrace) -> list[Memory]:
    """The arrays that ARRAY_PARTITION, AGGREGATE or BIND_STORAGE are about."""
    known: dict[Cell, Memory] = {}
    for pragma, place in trace.directives:
        if place.type.kind is Kind.ARRAY:
            memory = known.setdefault(place.cell, Memory(place.cell, place.type))
            if pragma.name == "ARRAY_PARTITION":
                memory.first_cut = memory.first_cut or pragma
                _cut(memory, pragma)
    aggregated = [place.cell for pragma, place in trace.directives if pragma.name == "AGGREGATE"]
    for memory in known.values():
        memory.is_aggregated = any(values.is_within(memory.cell, cell) for cell in aggregated)
    return list(known.values())


def _cut(memory: Memory, pragma: Pragma) -> None:
    kind = next((k for k in ("complete", "cyclic", "block") if pragma.says(k)), "complete")
    asked = pragma.number("dim")
    for dimension, count in enumerate(memory.type.dimensions):
        if asked == 0 or dimension == (asked or 1) - 1:
            banks = None if kind == "complete" else pragma.number("factor")
            memory.cuts[dimension] = kind, banks or count


# ---- aggregate --------------------------------------------------------------------------------


def aggregate(trace: ElaborationTrace) -> Report:
    """An array of structs that is partitioned is aggregated.

    Vitis HLS takes the structs of an array apart: each member becomes an array of its own, and an
    array within the struct one more dimension, which the pragma does not cut. Four codes of one
    element are then four words of one bank, four reads where a bank has two ports. With AGGREGATE
    an element is one word. Structs of plain numbers in registers need none.
    """
    for memory in memories(trace):
        cut, element = memory.first_cut, memory.type.element
        if cut is None or memory.is_aggregated or element.kind is not Kind.RECORD:
            continue
        if memory.is_registers and not _has_arrays(element):
            continue
        of = element.name.split("<")[0].split("::")[-1]
        yield cut.at, f"{memory.name} is partitioned and not aggregated, an array of {of}"


def _has_arrays(type_: Type) -> bool:
    return any(inner.kind is Kind.ARRAY or _has_arrays(inner) for _, inner in type_.fields)


# ---- partition --------------------------------------------------------------------------------


def partition(trace: ElaborationTrace) -> Report:
    """A local array that a pipelined loop indexes at run time says how it is stored.

    Without a pragma Vitis HLS decides: it cuts local arrays of fewer than 4 elements into registers
    (`complete_threshold` of config_array_partition), larger ones where it thinks that throughput
    needs it (`throughput_driven`), and the rest are memories of two ports, where 16 reads a cycle
    are an II of 8. An array with ARRAY_PARTITION or BIND_STORAGE is what the pragma says. One
    within the elements of an array with BIND_STORAGE or AGGREGATE is a part of their words. Arrays
    of fewer than 4 elements pass, and so do those whose indices are constants once loops are
    unrolled: they are registers in any case.
    """
    cut = {memory.cell for memory in memories(trace) if memory.first_cut is not None}
    stored = ("AGGREGATE", "BIND_STORAGE")
    words = {place.cell for pragma, place in trace.directives if pragma.name in stored}
    for access in trace.top.accesses():
        root = access.place.root
        if root not in trace.declared or access.scope.pipeline() is None:
            continue
        for cell, type_, indices in _arrays_of(access.place):
            is_small = prod(type_.dimensions) < _CUT_BY_ITSELF
            says_how = cell in cut or any(values.is_within(cell, word) for word in words)
            if not (is_small or says_how or all(index.is_fixed() for index in indices)):
                name = Memory(cell, type_).name
                yield root.at, f"{name} has run-time indices and no pragma of its storage"


def _arrays_of(place: MemoryPlace) -> Iterator[tuple[Cell, Type, list[Number]]]:
    """The arrays on the way to a place, each with the indices into it."""
    type_, at = place.root.type.referred, 0
    while at < len(place.path):
        step = place.path[at]
        if isinstance(step, str):
            type_, at = type_.member(step) or OTHER, at + 1
            continue
        cell = MemoryPlace(place.root, place.path[:at]).cell
        behind = place.path[at : at + len(type_.dimensions)]
        indices = [index for index in behind if isinstance(index, Number)]
        if not indices:
            return
        yield cell, type_, indices
        for _ in indices:
            type_ = type_.inner or OTHER
        at += len(indices)


# ---- mux --------------------------------------------------------------------------------------


def mux(trace: ElaborationTrace) -> Report:
    """An index that run time decides is constant modulo the number of banks.

    A read of ``x[i * 16 + lane]`` in 16 banks finds each lane in a bank that is known when the
    hardware is built. A read of ``x[half + j]`` may find it in any of them: Vitis HLS makes a
    multiplexer of as many inputs as there are banks for each lane, 128:1 for 128 registers. Up to
    8 inputs are three LUTs a bit and pass; up to 16 pass where a cycle reads one element only.
    Writes need no multiplexer of the data, only enables, and pass.
    """
    residues = trace.residues()
    cut = [memory for memory in memories(trace) if memory.cuts]
    for read in trace.top.accesses():
        for memory in cut if not read.is_write else ():
            yield from _mux_findings(memory, read, residues)


def _mux_findings(memory: Memory, read: Access, residues: Residues) -> Report:
    indices, _ = memory.split(read.place) or ((), ())
    used = {symbol for index in indices for symbol in index.symbols()}
    # elements that unrolled copies of the read reach in a cycle
    copies = prod(turns.copies for _, turns in read.scope.loops() if turns.lane in used)
    for dimension, index in enumerate(indices):
        if dimension not in memory.cuts:
            continue
        inputs = _inputs(index, *memory.cuts[dimension], residues)
        if inputs > _MOST_INPUTS or (inputs > _CHEAP_INPUTS and copies > 1):
            reads = f"{copies} reads" if copies > 1 else "a read"
            yield read.at, f"{reads} of {memory.name} at a run-time index, {inputs} banks each"
            return


def _inputs(index: Number, kind: str, banks: int, residues: Residues) -> int:
    """The banks that an index may mean in each copy."""
    rest = index.without_lanes()
    modulus, _ = residues.of(rest) or ANY
    if not rest.terms or modulus == 0:
        return 1
    if kind == "cyclic":
        banks //= gcd(banks, modulus)
    elif kind == "complete":
        banks = ceil(banks / modulus)
    spans = [symbol.span for symbol, _ in rest.terms]
    known = [span for span in spans if span is not None]
    return min(banks, prod(known)) if len(known) == len(spans) else banks


# ---- ports ------------------------------------------------------------------------------------

_Address = tuple[Hashable, ...]


def ports(trace: ElaborationTrace) -> Report:
    """A cycle reads two words of a bank at most.

    A memory has two ports. Where a pipelined loop reads more words of one bank in a turn, Vitis HLS
    raises its II until the ports are enough. Reads of the same word are one read, and of reads that
    exclude each other only those count that can come together. What cannot be told passes.
    """
    stored = [memory for memory in memories(trace) if not memory.is_registers]
    pipelines = dict.fromkeys(access.scope.pipeline() for access in trace.top.accesses())
    for pipeline in filter(None, pipelines):
        for memory in stored:
            yield from _port_findings(trace.residues(), pipeline, memory)


def _port_findings(residues: Residues, pipeline: Scope, memory: Memory) -> Report:
    banks: dict[_Address, dict[_Address, list[Access]]] = defaultdict(lambda: defaultdict(list))
    for access in pipeline.accesses():
        for bank, word in _words(memory, access, residues) if not access.is_write else ():
            banks[bank][word].append(access)
    limit = _PORTS * (pipeline.interval or 1)
    for words in banks.values():
        together = _together(words) if len(words) > limit else []
        if len(together) > limit:
            cycles = "one cycle" if limit == _PORTS else f"{limit // _PORTS} cycles"
            place = MemoryPlace(*memory.cell)
            yield together[0].at, f"{len(together)} words of one bank of {place} in {cycles}"
            return


def _together(words: dict[_Address, list[Access]]) -> list[Access]:
    """Reads of different words none of which excludes another, as many as are found."""
    best: list[Access] = []
    for first in [reads[0] for reads in words.values()][:8]:
        chosen: list[Access] = []
        for reads in words.values():
            for read in reads:
                if not any(read.scope.excludes(other.scope) for other in (first, *chosen)):
                    chosen.append(read)
                    break
        best = max(best, chosen, key=len)
    return best


def _words(memory: Memory, read: Access, residues: Residues) -> Iterator[tuple[_Address, _Address]]:
    """Bank and address of each word that copies of a read touch."""
    found = memory.split(read.place)
    if found is None:
        return
    indices, inner = found
    if memory.is_aggregated:
        inner = ()
    for copy in values.lane_copies(
        [*indices, *(step for step in inner if isinstance(step, Number))]
    ):
        own = tuple(values.in_copy(index, copy) for index in indices)
        cut = [_bank(own[d], *memory.cuts[d], residues) for d in sorted(memory.cuts)]
        reached = tuple(s if isinstance(s, str) else values.in_copy(s, copy) for s in inner)
        whole = 1 if memory.is_aggregated else _parts(read.place.type)
        names = tuple(step for step in reached if isinstance(step, str))
        for part in range(whole):
            yield (*names, *cut), (*own, *reached, part)


def _parts(type_: Type) -> int:
    """Words of the longest memory that a struct or an array is taken apart into."""
    if type_.kind is Kind.ARRAY and type_.inner is not None:
        return type_.count * _parts(type_.inner)
    return max((_parts(inner) for _, inner in type_.fields), default=1)


def _bank(index: Number, kind: str, banks: int, residues: Residues) -> Hashable:
    """The bank of an index, as a number where it is known."""
    if index.exact is not None:
        return index.exact % banks if kind == "cyclic" else index.exact
    modulus, remainder = residues.of(index) or ANY
    if kind == "cyclic" and modulus % banks == 0:
        return remainder % banks
    constant_part = index.constant % banks if kind == "cyclic" else index.constant
    return index.terms, constant_part
