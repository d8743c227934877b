"""clang's syntax tree of a kernel source: nodes of the project's files, names, constants."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from ctypes import c_int, c_longlong, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

from clang import cindex
from clang.cindex import Cursor, CursorKind, Diagnostic, Index, TranslationUnit, conf

from hls_kernels.lint.compiling import Tools
from hls_kernels.lint.kernels import Finding

Owns = Callable[[Path], bool]


def kinds(names: str) -> frozenset[CursorKind]:
    """The kinds of cursors of these names."""
    return frozenset(getattr(CursorKind, name) for name in names.split())


FUNCTIONS = kinds(
    "FUNCTION_DECL FUNCTION_TEMPLATE CXX_METHOD CONSTRUCTOR DESTRUCTOR CONVERSION_FUNCTION"
)
LOOPS = kinds("FOR_STMT WHILE_STMT DO_STMT CXX_FOR_RANGE_STMT")
CASTS = kinds(
    "UNEXPOSED_EXPR PAREN_EXPR CSTYLE_CAST_EXPR CXX_STATIC_CAST_EXPR CXX_FUNCTIONAL_CAST_EXPR"
)
LITERALS = kinds(
    "INTEGER_LITERAL CHARACTER_LITERAL CXX_BOOL_LITERAL_EXPR CXX_UNARY_EXPR"  # sizeof and alignof
)
_NAMES = kinds("TYPE_REF TEMPLATE_REF MEMBER_REF NAMESPACE_REF")
_CONSTANTS = LITERALS | kinds("SIZE_OF_PACK_EXPR")
_CONSTANT_IF_PARTS_ARE = CASTS | kinds("UNARY_OPERATOR BINARY_OPERATOR CONDITIONAL_OPERATOR")


Node = tuple[Cursor, Cursor, Cursor | None]
"""A cursor with its parent and the outermost function that holds it."""


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
    yield cursor, parent, function
    for child in cursor.get_children():
        yield from _below(child, cursor, function)


def descendants(cursor: Cursor) -> Iterator[Cursor]:
    """`cursor` and all below it."""
    return (inner for inner, _, _ in _below(cursor, cursor, None))


def targets(cursor: Cursor) -> list[Cursor]:
    """The declarations that a cursor may name: several where a template leaves it open."""
    if cursor.kind == CursorKind.OVERLOADED_DECL_REF:
        count = conf.lib.clang_getNumOverloadedDecls(cursor)
        return [conf.lib.clang_getOverloadedDecl(cursor, i) for i in range(count)]
    target = cursor.referenced
    if target is None or target == cursor:
        return []
    return targets(target) if target.kind == CursorKind.OVERLOADED_DECL_REF else [target]


def scopes_of(declaration: Cursor) -> list[Cursor]:
    """A declaration and all that encloses it, innermost first."""
    scopes: list[Cursor] = []
    while declaration is not None:
        scopes.append(declaration)
        declaration = declaration.semantic_parent
    return scopes


def namespaces(declaration: Cursor) -> list[str]:
    """Names of the scopes that enclose a declaration, outermost first, reserved ones left out."""
    scopes = [s for s in scopes_of(declaration)[1:] if s.kind != CursorKind.TRANSLATION_UNIT]
    names = [scope.spelling for scope in reversed(scopes)]
    return [name for name in names if name and not name.startswith("_")]  # as std::__cxx11


def words(unit: TranslationUnit, first: Cursor, end: Cursor | None = None) -> list[tuple[int, str]]:
    """Offsets and spellings of tokens.

    Args:
        unit: the syntax tree.
        first: cursor whose tokens they are.
        end: cursor before which they end; None: they end with `first`.
    """
    start, stop = first.extent.start, first.extent.end if end is None else end.extent.start
    # from offsets, since for text of a macro clang would return the words of its definition
    bounds = [
        cindex.SourceLocation.from_offset(unit, start.file, at.offset) for at in (start, stop)
    ]
    tokens = unit.get_tokens(extent=cindex.SourceRange.from_locations(*bounds))
    found = ((token.extent.start.offset, token.spelling) for token in tokens)
    return [(offset, word) for offset, word in found if offset < stop.offset]


def contains(outer: Cursor, inner: Cursor) -> bool:
    """Whether the text of a cursor is a part of that of another one, or the same."""
    a, b = outer.extent, inner.extent
    return bool(a.start.offset <= b.start.offset and b.end.offset <= a.end.offset)


def body_of(loop: Cursor) -> Cursor:
    """The statement that a loop repeats."""
    children = list(loop.get_children())
    return children[0] if loop.kind == CursorKind.DO_STMT else children[-1]


def head_of(unit: TranslationUnit, loop: Cursor) -> list[Cursor | None]:
    """Start, condition and step of a ``for`` with semicolons; what is left out is None.

    Clang leaves out what is not written, so the semicolons tell which part is which.
    """
    *children, body = loop.get_children()
    depth, semicolons = 0, []
    for offset, word in words(unit, loop, body):
        depth += (word in "([{") - (word in ")]}")
        if word == ";" and depth == 1:
            semicolons.append(offset)
    slots: list[Cursor | None] = [None, None, None]
    for child in children:
        slots[sum(child.extent.start.offset > offset for offset in semicolons)] = child
    return slots


def parts(cursor: Cursor) -> list[Cursor]:
    """The sub-expressions of an expression, without the names of types and scopes."""
    return [child for child in cursor.get_children() if child.kind not in _NAMES]


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
    found = parts(cursor)
    may_be = cursor.kind in _CONSTANT_IF_PARTS_ARE and bool(found)
    if cursor.kind == CursorKind.CALL_EXPR:
        called = targets(cursor) or [target for callee in found[:1] for target in targets(callee)]
        found = list(cursor.get_arguments()) or found[1:]
        may_be = bool(called) and all(map(is_constexpr, called))
    return may_be and all(is_constant(part, fixed) for part in found)


def _names_constant(reference: Cursor, fixed: Sequence[Cursor]) -> bool:
    found = targets(reference)
    if found and all(target in fixed for target in found):
        return True
    if not found:  # a member of a scope that depends on template parameters
        below = {child.kind for child in reference.get_children()}
        return bool(below & kinds("TEMPLATE_REF TYPE_REF"))
    return all(map(_is_constant_declaration, found))


def _is_constant_declaration(declaration: Cursor) -> bool:
    if declaration.kind in kinds("TEMPLATE_NON_TYPE_PARAMETER ENUM_CONSTANT_DECL"):
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


_INTEGER = 1  # CXEval_Int

# in the order of CXBinaryOperatorKind and CXUnaryOperatorKind
_BINARIES = "* / % + - << >> <=> < > <= >= == != & ^ | && || = *= /= %= += -= <<= >>= &= ^= |= ,"
_BINARY = dict(enumerate(_BINARIES.split(), start=3))
_UNARY = dict(enumerate(["p++", "p--", "++", "--", "addr", "deref", "+", "-", "~", "!"], start=1))


@cache
def _library() -> Any:
    library = conf.lib
    for name, arguments, result in (
        ("getCursorBinaryOperatorKind", Cursor, c_int),
        ("getCursorUnaryOperatorKind", Cursor, c_int),
        ("Cursor_getVarDeclInitializer", Cursor, Cursor),
        ("Cursor_Evaluate", Cursor, c_void_p),
        ("EvalResult_getKind", c_void_p, c_int),
        ("EvalResult_getAsLongLong", c_void_p, c_longlong),
        ("EvalResult_dispose", c_void_p, None),
    ):
        function = getattr(library, f"clang_{name}")
        function.argtypes, function.restype = [arguments], result
    return library


def binary_operator(cursor: Cursor) -> str:
    """The spelling of a binary or assigning operator; empty for others."""
    return _BINARY.get(_library().clang_getCursorBinaryOperatorKind(cursor), "")


def unary_operator(cursor: Cursor) -> str:
    """The spelling of a unary operator: ``p++`` behind its operand, ``addr``, ``deref``."""
    return _UNARY.get(_library().clang_getCursorUnaryOperatorKind(cursor), "")


def initializer(variable: Cursor) -> Cursor | None:
    """The initial value of a variable, or None."""
    found = _library().clang_Cursor_getVarDeclInitializer(variable)
    if _library().clang_Cursor_isNull(found):
        return None
    found._tu = variable._tu  # as Cursor.from_cursor_result does
    return found


def value_of(cursor: Cursor) -> int | None:
    """The integer that an expression or a variable has at compile time, or None."""
    library = _library()
    result = library.clang_Cursor_Evaluate(cursor)
    if not result:
        return None
    is_integer = library.clang_EvalResult_getKind(result) == _INTEGER
    value = int(library.clang_EvalResult_getAsLongLong(result)) if is_integer else None
    library.clang_EvalResult_dispose(result)
    return value
