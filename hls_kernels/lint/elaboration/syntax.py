"""Functions of a kernel as plain statements and expressions, templates filled in.

clang tells each implicit conversion and spells operators of ap_int as calls; here both are plain
operators, so that a rule has one shape to look at.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path

from hls_kernels.lint.elaboration.pragmas import Pragma
from hls_kernels.lint.elaboration.widths import OTHER, Type


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A place in a source."""

    path: Path
    line: int


@dataclass(slots=True, eq=False)
class Variable:
    """A variable, parameter or member that is named in functions."""

    name: str
    type: Type
    at: SourceLine
    is_static: bool = False
    is_member: bool = False


class Op(Enum):
    """What an expression does."""

    CONSTANT = auto()  # value
    VARIABLE = auto()  # variable
    MEMBER = auto()  # args[0] . name
    INDEX = auto()  # args[0] [ args[1] ]
    DEREFERENCE = auto()
    ADDRESS = auto()
    BINARY = auto()  # name is the operator
    UNARY = auto()
    ASSIGN = auto()  # name is "=", "+=" ...; ++ and -- are += and -= of 1
    SELECT = auto()  # args[0] ? args[1] : args[2]
    CALL = auto()  # callee; for a method args[0] is the object
    STREAM = auto()  # name is the method, args[0] the stream
    CAST = auto()
    LIST = auto()  # { args }
    THIS = auto()
    UNKNOWN = auto()


@dataclass(slots=True, eq=False)
class Expression:
    """An expression and its type."""

    op: Op
    at: SourceLine
    type: Type = OTHER
    args: tuple[Expression, ...] = ()
    name: str = ""
    value: int = 0
    variable: Variable | None = None
    callee: Function | None = None


@dataclass(slots=True, eq=False)
class Declare:
    """A variable with its initial value."""

    variable: Variable
    initial: Expression | None


@dataclass(slots=True, eq=False)
class Evaluate:
    """An expression as a statement."""

    expression: Expression


@dataclass(slots=True, eq=False)
class Branch:
    """An if or a switch: one of the arms runs."""

    condition: Expression
    arms: tuple[Statements, ...]
    is_switch: bool = False


@dataclass(slots=True, eq=False)
class LoopStatement:
    """A loop; only a ``for`` has a start and a step. One over an array has a number of `turns`."""

    at: SourceLine
    label: str | None
    body: Statements
    start: Statements = field(default_factory=lambda: Statements())
    condition: Expression | None = None
    step: Expression | None = None
    turns: int | None = None


@dataclass(slots=True, eq=False)
class Return:
    """A return."""

    value: Expression | None


@dataclass(slots=True, eq=False)
class Jump:
    """A break or continue."""

    is_break: bool


Statement = Declare | Evaluate | Branch | LoopStatement | Return | Jump


@dataclass(slots=True, eq=False)
class Statements:
    """Statements one after the other, and the pragmas that stand between them."""

    statements: tuple[Statement, ...] = ()
    pragmas: tuple[Pragma, ...] = ()

    def pragma(self, name: str) -> Pragma | None:
        """The first pragma of a name, or None."""
        return next((pragma for pragma in self.pragmas if pragma.name == name), None)


@dataclass(slots=True, eq=False)
class Function:
    """A function with its body; a template is one function for each set of its arguments."""

    name: str
    at: SourceLine
    result: Type
    parameters: tuple[Variable, ...] = ()
    body: Statements = field(default_factory=Statements)
    is_method: bool = False
    owner: Type | None = None
    is_known: bool = False  # the project's own, with a body

    @property
    def is_inlined(self) -> bool:
        """Whether INLINE stands in it."""
        found = self.body.pragma("INLINE")
        return found is not None and "off" not in found.options


def statements_in(block: Statements) -> Iterator[Statement]:
    """All statements of a block, those of inner blocks too."""
    for statement in block.statements:
        yield statement
        if isinstance(statement, Branch):
            for arm in statement.arms:
                yield from statements_in(arm)
        elif isinstance(statement, LoopStatement):
            yield from statements_in(statement.start)
            yield from statements_in(statement.body)


def expressions_in(block: Statements) -> Iterator[Expression]:
    """All expressions of a block and of the blocks in it, each before its parts."""
    for statement in statements_in(block):
        for expression in _expressions_of(statement):
            yield from parts_of(expression)


def _expressions_of(statement: Statement) -> Iterator[Expression]:
    found: tuple[Expression | None, ...] = ()
    if isinstance(statement, Declare):
        found = (statement.initial,)
    elif isinstance(statement, Evaluate):
        found = (statement.expression,)
    elif isinstance(statement, Branch | LoopStatement):
        found = (statement.condition, getattr(statement, "step", None))
    elif isinstance(statement, Return):
        found = (statement.value,)
    yield from (expression for expression in found if expression is not None)


def parts_of(expression: Expression) -> Iterator[Expression]:
    """An expression and all that it is made of."""
    yield expression
    for part in expression.args:
        yield from parts_of(part)
