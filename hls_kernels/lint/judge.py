"""Applies every rule to every source of kernels; the rules on loops and on qor.json."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path

from clang.cindex import Cursor, CursorKind, LibclangError, TranslationUnit, TypeKind

from ecorl.errors import MissingToolError
from hls_kernels.lint import compiling, tree
from hls_kernels.lint.compiling import Pragma, Pragmas, is_unrolled, pragma_of
from hls_kernels.lint.hardware import hardware_findings
from hls_kernels.lint.kernels import Finding, Kernel
from hls_kernels.lint.names import CallGraph, Place, cursor_findings, include_findings, place_of
from hls_kernels.lint.tree import Node, finding, is_constant, parts


@dataclass(slots=True)
class _Judgement:
    """Findings, loops and calls of one kernel so far; `is_whole` while all its sources compile."""

    kernel: Kernel
    findings: set[Finding] = field(default_factory=set)
    loops: dict[tuple[Path, int], tuple[Loop, list[Finding]]] = field(default_factory=dict)
    graph: CallGraph = field(default_factory=CallGraph)
    is_whole: bool = True


def judge(kernels: Iterable[Kernel]) -> tuple[list[Finding], int]:
    """Check kernels.

    Args:
        kernels: what to check.

    Returns:
        The findings, sorted, and the number of loops that were checked.

    Raises:
        MissingToolError: no compiler, no ap_int headers, or libclang cannot be loaded.
        BuildError: the compiler cannot be run.
    """
    tools = compiling.find_tools()
    findings: set[Finding] = set()
    loops: set[tuple[Path, int]] = set()
    for kernel in kernels:
        judgement = _Judgement(kernel, set(kernel.findings))
        for source in kernel.sources:
            _judge_source(judgement, tools, source)
        if judgement.is_whole:  # the loops of a source that does not compile are not known
            _judge_whole(judgement)
        findings |= judgement.findings
        loops |= judgement.loops.keys()
    # one for each rule and line, the first: a construct can breach a rule often
    chosen = {(f.path, f.line, f.rule): f for f in sorted(findings, reverse=True)}
    return sorted(chosen.values()), len(loops)


def _judge_source(judgement: _Judgement, tools: compiling.Tools, source: Path) -> None:
    owns = judgement.kernel.owns
    faults = compiling.compile_findings(tools, source)
    if not faults:
        try:
            unit = tree.parse(tools, source)
        except LibclangError as error:
            raise MissingToolError(f"libclang cannot be loaded: {error}") from error
        faults = tree.parse_findings(unit)
    if faults:
        judgement.findings.update(faults)
        judgement.is_whole = False
        return
    pragmas = compiling.read_pragmas(tools, source)
    judgement.findings.update(include_findings(unit, owns))
    judgement.findings.update(hardware_findings(unit, source, pragmas, owns))
    functions = []
    before: list[Loop] = []
    for node in tree.own_nodes(unit, owns):
        cursor, *_ = node
        judgement.findings.update(cursor_findings(cursor, owns))
        if cursor.kind in tree.FUNCTIONS and cursor.is_definition():
            functions.append(cursor)
        if cursor.kind in tree.LOOPS:
            loop = _loop_of(unit, node, pragmas, before)
            where = loop.path, loop.cursor.extent.start.offset
            judgement.loops[where] = loop, list(_loop_findings(unit, loop))
            before.append(loop)
    judgement.graph.add(functions, owns)


def _judge_whole(judgement: _Judgement) -> None:
    """Apply the rules that need all sources of a kernel."""
    kernel, graph = judgement.kernel, judgement.graph
    judgement.findings.update(graph.recursion_findings())
    # all but the constexpr functions that only constant expressions call
    hardware = graph.reached_from(graph.calls.keys() - graph.constexprs)
    for where, (loop, findings) in list(judgement.loops.items()):
        if loop.function is None or loop.function in hardware:
            judgement.findings.update(findings)
        else:
            del judgement.loops[where]
    in_folder = (place for place in graph.calls if kernel.folder in place[0].parents)
    reached = graph.reached_from(in_folder)
    loops = [loop for loop, _ in judgement.loops.values()]
    own = [x for x in loops if kernel.folder in x.path.parents or x.function in reached]
    judgement.findings.update(_qor_findings(kernel, own))


_ARRAYS = (TypeKind.CONSTANTARRAY, TypeKind.DEPENDENTSIZEDARRAY)
_UP = frozenset(("++", "+="))
_HALVING = frozenset((">>=", "/="))
_DOWN = _HALVING | {"--", "-="}
_UNSIGNED = ("UCHAR", "USHORT", "UINT", "ULONG", "ULONGLONG", "BOOL")
_OPERATORS = tree.kinds("UNARY_OPERATOR BINARY_OPERATOR COMPOUND_ASSIGNMENT_OPERATOR")


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop of the project's files: its label and pragmas, the function and loops around it."""

    cursor: Cursor
    path: Path
    label: str | None
    pragmas: tuple[Pragma, ...]
    function: Place | None
    bounds: _Bounds


class _Bounds(Enum):
    MACRO = auto()  # the loop is made by one and cannot be judged
    CONSTANT = auto()
    RUN_TIME = auto()
    OPEN = auto()  # while and do: their head does not bound their trips
    NONE = auto()


def _loop_of(unit: TranslationUnit, node: Node, pragmas: Pragmas, before: list[Loop]) -> Loop:
    """Read a loop; `before` are the loops that begin before it, also those around it."""
    cursor, parent, around = node
    label = parent.spelling if parent.kind == CursorKind.LABEL_STMT else None
    path = tree.path_of(cursor) or Path()
    own = tuple(_pragmas_in(tree.body_of(cursor), pragmas.get(path, [])))
    # what unrolling makes of an outer loop's counter is a constant in each copy
    fixed = [
        variable
        for loop in before
        if loop.bounds is _Bounds.CONSTANT and is_unrolled(loop.pragmas)
        if loop.path == path and tree.contains(loop.cursor, cursor)
        for child in loop.cursor.get_children()
        for variable in child.get_children()
        if child.kind == CursorKind.DECL_STMT
    ]
    function = None if around is None else place_of(around)
    return Loop(cursor, path, label, own, function, _bounds(unit, cursor, fixed))


def _pragmas_in(body: Cursor, pragmas: list[Pragma]) -> Iterator[Pragma]:
    """The pragmas that stand in `body` itself, not in a block inside it."""
    if body.kind != CursorKind.COMPOUND_STMT:
        return
    inner = [c for c in tree.descendants(body) if c.kind == CursorKind.COMPOUND_STMT and c != body]
    for pragma in pragmas:
        line = pragma.at.line
        if _holds(body, line) and not any(_holds(block, line) for block in inner):
            yield pragma


def _holds(block: Cursor, line: int) -> bool:
    return bool(block.extent.start.line < line <= block.extent.end.line)


def _loop_findings(unit: TranslationUnit, loop: Loop) -> Iterator[Finding]:
    """Apply the rules on bounds, trip counts and labels to one loop."""
    cursor, keyword = loop.cursor, tree.words(unit, loop.cursor)[0][1]
    if loop.bounds is _Bounds.MACRO:
        yield finding(cursor, "loop-label", "a loop made by a macro cannot be judged: write it out")
        return
    bounds, count = loop.bounds, pragma_of(loop.pragmas, "LOOP_TRIPCOUNT")
    if bounds is _Bounds.NONE:
        yield finding(cursor, "unbounded-loop", f"{keyword} without a condition that can end it")
    elif count is None and bounds is _Bounds.OPEN:
        yield finding(cursor, "unbounded-loop", f"{keyword} without LOOP_TRIPCOUNT")
    elif count is None and bounds is _Bounds.RUN_TIME:
        yield finding(cursor, "trip-count", "run-time bounds without LOOP_TRIPCOUNT")
    if count is not None and not (count.options.get("min") and count.options.get("max")):
        yield finding(cursor, "trip-count", "LOOP_TRIPCOUNT without min and max")
    if loop.label is None and not (is_unrolled(loop.pragmas) and bounds is _Bounds.CONSTANT):
        yield finding(cursor, "loop-label", "no label directly before the loop")


# ---- bounds ---------------------------------------------------------------------------------


def _bounds(unit: TranslationUnit, cursor: Cursor, fixed: list[Cursor]) -> _Bounds:
    children = list(cursor.get_children())
    if tree.words(unit, cursor)[0][1] not in ("for", "while", "do"):
        return _Bounds.MACRO
    if cursor.kind == CursorKind.CXX_FOR_RANGE_STMT:
        is_array = children[-2].type.get_canonical().kind in _ARRAYS
        return _Bounds.CONSTANT if is_array else _Bounds.RUN_TIME
    if cursor.kind != CursorKind.FOR_STMT:
        condition = children[-1 if cursor.kind == CursorKind.DO_STMT else -2]
        return _Bounds.NONE if is_constant(condition) else _Bounds.OPEN
    start, condition, step = tree.head_of(unit, cursor)
    if condition is None or is_constant(condition):
        return _Bounds.NONE
    if start is None or step is None:
        return _Bounds.RUN_TIME
    counter, steps = _counted(unit, condition, _declared(start), fixed)
    if counter is None or not _steps(unit, step, counter, steps):
        return _Bounds.RUN_TIME
    body = tree.descendants(tree.body_of(cursor))
    is_changed = any(_assigns(unit, inner, counter) for inner in body)
    return _Bounds.RUN_TIME if is_changed else _Bounds.CONSTANT


def _counted(
    unit: TranslationUnit, condition: Cursor, variables: list[Cursor], fixed: list[Cursor]
) -> tuple[Cursor | None, frozenset[str]]:
    """The one of `variables` that is compared with a constant, and the steps that lead there."""
    operands = parts(condition)
    if len(operands) not in (2, 3):  # in templates clang puts the operator between them
        return None, frozenset()
    left, right = operands[0], operands[-1]
    behind = left.extent.end.offset
    operator = next((w for offset, w in tree.words(unit, condition) if offset >= behind), "")
    for variable, end, upward in ((left, right, "<"), (right, left, ">")):
        counter = _variable(variable)
        if counter is None or counter not in variables or not is_constant(end, fixed):
            continue
        if operator not in ("<", "<=", ">", ">="):
            return None, frozenset()
        steps = _UP if operator.startswith(upward) else _DOWN
        if steps is _DOWN and "=" in operator:  # 0 halved stays 0, unsigned never gets below it
            is_unsigned = counter.type.get_canonical().kind.name in _UNSIGNED
            steps = frozenset() if is_unsigned else _DOWN - _HALVING
        return counter, steps
    return None, frozenset()


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
    found = tree.targets(expression) if expression.kind == CursorKind.DECL_REF_EXPR else []
    return found[0] if found else None


def _steps(unit: TranslationUnit, step: Cursor, counter: Cursor, operators: frozenset[str]) -> bool:
    is_written = any(word in operators for _, word in tree.words(unit, step))
    return is_written and _works_on(step, counter) and all(map(is_constant, parts(step)[1:]))


def _assigns(unit: TranslationUnit, cursor: Cursor, counter: Cursor) -> bool:
    if cursor.kind not in _OPERATORS or not _works_on(cursor, counter):
        return False
    is_compound = cursor.kind == CursorKind.COMPOUND_ASSIGNMENT_OPERATOR
    return is_compound or any(word in ("=", "++", "--") for _, word in tree.words(unit, cursor))


def _works_on(operator: Cursor, counter: Cursor) -> bool:
    """Whether a variable is the first operand."""
    operands = parts(operator)
    found = _variable(operands[0]) if operands else None
    return found is not None and bool(found == counter)


# ---- qor.json -------------------------------------------------------------------------------


def _qor_findings(kernel: Kernel, loops: Iterable[Loop]) -> Iterator[Finding]:
    """Where ``"loops"`` of qor.json and the pipelined loops of a kernel differ.

    Args:
        kernel: the kernel with its qor.json.
        loops: the loops of its folder, and those of other headers that its functions reach.
    """
    if kernel.qor is None:
        return
    path = kernel.folder / "qor.json"
    found = set()
    for loop in loops:
        pipeline = pragma_of(loop.pragmas, "PIPELINE")
        if loop.label is None or pipeline is None:
            continue
        found.add(loop.label)
        declared, line = kernel.qor.get(loop.label, (None, 0))
        ii = pipeline.options.get("ii", "1")
        if declared is None:
            yield finding(loop.cursor, "qor", f"{loop.label} is pipelined and not in qor.json")
        elif ii.isdecimal() and int(ii) != declared:
            what = f"{loop.label} has II = {int(ii)} in the source and {declared} in qor.json"
            yield Finding(path, line, "qor", what)
    for label in kernel.qor.keys() - found:
        yield Finding(path, kernel.qor[label][1], "qor", f"no pipelined loop has the label {label}")
