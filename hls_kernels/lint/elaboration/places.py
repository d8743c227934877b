"""Where values stand: variables, their members and elements, and pointers to these."""

from __future__ import annotations

from dataclasses import dataclass

from hls_kernels.lint.elaboration.syntax import Variable
from hls_kernels.lint.elaboration.values import Number, Symbol, chosen, constant, plus, symbolic
from hls_kernels.lint.elaboration.widths import OTHER, Kind, Type

Step = str | Number
"""One step into a variable: a member's name, or an index."""

Cell = tuple[Variable, tuple[str, ...]]
"""A variable and a way into it, all elements of an array alike."""


@dataclass(frozen=True, slots=True)
class MemoryPlace:
    """A variable, or a part of it."""

    root: Variable
    path: tuple[Step, ...] = ()
    type: Type = OTHER

    @property
    def cell(self) -> Cell:
        """The place, whatever the indices."""
        return self.root, tuple(step if isinstance(step, str) else "*" for step in self.path)

    @property
    def indices(self) -> tuple[Number, ...]:
        """The indices on the way."""
        return tuple(step for step in self.path if isinstance(step, Number))

    def __str__(self) -> str:
        steps = ("[]" if isinstance(step, Number) else f".{step}" for step in self.path)
        return self.root.name + "".join(steps)

    def member(self, name: str) -> MemoryPlace:
        """A member of the struct that stands here."""
        return MemoryPlace(self.root, (*self.path, name), self.type.member(name) or OTHER)

    def element(self, index: Number) -> MemoryPlace:
        """An element of the array that stands here."""
        return MemoryPlace(self.root, (*self.path, index), self.type.inner or OTHER)

    def moved(self, by: Number) -> MemoryPlace:
        """The element that many behind this one."""
        last = self.path[-1] if self.path else ""
        if isinstance(last, Number):
            return MemoryPlace(self.root, (*self.path[:-1], plus(last, by)), self.type)
        return self if by == constant(0) else MemoryPlace(self.root, (*self.path, by), self.type)

    def number(self) -> Number:
        """The integer that stands here, as a symbol."""
        span = 2 if self.type.bits == 1 else None
        key = ("cell", self.root, self.path)
        return symbolic(Symbol(key, self.indices, span), self.type.bits or 64)


@dataclass(frozen=True, slots=True)
class Pointer:
    """A pointer to a place."""

    to: MemoryPlace


@dataclass(frozen=True, slots=True)
class Record:
    """A struct of known members that stands nowhere."""

    fields: dict[str, Value]


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that is not followed; `is_read` where it came out of a stream."""

    is_read: bool = False


Value = Number | MemoryPlace | Pointer | Record | Unknown

UNKNOWN = Unknown()
RECEIVED = Unknown(is_read=True)


def decayed(value: Value) -> Value:
    """An array as a pointer to its first element; any other value itself."""
    if isinstance(value, MemoryPlace) and value.type.kind is Kind.ARRAY:
        return Pointer(value.element(constant(0)))
    return value


def member_of(value: Value, name: str) -> Value:
    """A member of a struct, wherever it stands."""
    if isinstance(value, Pointer):
        value = value.to
    if isinstance(value, MemoryPlace):
        return value.member(name)
    return value.fields.get(name, UNKNOWN) if isinstance(value, Record) else UNKNOWN


def element_of(value: Value, index: Number) -> Value:
    """An element of an array, or of what a pointer points to."""
    if isinstance(value, MemoryPlace) and value.type.kind is Kind.ARRAY:
        return value.element(index)
    return value.to.moved(index) if isinstance(value, Pointer) else UNKNOWN


def overlaps(a: Cell, b: Cell) -> bool:
    """Whether one of two cells is a part of the other."""
    shorter = min(len(a[1]), len(b[1]))
    return a[0] is b[0] and a[1][:shorter] == b[1][:shorter]


def type_at(root: Variable, path: tuple[Step, ...]) -> Type:
    """The type of a part of a variable."""
    type_ = root.type.referred
    for step in path:
        inner = type_.member(step) if isinstance(step, str) else type_.inner
        type_ = inner or OTHER
    return type_


def either(condition: Number, a: Value, b: Value) -> Value:
    """The value that a condition chooses, member by member for structs."""
    if isinstance(a, Number) and isinstance(b, Number):
        return chosen(condition, a, b)
    if a == b:
        return a
    x, y = _as_record(a), _as_record(b)
    if x is None or y is None or x.fields.keys() != y.fields.keys():
        return UNKNOWN
    return Record({name: either(condition, x.fields[name], y.fields[name]) for name in x.fields})


def _as_record(value: Value) -> Record | None:
    if isinstance(value, MemoryPlace) and value.type.fields:
        members = {name: value.member(name) for name, _ in value.type.fields}
        numbers = {name: m.number() for name, m in members.items() if m.type.kind is Kind.INTEGER}
        return Record({**members, **numbers})
    return value if isinstance(value, Record) else None


def place_of(symbol: Symbol) -> MemoryPlace:
    """The place that `MemoryPlace.number` made a symbol of."""
    _, root, path = symbol.key
    assert isinstance(root, Variable)
    assert isinstance(path, tuple)
    return MemoryPlace(root, path)
