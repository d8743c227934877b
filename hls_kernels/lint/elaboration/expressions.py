"""Reads expressions from clang's syntax tree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from clang.cindex import Cursor, CursorKind, StorageClass, TypeKind

from hls_kernels.lint.elaboration.asking import binary_operator, unary_operator, value_of
from hls_kernels.lint.elaboration.syntax import Expression, Function, Op, SourceLine, Variable
from hls_kernels.lint.elaboration.widths import OTHER, Kind, Types
from hls_kernels.lint.tree import parts, path_of

_LITERALS = frozenset(
    (
        CursorKind.INTEGER_LITERAL,
        CursorKind.CHARACTER_LITERAL,
        CursorKind.CXX_BOOL_LITERAL_EXPR,
        CursorKind.CXX_UNARY_EXPR,  # sizeof and alignof
    )
)
_WRAPPERS = frozenset(
    (
        CursorKind.UNEXPOSED_EXPR,
        CursorKind.PAREN_EXPR,
        CursorKind.CSTYLE_CAST_EXPR,
        CursorKind.CXX_STATIC_CAST_EXPR,
        CursorKind.CXX_CONST_CAST_EXPR,
        CursorKind.CXX_FUNCTIONAL_CAST_EXPR,
    )
)
_BINARIES = frozenset((CursorKind.BINARY_OPERATOR, CursorKind.COMPOUND_ASSIGNMENT_OPERATOR))
_ASSIGNING = frozenset(("=", "+=", "-=", "*=", "/=", "%=", "<<=", ">>=", "&=", "|=", "^="))
_STEPS = {"++": "+=", "--": "-=", "p++": "+=", "p--": "-="}
_STREAMED = {"operator>>": "read", "operator<<": "write"}


@dataclass(slots=True)
class Expressions:
    """Reads expressions; `function` gives the function that a declaration names."""

    function: Callable[[Cursor], Function]
    types: Types = field(default_factory=Types)
    _variables: dict[int, Variable] = field(default_factory=dict)

    def variable(self, cursor: Cursor) -> Variable:
        """The variable that a declaration makes."""
        known = self._variables.get(cursor.hash)
        if known is None:
            known = self._variables[cursor.hash] = Variable(
                cursor.spelling,
                self.types.read(cursor.type),
                _at(cursor),
                is_static=cursor.storage_class == StorageClass.STATIC,
            )
        return known

    def read(self, cursor: Cursor) -> Expression:
        """Read an expression without its implicit conversions, but for those of integers."""
        kind = cursor.kind
        if kind in _LITERALS:
            return self._constant(cursor, value_of(cursor))
        if kind in _WRAPPERS:
            return self._wrapped(cursor)
        if kind == CursorKind.DECL_REF_EXPR:
            return self._named(cursor)
        if kind == CursorKind.MEMBER_REF_EXPR:
            return self._member(cursor)
        if kind == CursorKind.CALL_EXPR:
            return self._call(cursor)
        if kind in _BINARIES:
            spelling = binary_operator(cursor)
            op = Op.ASSIGN if spelling in _ASSIGNING else Op.BINARY
            return self._made(cursor, op, self._parts(cursor), spelling)
        if kind == CursorKind.UNARY_OPERATOR:
            return self._unary(cursor)
        if kind == CursorKind.ARRAY_SUBSCRIPT_EXPR:
            return self._made(cursor, Op.INDEX, self._parts(cursor))
        if kind == CursorKind.CONDITIONAL_OPERATOR:
            return self._made(cursor, Op.SELECT, self._parts(cursor))
        if kind == CursorKind.INIT_LIST_EXPR:
            return self._list(cursor)
        if kind == CursorKind.CXX_THIS_EXPR:
            return self._made(cursor, Op.THIS)
        if kind == CursorKind.LAMBDA_EXPR:
            return self._made(cursor, Op.UNKNOWN)
        return self._made(cursor, Op.UNKNOWN, self._parts(cursor))

    def _made(
        self, cursor: Cursor, op: Op, args: tuple[Expression, ...] = (), name: str = ""
    ) -> Expression:
        return Expression(op, _at(cursor), self.types.read(cursor.type), args, name)

    def _parts(self, cursor: Cursor) -> tuple[Expression, ...]:
        return tuple(self.read(part) for part in parts(cursor) if part.kind.is_expression())

    def _constant(self, cursor: Cursor, value: int | None) -> Expression:
        made = self._made(cursor, Op.UNKNOWN if value is None else Op.CONSTANT)
        made.value = value or 0
        return made

    def _wrapped(self, cursor: Cursor) -> Expression:
        inside = parts(cursor)
        if not inside:
            return self._constant(cursor, value_of(cursor))
        # template arguments of the type come before what is converted
        inner = self.read(inside[-1])
        type_ = self.types.read(cursor.type)
        if inner.op is Op.LIST and type_.kind is Kind.INTEGER and len(inner.args) == 1:
            inner = inner.args[0]
        if type_.kind is not Kind.INTEGER or inner.type.referred.kind is not Kind.INTEGER:
            return inner
        old = inner.type.referred
        if type_.name == old.name or (type_.is_ap and old.is_ap and type_.bits == old.bits):
            return inner  # ap_int as its base class
        if inner.op is Op.CONSTANT:
            return Expression(Op.CONSTANT, inner.at, type_, value=inner.value)
        return Expression(Op.CAST, inner.at, type_, (inner,))

    def _named(self, cursor: Cursor) -> Expression:
        named = cursor.referenced
        if named is None:  # a template parameter: its argument stands below
            inside = parts(cursor)
            return self.read(inside[-1]) if inside else self._made(cursor, Op.UNKNOWN)
        if named.kind == CursorKind.ENUM_CONSTANT_DECL:
            return self._constant(cursor, named.enum_value)
        if named.kind not in (CursorKind.VAR_DECL, CursorKind.PARM_DECL):
            return self._made(cursor, Op.UNKNOWN)
        variable = self.variable(named)
        if variable.type.is_const and variable.type.kind is Kind.INTEGER:
            value = value_of(cursor)
            if value is not None:
                return self._constant(cursor, value)
        made = self._made(cursor, Op.VARIABLE)
        made.variable = variable
        return made

    def _member(self, cursor: Cursor) -> Expression:
        named = cursor.referenced
        if named is not None and named.kind == CursorKind.VAR_DECL:  # static
            return self._named(cursor)
        if named is None or named.kind != CursorKind.FIELD_DECL:
            return self._made(cursor, Op.UNKNOWN, self._parts(cursor))
        owner = self._parts(cursor)
        whole = owner[-1] if owner else self._made(cursor, Op.THIS)
        return self._made(cursor, Op.MEMBER, (_behind(whole),), named.spelling)

    def _unary(self, cursor: Cursor) -> Expression:
        spelling, args = unary_operator(cursor), self._parts(cursor)
        if spelling in _STEPS:
            one = Expression(Op.CONSTANT, _at(cursor), args[0].type, value=1)
            name = _STEPS[spelling]
            made = self._made(cursor, Op.ASSIGN, (*args, one), name)
            made.value = 1 if spelling.startswith("p") else 0  # gives the old value
            return made
        if spelling == "addr":
            return self._made(cursor, Op.ADDRESS, args)
        if spelling == "deref":
            return self._made(cursor, Op.DEREFERENCE, args)
        if spelling == "-" and args[0].op is Op.CONSTANT:
            return self._constant(cursor, -args[0].value)
        return self._made(cursor, Op.UNARY, args, spelling)

    def _list(self, cursor: Cursor) -> Expression:
        args = self._parts(cursor)
        type_ = self.types.read(cursor.type)
        if type_.kind is Kind.INTEGER and len(args) == 1:
            return args[0]
        return self._made(cursor, Op.LIST, args)

    # ---- calls --------------------------------------------------------------------------------

    def _call(self, cursor: Cursor) -> Expression:
        called = cursor.referenced
        args = tuple(self.read(argument) for argument in cursor.get_arguments())
        if called is None:
            return self._made(cursor, Op.UNKNOWN, args)
        name = called.spelling
        if called.kind == CursorKind.CONSTRUCTOR:
            return self._constructed(cursor, args)
        if called.kind == CursorKind.CONVERSION_FUNCTION:
            return self._made(cursor, Op.CAST, (self._object(cursor),))
        first = args[0].type.referred if args else OTHER
        if name in _STREAMED and first.kind is Kind.STREAM:
            return self._made(cursor, Op.STREAM, args, _STREAMED[name])
        if name == "operator=":
            return self._made(cursor, Op.ASSIGN, args, "=")
        function = self.function(called)
        if function.is_known:
            return self._own_call(cursor, function, args)
        if name.startswith("operator"):
            return self._operator(cursor, name.removeprefix("operator"), args)
        if not function.is_method:
            return self._made(cursor, Op.UNKNOWN, args)
        whole = self._object(cursor)
        if whole.type.referred.kind is Kind.STREAM:
            return self._made(cursor, Op.STREAM, (whole, *args), name)
        op = Op.CAST if name.startswith("to_") and not args else Op.UNKNOWN
        return self._made(cursor, op, (whole, *args))

    def _own_call(
        self, cursor: Cursor, function: Function, args: tuple[Expression, ...]
    ) -> Expression:
        if (
            all(argument.op is Op.CONSTANT for argument in args)
            and cursor.type.kind != TypeKind.VOID
        ):
            value = value_of(cursor)
            if value is not None:
                return self._constant(cursor, value)
        if function.is_method and function.name == "operator()":
            made = self._made(cursor, Op.CALL, args)  # of a lambda, whose first argument is itself
        elif function.is_method and not function.name.startswith("operator"):
            made = self._made(cursor, Op.CALL, (self._object(cursor), *args))
        else:
            made = self._made(cursor, Op.CALL, args)
        made.callee = function
        return made

    def _object(self, cursor: Cursor) -> Expression:
        """What the method of a call works on."""
        callee = next(iter(parts(cursor)), None)
        inside = [] if callee is None else parts(callee)
        if not inside:
            return self._made(cursor, Op.THIS)
        return _behind(self.read(inside[-1]))

    def _constructed(self, cursor: Cursor, args: tuple[Expression, ...]) -> Expression:
        made = self._made(cursor, Op.UNKNOWN, args)
        if made.type.kind is Kind.INTEGER and len(args) == 1:
            if args[0].op is Op.CONSTANT:
                return Expression(Op.CONSTANT, made.at, made.type, value=args[0].value)
            return self._made(cursor, Op.CAST, args)
        is_copy = len(args) == 1 and args[0].type.referred.name == made.type.name
        return args[0] if is_copy else made

    def _operator(self, cursor: Cursor, name: str, args: tuple[Expression, ...]) -> Expression:
        """An operator of ap_int as that of an integer."""
        if name in _ASSIGNING and len(args) == 2:
            return self._made(cursor, Op.ASSIGN, args, name)
        if name in ("++", "--"):
            one = Expression(Op.CONSTANT, _at(cursor), args[0].type, value=1)
            return self._made(cursor, Op.ASSIGN, (args[0], one), _STEPS[name])
        if len(args) == 2 and name not in ("[]", ","):
            return self._made(cursor, Op.BINARY, args, name)
        if len(args) == 1:
            return self._made(cursor, Op.UNARY, args, name)
        return self._made(cursor, Op.UNKNOWN, args)


def _behind(whole: Expression) -> Expression:
    """What a pointer points to, where the object of a member is one."""
    if whole.type.kind is not Kind.POINTER or whole.op is Op.THIS:
        return whole
    inner = whole.type.inner or OTHER
    return Expression(Op.DEREFERENCE, whole.at, inner, (whole,))


def _at(cursor: Cursor) -> SourceLine:
    return SourceLine(path_of(cursor) or Path(), cursor.location.line)
