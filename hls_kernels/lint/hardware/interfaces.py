"""Rules on pragmas of ports, and on how a dataflow region calls its processes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from hls_kernels.lint.compiling import pragma_of
from hls_kernels.lint.elaboration import syntax
from hls_kernels.lint.elaboration.syntax import Expression, Function, Kind, Op, Type, Variable
from hls_kernels.lint.elaboration.trace import ElaborationTrace, Report, Scope
from hls_kernels.lint.elaboration.values import MemoryPlace, Number

_MOST_BITS = 4096

Stream = tuple[Variable, tuple[str | int | None, ...]]
"""A stream in a variable: members and indices, None where an index is not constant."""


def stream_width(trace: ElaborationTrace) -> Report:
    """A stream's elements have 4,096 bits at most.

    Vitis HLS 2023.2 refuses wider streams inside a kernel, and what it took would be a FIFO of
    thousands of block RAM ports. A tile leaves as words of 512 bits, one after the other.
    """
    top, *_ = trace.functions()
    for variable in (*top.parameters, *trace.declarations()):
        stream = variable.type.referred.element
        bits = 0 if stream.inner is None else stream.inner.bits
        if stream.kind is Kind.STREAM and bits > _MOST_BITS:
            most = f"at most {_MOST_BITS:,} are taken"
            yield variable.at, f"an element of {variable.name} has {bits:,} bits, {most}"


def stream_depth(trace: ElaborationTrace) -> Report:
    """A stream has its depth in its type: hls::stream<T, 64>.

    A stream without one is a FIFO of two places in hardware, where C-simulation has one without
    end: a deadlock that the simulation cannot show. The depth in the type holds in both.
    """
    for variable in trace.declarations():
        stream = variable.type.element
        if stream.kind is Kind.STREAM and stream.count == 0:
            yield variable.at, f"{variable.name} has no depth in its type"


def channels(trace: ElaborationTrace) -> Report:
    """A stream between processes of a DATAFLOW region is declared in it and flows forward.

    Message 214-169 of Vitis HLS asks for both: variables of the region's own, and data that go from
    a process to one that stands behind it. Since 2022.2 the guide (UG1399) also takes streams that
    flow backwards; the message has stayed, and the rule keeps to it. What one turn leaves for the
    next is a memory outside: each turn is a region that reads one as an argument and writes another
    one. Streams of which the region has one end only come from outside or go there, and pass. Each
    end of a stream belongs to one process.
    """
    for region in trace.top.within():
        if region.is_region:
            yield from _channel_findings(region)


def _channel_findings(region: Scope) -> Report:
    writers: dict[Stream, set[int]] = {}  # processes, by their places among all
    readers: dict[Stream, set[int]] = {}
    inside = {s.variable for s in region.body.statements if isinstance(s, syntax.Declare)}
    for number, process in enumerate(region.children):
        for event in process.transfers():
            if event.stream is not None:
                ends = writers if event.method.startswith("write") else readers
                ends.setdefault(_stream_at(event.stream), set()).add(number)
    for written, read in product(writers, readers):
        variable, first, last = written[0], min(readers[read]), max(writers[written])
        if not _may_be_one(written, read) or len(readers[read] | writers[written]) == 1:
            continue
        if variable not in inside:
            said = "joins two processes of a region and is declared outside of it"
            yield variable.at, f"{variable.name} {said}"
        if first < last:
            reader, writer = region.children[first], region.children[last]
            behind = f"which {_called(writer)} behind it writes"
            yield reader.at, f"{_called(reader)} reads {variable.name}, {behind}"
    for does, ends in (("writes", writers), ("reads", readers)):
        for stream, numbers in ends.items():
            one, *others = (region.children[number] for number in sorted(numbers))
            for other in others:
                if None not in stream[1]:
                    same = f"as {_called(one)} does"
                    yield other.at, f"{_called(other)} {does} {stream[0].name}, {same}"


def _stream_at(place: MemoryPlace) -> Stream:
    return place.root, tuple(s.exact if isinstance(s, Number) else s for s in place.path)


def _may_be_one(a: Stream, b: Stream) -> bool:
    """Whether two places may be the same stream: an unknown index may be any."""
    steps = zip(a[1], b[1], strict=False)
    return a[0] is b[0] and all(x == y or x is None or y is None for x, y in steps)


def _called(process: Scope) -> str:
    return "a process" if process.function is None else process.function.name


def pointer_struct(trace: ElaborationTrace) -> Report:
    """A struct with pointers goes to functions with INLINE only.

    Vitis HLS cannot tell which memory a pointer in a struct means, and stops with HLS 214-134 where
    a function that stays a module of its own takes such a struct, by value or by reference. A
    method takes its object in the same way. What a lambda captures is no struct of the source.
    """
    for function in trace.functions():
        taken = [(p.name, p.type.referred) for p in function.parameters]
        owner = function.owner if function.is_method else None
        if owner is not None and not owner.name.startswith("(lambda"):
            taken.append(("its object", owner))
        for name, type_ in taken:
            pointed = type_.inner if type_.kind is Kind.POINTER else type_
            member = syntax.pointer_member(pointed or type_)
            if member is not None and pragma_of(function.body.pragmas, "INLINE") is None:
                takes = f"takes {name}, whose {member} is a pointer"
                yield function.at, f"{function.name} has no INLINE and {takes}"


_BURST_LENGTHS = ("max_read_burst_length", "max_write_burst_length")
_DEFAULT_BURST = 16  # words, of Vitis HLS
_MOST_BURST_BITS = 8 * 4096
_BY_ADDRESS = frozenset((Kind.REFERENCE, Kind.POINTER, Kind.ARRAY))


def axi_aggregate(trace: ElaborationTrace) -> Report:
    """No AGGREGATE with compact=bit on a port of m_axi.

    The Vitis HLS guide (UG1399) forbids it: on m_axi the host lays structs out by bytes. A struct
    whose members fill its bytes needs no pragma; without padding between them one with compact=byte
    is the same.
    """
    for function in trace.functions():
        pragmas = function.body.pragmas
        ports = {p.variable for p in pragmas if p.is_m_axi}
        for pragma in pragmas:
            is_packed = pragma.name == "AGGREGATE" and pragma.options.get("compact") == "bit"
            if is_packed and pragma.variable in ports:
                yield pragma.at, f"compact=bit on {pragma.variable}, a port of m_axi"


def burst_size(trace: ElaborationTrace) -> Report:
    """A burst of a port of m_axi has 4 KB at most: its longest number of words times their width.

    No burst of AXI crosses 4 KB: 64 words of 512 bits, 128 of 256, and 256 words of any width. A
    longer one that a port states never comes, but its adapter holds storage for it, as many words
    as it states for each transfer that may be under way. A length that is not written in digits
    cannot be held against this, and is refused. Where none is stated Vitis HLS takes 16. Ports of
    one bundle are one port of the widest words, and so are all ports without a bundle.
    """
    for function in trace.functions():
        bits = {p.name: _port_bits(p.type) for p in function.parameters}
        ports = [pragma for pragma in function.body.pragmas if pragma.is_m_axi]
        for pragma in ports:
            # what Vitis HLS calls that of all ports without a bundle depends on its release
            bundle = pragma.options.get("bundle")
            width = max(bits.get(p.variable, 0) for p in ports if p.options.get("bundle") == bundle)
            for length in _BURST_LENGTHS:
                is_stated = length in pragma.options
                words = pragma.number(length) if is_stated else _DEFAULT_BURST
                what = f"{pragma.variable} has {length} = {pragma.options.get(length, words)}"
                if not words:
                    yield pragma.at, f"{what}: not a number of words"
                elif words * width > _MOST_BURST_BITS:
                    yield pragma.at, f"{what}: {words * width // 8:,} bytes"


def _port_bits(type_: Type) -> int:
    """The width of a port of m_axi: that of its element, as a power of two."""
    bits = 0 if type_.inner is None else type_.inner.bits
    return 1 << (bits - 1).bit_length() if bits else 0


def dataflow_arguments(trace: ElaborationTrace) -> Report:
    """A process of a DATAFLOW region takes variables, parameters and constants.

    An expression or a call among the arguments is logic of the region itself, which is then not of
    the form that Vitis HLS takes (HLS 214-114): it makes a process of it, or runs the processes one
    after the other. What is computed becomes a variable before the region, or within the process.
    """
    for function in trace.functions():
        for call in _processes(function):
            callee = call.callee
            assert callee is not None
            args = call.args[1:] if callee.is_method else call.args
            for parameter, argument in zip(callee.parameters, args, strict=False):
                if not _is_plain(argument, parameter.type.kind in _BY_ADDRESS):
                    yield argument.at, f"{callee.name} takes an expression as its {parameter.name}"


def _processes(function: Function) -> Iterator[Expression]:
    """The calls that stand directly in the regions of a function."""
    found = syntax.statements_in(function.body)
    loops = (s.body for s in found if isinstance(s, syntax.LoopStatement))
    for region in (function.body, *loops):
        for statement in region.statements if pragma_of(region.pragmas, "DATAFLOW") else ():
            if isinstance(statement, Expression) and statement.op is Op.CALL:
                yield statement


def _is_plain(argument: Expression, is_by_address: bool) -> bool:
    """Whether an argument is a variable or a constant; a member too where nothing is loaded."""
    while argument.op is Op.CAST:
        argument = argument.args[0]
    if argument.op is Op.MEMBER and is_by_address:
        return _is_plain(argument.args[0], is_by_address=True)
    return argument.op in (Op.VARIABLE, Op.CONSTANT, Op.THIS)
