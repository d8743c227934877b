"""Rules on what functions hand to each other: streams, and structs with pointers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from hls_kernels.lint.elaboration.places import MemoryPlace
from hls_kernels.lint.elaboration.syntax import Declare, Variable
from hls_kernels.lint.elaboration.trace import Scope, Transfer
from hls_kernels.lint.elaboration.values import Number
from hls_kernels.lint.elaboration.widths import Kind, Type, pointer_member
from hls_kernels.lint.findings import Finding
from hls_kernels.lint.hardware.design import Design, found

MOST_BITS = 4096

Stream = tuple[Variable, tuple[str | int | None, ...]]
"""A stream in a variable: members and indices, None where an index is not constant."""


def stream_width(design: Design) -> Iterator[Finding]:
    """A stream's elements have 4,096 bits at most.

    Vitis HLS 2023.2 refuses wider streams inside a kernel, and what it took would be a FIFO of
    thousands of block RAM ports. A tile leaves as words of 512 bits, one after the other.
    """
    tops = [
        (p, p.at)
        for trace in design.traces
        if trace.top.function
        for p in trace.top.function.parameters
    ]
    declared = [(d.variable, d.variable.at) for d in design.declarations()]
    for variable, at in (*tops, *declared):
        stream = _stream_of(variable.type)
        if stream is not None and stream.inner is not None and stream.inner.bits > MOST_BITS:
            bits = f"{stream.inner.bits:,} bits"
            what = f"an element of {variable.name} has {bits}, at most {MOST_BITS:,} are taken"
            yield found(at, "stream-width", what)


def stream_depth(design: Design) -> Iterator[Finding]:
    """A stream has its depth in its type: hls::stream<T, 64>.

    A stream without one is a FIFO of two places in hardware, where C-simulation has one without
    end: a deadlock that the simulation cannot show. The depth in the type holds in both.
    """
    for declared in design.declarations():
        stream = declared.variable.type.element
        if stream.kind is Kind.STREAM and stream.count == 0:
            what = f"{declared.variable.name} has no depth in its type"
            yield found(declared.variable.at, "stream-depth", what)


def channels(design: Design) -> Iterator[Finding]:
    """A stream between processes of a DATAFLOW region is declared in it and flows forward.

    Message 214-169 of Vitis HLS asks for both: variables of the region's own, and data that go from
    a process to one that stands behind it. Since 2022.2 the guide (UG1399) also takes streams that
    flow backwards; the message has stayed, and the rule keeps to it. What one turn leaves for the
    next is a memory outside: each turn is a region that reads one as an argument and writes another
    one. Streams of which the region has one end only come from outside or go there, and pass. Each
    end of a stream belongs to one process.
    """
    for trace in design.traces:
        for region in trace.top.within():
            if region.is_region:
                yield from _channel_findings(region)


def _channel_findings(region: Scope) -> Iterator[Finding]:
    writers: dict[Stream, set[int]] = {}  # processes, by their places among all
    readers: dict[Stream, set[int]] = {}
    inside = {s.variable for s in region.body.statements if isinstance(s, Declare)}
    for number, process in enumerate(region.children):
        for scope in process.within():
            for event in scope.events:
                if isinstance(event, Transfer) and event.stream is not None:
                    ends = writers if event.method.startswith("write") else readers
                    ends.setdefault(_stream_at(event.stream), set()).add(number)
    outside: dict[Variable, None] = {}  # once, whichever of its elements joins processes
    backward: dict[tuple[Variable, int, int], None] = {}
    for written, read in product(writers, readers):
        variable, first, last = written[0], min(readers[read]), max(writers[written])
        if not _may_be_one(written, read) or len(readers[read] | writers[written]) == 1:
            continue
        if variable not in inside:
            outside[variable] = None
        if first < last:
            backward[variable, first, last] = None
    for variable in outside:
        what = f"{variable.name} joins two processes of a region and is declared outside of it"
        yield found(variable.at, "channels", what)
    for variable, first, last in backward:
        reader, writer = region.children[first], region.children[last]
        what = f"{_called(reader)} reads {variable.name}, which {_called(writer)} behind it writes"
        yield found(reader.at, "channels", what)
    for does, ends in (("writes", writers), ("reads", readers)):
        for stream, numbers in ends.items():
            one, *others = (region.children[number] for number in sorted(numbers))
            for other in others:
                if None not in stream[1]:
                    what = f"{_called(other)} {does} {stream[0].name}, as {_called(one)} does"
                    yield found(other.at, "channels", what)


def _stream_at(place: MemoryPlace) -> Stream:
    steps = (step.exact if isinstance(step, Number) else step for step in place.path)
    return place.root, tuple(steps)


def _may_be_one(a: Stream, b: Stream) -> bool:
    """Whether two places may be the same stream: an unknown index may be any."""
    steps = zip(a[1], b[1], strict=False)
    return a[0] is b[0] and all(x == y or x is None or y is None for x, y in steps)


def _called(process: Scope) -> str:
    return "a process" if process.function is None else process.function.name


def pointer_struct(design: Design) -> Iterator[Finding]:
    """A struct with pointers goes to functions with INLINE only.

    Vitis HLS cannot tell which memory a pointer in a struct means, and stops with HLS 214-134 where
    a function that stays a module of its own takes such a struct, by value or by reference. A
    method takes its object in the same way. What a lambda captures is no struct of the source.
    """
    for function in design.functions():
        if function.is_inlined:
            continue
        taken = [(p.name, p.type.referred) for p in function.parameters]
        owner = function.owner if function.is_method else None
        if owner is not None and not owner.name.startswith("(lambda"):
            taken.append(("its object", owner))
        for name, type_ in taken:
            pointed = type_.inner if type_.kind is Kind.POINTER else type_
            member = pointer_member(pointed or type_)
            if member is not None:
                what = (
                    f"{function.name} has no INLINE and takes {name}, whose {member} is a pointer"
                )
                yield found(function.at, "pointer-struct", what)


def _stream_of(type_: Type) -> Type | None:
    element = type_.referred.element
    return element if element.kind is Kind.STREAM else None
