"""The rules on names in kernel sources: heap, stl, libm, float, include."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from clang.cindex import Cursor, CursorKind, TranslationUnit

from hls_kernels.lint.findings import Finding
from hls_kernels.lint.tree import FUNCTIONS, Node, Owns, finding, namespaces, path_of, targets

_HEADERS = frozenset(
    ("cstdint", "cstddef", "type_traits", "stdint.h", "stddef.h", "ap_int.h", "hls_stream.h")
)

_ALLOCATE = frozenset(
    (
        *("malloc", "calloc", "realloc", "free", "aligned_alloc", "posix_memalign", "memalign"),
        *("alloca", "strdup", "strndup", "operator new", "operator new[]"),
        *("operator delete", "operator delete[]"),
    )
)
_STD_ALLOCATES = frozenset(
    (
        *("vector", "deque", "list", "forward_list", "basic_string", "string", "function", "any"),
        *("map", "multimap", "set", "multiset", "unordered_map", "unordered_multimap"),
        *("unordered_set", "unordered_multiset", "stack", "queue", "priority_queue", "valarray"),
        *("unique_ptr", "shared_ptr", "make_unique", "make_shared", "allocator"),
    )
)
_LIBM = re.compile(
    r"(?:__builtin_)?(?:"
    r"sqrt|cbrt|hypot|pow|exp|exp2|exp10|expm1|log|log2|log10|log1p|logb|ilogb"
    r"|a?(?:sin|cos|tan)h?|atan2|sincos|erfc?|[lt]gamma|fabs|fmod|remainder|remquo|fma|fdim"
    r"|fmax|fmin|ceil|floor|trunc|l?l?round|l?l?rint|nearbyint|frexp|ldexp|modf|scalbl?n"
    r"|nextafter|nexttoward|copysign|nan|inf|huge_val"
    r")[fl]?"
)
_STD_ALLOWED = re.compile(r"u?int\w*_t|size_t")
_FLOAT = re.compile(r"\b(?:float|double|_Float16|__fp16|__bf16|__float128|__ibm128)\b")

_NAMING = frozenset(
    (
        CursorKind.DECL_REF_EXPR,
        CursorKind.MEMBER_REF_EXPR,
        CursorKind.OVERLOADED_DECL_REF,
        CursorKind.TYPE_REF,
        CursorKind.TEMPLATE_REF,
        CursorKind.CALL_EXPR,
    )
)
# what `using ::exp;` within std declares is not exposed by clang
_CALLED = FUNCTIONS | {CursorKind.USING_DECLARATION, CursorKind.UNEXPOSED_DECL}


def name_findings(node: Node, owns: Owns) -> Iterator[Finding]:
    """Report names at one cursor that hardware does not have.

    Args:
        node: of the syntax tree.
        owns: whether a file is the project's.
    """
    cursor = node.cursor
    if cursor.kind == CursorKind.CXX_NEW_EXPR:
        yield finding(cursor, "heap", "new")
    if cursor.kind == CursorKind.CXX_DELETE_EXPR:
        yield finding(cursor, "heap", "delete")
    if cursor.kind == CursorKind.USING_DIRECTIVE:
        for child in cursor.get_children():
            if child.spelling == "std":
                yield finding(cursor, "stl", "using namespace std")
    if cursor.kind in _NAMING:
        for target in targets(cursor):
            yield from _target_findings(cursor, target, owns)
    yield from _float_findings(cursor)


def _target_findings(cursor: Cursor, target: Cursor, owns: Owns) -> Iterator[Finding]:
    name, scopes = target.spelling, namespaces(target)
    path = path_of(target)
    is_c_function = target.kind in _CALLED and scopes in ([], ["std"])
    if path is not None and owns(path):
        # a function of ours may be called exp; but a builtin stands where it is first used, and
        # what we declare and do not define is someone else's
        is_builtin = name.startswith("__builtin_")
        if not (is_c_function and (is_builtin or target.get_definition() is None)):
            return
    if cursor.kind == CursorKind.OVERLOADED_DECL_REF and name.startswith("operator"):
        return  # all operators in sight; which one is taken, if any, is not known
    in_std = scopes[:1] == ["std"]
    # within std a name may belong to a member: std::vector<int>::push_back
    outermost = scopes[1] if len(scopes) > 1 and in_std else name
    shown = f"std::{outermost}" if in_std else name
    is_allocator = is_c_function and name.removeprefix("__builtin_") in _ALLOCATE
    if is_allocator or (in_std and outermost in _STD_ALLOCATES):
        yield finding(cursor, "heap", shown)
    elif is_c_function and _LIBM.fullmatch(name):
        yield finding(cursor, "libm", shown)
    elif in_std and not _is_allowed_of_std(outermost, path):
        yield finding(cursor, "stl", shown)


def _is_allowed_of_std(name: str, path: Path | None) -> bool:
    # libstdc++ has one header of this name, libc++ a folder __type_traits
    return bool(_STD_ALLOWED.fullmatch(name)) or (path is not None and "type_traits" in str(path))


def _float_findings(cursor: Cursor) -> Iterator[Finding]:
    if cursor.kind == CursorKind.FLOATING_LITERAL:
        yield finding(cursor, "float", "a floating-point literal")
        return
    if cursor.kind in (CursorKind.NAMESPACE, CursorKind.LINKAGE_SPEC):
        return
    found = _FLOAT.search(cursor.type.get_canonical().spelling)
    if found is not None:
        yield finding(cursor, "float", f"{found[0]} ({cursor.type.spelling})")


def include_findings(unit: TranslationUnit, owns: Owns) -> Iterator[Finding]:
    """Report includes of foreign headers, but for the few that kernels may use.

    Args:
        unit: the syntax tree.
        owns: whether a file is the project's.
    """
    for inclusion in unit.get_includes():
        source = Path(inclusion.source.name).resolve()
        header = Path(inclusion.include.name)
        if owns(source) and not owns(header.resolve()) and header.name not in _HEADERS:
            allowed = ", ".join(sorted(_HEADERS))
            what = f"{header.name}: outside our files only {allowed}"
            yield Finding(source, inclusion.location.line, "include", what)
