"""Rules on what functions hand to each other: streams, and structs with pointers."""

from __future__ import annotations

from collections.abc import Iterator

from hls_kernels.lint.elaboration.widths import Kind, Type, pointer_member
from hls_kernels.lint.findings import Finding
from hls_kernels.lint.hardware.design import Design, found

MOST_BITS = 4096


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
