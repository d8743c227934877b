"""Follows a kernel from its top through all calls, and makes its trace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hls_kernels.lint.compiling import Pragma, pragma_of
from hls_kernels.lint.elaboration import syntax, values
from hls_kernels.lint.elaboration.evaluation import Evaluator, branches
from hls_kernels.lint.elaboration.syntax import Expression, Function, Kind, Op, Variable
from hls_kernels.lint.elaboration.trace import ElaborationTrace, Scope, Turns
from hls_kernels.lint.elaboration.values import UNKNOWN, MemoryPlace, Number, Pointer, Symbol, Value

_MOST_TURNS = 1 << 20
_MIRRORED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "!=": "!="}
_STEPS = frozenset(["+=", "-=", "*=", "/=", "<<=", ">>="])
_ON_VARIABLES = frozenset(["ARRAY_PARTITION", "AGGREGATE", "BIND_STORAGE", "DISAGGREGATE"])


@dataclass(frozen=True, slots=True)
class CountedHead:
    """A loop's variable, and its `known` values where these are all; `trips` counts them."""

    counter: Variable | None = None
    start: Number = values.ZERO
    step: int | None = None  # None where the variable is not counted up or down
    trips: int | None = None
    known: tuple[int, ...] = ()

    def lanes(self, copies: int) -> tuple[int, ...]:
        """What the turn's number is in each copy, for `value_at`."""
        is_counted = self.step is not None or not self.known
        return tuple(range(min(copies, values.MOST_LANES))) if is_counted else self.known

    def value_at(self, turn: Number) -> Number:
        """The variable in a turn, these counted from 0."""
        if self.step is None:
            return turn
        return values.plus(self.start, values.scaled(turn, self.step))


def counted_head(loop: syntax.LoopStatement, number: Callable[[Expression], Number]) -> CountedHead:
    """Read the head of a loop.

    Args:
        loop: the loop.
        number: evaluates expressions at its beginning.

    Returns:
        A head without a variable where the loop is not one that counts.
    """
    if loop.turns is not None:
        return CountedHead(trips=loop.turns)
    condition, step = loop.condition, loop.step
    if condition is None or step is None or condition.op is not Op.BINARY:
        return CountedHead()
    if step.op is not Op.ASSIGN or step.name not in _STEPS or condition.name not in _MIRRORED:
        return CountedHead()
    declared = (s for s in loop.start.statements if isinstance(s, syntax.Declare))
    starts = {declare.variable: declare.initial for declare in declared}
    counter = _variable(step.args[0])
    initial = None if counter is None else starts.get(counter)
    compared = [_variable(argument) for argument in condition.args]
    if initial is None or counter not in compared:
        return CountedHead()
    is_first = compared[0] is counter
    operator = condition.name if is_first else _MIRRORED[condition.name]
    end = condition.args[1 if is_first else 0]
    start, last, by = number(initial), number(end), number(step.args[1]).exact
    signed = {"+=": by, "-=": None if by is None else -by}.get(step.name)
    known = _values(start, last, by, step.name, operator)
    if known is None and signed is None:
        return CountedHead()
    trips = None if known is None else len(known)
    return CountedHead(counter, start, signed, trips, tuple(known or ()))


def _values(
    start: Number, last: Number, by: int | None, step: str, operator: str
) -> list[int] | None:
    """The values of a loop's variable, the longest list where copies differ; None at run time."""
    if by is None or not start.is_fixed() or not last.is_fixed():
        return None
    found: list[int] = []
    for copy in values.lane_copies([start, last]):
        own: list[int] = []
        value, end = values.in_copy(start, copy).constant, values.in_copy(last, copy).constant
        while values.FOLDED[operator](value, end):
            own.append(value)
            following = values.FOLDED[step[:-1]](value, by)
            if following == value or len(own) >= _MOST_TURNS:
                return None
            value = following
        found = max(found, own, key=len)
    return found


def _variable(expression: Expression) -> Variable | None:
    while expression.op is Op.CAST:
        expression = expression.args[0]
    return expression.variable if expression.op is Op.VARIABLE else None


def trace_of(top: Function) -> ElaborationTrace:
    """The trace of a kernel.

    Args:
        top: the function that nothing calls.
    """
    # the first walk finds out which variables ever change: all others are what they begin with
    first = Walker(top, None)
    first.walk()
    second = Walker(top, first.changed | first.overwritten)
    second.walk()
    return second.trace


class Walker(Evaluator):
    """One walk. `changes` has the variables that are given new values, None: any might be."""

    def __init__(self, top: Function, changes: set[Variable] | None) -> None:
        super().__init__(ElaborationTrace(Scope(top.at, function=top)))
        self.top = top
        self.changes = changes
        self._running: list[Function] = []
        self._returned: list[list[Value]] = [[]]

    def walk(self) -> None:
        """Run the top."""
        masters = {pragma.variable for pragma in self.top.body.pragmas if pragma.is_m_axi}
        for parameter in self.top.parameters:
            type_ = parameter.type.referred
            if type_.kind is Kind.POINTER and type_.inner is not None:
                place = MemoryPlace(parameter, (values.constant(0),), type_.inner)
                self.bindings[parameter] = Pointer(place)
            if parameter.name in masters:
                self.trace.masters.add(parameter)
        self._run(self.top)

    def _is_fixed(self, variable: Variable) -> bool:
        type_ = variable.type
        if self.changes is None:
            is_const = type_.kind is Kind.INTEGER and type_.is_const
            return is_const or type_.kind in (Kind.POINTER, Kind.ARRAY)
        return variable not in self.changes

    # ---- calls --------------------------------------------------------------------------------

    def called(self, expression: Expression) -> Value:
        """Run the function of a call, with what its parameters are there."""
        function = expression.callee
        assert function is not None
        args = list(expression.args)
        is_followed = function.is_known and function not in self._running
        if function.is_method and function.name != "operator()" and args:
            whole = self.locate(args.pop(0))
            self.objects.append(whole)
        elif function.is_method:
            self.objects.append(self.objects[-1] if self.objects else UNKNOWN)
        given = list(map(self._given, function.parameters, args))
        found = self._call(function, given, expression) if is_followed else UNKNOWN
        if function.is_method:
            self.objects.pop()
        if expression.type.kind is Kind.INTEGER and not isinstance(found, (Number, MemoryPlace)):
            return self.new(expression.type)
        return found

    def _given(self, variable: Variable, initial: Expression) -> Value:
        """What a reference is bound to, or what a variable begins with."""
        if variable.type.kind is Kind.REFERENCE:
            return self.locate(initial)
        return values.decayed(self.evaluate(initial))

    def _call(self, function: Function, given: list[Value], expression: Expression) -> Value:
        outer = self.scope
        self.scope = Scope(expression.at, outer, function=function)
        for parameter, value in zip(function.parameters, given, strict=False):
            self._begin(parameter, value)
        self._returned.append([])
        self._run(function)
        returned = self._returned.pop()
        self.scope = outer
        return self._merged(returned)

    def _run(self, function: Function) -> None:
        self._running.append(function)
        self._block(function.body)
        self._running.pop()

    def _merged(self, returned: list[Value]) -> Value:
        merged, *others = returned or [UNKNOWN]
        for other in others:
            path = values.symbolic(Symbol(("path", self.scope.number, next(branches)), (), 2), 2)
            merged = values.either(path, merged, other)
        return merged

    def _begin(self, variable: Variable, value: Value) -> None:
        """Bind a reference, or let a variable's storage begin with a value."""
        type_ = variable.type
        self.bindings.pop(variable, None)
        if type_.kind is Kind.REFERENCE:
            if not isinstance(value, values.Unknown):
                self.bindings[variable] = value
            return
        self.trace.declared.setdefault(variable, []).append(self.scope)
        is_part = isinstance(value, MemoryPlace) and value.indices
        is_array = type_.kind is Kind.ARRAY and not isinstance(value, Pointer)
        is_lost = is_part or is_array or isinstance(value, values.Unknown)
        if self._is_fixed(variable) and not is_lost:
            self.bindings[variable] = value
        elif value != UNKNOWN or type_.kind is Kind.INTEGER:
            self.assign(MemoryPlace(variable, (), type_), value, variable.at, is_first=True)

    # ---- statements ---------------------------------------------------------------------------

    def _block(self, block: syntax.Statements) -> bool:
        """Run a block; whether it ends with a jump, so that what follows does not run."""
        outer = self.scope
        is_ended = any(self._statement(statement) for statement in block.statements)
        for pragma in block.pragmas:
            self._directive(pragma)
        self.scope = outer
        return is_ended

    def _statement(self, statement: syntax.Statement) -> bool:
        if isinstance(statement, syntax.Declare):
            variable, initial = statement.variable, statement.initial
            given = UNKNOWN if initial is None else self._given(variable, initial)
            self._begin(variable, given)
        elif isinstance(statement, Expression):
            self.evaluate(statement)
        elif isinstance(statement, syntax.Branch):
            return self._branch(statement)
        elif isinstance(statement, syntax.LoopStatement):
            self._loop(statement)
        elif isinstance(statement, syntax.Return) and statement.value is not None:
            self._returned[-1].append(self.evaluate(statement.value))
        return isinstance(statement, (syntax.Return, syntax.Jump))

    def _branch(self, branch: syntax.Branch) -> bool:
        """Run the arms. Where one jumps, what follows stands in an arm of its own."""
        condition = self.number(branch.condition)
        known = condition.exact
        if known is not None and not branch.is_switch:
            return self._block(branch.arms[0 if known else 1])
        outer, number, ended = self.scope, next(branches), []
        for index, arm in enumerate(branch.arms):
            self.in_arm((number, index, condition), outer.at)
            ended.append(self._block(arm))
            self.scope = outer
        if branch.is_switch:
            ended.append(False)  # no case is the right one
        if all(ended):
            return True
        if any(ended):
            self.in_arm((number, ended.index(False), condition), outer.at)
        elif any(_jumps(arm) for arm in branch.arms):
            self.in_arm((next(branches), 0, condition), outer.at)
        return False

    def _loop(self, loop: syntax.LoopStatement) -> None:
        outer = self.scope
        turns = Turns(loop)
        self.scope = Scope(loop.at, outer, turns=turns)
        head = counted_head(loop, self.number)
        if head.counter in self.overwritten or (self.changes and head.counter in self.changes):
            head = CountedHead()
        for statement in loop.start.statements:
            if not isinstance(statement, syntax.Declare) or statement.variable is not head.counter:
                self._statement(statement)
        self._count(turns, head, outer)
        if loop.condition is not None and head.counter is None:
            self.number(loop.condition)
        self._block(loop.body)
        if loop.step is not None and head.counter is None:
            self.evaluate(loop.step)
        self.scope = outer

    def _count(self, turns: Turns, head: CountedHead, outer: Scope) -> None:
        """Say how often a loop turns, and what its variable is in the body."""
        pragmas = turns.loop.body.pragmas
        unroll, count = pragma_of(pragmas, "UNROLL"), pragma_of(pragmas, "LOOP_TRIPCOUNT")
        said = [] if count is None else [count.number("avg"), count.number("max")]
        turns.trips = head.trips
        turns.average = head.trips or next((n for n in said if n is not None), 1)
        factor = None if unroll is None else unroll.number("factor")
        # a pipeline unrolls the loops in it
        is_asked = outer.pipeline() is not None or (unroll is not None and factor is None)
        is_whole = is_asked and turns.trips is not None
        turns.copies = (turns.trips if is_whole else factor) or 1
        number = self.scope.number
        if turns.copies > 1 or is_whole:
            turns.lane = Symbol(("lane", number), (), turns.copies, head.lanes(turns.copies))
        if turns.trips is None or turns.copies < turns.trips:
            turns.counter = Symbol(("turn", number), (), turns.trips)
        if head.counter is not None:
            # that of a group of copies, and of the copy in it
            turn = values.constant(0) if turns.lane is None else values.symbolic(turns.lane)
            if turns.counter is not None:
                turn = values.plus(turn, values.symbolic(turns.counter), turns.copies)
            self.bindings[head.counter] = head.value_at(turn)

    # ---- pragmas ------------------------------------------------------------------------------

    def _directive(self, pragma: Pragma) -> None:
        if pragma.name not in _ON_VARIABLES or not pragma.variable:
            return
        name, *members = pragma.variable.split(".")
        variable = self._named(name, pragma.at.line)
        if variable is None:
            return
        value = self.bound(variable)
        for member in members:
            value = values.member_of(value, member)
        if isinstance(value, Pointer) and value.to.path and value.to.path[-1] == values.constant(0):
            # of a parameter: the array whose first element it points to
            whole = value.to.path[:-1]
            value = MemoryPlace(value.to.root, whole, values.type_at(value.to.root, whole))
        if isinstance(value, MemoryPlace):
            self.trace.directives.append((pragma, value))

    def _named(self, name: str, line: int) -> Variable | None:
        """The variable of a name that is declared last before a pragma, in the same function."""
        function = self._running[-1]
        declared = syntax.variables_in(function.body)
        found = [v for v in (*function.parameters, *declared) if v.name == name]
        before = [v for v in found if v.at.line <= line]
        return (before or found)[-1] if found else None


def _jumps(block: syntax.Statements) -> bool:
    """Whether a return, break or continue stands in a block, loops in it left out."""
    return any(
        isinstance(statement, (syntax.Return, syntax.Jump))
        or (isinstance(statement, syntax.Branch) and any(_jumps(arm) for arm in statement.arms))
        for statement in block.statements
    )
