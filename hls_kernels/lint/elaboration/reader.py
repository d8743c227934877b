"""Reads functions from clang's syntax tree, those first that nothing calls."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from clang.cindex import Cursor, CursorKind, TranslationUnit

from hls_kernels.lint.compiling import Pragmas
from hls_kernels.lint.elaboration.asking import initializer
from hls_kernels.lint.elaboration.expressions import Expressions
from hls_kernels.lint.elaboration.pragmas import Pragma, read_pragma
from hls_kernels.lint.elaboration.syntax import (
    Branch,
    Declare,
    Evaluate,
    Function,
    Jump,
    LoopStatement,
    Return,
    SourceLine,
    Statement,
    Statements,
)
from hls_kernels.lint.elaboration.widths import Kind
from hls_kernels.lint.loops import body_of, head_of
from hls_kernels.lint.tree import FUNCTIONS, LOOPS, Owns, parts, path_of

_JUMPS = frozenset((CursorKind.BREAK_STMT, CursorKind.CONTINUE_STMT, CursorKind.GOTO_STMT))
_HOLDING = frozenset(
    (
        CursorKind.NAMESPACE,
        CursorKind.LINKAGE_SPEC,
        CursorKind.UNEXPOSED_DECL,
        CursorKind.STRUCT_DECL,
        CursorKind.CLASS_DECL,
    )
)
_CASES = frozenset((CursorKind.CASE_STMT, CursorKind.DEFAULT_STMT))


@dataclass(slots=True)
class Reader:
    """Functions of one source, each read once; a template for each set of its arguments."""

    unit: TranslationUnit
    pragmas: Pragmas
    owns: Owns
    functions: dict[str, Function] = field(default_factory=dict)
    expressions: Expressions = field(init=False)
    _waiting: deque[tuple[Function, Cursor]] = field(default_factory=deque)
    _claimed: set[tuple[Path, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.expressions = Expressions(self.function)

    def read_all(self, definitions: list[Cursor]) -> None:
        """Read functions, and all that they call.

        Args:
            definitions: functions with bodies, none of them templates.
        """
        for definition in definitions:
            self.function(definition)
        while self._waiting:
            function, cursor = self._waiting.popleft()
            self._claimed = set()
            lambdas = (c for c in cursor.walk_preorder() if c.kind == CursorKind.LAMBDA_EXPR)
            for inner in lambdas:
                if not _is_around(inner, cursor):
                    self._claim_within(inner)
            body = next(c for c in cursor.get_children() if c.kind == CursorKind.COMPOUND_STMT)
            function.body = self._block(body)

    def function(self, cursor: Cursor) -> Function:
        """The function that a declaration names; its body is read later."""
        definition = cursor.get_definition() or cursor
        key = definition.get_usr()
        known = self.functions.get(key)
        if known is not None:
            return known
        known = self.functions[key] = self._declared(definition)
        if known.is_known:
            self._waiting.append((known, definition))
        return known

    def _declared(self, definition: Cursor) -> Function:
        path = path_of(definition)
        children = list(definition.get_children())
        has_body = any(child.kind == CursorKind.COMPOUND_STMT for child in children)
        is_method = definition.kind == CursorKind.CXX_METHOD and not definition.is_static_method()
        read = self.expressions.types.read
        parent = definition.semantic_parent
        owner = read(parent.type) if definition.kind != CursorKind.FUNCTION_DECL else None
        return Function(
            definition.spelling,
            SourceLine(path or Path(), definition.location.line),
            read(definition.result_type),
            tuple(
                self.expressions.variable(child)
                for child in children
                if child.kind == CursorKind.PARM_DECL
            ),
            is_method=is_method,
            owner=owner,
            is_known=has_body and path is not None and self.owns(path),
        )

    # ---- pragmas ------------------------------------------------------------------------------

    def _claim_within(self, cursor: Cursor) -> list[Pragma]:
        """The pragmas within a cursor that no inner block has claimed, now claimed."""
        path = path_of(cursor) or Path()
        first, last = cursor.extent.start.line, cursor.extent.end.line
        found = []
        for line, text in self.pragmas.get(path, []):
            if first < line <= last and (path, line) not in self._claimed:
                self._claimed.add((path, line))
                found.append(read_pragma(text, path, line))
        return found

    # ---- statements ---------------------------------------------------------------------------

    def _block(self, cursor: Cursor) -> Statements:
        if cursor.kind != CursorKind.COMPOUND_STMT:
            return Statements(tuple(self._statements(cursor)))
        statements = [s for child in cursor.get_children() for s in self._statements(child)]
        return Statements(tuple(statements), tuple(self._claim_within(cursor)))

    def _statements(self, cursor: Cursor, label: str | None = None) -> Iterator[Statement]:
        kind = cursor.kind
        children = list(cursor.get_children())
        if kind == CursorKind.COMPOUND_STMT:
            yield from self._block(cursor).statements
        elif kind == CursorKind.DECL_STMT:
            for child in children:
                if child.kind == CursorKind.VAR_DECL:
                    yield self._declaration(child)
        elif kind == CursorKind.LABEL_STMT:
            yield from self._statements(children[-1], cursor.spelling)
        elif kind in LOOPS:
            yield self._loop(cursor, label)
        elif kind == CursorKind.IF_STMT:
            yield from self._if(cursor)
        elif kind == CursorKind.SWITCH_STMT:
            yield self._switch(children)
        elif kind == CursorKind.RETURN_STMT:
            value = parts(cursor)
            yield Return(self.expressions.read(value[-1]) if value else None)
        elif kind in _JUMPS:
            yield Jump(is_break=kind == CursorKind.BREAK_STMT)
        elif kind != CursorKind.NULL_STMT:
            yield Evaluate(self.expressions.read(cursor))

    def _declaration(self, cursor: Cursor) -> Declare:
        initial = initializer(cursor)
        variable = self.expressions.variable(cursor)
        return Declare(variable, None if initial is None else self.expressions.read(initial))

    def _if(self, cursor: Cursor) -> Iterator[Statement]:
        children = parts(cursor)
        if children[0].kind == CursorKind.DECL_STMT:
            yield from self._statements(children.pop(0))
        if children[0].kind == CursorKind.VAR_DECL:
            yield self._declaration(children.pop(0))
        condition = self.expressions.read(children[0])
        arms = [self._block(child) for child in children[1:3]]
        arms += [Statements()] * (2 - len(arms))
        yield Branch(condition, tuple(arms))

    def _switch(self, children: list[Cursor]) -> Branch:
        arms: list[list[Statement]] = []
        for child in children[-1].get_children():
            while child.kind in _CASES:
                if not arms or arms[-1]:
                    arms.append([])
                child = list(child.get_children())[-1]
            arms = arms or [[]]
            arms[-1].extend(self._statements(child))
        blocks = (Statements(tuple(s for s in arm if not isinstance(s, Jump))) for arm in arms)
        return Branch(self.expressions.read(children[-2]), tuple(blocks), is_switch=True)

    def _loop(self, cursor: Cursor, label: str | None) -> LoopStatement:
        body = self._block(body_of(cursor))
        at = SourceLine(path_of(cursor) or Path(), cursor.location.line)
        children = list(cursor.get_children())
        if cursor.kind == CursorKind.CXX_FOR_RANGE_STMT:
            return self._loop_over(children, LoopStatement(at, label, body))
        if cursor.kind != CursorKind.FOR_STMT:
            condition = children[-1 if cursor.kind == CursorKind.DO_STMT else -2]
            return LoopStatement(at, label, body, condition=self.expressions.read(condition))
        head = head_of(self.unit, cursor)
        read = self.expressions.read
        return LoopStatement(
            at,
            label,
            body,
            Statements() if head.start is None else self._block(head.start),
            None if head.condition is None else read(head.condition),
            None if head.step is None else read(head.step),
        )

    def _loop_over(self, children: list[Cursor], loop: LoopStatement) -> LoopStatement:
        declared = [c for c in children if c.kind == CursorKind.VAR_DECL]
        array = self.expressions.types.read(children[-2].type).referred
        loop.start = Statements(
            tuple(Declare(self.expressions.variable(c), None) for c in declared)
        )
        loop.turns = array.count if array.kind is Kind.ARRAY else None
        return loop


def _is_around(outer: Cursor, inner: Cursor) -> bool:
    """Whether a lambda is the one whose call operator `inner` is."""
    return bool(
        outer.extent.start.offset <= inner.extent.start.offset
        and inner.extent.end.offset <= outer.extent.end.offset
    )


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
        is_function = cursor.kind in FUNCTIONS and cursor.kind != CursorKind.FUNCTION_TEMPLATE
        if is_function and cursor.is_definition():
            found.append(cursor)
    return found
