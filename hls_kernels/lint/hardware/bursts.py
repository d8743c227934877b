"""The rule on accesses of memory beyond the chip: each pipelined loop is one burst."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from hls_kernels.lint.elaboration.places import place_of
from hls_kernels.lint.elaboration.trace import Access, ElaborationTrace, Scope
from hls_kernels.lint.elaboration.values import Number, Symbol, plus
from hls_kernels.lint.findings import Finding
from hls_kernels.lint.hardware.design import Design, found


def burst(design: Design) -> Iterator[Finding]:
    """A pipelined loop reads or writes a port of m_axi at consecutive words, in each turn.

    Vitis HLS infers a burst where the index is a base that the loop leaves alone plus the loop's
    counter, or a variable that grows by 1 in each turn, and no condition stands around the access.
    Any other access is a transfer of one word, which waits for the memory each time: some 64 cycles
    in place of 1. A word whose place is itself read in that turn may be anywhere, and passes.
    """
    for trace in design.traces:
        for event in trace.events():
            if not isinstance(event, Access) or event.place.root not in trace.masters:
                continue
            loop = event.scope.pipeline()
            if loop is None or loop.turns is None:
                continue
            if trace.is_received(event.place.indices[0], loop):
                continue
            fault = _condition(event, loop) or _index(trace, event, loop)
            if fault is not None:
                what = f"{event.place.root.name} is accessed {fault}: no burst"
                yield found(event.at, "burst", what)


def _condition(access: Access, loop: Scope) -> str | None:
    for scope in access.scope.around():
        if scope is loop:
            return None
        if scope.arm is not None and scope.arm[2].exact is None:
            return "under a condition"
    return None


def _index(trace: ElaborationTrace, access: Access, loop: Scope) -> str | None:
    """What is wrong with the index, or None."""
    index = access.place.indices[0]
    turns = loop.turns
    assert turns is not None
    strides = dict(index.terms)
    inner = [
        scope.turns
        for scope in access.scope.around()
        if scope.turns is not None and scope.turns.lane in strides
    ]
    words = prod(turns.copies for turns in inner)
    stride = strides.pop(turns.counter, 0) if turns.counter is not None else 0
    for unrolled in inner:
        if unrolled.lane is not None:
            strides.pop(unrolled.lane)
    rest = Number(frozenset(strides.items()), index.constant)
    if stride == 0:
        rest, stride = _counted(trace, rest, loop)
    if any(_varies(trace, symbol, loop) for symbol in rest.symbols()):
        return "at an index that is no base plus the loop's counter"
    if stride != words:
        return f"at every {stride}th word" if stride else "at the same word in each turn"
    return None


def _counted(trace: ElaborationTrace, index: Number, loop: Scope) -> tuple[Number, int]:
    """An index without the variable in it that each turn raises, and by how much it does."""
    for symbol, factor in index.terms:
        if symbol.key[0] != "cell":
            continue
        place = place_of(symbol)
        raised = trace.assigned(place.cell, loop)
        if len(raised) != 1 or any(s.arm is not None for s in _until(raised[0].scope, loop)):
            continue
        value = raised[0].value
        step = plus(value, place.number(), -1).exact if isinstance(value, Number) else None
        if step is not None:
            rest = frozenset(term for term in index.terms if term[0] != symbol)
            return Number(rest, index.constant), factor * step
    return index, 0


def _until(scope: Scope, loop: Scope) -> Iterator[Scope]:
    for around in scope.around():
        if around is loop:
            return
        yield around


def _varies(trace: ElaborationTrace, symbol: Symbol, loop: Scope) -> bool:
    """Whether a symbol changes from turn to turn of a loop."""
    kind = symbol.key[0]
    if kind in ("turn", "lane"):
        return symbol.key[1] in {scope.number for scope in loop.within()}
    if kind == "cell":
        return bool(trace.assigned(place_of(symbol).cell, loop))
    return kind in ("new", "path", "read") and symbol.key[1] in {
        scope.number for scope in loop.within()
    }
