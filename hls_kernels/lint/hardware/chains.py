"""Rules on values that copies of a loop's body hand to each other: one waits for the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hls_kernels.lint.elaboration.places import Cell, MemoryPlace, place_of
from hls_kernels.lint.elaboration.trace import Assignment, ElaborationTrace, Scope
from hls_kernels.lint.elaboration.values import Number, Symbol, plus
from hls_kernels.lint.findings import Finding
from hls_kernels.lint.hardware.design import Design, found

_MOST_COMPARISONS = 32


@dataclass(frozen=True, slots=True)
class _Chain:
    """An assignment that copies of one or more loops make to the same place, one after another."""

    assignment: Assignment
    loops: tuple[Scope, ...]  # all between the assignment and where the place's storage begins
    copied: tuple[Scope, ...]  # those whose copies write the same place, innermost first

    @property
    def copies(self) -> int:
        """Copies of the assignment in one turn of the loops that are left."""
        copies = 1
        for scope in self.copied:
            assert scope.turns is not None
            copies *= scope.turns.copies
        return copies

    def conditions(self) -> set[Symbol]:
        """What the conditions around the assignment are computed from, in the copied loops."""
        return {s for number in self._conditions() for s in number.symbols()}

    def is_conditional(self) -> bool:
        """Whether run time decides if a copy assigns."""
        return any(not number.is_fixed() for number in self._conditions())

    def _conditions(self) -> Iterator[Number]:
        for scope in self.assignment.scope.around():
            if scope is self.copied[-1]:
                return
            if scope.arm is not None:
                yield scope.arm[2]


def carried(design: Design) -> Iterator[Finding]:
    """Unrolled copies do not carry one scalar from turn to turn of a loop.

    A maximum, a sum or an or-ed mark that 16 copies update one after the other is a chain of 16
    operations, and the next turn of the loop waits for its end: Vitis HLS reports II of 6 to 8 in
    place of 1. It balances no chain whose end is carried, and none of comparisons at all. Each copy
    carries a value of its own, and a balanced tree brings them together after the loop. Adding what
    is constant after unrolling is no chain.
    """
    for trace in design.traces:
        for chain in _chains(trace):
            interval = _interval(chain)
            if interval is None or chain.copies <= interval or not _waits(trace, chain):
                continue
            name = chain.assignment.place
            what = f"{chain.copies} copies update {name} one after the other, and turns wait for it"
            yield found(chain.copied[-1].at, "carried", what)


def long_comparisons(design: Design) -> Iterator[Finding]:
    """No scalar is chosen by more than 32 unrolled comparisons one after the other.

    The highest bit that is set, found by a comparison for each bit, is a chain as long as the
    number; halvings find it with six comparisons.
    """
    for trace in design.traces:
        for chain in _chains(trace):
            if chain.copies <= _MOST_COMPARISONS or not chain.is_conditional():
                continue
            lanes = {scope.turns.lane for scope in chain.copied if scope.turns is not None}
            if lanes & chain.conditions():
                what = f"{chain.copies} comparisons one after the other choose "
                yield found(chain.copied[-1].at, "wide-scalar", f"{what}{chain.assignment.place}")


def _chains(trace: ElaborationTrace) -> Iterator[_Chain]:
    for assignments in trace.assignments.values():
        for assignment in assignments:
            if assignment.is_first:
                continue
            home = trace.home(assignment.place.root, assignment.scope)
            loops = []
            for scope in assignment.scope.around():
                if scope is home:
                    break
                if scope.turns is not None:
                    loops.append(scope)
            used = {symbol for index in assignment.place.indices for symbol in index.symbols()}
            copied = tuple(scope for scope in loops if _copies_one_place(scope, used))
            if copied:
                yield _Chain(assignment, tuple(loops), copied)


def _copies_one_place(scope: Scope, used: set[Symbol]) -> bool:
    turns = scope.turns
    return turns is not None and turns.copies > 1 and turns.lane not in used


def _interval(chain: _Chain) -> int | None:
    """The cycles between turns of the innermost loop that carries the value; None without one."""
    for scope in chain.loops:
        turns = scope.turns
        if turns is None or turns.is_unrolled:
            continue
        if turns.interval is not None:
            return turns.interval
        if turns.copies > 1 and turns.trips is None:
            return 1
    return None


def _waits(trace: ElaborationTrace, chain: _Chain) -> bool:
    """Whether the new value rests on the old one, in more than a constant that is added."""
    assignment = chain.assignment
    place, value = assignment.place, assignment.value
    if isinstance(value, Number):
        added = plus(value, place.number(), -1)
        if added.is_fixed() and not chain.is_conditional():
            return False
    rests = set(value.symbols()) if isinstance(value, Number) else set()
    return _rests_on(trace, rests | chain.conditions(), place, chain.copied[-1])


def _rests_on(
    trace: ElaborationTrace, symbols: set[Symbol], place: MemoryPlace, loop: Scope
) -> bool:
    """Whether symbols rest on what stands at a place, also through variables within a loop."""
    waiting, seen = set(symbols), set(symbols)
    while waiting:
        symbol = waiting.pop()
        if symbol.key[0] != "cell":
            continue
        read = place_of(symbol)
        if read.root is place.root and read.path == place.path:
            return True
        for assignment in _inner(trace, read.cell, loop):
            if isinstance(assignment.value, Number):
                new = assignment.value.symbols() - seen
                seen |= new
                waiting |= new
    return False


def _inner(trace: ElaborationTrace, cell: Cell, loop: Scope) -> list[Assignment]:
    """Assignments to a variable whose storage begins within a loop."""
    found = trace.assigned(cell, loop)
    return [a for a in found if trace.home(cell[0], a.scope).is_in(loop)]
