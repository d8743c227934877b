"""Functions of a kernel as plain statements and expressions, templates filled in.

clang tells each implicit conversion and spells operators of ap_int as calls; here both are plain
operators, so that a rule has one shape to look at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto

from clang.cindex import CursorKind, TypeKind
from clang.cindex import Type as ClangType

from hls_kernels.lint.compiling import Pragma, SourceLine

_ARRAYS = frozenset((TypeKind.CONSTANTARRAY, TypeKind.INCOMPLETEARRAY, TypeKind.VARIABLEARRAY))
_REFERENCES = frozenset((TypeKind.LVALUEREFERENCE, TypeKind.RVALUEREFERENCE))
_QUALIFIERS = re.compile(r"\b(?:const|volatile)\s+")
_AP_INTEGER = re.compile(r"ap_u?int(?:_base)?<(\d+)(?:, \w+)?>")
_STREAM = re.compile(r"hls::stream<.*?(?:, (\d+))?>")
_POINTER_BITS = 64


class Kind(Enum):
    """What a type is, as far as the rules tell types apart."""

    INTEGER = auto()  # bool, enums and ap_int too
    RECORD = auto()
    ARRAY = auto()
    POINTER = auto()
    REFERENCE = auto()
    STREAM = auto()
    OTHER = auto()


@dataclass(frozen=True, slots=True, eq=False)
class Type:
    """A type: `inner` is what an array, pointer, reference or stream holds."""

    kind: Kind
    name: str
    bits: int = 0
    inner: Type | None = None
    count: int = 0  # elements of an array; depth of a stream, 0 where its type tells none
    fields: tuple[tuple[str, Type], ...] = ()
    is_const: bool = False
    is_ap: bool = False  # an integer of exact width

    def member(self, name: str) -> Type | None:
        """The type of a member, or None."""
        return next((type_ for field_, type_ in self.fields if field_ == name), None)

    @property
    def referred(self) -> Type:
        """What a reference refers to; any other type itself."""
        return self.inner if self.kind is Kind.REFERENCE and self.inner is not None else self

    @property
    def dimensions(self) -> tuple[int, ...]:
        """The elements of each dimension of an array."""
        if self.kind is not Kind.ARRAY or self.inner is None:
            return ()
        return (self.count, *self.inner.dimensions)

    @property
    def element(self) -> Type:
        """What an array of any number of dimensions holds; any other type itself."""
        return self.inner.element if self.kind is Kind.ARRAY and self.inner is not None else self


OTHER = Type(Kind.OTHER, "")


@dataclass(slots=True)
class Types:
    """Reads clang's types, each once."""

    _known: dict[tuple[str, bool], Type] = field(default_factory=dict)

    def read(self, clang: ClangType) -> Type:
        """Read a type and all that it is made of.

        Args:
            clang: the type; one that depends on template parameters is `OTHER`.
        """
        canonical = clang.get_canonical()
        is_const = canonical.is_const_qualified()
        key = canonical.spelling, is_const
        if key not in self._known:
            self._known[key] = OTHER  # a list's element points to another one
            self._known[key] = self._made(canonical, is_const)
        return self._known[key]

    def _made(self, clang: ClangType, is_const: bool) -> Type:
        name = _QUALIFIERS.sub("", clang.spelling)
        if clang.kind in _ARRAYS:
            inner = self.read(clang.get_array_element_type())
            count = max(clang.get_array_size(), 0)
            return Type(Kind.ARRAY, name, inner.bits * count, inner, count)
        if clang.kind == TypeKind.POINTER:
            inner = self.read(clang.get_pointee())
            return Type(Kind.POINTER, name, _POINTER_BITS, inner, is_const=is_const)
        if clang.kind in _REFERENCES:
            return Type(Kind.REFERENCE, name, _POINTER_BITS, self.read(clang.get_pointee()))
        integer, stream = _AP_INTEGER.fullmatch(name), _STREAM.fullmatch(name)
        if integer is not None:
            return Type(Kind.INTEGER, name, int(integer[1]), is_const=is_const, is_ap=True)
        if stream is not None:
            inner = self.read(clang.get_template_argument_type(0))
            return Type(Kind.STREAM, name, 0, inner, int(stream[1] or 0))
        if clang.kind == TypeKind.RECORD:
            fields = tuple(self._fields(clang))
            bits = sum(type_.bits for _, type_ in fields)
            return Type(Kind.RECORD, name, bits, fields=fields, is_const=is_const)
        bits = 1 if clang.kind == TypeKind.BOOL else 8 * max(clang.get_size(), 0)
        kind = Kind.INTEGER if bits else Kind.OTHER
        return Type(kind, name, bits, is_const=is_const)

    def _fields(self, clang: ClangType) -> Iterator[tuple[str, Type]]:
        declaration = clang.get_declaration()
        for base in (declaration.get_definition() or declaration).get_children():
            if base.kind == CursorKind.CXX_BASE_SPECIFIER:
                yield from self._fields(base.type.get_canonical())
        for member in clang.get_fields():
            yield member.spelling, self.read(member.type)


def pointer_member(type_: Type) -> str | None:
    """The first pointer or reference that a struct holds, at any depth, or None.

    Args:
        type_: of a value; integers of exact width and streams are the tool's own and hold none.
    """
    element = type_.element
    if element.kind is not Kind.RECORD:
        return None
    for name, member in element.fields:
        if member.element.kind in (Kind.POINTER, Kind.REFERENCE):
            return name
        deeper = pointer_member(member)
        if deeper is not None:
            return f"{name}.{deeper}"
    return None


@dataclass(slots=True, eq=False)
class Variable:
    """A variable, parameter or member that is named in functions."""

    name: str
    type: Type
    at: SourceLine
    is_static: bool = False


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
class Branch:
    """An if or a switch: one of the arms runs."""

    condition: Expression
    arms: tuple[Statements, ...]
    is_switch: bool = False


@dataclass(slots=True, eq=False)
class LoopStatement:
    """A loop; only a ``for`` has a start and a step. One over an array has a number of `turns`."""

    at: SourceLine
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


Statement = Declare | Expression | Branch | LoopStatement | Return | Jump


@dataclass(slots=True, eq=False)
class Statements:
    """Statements one after the other, and the pragmas that stand between them."""

    statements: tuple[Statement, ...] = ()
    pragmas: tuple[Pragma, ...] = ()


@dataclass(slots=True, eq=False)
class Function:
    """A function with its body; a template is one function for each set of its arguments."""

    name: str
    at: SourceLine
    parameters: tuple[Variable, ...] = ()
    body: Statements = field(default_factory=Statements)
    is_method: bool = False
    owner: Type | None = None
    is_known: bool = False  # the project's own, with a body


def variables_in(block: Statements) -> Iterator[Variable]:
    """The variables that a block and those in it declare."""
    return (s.variable for s in statements_in(block) if isinstance(s, Declare))


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
