"""Follows a kernel from its top through all calls, and makes its trace."""

from __future__ import annotations

from hls_kernels.lint.elaboration.evaluation import Evaluator
from hls_kernels.lint.elaboration.heads import CountedHead, counted_head, turn_of
from hls_kernels.lint.elaboration.places import (
    UNKNOWN,
    MemoryPlace,
    Pointer,
    Record,
    Unknown,
    Value,
    decayed,
    either,
    member_of,
    type_at,
)
from hls_kernels.lint.elaboration.pragmas import Pragma
from hls_kernels.lint.elaboration.syntax import (
    Branch,
    Declare,
    Evaluate,
    Expression,
    Function,
    Jump,
    LoopStatement,
    Return,
    Statement,
    Statements,
    Variable,
    statements_in,
)
from hls_kernels.lint.elaboration.trace import Directive, ElaborationTrace, Scope, Turns
from hls_kernels.lint.elaboration.values import Number, Symbol, constant, symbolic
from hls_kernels.lint.elaboration.widths import Kind

_ON_VARIABLES = frozenset(("ARRAY_PARTITION", "AGGREGATE", "BIND_STORAGE", "DISAGGREGATE"))


def trace_of(top: Function) -> ElaborationTrace:
    """The trace of a kernel.

    Args:
        top: the function that nothing calls.
    """
    # the first walk finds out which variables ever change: all others are what they begin with
    first = Walker(top, None)
    first.walk()
    second = Walker(top, first.changed)
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

    @property
    def changed(self) -> set[Variable]:
        """The variables that this walk has seen change after their initial values."""
        return {
            root
            for root, assignments in self.trace.assignments.items()
            if any(not assignment.is_first for assignment in assignments)
        } | self.overwritten

    def walk(self) -> None:
        """Run the top."""
        masters = {pragma.variable for pragma in self.top.body.pragmas if pragma.is_m_axi}
        for parameter in self.top.parameters:
            type_ = parameter.type.referred
            if type_.kind is Kind.POINTER and type_.inner is not None:
                self.bindings[parameter] = Pointer(
                    MemoryPlace(parameter, (constant(0),), type_.inner)
                )
            if parameter.name in masters:
                self.trace.masters[parameter] = parameter.at
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
        given = [
            self.locate(argument)
            if parameter.type.kind is Kind.REFERENCE
            else self._copied(argument)
            for parameter, argument in zip(function.parameters, args, strict=False)
        ]
        found: Value = UNKNOWN
        if is_followed:
            found = self._call(function, given, expression)
        if function.is_method:
            self.objects.pop()
        if expression.type.kind is Kind.INTEGER and not isinstance(found, (Number, MemoryPlace)):
            return self._new(expression.type)
        return found

    def _copied(self, argument: Expression) -> Value:
        return decayed(self.evaluate(argument))

    def _call(self, function: Function, given: list[Value], expression: Expression) -> Value:
        outer = self.scope
        self.scope = Scope(expression.at, outer, function=function)
        for parameter, value in zip(function.parameters, given, strict=False):
            self.bindings.pop(parameter, None)
            if parameter.type.kind is Kind.REFERENCE:
                if not isinstance(value, Unknown):
                    self.bindings[parameter] = value
            else:
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
        if len(returned) < 2:
            return returned[0] if returned else UNKNOWN
        merged, *others = returned
        for other in others:
            path = symbolic(Symbol(("path", self.scope.number, self.new_branch()), (), 2), 2)
            merged = either(path, merged, other)
        return merged

    def _begin(self, variable: Variable, value: Value) -> None:
        """Let a variable's storage begin with a value."""
        type_ = variable.type
        self.trace.declared.setdefault(variable, []).append(self.scope)
        self.bindings.pop(variable, None)
        is_followed = isinstance(value, (Number, Pointer, Record)) or (
            isinstance(value, MemoryPlace) and not value.indices
        )
        if (
            is_followed
            and self._is_fixed(variable)
            and (type_.kind is not Kind.ARRAY or isinstance(value, Pointer))
        ):
            self.bindings[variable] = value
        elif value != UNKNOWN or type_.kind is Kind.INTEGER:
            self.assign(MemoryPlace(variable, (), type_), value, variable.at, is_first=True)

    # ---- statements ---------------------------------------------------------------------------

    def _block(self, block: Statements) -> bool:
        """Run a block; whether it ends with a jump, so that what follows does not run."""
        outer = self.scope
        is_ended = False
        for statement in block.statements:
            if self._statement(statement):
                is_ended = True
                break
        for pragma in block.pragmas:
            self._directive(pragma)
        self.scope = outer
        return is_ended

    def _statement(self, statement: Statement) -> bool:
        if isinstance(statement, Declare):
            self._declare(statement)
        elif isinstance(statement, Evaluate):
            self.evaluate(statement.expression)
        elif isinstance(statement, Branch):
            return self._branch(statement)
        elif isinstance(statement, LoopStatement):
            self._loop(statement)
        elif isinstance(statement, Return) and statement.value is not None:
            self._returned[-1].append(self.evaluate(statement.value))
        return isinstance(statement, (Return, Jump))

    def _declare(self, declared: Declare) -> None:
        variable, initial = declared.variable, declared.initial
        if variable.type.kind is not Kind.REFERENCE:
            self._begin(variable, UNKNOWN if initial is None else decayed(self.evaluate(initial)))
            return
        self.bindings.pop(variable, None)
        found = UNKNOWN if initial is None else self.locate(initial)
        if not isinstance(found, Unknown):
            self.bindings[variable] = found

    def _branch(self, branch: Branch) -> bool:
        """Run the arms. Where one jumps, what follows stands in an arm of its own."""
        condition = self.number(branch.condition)
        known = condition.exact
        if known is not None and not branch.is_switch:
            return self._block(branch.arms[0 if known else 1])
        outer, number, ended = self.scope, self.new_branch(), []
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
            self.in_arm((self.new_branch(), 0, condition), outer.at)
        return False

    def _loop(self, loop: LoopStatement) -> None:
        outer = self.scope
        turns = Turns(loop)
        self.scope = Scope(loop.at, outer, turns=turns)
        head = counted_head(loop, self.number)
        if head.counter in self.overwritten or (self.changes and head.counter in self.changes):
            head = CountedHead()
        for statement in loop.start.statements:
            if not isinstance(statement, Declare) or statement.variable is not head.counter:
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
        body = turns.loop.body
        pipeline, unroll = body.pragma("PIPELINE"), body.pragma("UNROLL")
        if pipeline is not None and "off" not in pipeline.options:
            turns.interval = pipeline.number("ii") or 1
        turns.trips = head.trips
        turns.average = head.trips or _average(body.pragma("LOOP_TRIPCOUNT"))
        is_asked = unroll is not None and "off" not in unroll.options
        factor = unroll.number("factor") if unroll is not None and is_asked else None
        # a pipeline unrolls the loops in it
        is_whole = outer.pipeline() is not None or (is_asked and factor is None)
        turns.copies = turns.trips or 1 if is_whole and turns.trips is not None else factor or 1
        number = self.scope.number
        if turns.copies > 1 or (is_whole and turns.trips is not None):
            turns.lane = Symbol(("lane", number), (), turns.copies, head.lanes(turns.copies))
        if turns.trips is None or turns.copies < turns.trips:
            turns.counter = Symbol(("turn", number), (), turns.trips)
        turns.step = head.step
        if head.counter is not None:
            turn = turn_of(turns.counter, turns.lane, turns.copies)
            self.bindings[head.counter] = head.value_at(turn)

    # ---- pragmas ------------------------------------------------------------------------------

    def _directive(self, pragma: Pragma) -> None:
        if pragma.name not in _ON_VARIABLES or not pragma.variable:
            return
        name, *members = pragma.variable.split(".")
        variable = self._named(name, pragma.line)
        if variable is None:
            return
        bound = self.bindings.get(variable)
        value: Value = MemoryPlace(variable, (), variable.type.referred) if bound is None else bound
        for member in members:
            value = member_of(value, member)
        if isinstance(value, Pointer) and value.to.path and value.to.path[-1] == constant(0):
            # of a parameter: the array whose first element it points to
            whole = value.to.path[:-1]
            value = MemoryPlace(value.to.root, whole, type_at(value.to.root, whole))
        if isinstance(value, MemoryPlace):
            self.trace.directives.append(Directive(pragma, value))

    def _named(self, name: str, line: int) -> Variable | None:
        """The variable of a name that is declared last before a pragma, in the same function."""
        function = self._running[-1]
        declared = [s.variable for s in statements_in(function.body) if isinstance(s, Declare)]
        found = [v for v in (*function.parameters, *declared) if v.name == name]
        before = [v for v in found if v.at.line <= line]
        return (before or found)[-1] if found else None


def _average(count: Pragma | None) -> int:
    """The turns that LOOP_TRIPCOUNT tells."""
    if count is None:
        return 1
    return next((n for n in map(count.number, ("avg", "max")) if n is not None), 1)


def _jumps(block: Statements) -> bool:
    """Whether a return, break or continue stands in a block, loops in it left out."""
    return any(
        isinstance(statement, (Return, Jump))
        or (isinstance(statement, Branch) and any(_jumps(arm) for arm in statement.arms))
        for statement in block.statements
    )
