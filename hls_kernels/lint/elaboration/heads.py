"""The heads of ``for`` loops: how often they turn, and what their variable is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice, product

from hls_kernels.lint.elaboration.syntax import Declare, Expression, LoopStatement, Op, Variable
from hls_kernels.lint.elaboration.values import (
    ZERO,
    Number,
    Symbol,
    constant,
    in_copy,
    plus,
    scaled,
    symbolic,
)

_MOST_TURNS = 1 << 20
_MOST_LANES = 4096
_MIRRORED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "!=": "!="}
_STEPS: dict[str, Callable[[int, int], int]] = {
    "+=": lambda value, by: value + by,
    "-=": lambda value, by: value - by,
    "*=": lambda value, by: value * by,
    "/=": lambda value, by: value // by if by else value,
    "<<=": lambda value, by: value << by,
    ">>=": lambda value, by: value >> by,
}
_ENDS: dict[str, Callable[[int, int], bool]] = {
    "<": lambda value, end: value < end,
    "<=": lambda value, end: value <= end,
    ">": lambda value, end: value > end,
    ">=": lambda value, end: value >= end,
    "!=": lambda value, end: value != end,
}


@dataclass(frozen=True, slots=True)
class CountedHead:
    """A loop's variable, and its values where all of them are known; `trips` counts these."""

    counter: Variable | None = None
    start: Number = ZERO
    step: int | None = None  # None where the variable is not counted up or down
    trips: int | None = None
    values: tuple[int, ...] = ()

    def lanes(self, copies: int) -> tuple[int, ...]:
        """What the turn's number is in each copy, for `value_at`."""
        is_counted = self.step is not None or not self.values
        return tuple(range(min(copies, _MOST_LANES))) if is_counted else self.values

    def value_at(self, turn: Number) -> Number:
        """The variable in a turn, these counted from 0."""
        return turn if self.step is None else plus(self.start, scaled(turn, self.step))


def counted_head(loop: LoopStatement, number: Callable[[Expression], Number]) -> CountedHead:
    """Read the head of a loop.

    Args:
        loop: the loop.
        number: evaluates expressions at its beginning.

    Returns:
        A head without a variable where the loop is not one that counts.
    """
    if loop.turns is not None:
        return CountedHead(trips=loop.turns)
    declared = {
        statement.variable: statement.initial
        for statement in loop.start.statements
        if isinstance(statement, Declare) and statement.initial is not None
    }
    condition, step = loop.condition, loop.step
    if condition is None or step is None or condition.op is not Op.BINARY:
        return CountedHead()
    if step.op is not Op.ASSIGN or step.name not in _STEPS or condition.name not in _MIRRORED:
        return CountedHead()
    counter = _variable(step.args[0])
    if counter is None or counter not in declared:
        return CountedHead()
    operator, end = condition.name, condition.args[1]
    if _variable(condition.args[0]) is not counter:
        operator, end = _MIRRORED[operator], condition.args[0]
        if _variable(condition.args[1]) is not counter:
            return CountedHead()
    initial = declared[counter]
    assert initial is not None
    start, last, by = number(initial), number(end), number(step.args[1]).exact
    signed = {"+=": by, "-=": None if by is None else -by}.get(step.name)
    values = _values(start, last, by, step.name, operator)
    if values is None and signed is None:
        return CountedHead()
    trips = None if values is None else len(values)
    return CountedHead(counter, start, signed, trips, tuple(values or ()))


def _values(
    start: Number, last: Number, by: int | None, step: str, operator: str
) -> list[int] | None:
    """The values of a loop's variable, the longest list where copies differ; None at run time."""
    if by is None or not start.is_fixed() or not last.is_fixed():
        return None
    found: list[int] = []
    for first, end in _in_copies(start, last):
        values: list[int] = []
        value = first
        while _ENDS[operator](value, end):
            values.append(value)
            following = _STEPS[step](value, by)
            if following == value or len(values) >= _MOST_TURNS:
                return None
            value = following
        found = max(found, values, key=len)
    return found


def _in_copies(start: Number, last: Number) -> list[tuple[int, int]]:
    """Start and end in each copy that unrolling the loops around makes."""
    symbols = sorted(
        (symbol for symbol in start.symbols() | last.symbols() if symbol.lanes),
        key=lambda symbol: str(symbol.key),
    )
    lanes = [symbol.lanes or () for symbol in symbols]
    copies = islice(product(*lanes), _MOST_LANES)
    chosen = (dict(zip(symbols, values, strict=True)) for values in copies)
    ends = ((in_copy(start, values), in_copy(last, values)) for values in chosen)
    return [(first.constant, end.constant) for first, end in ends]


def _variable(expression: Expression) -> Variable | None:
    while expression.op is Op.CAST:
        expression = expression.args[0]
    return expression.variable if expression.op is Op.VARIABLE else None


def turn_of(counter: Symbol | None, lane: Symbol | None, copies: int) -> Number:
    """The number of a turn: of a group of copies, and of the copy in it."""
    rest = constant(0) if lane is None else symbolic(lane)
    return rest if counter is None else plus(rest, symbolic(counter), copies)
