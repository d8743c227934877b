"""The rule on ports: what a cycle reads of one bank."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator
from itertools import islice, product

from hls_kernels.lint.elaboration.places import MemoryPlace
from hls_kernels.lint.elaboration.trace import Access, ElaborationTrace, Scope
from hls_kernels.lint.elaboration.values import Number, Residues, Symbol, in_copy
from hls_kernels.lint.elaboration.widths import Kind, Type
from hls_kernels.lint.findings import Finding
from hls_kernels.lint.hardware.arrays import Memory, memories
from hls_kernels.lint.hardware.design import Design, found

_PORTS = 2
_MOST_COPIES = 4096

_Address = tuple[Hashable, ...]


def ports(design: Design) -> Iterator[Finding]:
    """A cycle reads two words of a bank at most.

    A memory has two ports. Where a pipelined loop reads more words of one bank in a turn, Vitis HLS
    raises its II until the ports are enough. Reads of the same word are one read, and of reads that
    exclude each other only those count that can come together. What cannot be told passes.
    """
    for trace in design.traces:
        stored = [memory for memory in memories(trace) if not memory.is_registers]
        pipelines = {
            event.scope.pipeline(): None for event in trace.events() if isinstance(event, Access)
        }
        for pipeline in pipelines:
            if pipeline is not None:
                for memory in stored:
                    yield from _port_findings(trace, pipeline, memory)


def _port_findings(trace: ElaborationTrace, pipeline: Scope, memory: Memory) -> Iterator[Finding]:
    banks: dict[_Address, dict[_Address, list[Access]]] = defaultdict(lambda: defaultdict(list))
    residues = trace.residues()
    for scope in pipeline.within():
        for event in scope.events:
            if isinstance(event, Access) and not event.is_write:
                for bank, word in _words(memory, event, residues):
                    banks[bank][word].append(event)
    limit = _PORTS * (pipeline.interval or 1)
    for words in banks.values():
        together = _together(words) if len(words) > limit else []
        if len(together) > limit:
            first = together[0]
            what = f"{len(together)} words of one bank of {MemoryPlace(*memory.cell)} in "
            cycles = "one cycle" if limit == _PORTS else f"{limit // _PORTS} cycles"
            yield found(first.at, "aggregate", what + cycles)
            return


def _together(words: dict[_Address, list[Access]]) -> list[Access]:
    """Reads of different words none of which excludes another, as many as are found."""
    best: list[Access] = []
    for first in [reads[0] for reads in words.values()][:8]:
        chosen: list[Access] = []
        for reads in words.values():
            candidates = [
                read
                for read in reads
                if not read.scope.excludes(first.scope)
                and not any(read.scope.excludes(other.scope) for other in chosen)
            ]
            chosen += candidates[:1]
        best = max(best, chosen, key=len)
    return best


def _words(memory: Memory, read: Access, residues: Residues) -> Iterator[tuple[_Address, _Address]]:
    """Bank and address of each word that copies of a read touch."""
    indices = memory.indices_of(read.place)
    if indices is None:
        return
    inner = () if memory.is_aggregated else memory.inner_path(read.place)
    for copy in _copies([*indices, *(step for step in inner if isinstance(step, Number))]):
        own = tuple(in_copy(index, copy) for index in indices)
        cut = [
            _bank(index, memory.cuts[d].kind, memory.cuts[d].banks, residues)
            for d, index in enumerate(own)
            if d in memory.cuts
        ]
        reached = tuple(s if isinstance(s, str) else in_copy(s, copy) for s in inner)
        whole = 1 if memory.is_aggregated else _parts(read.place.type)
        names = tuple(step for step in reached if isinstance(step, str))
        for part in range(whole):
            yield (*names, *cut), (*own, *reached, part)


def _parts(type_: Type) -> int:
    """Words of the longest memory that a struct is taken apart into."""
    if type_.kind is not Kind.RECORD:
        return 1
    counts = [_elements(inner) for _, inner in type_.fields]
    return max(counts, default=1)


def _elements(type_: Type) -> int:
    if type_.kind is Kind.ARRAY:
        return type_.count * _elements(type_.inner) if type_.inner is not None else 1
    return _parts(type_)


def _copies(numbers: list[Number]) -> Iterator[dict[Symbol, int]]:
    """The values of the lanes that numbers rest on, copy by copy."""
    symbols = {symbol for number in numbers for symbol in number.symbols() if symbol.lanes}
    ordered = sorted(symbols, key=lambda symbol: str(symbol.key))
    lanes = [symbol.lanes or () for symbol in ordered]
    for values in islice(product(*lanes), _MOST_COPIES):
        yield dict(zip(ordered, values, strict=True))


def _bank(index: Number, kind: str, banks: int, residues: Residues) -> Hashable:
    """The bank of an index, as a number where it is known."""
    if index.exact is not None:
        return index.exact % banks if kind == "cyclic" else index.exact
    modulus, remainder = residues.of(index) or (1, 0)
    if kind == "cyclic" and modulus % banks == 0:
        return remainder % banks
    constant_part = index.constant % banks if kind == "cyclic" else index.constant
    return index.terms, constant_part
