"""The rules on loops: bounds, trip counts, labels, and their entries in qor.json."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from clang.cindex import Cursor, CursorKind, TranslationUnit, TypeKind

from hls_kernels.lint.compiling import Pragmas
from hls_kernels.lint.findings import Finding
from hls_kernels.lint.kernels import Kernel
from hls_kernels.lint.tree import (
    LOOPS,
    Node,
    descendants,
    finding,
    is_constant,
    parts,
    path_of,
    targets,
    words,
)

_KEYWORDS = {
    CursorKind.FOR_STMT: "for",
    CursorKind.CXX_FOR_RANGE_STMT: "for",
    CursorKind.WHILE_STMT: "while",
    CursorKind.DO_STMT: "do",
}
_ARRAYS = (TypeKind.CONSTANTARRAY, TypeKind.DEPENDENTSIZEDARRAY)
_UP = frozenset(("++", "+="))
_HALVING = frozenset((">>=", "/="))
_DOWN = _HALVING | {"--", "-="}
_UNSIGNED = (
    *(TypeKind.UCHAR, TypeKind.USHORT, TypeKind.UINT, TypeKind.ULONG, TypeKind.ULONGLONG),
    TypeKind.BOOL,
)
_OPERATORS = frozenset(
    (
        CursorKind.UNARY_OPERATOR,
        CursorKind.BINARY_OPERATOR,
        CursorKind.COMPOUND_ASSIGNMENT_OPERATOR,
    )
)


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop of the project's files: its place, label and pragmas, and the function around it."""

    cursor: Cursor
    path: Path
    line: int
    label: str | None
    pragmas: tuple[str, ...]
    function: Cursor | None
    outer: tuple[Loop, ...] = ()

    def pragma(self, name: str) -> str | None:
        """The words behind a pragma's name, or None where the loop has no such pragma."""
        for text in self.pragmas:
            found = re.match(rf"{name}\b(.*)", text, re.I)
            if found is not None:
                return found[1]
        return None

    @property
    def is_unrolled(self) -> bool:
        """Whether it is unrolled completely."""
        said = self.pragma("UNROLL")
        return said is not None and not re.search(r"\b(factor|off)\b", said, re.I)

    @property
    def is_pipelined(self) -> bool:
        """Whether a PIPELINE pragma stands in it."""
        said = self.pragma("PIPELINE")
        return said is not None and not re.search(r"\boff\b", said, re.I)

    @property
    def ii(self) -> int | None:
        """The initiation interval that PIPELINE asks for; None where it is no plain number."""
        found = re.search(r"\bII\s*=\s*(\w+)", self.pragma("PIPELINE") or "", re.I)
        if found is None:
            return 1  # the default of Vitis
        return int(found[1]) if found[1].isdecimal() else None


class _Bounds(Enum):
    CONSTANT = auto()
    RUN_TIME = auto()
    OPEN = auto()  # while and do: their head does not bound their trips
    NONE = auto()


@dataclass(frozen=True, slots=True)
class Head:
    """The parts of a for loop's head; what is left out is None."""

    start: Cursor | None
    condition: Cursor | None
    step: Cursor | None


def loop_of(node: Node, pragmas: Pragmas, before: Iterable[Loop] = ()) -> Loop | None:
    """Read the loop at a node.

    Args:
        node: of the syntax tree.
        pragmas: of all files.
        before: the loops that begin before it; those around it are kept with it.

    Returns:
        None when the node is no loop.
    """
    cursor = node.cursor
    if cursor.kind not in LOOPS:
        return None
    label = node.parent.spelling if node.parent.kind == CursorKind.LABEL_STMT else None
    path = path_of(cursor) or Path()
    own = tuple(_pragmas_in(body_of(cursor), pragmas.get(path, [])))
    outer = tuple(loop for loop in before if loop.path == path and _contains(loop.cursor, cursor))
    return Loop(cursor, path, cursor.location.line, label, own, node.function, outer)


def _contains(outer: Cursor, inner: Cursor) -> bool:
    around, within = outer.extent, inner.extent
    return bool(
        around.start.offset < within.start.offset and within.end.offset <= around.end.offset
    )


def body_of(loop: Cursor) -> Cursor:
    """The statement that a loop repeats."""
    children = list(loop.get_children())
    return children[0] if loop.kind == CursorKind.DO_STMT else children[-1]


def _pragmas_in(body: Cursor, pragmas: list[tuple[int, str]]) -> Iterator[str]:
    """The pragmas that stand in `body` itself, not in a block inside it."""
    if body.kind != CursorKind.COMPOUND_STMT:
        return
    inner = [c for c in descendants(body) if c.kind == CursorKind.COMPOUND_STMT and c != body]
    for line, text in pragmas:
        if _holds(body, line) and not any(_holds(block, line) for block in inner):
            yield text


def _holds(block: Cursor, line: int) -> bool:
    return bool(block.extent.start.line < line <= block.extent.end.line)


def loop_findings(unit: TranslationUnit, loop: Loop) -> Iterator[Finding]:
    """Apply the rules on bounds, trip counts and labels to one loop.

    Args:
        unit: the syntax tree.
        loop: of the tree.
    """
    cursor, keyword = loop.cursor, _KEYWORDS[loop.cursor.kind]
    if words(unit, cursor)[0][1] != keyword:
        yield finding(cursor, "loop-label", "a loop made by a macro cannot be judged: write it out")
        return
    bounds, count = _bounds(unit, loop), loop.pragma("LOOP_TRIPCOUNT")
    if bounds is _Bounds.NONE:
        yield finding(cursor, "unbounded-loop", f"{keyword} without a condition that can end it")
    elif count is None and bounds is _Bounds.OPEN:
        yield finding(cursor, "unbounded-loop", f"{keyword} without LOOP_TRIPCOUNT")
    elif count is None and bounds is _Bounds.RUN_TIME:
        yield finding(cursor, "trip-count", "run-time bounds without LOOP_TRIPCOUNT")
    if count is not None and not all(re.search(rf"\b{k}\s*=\s*\w", count) for k in ("min", "max")):
        yield finding(cursor, "trip-count", "LOOP_TRIPCOUNT without min and max")
    if loop.label is None and not (loop.is_unrolled and bounds is _Bounds.CONSTANT):
        yield finding(cursor, "loop-label", "no label directly before the loop")


def jump_findings(node: Node) -> Iterator[Finding]:
    """Report a goto, which can make a loop without a bound."""
    if node.cursor.kind in (CursorKind.GOTO_STMT, CursorKind.INDIRECT_GOTO_STMT):
        yield finding(node.cursor, "unbounded-loop", "goto")


# ---- bounds ---------------------------------------------------------------------------------


def _bounds(unit: TranslationUnit, loop: Loop) -> _Bounds:
    cursor = loop.cursor
    children = list(cursor.get_children())
    if cursor.kind == CursorKind.CXX_FOR_RANGE_STMT:
        is_array = children[-2].type.get_canonical().kind in _ARRAYS
        return _Bounds.CONSTANT if is_array else _Bounds.RUN_TIME
    if cursor.kind != CursorKind.FOR_STMT:
        condition = children[-1 if cursor.kind == CursorKind.DO_STMT else -2]
        return _Bounds.NONE if is_constant(condition) else _Bounds.OPEN
    head = head_of(unit, cursor)
    if head.condition is None or is_constant(head.condition):
        return _Bounds.NONE
    # what unrolling makes of an outer loop's counter is a constant in each copy
    fixed = [
        variable
        for around in loop.outer
        if around.is_unrolled and _bounds(unit, around) is _Bounds.CONSTANT
        for child in around.cursor.get_children()
        for variable in child.get_children()
        if child.kind == CursorKind.DECL_STMT
    ]
    is_fixed = _is_fixed(unit, head, body_of(cursor), fixed)
    return _Bounds.CONSTANT if is_fixed else _Bounds.RUN_TIME


def head_of(unit: TranslationUnit, loop: Cursor) -> Head:
    """The parts of a for loop's head.

    Clang leaves out what is not written, so the semicolons tell which part is which.

    Args:
        unit: the syntax tree.
        loop: a ``for`` with semicolons.
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
    return Head(*slots)


def _is_fixed(unit: TranslationUnit, head: Head, body: Cursor, fixed: list[Cursor]) -> bool:
    """Whether start, end and step are constants or `fixed`, and the step leads to the end."""
    variables = [] if head.start is None else _declared(head.start)
    if head.condition is None or head.step is None or not variables:
        return False
    operands = parts(head.condition)
    if len(operands) not in (2, 3):  # in templates clang puts the operator between them
        return False
    left, right = operands[0], operands[-1]
    behind = left.extent.end.offset
    operator = next((w for offset, w in words(unit, head.condition) if offset >= behind), "")
    for variable, end, upward in ((left, right, "<"), (right, left, ">")):
        counter = _variable(variable)
        if counter is None or counter not in variables or not is_constant(end, fixed):
            continue
        if operator not in ("<", "<=", ">", ">="):
            return False
        steps = _UP if operator.startswith(upward) else _DOWN
        if steps is _DOWN and "=" in operator:  # 0 halved stays 0, unsigned never gets below it
            is_unsigned = counter.type.get_canonical().kind in _UNSIGNED
            steps = frozenset() if is_unsigned else _DOWN - _HALVING
        is_left_alone = not any(_assigns(unit, c, counter) for c in descendants(body))
        return is_left_alone and _steps(unit, head.step, counter, steps)
    return False


def _declared(start: Cursor) -> list[Cursor]:
    """The variables that a loop's head declares with a constant."""
    declared = [c for c in start.get_children() if c.kind == CursorKind.VAR_DECL]
    return [c for c in declared if (initial := parts(c)) and is_constant(initial[-1])]


def _variable(expression: Cursor) -> Cursor | None:
    """The variable that an expression is, through casts and parentheses."""
    while expression.kind in (CursorKind.UNEXPOSED_EXPR, CursorKind.PAREN_EXPR):
        inner = parts(expression)
        if len(inner) != 1:
            return None
        expression = inner[0]
    found = targets(expression) if expression.kind == CursorKind.DECL_REF_EXPR else []
    return found[0] if found else None


def _is(expression: Cursor, variable: Cursor) -> bool:
    found = _variable(expression)
    return found is not None and bool(found == variable)


def _steps(unit: TranslationUnit, step: Cursor, counter: Cursor, operators: frozenset[str]) -> bool:
    operands = parts(step)
    if not operands or not _is(operands[0], counter):
        return False
    is_written = any(word in operators for _, word in words(unit, step))
    return is_written and all(map(is_constant, operands[1:]))


def _assigns(unit: TranslationUnit, cursor: Cursor, counter: Cursor) -> bool:
    operands = parts(cursor) if cursor.kind in _OPERATORS else []
    if not operands or not _is(operands[0], counter):
        return False
    if cursor.kind == CursorKind.COMPOUND_ASSIGNMENT_OPERATOR:
        return True
    return any(word in ("=", "++", "--") for _, word in words(unit, cursor))


# ---- qor.json -------------------------------------------------------------------------------


def qor_findings(kernel: Kernel, loops: Iterable[Loop]) -> Iterator[Finding]:
    """Where ``"loops"`` of qor.json and the pipelined loops of a kernel differ.

    Args:
        kernel: the kernel with its qor.json.
        loops: the loops of its folder, and those of other headers that its functions reach.
    """
    if kernel.qor is None:
        return
    declared = {entry.label: entry for entry in kernel.qor}
    path = kernel.folder / "qor.json"
    found = set()
    for loop in loops:
        if loop.label is None or not loop.is_pipelined:
            continue
        found.add(loop.label)
        entry = declared.get(loop.label)
        if entry is None:
            what = f"{loop.label} is pipelined and not in qor.json"
            yield finding(loop.cursor, "qor", what)
        elif loop.ii not in (None, entry.ii):
            what = f"{loop.label} has II = {loop.ii} in the source and {entry.ii} in qor.json"
            yield Finding(path, entry.line, "qor", what)
    for entry in kernel.qor:
        if entry.label not in found:
            yield Finding(path, entry.line, "qor", f"no pipelined loop has the label {entry.label}")
