"""Reads functions, statements and expressions from clang's syntax tree."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

from clang.cindex import Cursor, CursorKind, StorageClass, TranslationUnit, TypeKind

from hls_kernels.lint import tree
from hls_kernels.lint.compiling import Pragma, Pragmas, SourceLine
from hls_kernels.lint.elaboration import syntax
from hls_kernels.lint.elaboration.syntax import Expression, Function, Kind, Op, Statements, Variable
from hls_kernels.lint.tree import LOOPS, Owns, parts, path_of, value_of

_JUMPS = tree.kinds("BREAK_STMT CONTINUE_STMT GOTO_STMT")
_HOLDING = tree.kinds("NAMESPACE LINKAGE_SPEC UNEXPOSED_DECL STRUCT_DECL CLASS_DECL")
_CASES = tree.kinds("CASE_STMT DEFAULT_STMT")
_WRAPPERS = tree.CASTS | tree.kinds("CXX_CONST_CAST_EXPR")
_BINARIES = tree.kinds("BINARY_OPERATOR COMPOUND_ASSIGNMENT_OPERATOR")
_PLAIN = {
    CursorKind.ARRAY_SUBSCRIPT_EXPR: Op.INDEX,
    CursorKind.CONDITIONAL_OPERATOR: Op.SELECT,
    CursorKind.CXX_THIS_EXPR: Op.THIS,
}
_ASSIGNING = frozenset(["=", "+=", "-=", "*=", "/=", "%=", "<<=", ">>=", "&=", "|=", "^="])
_STEPS = {"++": "+=", "--": "-=", "p++": "+=", "p--": "-="}
_POINTING = {"addr": Op.ADDRESS, "deref": Op.DEREFERENCE}
_STREAMED = {"operator>>": "read", "operator<<": "write"}


class Reader:
    """Functions of one source, each read once; a template for each set of its arguments.

    Expressions are read without their implicit conversions, but for those of integers. `called`
    are the functions that calls name.
    """

    def __init__(self, unit: TranslationUnit, pragmas: Pragmas, owns: Owns) -> None:
        self.called: set[Function] = set()
        self._unit, self._pragmas, self._owns = unit, pragmas, owns
        self._types = syntax.Types()
        self._variables: dict[int, Variable] = {}
        self._functions: dict[str, Function] = {}
        self._waiting: deque[tuple[Function, Cursor]] = deque()
        self._claimed: set[Pragma] = set()

    def read_all(self, definitions: Iterable[Cursor]) -> list[Function]:
        """Read functions, and all that they call.

        Args:
            definitions: functions with bodies, none of them templates.
        """
        found = [self._function(definition) for definition in definitions]
        while self._waiting:
            function, cursor = self._waiting.popleft()
            self._claimed = set()
            for inner in cursor.walk_preorder():
                # but for the lambda whose call operator this is
                if inner.kind == CursorKind.LAMBDA_EXPR and not tree.contains(inner, cursor):
                    self._claim_within(inner)
            body = next(c for c in cursor.get_children() if c.kind == CursorKind.COMPOUND_STMT)
            function.body = self._block(body)
        return found

    def _function(self, cursor: Cursor) -> Function:
        """The function that a declaration names; its body is read later."""
        definition = cursor.get_definition() or cursor
        key = definition.get_usr()
        known = self._functions.get(key)
        if known is not None:
            return known
        path = path_of(definition)
        children = list(definition.get_children())
        has_body = any(child.kind == CursorKind.COMPOUND_STMT for child in children)
        is_member = definition.kind != CursorKind.FUNCTION_DECL
        known = self._functions[key] = Function(
            definition.spelling,
            _at(definition),
            tuple(self._variable(c) for c in children if c.kind == CursorKind.PARM_DECL),
            is_method=definition.kind == CursorKind.CXX_METHOD
            and not definition.is_static_method(),
            owner=self._types.read(definition.semantic_parent.type) if is_member else None,
            is_known=has_body and path is not None and self._owns(path),
        )
        if known.is_known:
            self._waiting.append((known, definition))
        return known

    def _variable(self, cursor: Cursor) -> Variable:
        """The variable that a declaration makes."""
        known = self._variables.get(cursor.hash)
        if known is None:
            type_, is_static = self._types.read(cursor.type), cursor.storage_class
            known = Variable(cursor.spelling, type_, _at(cursor), is_static == StorageClass.STATIC)
            self._variables[cursor.hash] = known
        return known

    # ---- statements ---------------------------------------------------------------------------

    def _claim_within(self, cursor: Cursor) -> tuple[Pragma, ...]:
        """The pragmas within a cursor that no inner block has claimed, now claimed."""
        first, last = cursor.extent.start.line, cursor.extent.end.line
        own = self._pragmas.get(path_of(cursor) or Path(), [])
        found = [p for p in own if first < p.at.line <= last and p not in self._claimed]
        self._claimed.update(found)
        return tuple(found)

    def _block(self, cursor: Cursor | None) -> Statements:
        if cursor is None:
            return Statements()
        if cursor.kind != CursorKind.COMPOUND_STMT:
            return Statements(tuple(self._statements(cursor)))
        statements = [s for child in cursor.get_children() for s in self._statements(child)]
        return Statements(tuple(statements), self._claim_within(cursor))

    def _statements(self, cursor: Cursor) -> Iterator[syntax.Statement]:
        kind = cursor.kind
        children = list(cursor.get_children())
        if kind == CursorKind.COMPOUND_STMT:
            yield from self._block(cursor).statements
        elif kind == CursorKind.DECL_STMT:
            yield from (self._declared(c) for c in children if c.kind == CursorKind.VAR_DECL)
        elif kind == CursorKind.LABEL_STMT:
            yield from self._statements(children[-1])
        elif kind in LOOPS:
            yield self._loop(cursor, children)
        elif kind == CursorKind.IF_STMT:
            yield from self._if(cursor)
        elif kind == CursorKind.SWITCH_STMT:
            yield self._switch(children)
        elif kind == CursorKind.RETURN_STMT:
            value = parts(cursor)
            yield syntax.Return(self._expression(value[-1]) if value else None)
        elif kind in _JUMPS:
            yield syntax.Jump()
        elif kind != CursorKind.NULL_STMT:
            yield self._expression(cursor)

    def _declared(self, cursor: Cursor) -> syntax.Declare:
        initial = tree.initializer(cursor)
        variable = self._variable(cursor)
        return syntax.Declare(variable, None if initial is None else self._expression(initial))

    def _if(self, cursor: Cursor) -> Iterator[syntax.Statement]:
        children = parts(cursor)
        if children[0].kind == CursorKind.DECL_STMT:
            yield from self._statements(children.pop(0))
        if children[0].kind == CursorKind.VAR_DECL:
            yield self._declared(children.pop(0))
        condition = self._expression(children[0])
        yes, no, *_ = (*children[1:], None)
        yield syntax.Branch(condition, (self._block(yes), self._block(no)))

    def _switch(self, children: list[Cursor]) -> syntax.Branch:
        arms: list[list[syntax.Statement]] = []
        for child in children[-1].get_children():
            while child.kind in _CASES:
                if not arms or arms[-1]:
                    arms.append([])
                child = list(child.get_children())[-1]
            arms = arms or [[]]
            arms[-1].extend(self._statements(child))
        kept = ([s for s in arm if not isinstance(s, syntax.Jump)] for arm in arms)
        blocks = tuple(Statements(tuple(arm)) for arm in kept)
        return syntax.Branch(self._expression(children[-2]), blocks, is_switch=True)

    def _loop(self, cursor: Cursor, children: list[Cursor]) -> syntax.LoopStatement:
        loop = syntax.LoopStatement(_at(cursor), self._block(tree.body_of(cursor)))
        if cursor.kind == CursorKind.CXX_FOR_RANGE_STMT:
            declared = [self._variable(c) for c in children if c.kind == CursorKind.VAR_DECL]
            array = self._types.read(children[-2].type).referred
            loop.start = Statements(tuple(syntax.Declare(of, None) for of in declared))
            loop.turns = array.count if array.kind is Kind.ARRAY else None
        elif cursor.kind == CursorKind.FOR_STMT:
            start, condition, step = tree.head_of(self._unit, cursor)
            loop.start = self._block(start)
            loop.condition = None if condition is None else self._expression(condition)
            loop.step = None if step is None else self._expression(step)
        else:
            condition = children[-1 if cursor.kind == CursorKind.DO_STMT else -2]
            loop.condition = self._expression(condition)
        return loop

    # ---- expressions --------------------------------------------------------------------------

    def _expression(self, cursor: Cursor) -> Expression:
        kind = cursor.kind
        if kind in tree.LITERALS:
            return self._constant(cursor, value_of(cursor))
        if kind in _WRAPPERS:
            return self._wrapped(cursor)
        if kind == CursorKind.DECL_REF_EXPR:
            return self._named(cursor)
        if kind == CursorKind.MEMBER_REF_EXPR:
            return self._member(cursor)
        if kind == CursorKind.CALL_EXPR:
            return self._call(cursor)
        args = () if kind == CursorKind.LAMBDA_EXPR else self._parts(cursor)
        if kind in _BINARIES:
            spelling = tree.binary_operator(cursor)
            op = Op.ASSIGN if spelling in _ASSIGNING else Op.BINARY
            return self._made(cursor, op, args, spelling)
        if kind == CursorKind.UNARY_OPERATOR:
            return self._unary(cursor, tree.unary_operator(cursor), args)
        if kind == CursorKind.INIT_LIST_EXPR:
            is_number = self._types.read(cursor.type).kind is Kind.INTEGER and len(args) == 1
            return args[0] if is_number else self._made(cursor, Op.LIST, args)
        return self._made(cursor, _PLAIN.get(kind, Op.UNKNOWN), args)

    def _made(
        self, cursor: Cursor, op: Op, args: tuple[Expression, ...] = (), name: str = ""
    ) -> Expression:
        return Expression(op, _at(cursor), self._types.read(cursor.type), args, name)

    def _parts(self, cursor: Cursor) -> tuple[Expression, ...]:
        return tuple(self._expression(p) for p in parts(cursor) if p.kind.is_expression())

    def _constant(self, cursor: Cursor, value: int | None) -> Expression:
        made = self._made(cursor, Op.UNKNOWN if value is None else Op.CONSTANT)
        made.value = value or 0
        return made

    def _wrapped(self, cursor: Cursor) -> Expression:
        inside = parts(cursor)
        if not inside:
            return self._constant(cursor, value_of(cursor))
        # template arguments of the type come before what is converted
        inner = self._expression(inside[-1])
        type_ = self._types.read(cursor.type)
        if inner.op is Op.LIST and type_.kind is Kind.INTEGER and len(inner.args) == 1:
            inner = inner.args[0]
        old = inner.type.referred
        if type_.kind is not Kind.INTEGER or old.kind is not Kind.INTEGER:
            return inner
        if type_.name == old.name or (type_.is_ap and old.is_ap and type_.bits == old.bits):
            return inner  # ap_int as its base class
        return _converted(inner, type_, inner.at)

    def _named(self, cursor: Cursor) -> Expression:
        named = cursor.referenced
        if named is None:  # a template parameter: its argument stands below
            inside = parts(cursor)
            return self._expression(inside[-1]) if inside else self._made(cursor, Op.UNKNOWN)
        if named.kind == CursorKind.ENUM_CONSTANT_DECL:
            return self._constant(cursor, named.enum_value)
        if named.kind not in (CursorKind.VAR_DECL, CursorKind.PARM_DECL):
            return self._made(cursor, Op.UNKNOWN)
        variable = self._variable(named)
        is_const = variable.type.is_const and variable.type.kind is Kind.INTEGER
        value = value_of(cursor) if is_const else None
        if value is not None:
            return self._constant(cursor, value)
        made = self._made(cursor, Op.VARIABLE)
        made.variable = variable
        return made

    def _member(self, cursor: Cursor) -> Expression:
        named = cursor.referenced
        if named is not None and named.kind == CursorKind.VAR_DECL:  # static
            return self._named(cursor)
        owner = self._parts(cursor)
        if named is None or named.kind != CursorKind.FIELD_DECL:
            return self._made(cursor, Op.UNKNOWN, owner)
        whole = owner[-1] if owner else self._made(cursor, Op.THIS)
        return self._made(cursor, Op.MEMBER, (_behind(whole),), named.spelling)

    def _unary(self, cursor: Cursor, name: str, args: tuple[Expression, ...]) -> Expression:
        if name in _STEPS:
            made = self._stepped(cursor, name, args[0])
            made.value = int(name.startswith("p"))  # gives the old value
            return made
        if name == "-" and args[0].op is Op.CONSTANT:
            return self._constant(cursor, -args[0].value)
        if name in _POINTING:
            return self._made(cursor, _POINTING[name], args)
        return self._made(cursor, Op.UNARY, args, name)

    def _stepped(self, cursor: Cursor, name: str, counter: Expression) -> Expression:
        one = Expression(Op.CONSTANT, _at(cursor), counter.type, value=1)
        return self._made(cursor, Op.ASSIGN, (counter, one), _STEPS[name])

    # ---- calls --------------------------------------------------------------------------------

    def _call(self, cursor: Cursor) -> Expression:
        called = cursor.referenced
        args = tuple(self._expression(argument) for argument in cursor.get_arguments())
        if called is None:
            return self._made(cursor, Op.UNKNOWN, args)
        name = called.spelling
        if called.kind == CursorKind.CONSTRUCTOR:
            return self._constructed(cursor, args)
        if called.kind == CursorKind.CONVERSION_FUNCTION:
            return self._made(cursor, Op.CAST, (self._object(cursor),))
        first = args[0].type.referred if args else syntax.OTHER
        if name in _STREAMED and first.kind is Kind.STREAM:
            return self._made(cursor, Op.STREAM, args, _STREAMED[name])
        if name == "operator=":
            return self._made(cursor, Op.ASSIGN, args, "=")
        function = self._function(called)
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
        is_constant = all(argument.op is Op.CONSTANT for argument in args)
        has_value = is_constant and cursor.type.kind != TypeKind.VOID
        value = value_of(cursor) if has_value else None
        if value is not None:
            return self._constant(cursor, value)
        # an operator's first argument is its object, for a lambda itself
        if function.is_method and not function.name.startswith("operator"):
            args = (self._object(cursor), *args)
        made = self._made(cursor, Op.CALL, args)
        made.callee = function
        self.called.add(function)
        return made

    def _object(self, cursor: Cursor) -> Expression:
        """What the method of a call works on."""
        inside = [part for callee in parts(cursor)[:1] for part in parts(callee)]
        if not inside:
            return self._made(cursor, Op.THIS)
        return _behind(self._expression(inside[-1]))

    def _constructed(self, cursor: Cursor, args: tuple[Expression, ...]) -> Expression:
        made = self._made(cursor, Op.UNKNOWN, args)
        if made.type.kind is Kind.INTEGER and len(args) == 1:
            return _converted(args[0], made.type, made.at)
        is_copy = len(args) == 1 and args[0].type.referred.name == made.type.name
        return args[0] if is_copy else made

    def _operator(self, cursor: Cursor, name: str, args: tuple[Expression, ...]) -> Expression:
        """An operator of ap_int as that of an integer."""
        if name in _ASSIGNING and len(args) == 2:
            return self._made(cursor, Op.ASSIGN, args, name)
        if name in ("++", "--"):
            return self._stepped(cursor, name, args[0])
        if len(args) == 2 and name not in ("[]", ","):
            return self._made(cursor, Op.BINARY, args, name)
        return self._made(cursor, Op.UNARY if len(args) == 1 else Op.UNKNOWN, args, name)


def _converted(inner: Expression, type_: syntax.Type, at: SourceLine) -> Expression:
    """An expression as an integer of another type."""
    if inner.op is Op.CONSTANT:
        return Expression(Op.CONSTANT, at, type_, value=inner.value)
    return Expression(Op.CAST, at, type_, (inner,))


def _behind(whole: Expression) -> Expression:
    """What a pointer points to, where the object of a member is one."""
    if whole.type.kind is not Kind.POINTER or whole.op is Op.THIS:
        return whole
    return Expression(Op.DEREFERENCE, whole.at, whole.type.inner or syntax.OTHER, (whole,))


def _at(cursor: Cursor) -> SourceLine:
    return SourceLine(path_of(cursor) or Path(), cursor.location.line)


def definitions_in(unit: TranslationUnit, source: Path) -> list[Cursor]:
    """The functions that a source itself defines, templates left out.

    Args:
        unit: the syntax tree.
        source: the file; headers are not looked at.
    """
    found: list[Cursor] = []
    waiting = list(unit.cursor.get_children())
    while waiting:
        cursor = waiting.pop(0)
        if path_of(cursor) != source:
            continue
        if cursor.kind in _HOLDING:
            waiting.extend(cursor.get_children())
        is_function = cursor.kind in tree.FUNCTIONS and cursor.kind != CursorKind.FUNCTION_TEMPLATE
        if is_function and cursor.is_definition():
            found.append(cursor)
    return found
