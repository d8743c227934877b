"""What expressions come to, in a trace: numbers, places, and the events on the way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import count

from hls_kernels.lint.compiling import SourceLine
from hls_kernels.lint.elaboration import trace, values
from hls_kernels.lint.elaboration.syntax import Expression, Kind, Op, Type, Variable
from hls_kernels.lint.elaboration.trace import ElaborationTrace, Scope
from hls_kernels.lint.elaboration.values import UNKNOWN, MemoryPlace, Number, Pointer, Value

_MULTIPLYING = frozenset(("*", "/", "%"))
branches = count()
"""Numbers of branches and of symbols."""


class Evaluator(ABC):
    """Evaluates expressions at one point of a trace."""

    def __init__(self, record: ElaborationTrace) -> None:
        self.trace = record
        self.scope = record.top
        self.bindings: dict[Variable, Value] = {}
        self.overwritten: set[Variable] = set()  # what was taken for constant
        self.changed: set[Variable] = set()  # after its initial value
        self.objects: list[Value] = []  # what `this` is in the methods that run
        self._known: dict[Op, Callable[[Expression], Value]] = {
            Op.CONSTANT: lambda expression: values.constant(expression.value),
            Op.BINARY: self._binary,
            Op.UNARY: self._unary,
            Op.ASSIGN: self._assigned,
            Op.SELECT: self._selected,
            Op.CALL: self.called,
            Op.STREAM: self._transferred,
            Op.CAST: self._cast,
            Op.LIST: self._listed,
            Op.ADDRESS: self._address,
            Op.UNKNOWN: self._lost,
        }

    @abstractmethod
    def called(self, expression: Expression) -> Value:
        """The result of a call."""

    def evaluate(self, expression: Expression) -> Value:
        """The value of an expression; what it reads of arrays becomes events."""
        found = self.locate(expression)
        if not isinstance(found, MemoryPlace):
            return found
        if found.indices and found.type.kind is not Kind.ARRAY:
            self.note(trace.Access(found, False, expression.at, self.scope))
        if found.type.kind is Kind.INTEGER:
            return found.number()
        return UNKNOWN if found.type.kind is Kind.POINTER else found

    def number(self, expression: Expression) -> Number:
        """The value of an expression that is an integer; a new symbol where it is not known."""
        found = self.evaluate(expression)
        return found if isinstance(found, Number) else self.new(expression.type)

    def locate(self, expression: Expression) -> Value:
        """Where a value stands; the value itself where it stands nowhere."""
        op = expression.op
        if op is Op.VARIABLE:
            assert expression.variable is not None
            return self.bound(expression.variable)
        if op is Op.MEMBER:
            return values.member_of(self.locate(expression.args[0]), expression.name)
        if op is Op.INDEX:
            whole = self.locate(expression.args[0])
            return values.element_of(whole, self.number(expression.args[1]))
        if op is Op.DEREFERENCE:
            found = values.decayed(self.evaluate(expression.args[0]))
            return found.to if isinstance(found, Pointer) else UNKNOWN
        if op is Op.THIS:
            return self.objects[-1] if self.objects else UNKNOWN
        return self._known[op](expression)

    def bound(self, variable: Variable) -> Value:
        """What a variable is bound to: by default a place of its own."""
        own = MemoryPlace(variable, (), variable.type.referred)
        return self.bindings.get(variable, own)

    def note(self, event: trace.Event) -> None:
        """Add an event to the trace."""
        self.scope.events.append(event)

    def assign(
        self, place: MemoryPlace, value: Value, at: SourceLine, is_first: bool = False
    ) -> None:
        """Give a place a value."""
        if place.indices:
            self.note(trace.Access(place, True, at, self.scope))
        if not is_first:
            self.changed.add(place.root)
        made = trace.Assignment(place, value, self.scope, is_first)
        self.trace.assignments.setdefault(place.root, []).append(made)

    def in_arm(self, arm: tuple[int, int, Number], at: SourceLine) -> None:
        """Open an arm of a branch; the caller closes it by going back to its parent."""
        self.scope = Scope(at, self.scope, arm=arm)

    def new(self, type_: Type, kind: str = "new") -> Number:
        """A number that is not known, as a symbol of its own."""
        span = 2 if type_.bits == 1 else None
        symbol = values.Symbol((kind, self.scope.number, next(branches)), (), span)
        return values.symbolic(symbol, type_.bits or 64)

    def _lost_of(self, type_: Type) -> Value:
        """A value that is not known."""
        return self.new(type_) if type_.kind is Kind.INTEGER else UNKNOWN

    # ---- operators ----------------------------------------------------------------------------

    def _binary(self, expression: Expression) -> Value:
        name = expression.name
        if name == ",":
            return [self.evaluate(argument) for argument in expression.args][-1]
        if name in ("&&", "||"):
            return self._shortcut(expression)
        left, right = (values.decayed(self.evaluate(argument)) for argument in expression.args)
        return self._operated(expression, name, left, right)

    def _operated(self, expression: Expression, name: str, left: Value, right: Value) -> Value:
        if isinstance(left, Pointer) and isinstance(right, Number) and name in ("+", "-"):
            return Pointer(left.to.moved(right if name == "+" else values.scaled(right, -1)))
        if not isinstance(left, Number) or not isinstance(right, Number):
            return self._lost_of(expression.type)
        if name in _MULTIPLYING:
            type_ = expression.type.referred
            self.note(trace.Arithmetic(name, left, right, type_, expression.at, self.scope))
        return _within(values.operated(name, left, right), expression.type.referred)

    def _shortcut(self, expression: Expression) -> Value:
        left = self.number(expression.args[0])
        known = left.exact
        if known is not None and bool(known) == (expression.name == "||"):
            return values.constant(int(bool(known)))
        outer = self.scope
        if known is None:
            self.in_arm((next(branches), int(expression.name == "||"), left), expression.at)
        right = self.number(expression.args[1])
        self.scope = outer
        return values.operated(expression.name, left, right)

    def _unary(self, expression: Expression) -> Value:
        value = self.number(expression.args[0])
        if expression.name == "-":
            return values.scaled(value, -1)
        if expression.name == "~":
            return values.plus(values.constant(-1), value, -1)
        return values.operated("==", value, values.constant(0)) if expression.name == "!" else value

    def _selected(self, expression: Expression) -> Value:
        condition = self.number(expression.args[0])
        known = condition.exact
        if known is not None:
            return self.locate(expression.args[1 if known else 2])
        branch, outer, found = next(branches), self.scope, []
        for arm in (0, 1):
            self.in_arm((branch, arm, condition), expression.at)
            found.append(self.evaluate(expression.args[1 + arm]))
            self.scope = outer
        yes, no = found
        return values.either(condition, yes, no)

    def _cast(self, expression: Expression) -> Value:
        inner = self.evaluate(expression.args[0])
        type_ = expression.type.referred
        if not isinstance(inner, Number):
            return self.new(type_) if type_.kind is Kind.INTEGER else inner
        if type_.bits == 1 and inner.exact is None:
            return values.operated("!=", inner, values.constant(0))
        return _within(inner, type_)

    def _assigned(self, expression: Expression) -> Value:
        target = self.locate(expression.args[0])
        given = self.evaluate(expression.args[1])
        if not isinstance(target, MemoryPlace):
            variable = expression.args[0].variable
            if variable is not None:
                self.overwritten.add(variable)
            return UNKNOWN
        old: Value = UNKNOWN
        if expression.name != "=":
            if target.indices:
                self.note(trace.Access(target, False, expression.at, self.scope))
            if target.type.kind is Kind.INTEGER:
                old = target.number()
                given = self._operated(expression, expression.name[:-1], old, given)
            else:
                given = UNKNOWN  # a pointer that moves
        self.assign(target, given, expression.at)
        if not isinstance(given, Number):
            return UNKNOWN
        return old if expression.value else given  # i++ gives what was there before

    # ---- the rest -----------------------------------------------------------------------------

    def _listed(self, expression: Expression) -> Value:
        given = [values.decayed(self.evaluate(argument)) for argument in expression.args]
        type_ = expression.type.referred
        if type_.kind is not Kind.RECORD:
            return UNKNOWN
        names = [name for name, _ in type_.fields]
        zeros = {name: values.constant(0) for name, of in type_.fields if of.kind is Kind.INTEGER}
        return values.Record({**zeros, **dict(zip(names, given, strict=False))})

    def _address(self, expression: Expression) -> Value:
        found = self.locate(expression.args[0])
        return Pointer(found) if isinstance(found, MemoryPlace) else UNKNOWN

    def _transferred(self, expression: Expression) -> Value:
        for argument in expression.args[1:]:
            self.evaluate(argument)
        stream = self.locate(expression.args[0])
        place = stream if isinstance(stream, MemoryPlace) else None
        self.note(trace.Transfer(place, expression.name, expression.at, self.scope))
        is_number = expression.type.referred.kind is Kind.INTEGER
        return self.new(expression.type.referred, "read") if is_number else values.RECEIVED

    def _lost(self, expression: Expression) -> Value:
        for argument in expression.args:
            self.evaluate(argument)
        return self._lost_of(expression.type)


def _within(number: Number, type_: Type) -> Number:
    """A number as one of a type, whose bits it has at most."""
    if type_.kind is not Kind.INTEGER or number.bits <= type_.bits or number.exact is not None:
        return number
    return Number(number.terms, number.constant, type_.bits)
