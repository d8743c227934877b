"""The call graph of the project's functions, and the rule on recursion."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from clang.cindex import Cursor, CursorKind, TypeKind

from hls_kernels.lint.findings import Finding
from hls_kernels.lint.tree import (
    FUNCTIONS,
    Node,
    Owns,
    descendants,
    finding,
    is_constexpr,
    parts,
    path_of,
    targets,
)

Place = tuple[Path, int, int]
"""File, line and column of a function's name. An instantiation has the place of its template."""

_POINTERS = frozenset((TypeKind.POINTER, TypeKind.MEMBERPOINTER))
_TEMPLATES = frozenset(
    (
        CursorKind.FUNCTION_TEMPLATE,
        CursorKind.CLASS_TEMPLATE,
        CursorKind.CLASS_TEMPLATE_PARTIAL_SPECIALIZATION,
    )
)
_VARIABLES = frozenset((CursorKind.VAR_DECL, CursorKind.PARM_DECL, CursorKind.FIELD_DECL))


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
            if not waiting:
                # last come templates that nothing uses: their calls are known by name only
                template = templates.pop()
                if place_of(template) not in self.calls:
                    waiting.append(template)
                continue
            function = waiting.popleft()
            if function.get_usr() in seen:
                continue
            seen.add(function.get_usr())
            waiting.extend(self._follow(function, owns))

    def _follow(self, function: Cursor, owns: Owns) -> Iterator[Cursor]:
        here = place_of(function)
        self.names[here] = function.spelling
        if is_constexpr(function):
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
        reached = set(start)
        waiting = deque(reached)
        while waiting:
            for place in self.calls.get(waiting.popleft(), set()) - reached:
                reached.add(place)
                waiting.append(place)
        return reached

    def hardware(self) -> set[Place]:
        """All but the constexpr functions that only constant expressions call."""
        return self.reached_from(self.calls.keys() - self.constexprs)

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
        came_from: dict[Place, Place] = {}
        waiting = deque([start])
        while waiting:
            here = waiting.popleft()
            for place in sorted(self.calls.get(here, ())):
                if place == start:
                    route = [start, here]
                    while route[-1] != start:
                        route.append(came_from[route[-1]])
                    return route[::-1]
                if place not in came_from:
                    came_from[place] = here
                    waiting.append(place)
        return []


def _is_template(function: Cursor) -> bool:
    """Whether calls in it wait for arguments; its instantiations are functions of their own."""
    scope = function
    while scope is not None:
        if scope.kind in _TEMPLATES:
            return True
        scope = scope.semantic_parent
    return False


def _calls(cursor: Cursor) -> Iterator[Cursor]:
    """The calls in `cursor` that are not made by the compiler itself."""
    if cursor.kind == CursorKind.STATIC_ASSERT:
        return
    if cursor.kind == CursorKind.VAR_DECL and is_constexpr(cursor):
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
    callee, *arguments = parts(call) or [call]
    # a function that was given as a template argument stands below the parameter's name
    for target in (target for named in descendants(callee) for target in targets(named)):
        parameters = [c for c in target.get_children() if c.kind == CursorKind.PARM_DECL]
        if target.kind in FUNCTIONS and len(arguments) <= len(parameters):
            yield target


def untraceable_findings(node: Node) -> Iterator[Finding]:
    """Report calls that no graph can follow."""
    cursor = node.cursor
    if cursor.kind == CursorKind.CXX_METHOD and cursor.is_virtual_method():
        yield finding(cursor, "recursion", f"virtual {cursor.spelling}: its calls cannot be known")
    if cursor.kind == CursorKind.CALL_EXPR:
        for target in targets(cursor):
            kind = target.type.get_canonical().kind
            if target.kind in _VARIABLES and kind in _POINTERS:
                what = f"call through the pointer {target.spelling}: what it calls cannot be known"
                yield finding(cursor, "recursion", what)
