"""The rules on what kernel sources name, include and call, and the calls of their functions."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from clang.cindex import Cursor, CursorKind, TranslationUnit, TypeKind

from hls_kernels.lint import tree
from hls_kernels.lint.kernels import Finding, reached
from hls_kernels.lint.tree import FUNCTIONS, Owns, finding, path_of, targets

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

_NO_HARDWARE = {
    CursorKind.CXX_NEW_EXPR: ("heap", "new"),
    CursorKind.CXX_DELETE_EXPR: ("heap", "delete"),
    CursorKind.GOTO_STMT: ("unbounded-loop", "goto"),  # it can make a loop without a bound
    CursorKind.INDIRECT_GOTO_STMT: ("unbounded-loop", "goto"),
    CursorKind.FLOATING_LITERAL: ("float", "a floating-point literal"),
}
_NOT_TYPED = tree.kinds("NAMESPACE LINKAGE_SPEC FLOATING_LITERAL")
_NAMING = tree.kinds(
    "DECL_REF_EXPR MEMBER_REF_EXPR OVERLOADED_DECL_REF TYPE_REF TEMPLATE_REF CALL_EXPR"
)
# what `using ::exp;` within std declares is not exposed by clang
_CALLED = FUNCTIONS | tree.kinds("USING_DECLARATION UNEXPOSED_DECL")


def cursor_findings(cursor: Cursor, owns: Owns) -> Iterator[Finding]:
    """Report what one cursor names, calls or jumps to that hardware does not have.

    Args:
        cursor: of the syntax tree.
        owns: whether a file is the project's.
    """
    if cursor.kind in _NO_HARDWARE:
        yield finding(cursor, *_NO_HARDWARE[cursor.kind])
    if cursor.kind == CursorKind.CXX_METHOD and cursor.is_virtual_method():
        yield finding(cursor, "recursion", f"virtual {cursor.spelling}: its calls cannot be known")
    if cursor.kind == CursorKind.USING_DIRECTIVE:
        for child in cursor.get_children():
            if child.spelling == "std":
                yield finding(cursor, "stl", "using namespace std")
    if cursor.kind in _NAMING:
        for target in targets(cursor):
            yield from _target_findings(cursor, target, owns)
            is_variable = cursor.kind == CursorKind.CALL_EXPR and target.kind in _VARIABLES
            if is_variable and target.type.get_canonical().kind in _POINTERS:
                what = f"call through the pointer {target.spelling}: what it calls cannot be known"
                yield finding(cursor, "recursion", what)
    if cursor.kind not in _NOT_TYPED:
        found = _FLOAT.search(cursor.type.get_canonical().spelling)
        if found is not None:
            yield finding(cursor, "float", f"{found[0]} ({cursor.type.spelling})")


def _target_findings(cursor: Cursor, target: Cursor, owns: Owns) -> Iterator[Finding]:
    name, scopes = target.spelling, tree.namespaces(target)
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
    # libstdc++ has one header of this name, libc++ a folder __type_traits
    elif in_std and not (_STD_ALLOWED.fullmatch(outermost) or "type_traits" in str(path)):
        yield finding(cursor, "stl", shown)


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


Place = tuple[Path, int, int]
"""File, line and column of a function's name. An instantiation has the place of its template."""

_POINTERS = frozenset((TypeKind.POINTER, TypeKind.MEMBERPOINTER))
_TEMPLATES = tree.kinds("FUNCTION_TEMPLATE CLASS_TEMPLATE CLASS_TEMPLATE_PARTIAL_SPECIALIZATION")
_VARIABLES = tree.kinds("VAR_DECL PARM_DECL FIELD_DECL")


def place_of(function: Cursor) -> Place:
    """Where a function, or the template that it was made from, is named in its definition."""
    definition = function.get_definition() or function
    location = definition.location
    return path_of(definition) or Path(), location.line, location.column


@dataclass(slots=True)
class CallGraph:
    """Calls between the project's functions at run time; a template is one function."""

    names: dict[Place, str] = field(default_factory=dict)
    calls: dict[Place, set[Place]] = field(default_factory=dict)
    constexprs: set[Place] = field(default_factory=set)

    def add(self, functions: Iterable[Cursor], owns: Owns) -> None:
        """Follow the calls of functions, into the instantiations of templates too.

        Args:
            functions: of the project.
            owns: whether a file is the project's.
        """
        functions = list(functions)
        templates = [f for f in functions if _is_template(f)]
        waiting = deque(f for f in functions if not _is_template(f))
        seen: set[str] = set()
        while waiting or templates:
            # last come templates that nothing uses: their calls are known by name only
            function = waiting.popleft() if waiting else templates.pop()
            is_used = _is_template(function) and place_of(function) in self.calls
            if function.get_usr() not in seen and not is_used:
                seen.add(function.get_usr())
                waiting.extend(self._follow(function, owns))

    def _follow(self, function: Cursor, owns: Owns) -> Iterator[Cursor]:
        here = place_of(function)
        self.names[here] = function.spelling
        if tree.is_constexpr(function):
            self.constexprs.add(here)
        called = self.calls.setdefault(here, set())
        for callee in _callees(function):
            path = path_of(callee)
            if path is not None and owns(path):
                called.add(place_of(callee))
                self.names.setdefault(place_of(callee), callee.spelling)
                if not _is_template(callee):
                    yield callee

    def reached_from(self, start: Iterable[Place]) -> set[Place]:
        """The functions of `start` and all that they call, directly or not."""
        return reached(start, lambda place: self.calls.get(place, ()))

    def recursion_findings(self) -> Iterator[Finding]:
        """One finding for each cycle, at the first of its functions."""
        reported: set[Place] = set()
        for start in sorted(self.calls):
            cycle = self._cycle(start)
            if cycle and not reported & set(cycle):
                reported |= set(cycle)
                route = " -> ".join(self.names[place] for place in cycle)
                yield Finding(start[0], start[1], "recursion", route)

    def _cycle(self, start: Place) -> list[Place]:
        """The shortest way from a function back to itself, or nothing."""
        seen: set[Place] = set()
        waiting = deque([[start]])
        while waiting:
            route = waiting.popleft()
            for place in sorted(self.calls.get(route[-1], ())):
                if place == start:
                    return [*route, start]
                if place not in seen:
                    seen.add(place)
                    waiting.append([*route, place])
        return []


def _is_template(function: Cursor) -> bool:
    """Whether calls in it wait for arguments; its instantiations are functions of their own."""
    return any(scope.kind in _TEMPLATES for scope in tree.scopes_of(function))


def _calls(cursor: Cursor) -> Iterator[Cursor]:
    """The calls in `cursor` that are not made by the compiler itself."""
    is_constant = cursor.kind == CursorKind.VAR_DECL and tree.is_constexpr(cursor)
    if cursor.kind == CursorKind.STATIC_ASSERT or is_constant:
        return
    if cursor.kind == CursorKind.CALL_EXPR:
        yield cursor
    for child in cursor.get_children():
        yield from _calls(child)


def _callees(function: Cursor) -> Iterator[Cursor]:
    for cursor in _calls(function.get_definition() or function):
        exact = [t for t in targets(cursor) if t.kind in FUNCTIONS]
        for target in exact or _candidates(cursor):
            yield target.get_definition() or target


def _candidates(call: Cursor) -> Iterator[Cursor]:
    """Functions that a call in a template may mean: those of its name with enough parameters."""
    callee, *arguments = tree.parts(call) or [call]
    # a function that was given as a template argument stands below the parameter's name
    for target in (target for named in tree.descendants(callee) for target in targets(named)):
        parameters = [c for c in target.get_children() if c.kind == CursorKind.PARM_DECL]
        if target.kind in FUNCTIONS and len(arguments) <= len(parameters):
            yield target
