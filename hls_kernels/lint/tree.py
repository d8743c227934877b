"""clang's syntax tree of a kernel source: nodes of the project's files, names, constants."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from clang.cindex import (
    Cursor,
    CursorKind,
    Diagnostic,
    Index,
    SourceLocation,
    SourceRange,
    TranslationUnit,
    conf,
)

from hls_kernels.lint.compiling import Tools
from hls_kernels.lint.findings import Finding

Owns = Callable[[Path], bool]

FUNCTIONS = frozenset(
    (
        CursorKind.FUNCTION_DECL,
        CursorKind.FUNCTION_TEMPLATE,
        CursorKind.CXX_METHOD,
        CursorKind.CONSTRUCTOR,
        CursorKind.DESTRUCTOR,
        CursorKind.CONVERSION_FUNCTION,
    )
)
LOOPS = frozenset(
    (
        CursorKind.FOR_STMT,
        CursorKind.WHILE_STMT,
        CursorKind.DO_STMT,
        CursorKind.CXX_FOR_RANGE_STMT,
    )
)
_REFERENCES = frozenset(
    (
        CursorKind.TYPE_REF,
        CursorKind.TEMPLATE_REF,
        CursorKind.MEMBER_REF,
        CursorKind.NAMESPACE_REF,
    )
)
_CONSTANTS = frozenset(
    (
        CursorKind.INTEGER_LITERAL,
        CursorKind.CHARACTER_LITERAL,
        CursorKind.CXX_BOOL_LITERAL_EXPR,
        CursorKind.CXX_UNARY_EXPR,  # sizeof and alignof
        CursorKind.SIZE_OF_PACK_EXPR,
    )
)
_CONSTANT_IF_PARTS_ARE = frozenset(
    (
        CursorKind.PAREN_EXPR,
        CursorKind.UNEXPOSED_EXPR,
        CursorKind.UNARY_OPERATOR,
        CursorKind.BINARY_OPERATOR,
        CursorKind.CONDITIONAL_OPERATOR,
        CursorKind.CSTYLE_CAST_EXPR,
        CursorKind.CXX_STATIC_CAST_EXPR,
        CursorKind.CXX_FUNCTIONAL_CAST_EXPR,
    )
)


@dataclass(frozen=True, slots=True)
class Node:
    """A cursor with its parent and the outermost function that holds it."""

    cursor: Cursor
    parent: Cursor
    function: Cursor | None


def parse(tools: Tools, source: Path) -> TranslationUnit:
    """Parse a source in the synthesis configuration.

    Args:
        tools: of this machine.
        source: to parse.
    """
    folders = [word for folder in tools.system_folders for word in ("-isystem", folder)]
    # libclang has no headers of its own: it reads those of the compiler found before.
    arguments = [*tools.flags, "-w", "-nostdinc", "-nostdinc++", *folders]
    return Index.create().parse(str(source), args=arguments)


def parse_findings(unit: TranslationUnit) -> list[Finding]:
    """Errors of clang in a source that the system compiler accepts."""
    return [
        Finding(path_of(fault) or Path(unit.spelling), fault.location.line, "compile", what)
        for fault in unit.diagnostics
        if fault.severity >= Diagnostic.Error
        for what in [f"libclang: {fault.spelling}"]
    ]


@cache
def _resolved(name: str) -> Path:
    return Path(name).resolve()


def path_of(place: Cursor | Diagnostic) -> Path | None:
    """The file in which a cursor stands; for a macro's text the file that uses the macro."""
    file = place.location.file
    return None if file is None else _resolved(file.name)


def finding(cursor: Cursor, rule: str, what: str) -> Finding:
    """Make a finding at the place of a cursor.

    Args:
        cursor: where.
        rule: that is broken.
        what: breaks it.
    """
    return Finding(path_of(cursor) or Path(), cursor.location.line, rule, what)


def own_nodes(unit: TranslationUnit, owns: Owns) -> Iterator[Node]:
    """Yield all cursors of the project's files, parents first.

    Args:
        unit: the syntax tree.
        owns: whether a file is the project's.
    """
    for cursor in unit.cursor.get_children():
        path = path_of(cursor)
        if path is not None and owns(path):
            yield from _below(cursor, unit.cursor, None)


def _below(cursor: Cursor, parent: Cursor, function: Cursor | None) -> Iterator[Node]:
    if function is None and cursor.kind in FUNCTIONS:
        function = cursor
    yield Node(cursor, parent, function)
    for child in cursor.get_children():
        yield from _below(child, cursor, function)


def descendants(cursor: Cursor) -> Iterator[Cursor]:
    """`cursor` and all below it."""
    return (node.cursor for node in _below(cursor, cursor, None))


def targets(cursor: Cursor) -> list[Cursor]:
    """The declarations that a cursor may name: several where a template leaves it open."""
    if cursor.kind == CursorKind.OVERLOADED_DECL_REF:
        count = conf.lib.clang_getNumOverloadedDecls(cursor)
        return [conf.lib.clang_getOverloadedDecl(cursor, i) for i in range(count)]
    target = cursor.referenced
    if target is None or target == cursor:
        return []
    return targets(target) if target.kind == CursorKind.OVERLOADED_DECL_REF else [target]


def namespaces(declaration: Cursor) -> list[str]:
    """Names of the scopes that enclose a declaration, outermost first, reserved ones left out."""
    names: list[str] = []
    scope = declaration.semantic_parent
    while scope is not None and scope.kind != CursorKind.TRANSLATION_UNIT:
        if scope.spelling and not scope.spelling.startswith("_"):  # as std::__cxx11
            names.append(scope.spelling)
        scope = scope.semantic_parent
    return names[::-1]


def words(unit: TranslationUnit, first: Cursor, end: Cursor | None = None) -> list[tuple[int, str]]:
    """Offsets and spellings of tokens.

    Args:
        unit: the syntax tree.
        first: cursor whose tokens they are.
        end: cursor before which they end; None: they end with `first`.
    """
    start, stop = first.extent.start, first.extent.end if end is None else end.extent.start
    # from offsets, since for text of a macro clang would return the words of its definition
    bounds = [SourceLocation.from_offset(unit, start.file, at.offset) for at in (start, stop)]
    tokens = unit.get_tokens(extent=SourceRange.from_locations(*bounds))
    found = ((token.extent.start.offset, token.spelling) for token in tokens)
    return [(offset, word) for offset, word in found if offset < stop.offset]


def parts(cursor: Cursor) -> list[Cursor]:
    """The sub-expressions of an expression, without the names of types and scopes."""
    return [child for child in cursor.get_children() if child.kind not in _REFERENCES]


def is_constant(cursor: Cursor, fixed: Sequence[Cursor] = ()) -> bool:
    """Whether an integer expression has one value at compile time, template parameters given.

    Args:
        cursor: the expression.
        fixed: variables that are constants where it stands.
    """
    if cursor.kind in _CONSTANTS:
        return True
    if cursor.kind == CursorKind.DECL_REF_EXPR:
        return _names_constant(cursor, fixed)

    def are_constant(expressions: list[Cursor]) -> bool:
        return all(is_constant(expression, fixed) for expression in expressions)

    if cursor.kind == CursorKind.CALL_EXPR:
        called = targets(cursor) or [t for c in parts(cursor)[:1] for t in targets(c)]
        arguments = list(cursor.get_arguments()) or parts(cursor)[1:]
        return bool(called) and all(map(is_constexpr, called)) and are_constant(arguments)
    found = parts(cursor)
    return cursor.kind in _CONSTANT_IF_PARTS_ARE and bool(found) and are_constant(found)


def _names_constant(reference: Cursor, fixed: Sequence[Cursor]) -> bool:
    found = targets(reference)
    if found and all(target in fixed for target in found):
        return True
    if not found:  # a member of a scope that depends on template parameters
        kinds = {child.kind for child in reference.get_children()}
        return bool(kinds & {CursorKind.TEMPLATE_REF, CursorKind.TYPE_REF})
    return all(map(_is_constant_declaration, found))


def _is_constant_declaration(declaration: Cursor) -> bool:
    constants = {CursorKind.TEMPLATE_NON_TYPE_PARAMETER, CursorKind.ENUM_CONSTANT_DECL}
    if declaration.kind in constants:
        return True
    if declaration.kind != CursorKind.VAR_DECL or not declaration.type.is_const_qualified():
        return False
    initial = parts(declaration)
    return bool(initial) and is_constant(initial[-1])


def is_constexpr(declaration: Cursor) -> bool:
    """Whether a function or a variable is declared constexpr."""
    stops = ("{",) if declaration.kind in FUNCTIONS else ("{", "=")
    for token in (declaration.get_definition() or declaration).get_tokens():
        if token.spelling in ("constexpr", "consteval"):
            return True
        if token.spelling in stops:
            return False
    return False
