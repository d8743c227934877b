"""What a kernel does from its top on: loops, calls and branches with all that happens in them.

A trace has no run-time values: each loop's body and each arm of a branch stands in it once, and
each call stands where it is made, with what its parameters are there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, takewhile
from typing import NamedTuple

from hls_kernels.lint.compiling import Pragma, SourceLine, interval_of, pragma_of
from hls_kernels.lint.elaboration import syntax, values
from hls_kernels.lint.elaboration.syntax import Function, Statements, Type, Variable
from hls_kernels.lint.elaboration.values import Cell, MemoryPlace, Number, Symbol, Value

_numbers = count()


@dataclass(slots=True, eq=False)
class Turns:
    """How often a loop turns, and how that is done."""

    loop: syntax.LoopStatement
    trips: int | None = None  # None where run time decides
    average: int = 1  # of LOOP_TRIPCOUNT then
    copies: int = 1  # side by side: the factor of UNROLL, or all
    counter: Symbol | None = None  # groups of copies, from 0; None where nothing is left to count
    lane: Symbol | None = None  # the copy in its group; None where there are no copies

    @property
    def is_unrolled(self) -> bool:
        """Whether nothing is left of it but copies."""
        return self.counter is None


@dataclass(slots=True, eq=False)
class Scope:
    """A call, a loop, or an arm of a branch; exactly one of `function`, `turns`, `arm` says which.

    An arm is the branch's number, the arm's, and the condition.
    """

    at: SourceLine
    parent: Scope | None = None
    function: Function | None = None
    turns: Turns | None = None
    arm: tuple[int, int, Number] | None = None
    children: list[Scope] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    number: int = field(default_factory=lambda: next(_numbers))

    def __post_init__(self) -> None:
        if self.parent is not None:
            self.parent.children.append(self)

    def around(self) -> Iterator[Scope]:
        """The scope itself and those around it, innermost first."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.parent

    def loops(self) -> Iterator[tuple[Scope, Turns]]:
        """The loops of these."""
        return ((scope, scope.turns) for scope in self.around() if scope.turns is not None)

    def until(self, outer: Scope) -> Iterator[Scope]:
        """The scope itself and those around it, innermost first, before another one."""
        return takewhile(lambda scope: scope is not outer, self.around())

    def within(self) -> Iterator[Scope]:
        """The scope itself and all in it."""
        yield self
        for child in self.children:
            yield from child.within()

    def all_events(self) -> Iterator[Event]:
        """The events of the scope and of all in it."""
        return (event for scope in self.within() for event in scope.events)

    def accesses(self) -> Iterator[Access]:
        """The reads and writes of arrays in the scope and in all in it."""
        return (event for event in self.all_events() if isinstance(event, Access))

    def transfers(self) -> Iterator[Transfer]:
        """The reads and writes of streams in the scope and in all in it."""
        return (event for event in self.all_events() if isinstance(event, Transfer))

    def is_in(self, other: Scope) -> bool:
        """Whether it is another scope or stands in it."""
        return any(scope is other for scope in self.around())

    def pipeline(self) -> Scope | None:
        """The outermost pipelined loop or function around: it unrolls all that is in it."""
        pipelines = [scope for scope in self.around() if scope.interval is not None]
        return pipelines[-1] if pipelines else None

    @property
    def interval(self) -> int | None:
        """The II where this is a pipelined loop or function."""
        return interval_of(self.body.pragmas)

    @property
    def is_region(self) -> bool:
        """Whether the calls in this function or loop are the processes of a DATAFLOW region."""
        return pragma_of(self.body.pragmas, "DATAFLOW") is not None

    @property
    def body(self) -> Statements:
        """The statements of a function or loop; none of an arm."""
        if self.turns is not None:
            return self.turns.loop.body
        return Statements() if self.function is None else self.function.body

    def arms(self) -> dict[int, int]:
        """The arms of branches around it, by the branches' numbers."""
        return {scope.arm[0]: scope.arm[1] for scope in self.around() if scope.arm is not None}

    def excludes(self, other: Scope) -> bool:
        """Whether a branch lets only one of two scopes run."""
        own, others = self.arms(), other.arms()
        return any(own[branch] != others[branch] for branch in own.keys() & others.keys())


class Access(NamedTuple):
    """A read or write of an array's element."""

    place: MemoryPlace
    is_write: bool
    at: SourceLine
    scope: Scope


class Assignment(NamedTuple):
    """A new value; that of an `is_first` one is a variable's initial value."""

    place: MemoryPlace
    value: Value
    scope: Scope
    is_first: bool = False


class Arithmetic(NamedTuple):
    """A product, division or remainder of integers."""

    operator: str
    left: Number
    right: Number
    type: Type
    at: SourceLine
    scope: Scope


class Transfer(NamedTuple):
    """A read or write of a stream."""

    stream: MemoryPlace | None
    method: str
    at: SourceLine
    scope: Scope


Event = Access | Arithmetic | Transfer


Report = Iterator[tuple[SourceLine, str]]
"""What a rule finds in a trace: places, and what is wrong there."""


@dataclass(slots=True, eq=False)
class ElaborationTrace:
    """All that a kernel does from one top on."""

    top: Scope
    directives: list[tuple[Pragma, MemoryPlace]] = field(default_factory=list)
    declared: dict[Variable, list[Scope]] = field(default_factory=dict)  # where storage begins
    masters: set[Variable] = field(default_factory=set)  # ports of m_axi
    assignments: dict[Variable, list[Assignment]] = field(default_factory=dict)
    _residues: dict[Cell, values.Residue] | None = None

    def functions(self) -> list[Function]:
        """All functions that are reached, each once."""
        reached = (scope.function for scope in self.top.within())
        return list(dict.fromkeys(function for function in reached if function is not None))

    def masters_accesses(self, within: Scope) -> list[Access]:
        """The accesses of memory beyond the chip in a scope."""
        return [access for access in within.accesses() if access.place.root in self.masters]

    def declarations(self) -> Iterator[Variable]:
        """The variables that the functions declare."""
        return (v for function in self.functions() for v in syntax.variables_in(function.body))

    def assigned(self, cell: Cell, within: Scope) -> list[Assignment]:
        """Assignments to a cell, its parts or what it is a part of.

        Args:
            cell: the cell.
            within: only those in this scope.
        """
        made = self.assignments.get(cell[0], [])
        near = [
            a
            for a in made
            if values.is_within(a.place.cell, cell) or values.is_within(cell, a.place.cell)
        ]
        return [assignment for assignment in near if assignment.scope.is_in(within)]

    def home(self, variable: Variable, scope: Scope) -> Scope:
        """Where the storage of a variable begins that a scope uses; the top for a parameter's.

        That of a static variable begins there too: it lives on from call to call.
        """
        if variable.is_static:
            return self.top
        declared = self.declared.get(variable, [])
        return next((around for around in scope.around() if around in declared), self.top)

    def is_received(self, number: Number, within: Scope) -> bool:
        """Whether a number rests on what is read of a stream or of memory beyond the chip.

        Args:
            number: the number.
            within: only what is read in this scope.
        """
        inner = {scope.number for scope in within.within()}
        waiting, seen = number.symbols(), set()
        while waiting:
            symbol = waiting.pop()
            seen.add(symbol)
            if symbol.key[0] == "read" and symbol.key[1] in inner:
                return True
            if symbol.key[0] != "cell":
                continue
            place = values.place_of(symbol)
            for assignment in self.assigned(place.cell, within):
                value = assignment.value
                if isinstance(value, values.Unknown) and value.is_read:
                    return True
                if isinstance(value, MemoryPlace) and value.root in self.masters:
                    return True
                if isinstance(value, Number):
                    new = value.symbols() - seen
                    if any(s.key[0] == "cell" and s.key[1] in self.masters for s in new):
                        return True
                    waiting |= new
        return False

    def residues(self) -> values.Residues:
        """What numbers are multiples of."""
        if self._residues is None:
            self._residues = _solved(self.assignments)
        known = self._residues
        return values.Residues(lambda cell: known.get(cell, values.ANY))


def _solved(assignments: dict[Variable, list[Assignment]]) -> dict[Cell, values.Residue]:
    """The residues of all cells that are assigned, the same wherever they are read."""
    given: dict[Cell, list[Number | None]] = {}
    for of_root in assignments.values():
        for assignment in of_root:
            for cell, number in _leaves(assignment.place.cell, assignment.value):
                given.setdefault(cell, []).append(number)
    for cell, numbers in given.items():  # a whole that is assigned without its parts being known
        if any(other != cell and values.is_within(cell, other) for other in given):
            numbers.append(None)
    found: dict[Cell, values.Residue] = {}
    residues = values.Residues(lambda cell: found.get(cell) if cell in given else values.ANY)
    before = None
    while found != before:
        before = dict(found)
        for cell, numbers in given.items():
            for number in numbers:
                new = values.ANY if number is None else residues.of(number)
                if new is not None:
                    found[cell] = values.joined(found.get(cell, new), new)
    return found


def _leaves(cell: Cell, value: Value) -> Iterator[tuple[Cell, Number | None]]:
    """What an assignment gives to the integers of a cell."""
    root, path = cell
    if isinstance(value, values.Record):
        for name, inner in value.fields.items():
            yield from _leaves((root, (*path, name)), inner)
    elif isinstance(value, MemoryPlace):
        for name, type_ in value.type.fields:
            is_whole = type_.dimensions or type_.fields
            yield (root, (*path, name)), None if is_whole else value.member(name).number()
    else:
        yield cell, value if isinstance(value, Number) else None
