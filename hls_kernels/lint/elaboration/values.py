"""Numbers as sums of symbols: what an index is made of, and what it is a multiple of.

A symbol stands for a number that run time decides: the turn of a loop, a variable that changes, an
operation that is no sum. Two symbols of the same key are the same number.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import reduce
from itertools import islice, product
from math import gcd

from hls_kernels.lint.elaboration.syntax import OTHER, Kind, Type, Variable
from hls_kernels.lint.kernels import reached

_MOST_BITS = 4096
MOST_LANES = 4096


@dataclass(frozen=True, slots=True)
class Symbol:
    """A number of run time.

    Attributes:
        key: what tells it from others.
        parts: the numbers that it is computed from.
        span: how many values it has, counted from 0; None where that is not known.
        lanes: its values where unrolling makes it a constant in each copy.
    """

    key: tuple[Hashable, ...]
    parts: tuple[Number, ...] = field(default=(), compare=False)
    span: int | None = field(default=None, compare=False)
    lanes: tuple[int, ...] | None = field(default=None, compare=False)

    def is_fixed(self) -> bool:
        """Whether it is a constant once loops are unrolled."""
        if self.lanes is not None:
            return True
        is_stored = self.key[0] == "cell"
        return bool(self.parts) and not is_stored and all(part.is_fixed() for part in self.parts)


@dataclass(frozen=True, slots=True)
class Number:
    """A sum of symbols, each times a number, and a constant; `bits` hold it with its sign."""

    terms: frozenset[tuple[Symbol, int]] = frozenset()
    constant: int = 0
    bits: int = field(default=64, compare=False)

    @property
    def exact(self) -> int | None:
        """The value, where it is known."""
        return None if self.terms else self.constant

    def symbols(self) -> set[Symbol]:
        """All symbols that the number is computed from, at any depth."""
        own = [symbol for symbol, _ in self.terms]
        return reached(own, lambda symbol: (s for part in symbol.parts for s, _ in part.terms))

    def is_fixed(self) -> bool:
        """Whether it is a constant once loops are unrolled."""
        return all(symbol.is_fixed() for symbol, _ in self.terms)

    def without_lanes(self) -> Number:
        """The part of the sum that run time decides."""
        kept = frozenset(term for term in self.terms if not term[0].is_fixed())
        return Number(kept, self.constant, self.bits)


ZERO = Number()


def constant(value: int) -> Number:
    """A known number."""
    return Number(frozenset(), value, value.bit_length() + 1)


def symbolic(symbol: Symbol, bits: int = 64) -> Number:
    """The number that a symbol stands for."""
    return Number(frozenset({(symbol, 1)}), 0, bits)


def plus(a: Number, b: Number, times: int = 1) -> Number:
    """A + times * b."""
    terms = dict(a.terms)
    for symbol, factor in b.terms:
        terms[symbol] = terms.get(symbol, 0) + times * factor
    kept = frozenset((symbol, factor) for symbol, factor in terms.items() if factor)
    value = a.constant + times * b.constant
    bits = value.bit_length() + 1 if not kept else max(a.bits, b.bits) + 1
    return Number(kept, value, bits)


def scaled(a: Number, factor: int) -> Number:
    """A number times a constant."""
    made = plus(constant(0), a, factor)
    bits = a.bits + factor.bit_length() if made.terms else made.bits
    return Number(made.terms, made.constant, bits)


# ---- operators --------------------------------------------------------------------------------

FOLDED: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "<<": lambda a, b: a << b if 0 <= b < _MOST_BITS else 0,
    ">>": lambda a, b: a >> b if b >= 0 else 0,
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "<": lambda a, b: int(a < b),
    ">": lambda a, b: int(a > b),
    "<=": lambda a, b: int(a <= b),
    ">=": lambda a, b: int(a >= b),
    "==": lambda a, b: int(a == b),
    "!=": lambda a, b: int(a != b),
    "&&": lambda a, b: int(bool(a) and bool(b)),
    "||": lambda a, b: int(bool(a) or bool(b)),
    "/": lambda a, b: _quotient(a, b),
    "%": lambda a, b: a - b * _quotient(a, b),
}
_COMPARISONS = frozenset(["<", ">", "<=", ">=", "==", "!=", "&&", "||", "!"])


def _quotient(a: int, b: int) -> int:
    if b == 0:
        return 0
    return a // b if (a < 0) == (b < 0) else -(-a // b)


def operated(operator: str, a: Number, b: Number) -> Number:
    """The result of a binary operator."""
    x, y = a.exact, b.exact
    if x is not None and y is not None and operator in FOLDED:
        return constant(FOLDED[operator](x, y))
    if operator == "+":
        return plus(a, b)
    if operator == "-":
        return plus(a, b, -1)
    if operator == "*" and (x is not None or y is not None):
        return scaled(b, x) if x is not None else scaled(a, y or 0)
    if operator == "<<" and y is not None and 0 <= y < _MOST_BITS:
        return scaled(a, 1 << y)
    if y is not None and operator in ("/", ">>"):
        divided = _divided(a, 1 << y if operator == ">>" and 0 <= y < _MOST_BITS else y)
        if divided is not None:
            return divided
    symbol = Symbol((operator, a, b), (a, b), _span(operator, x, y))
    return symbolic(symbol, _bits(operator, a, b))


def _divided(a: Number, by: int) -> Number | None:
    """The quotient of a sum of which each part is a multiple."""
    if by <= 0 or a.constant % by or any(factor % by for _, factor in a.terms):
        return None
    terms = frozenset((symbol, factor // by) for symbol, factor in a.terms)
    return Number(terms, a.constant // by, max(a.bits - by.bit_length() + 1, 2))


def _span(operator: str, x: int | None, y: int | None) -> int | None:
    if operator in _COMPARISONS:
        return 2
    if operator == "&":
        masks = [value for value in (x, y) if value is not None and value >= 0]
        return min(masks) + 1 if masks else None
    return abs(y) if operator == "%" and y else None


def _bits(operator: str, a: Number, b: Number) -> int:
    if operator in _COMPARISONS:
        return 2
    if operator == "*":
        return a.bits + b.bits
    if operator == "&":
        values = [value for value in (a.exact, b.exact) if value is not None and value >= 0]
        return min((value.bit_length() + 1 for value in values), default=max(a.bits, b.bits))
    if operator == ">>":
        return max(a.bits - (b.exact or 0), 2)
    if operator == "<<":
        return a.bits + 64
    return a.bits if operator == "/" else max(a.bits, b.bits)


def chosen(condition: Number, a: Number, b: Number) -> Number:
    """The number that a condition chooses."""
    known = condition.exact
    if known is not None:
        return a if known else b
    if a == b:
        return a
    small = all(value is not None and value in (0, 1) for value in (a.exact, b.exact))
    symbol = Symbol(("?", condition, a, b), (condition, a, b), 2 if small else None)
    return symbolic(symbol, max(a.bits, b.bits))


def lane_copies(numbers: Iterable[Number]) -> Iterator[dict[Symbol, int]]:
    """The values of the lanes that numbers rest on, in each copy that unrolling makes."""
    symbols = {symbol for number in numbers for symbol in number.symbols() if symbol.lanes}
    ordered = sorted(symbols, key=lambda symbol: str(symbol.key))
    for values in islice(product(*(symbol.lanes or () for symbol in ordered)), MOST_LANES):
        yield dict(zip(ordered, values, strict=True))


def in_copy(number: Number, lanes: dict[Symbol, int]) -> Number:
    """A number in one of the copies that unrolling makes, the lanes having these values there."""
    made = constant(number.constant)
    for symbol, factor in number.terms:
        made = plus(made, _symbol_in_copy(symbol, lanes), factor)
    return made


def _symbol_in_copy(symbol: Symbol, lanes: dict[Symbol, int]) -> Number:
    if symbol in lanes:
        return constant(lanes[symbol])
    operator = str(symbol.key[0])
    if symbol.parts and operator == "?":
        return chosen(*(in_copy(part, lanes) for part in symbol.parts))
    if len(symbol.parts) == 2 and operator in FOLDED:
        return operated(operator, *(in_copy(part, lanes) for part in symbol.parts))
    return symbolic(symbol)


# ---- multiples --------------------------------------------------------------------------------

Residue = tuple[int, int]
"""Modulus and remainder: (16, 3) is 3 more than a multiple of 16; (0, 5) is 5; (1, 0) is any."""

ANY: Residue = (1, 0)


def joined(a: Residue, b: Residue) -> Residue:
    """What holds for numbers of either kind."""
    return _reduced(gcd(a[0], b[0], a[1] - b[1]), a[1])


def _reduced(modulus: int, remainder: int) -> Residue:
    return modulus, remainder % modulus if modulus else remainder


@dataclass(slots=True)
class Residues:
    """What numbers are multiples of; `of_cell` tells it of variables, None while not known."""

    of_cell: Callable[[Cell], Residue | None]

    def of(self, number: Number) -> Residue | None:
        """The residue of a number, or None while that of a variable in it is not known."""
        total: Residue = (0, number.constant)
        for symbol, factor in number.terms:
            found = self._of_symbol(symbol)
            if found is None:
                return None
            modulus = gcd(total[0], factor * found[0])
            total = _reduced(modulus, total[1] + factor * found[1])
        return total

    def _of_symbol(self, symbol: Symbol) -> Residue | None:
        operator = symbol.key[0]
        if operator == "cell":
            return self.of_cell(place_of(symbol).cell)
        if symbol.lanes is not None:
            return reduce(joined, ((0, lane) for lane in symbol.lanes[1:]), (0, symbol.lanes[0]))
        if not symbol.parts:
            return ANY
        if operator == "?":
            yes, no = self.of(symbol.parts[1]), self.of(symbol.parts[2])
            return joined(yes, no) if yes is not None and no is not None else yes or no
        if len(symbol.parts) != 2:
            return ANY
        a, b = self.of(symbol.parts[0]), self.of(symbol.parts[1])
        return None if a is None or b is None else _operated(str(operator), a, b)


def _operated(operator: str, a: Residue, b: Residue) -> Residue:
    if a[0] == 0 and b[0] == 0 and operator in FOLDED:
        return 0, FOLDED[operator](a[1], b[1])
    if operator == "*":
        return _reduced(gcd(a[0] * b[0], a[0] * b[1], a[1] * b[0]), a[1] * b[1])
    if b[0] != 0:
        return ANY
    by = b[1]
    if operator == "%" and by > 0:
        return _reduced(gcd(a[0], by), a[1])
    if operator == ">>" and 0 <= by < _MOST_BITS:
        operator, by = "/", 1 << by
    if operator == "/" and by > 0 and a[0] % by == 0:
        return _reduced(a[0] // by, a[1] // by)
    if operator == "&" and by:
        lowest = by & -by
        return (lowest, 0) if lowest > 1 else ANY
    return ANY


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


def is_within(inner: Cell, outer: Cell) -> bool:
    """Whether a cell is another one or a part of it."""
    return inner[0] is outer[0] and inner[1][: len(outer[1])] == outer[1]


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
