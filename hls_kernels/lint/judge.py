"""Applies every rule to every source of kernels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from clang.cindex import LibclangError

from ecorl.errors import MissingToolError
from hls_kernels.lint.calls import CallGraph, place_of, untraceable_findings
from hls_kernels.lint.compiling import Tools, compile_findings, find_tools, read_pragmas
from hls_kernels.lint.findings import Finding, first_of_each_line
from hls_kernels.lint.hardware import hardware_findings
from hls_kernels.lint.kernels import Kernel
from hls_kernels.lint.loops import Loop, jump_findings, loop_findings, loop_of, qor_findings
from hls_kernels.lint.names import include_findings, name_findings
from hls_kernels.lint.tree import FUNCTIONS, own_nodes, parse, parse_findings


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
    tools = find_tools()
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
    return first_of_each_line(findings), len(loops)


def _judge_source(judgement: _Judgement, tools: Tools, source: Path) -> None:
    owns = judgement.kernel.owns
    faults = compile_findings(tools, source)
    if not faults:
        try:
            unit = parse(tools, source)
        except LibclangError as error:
            raise MissingToolError(f"libclang cannot be loaded: {error}") from error
        faults = parse_findings(unit)
    if faults:
        judgement.findings.update(faults)
        judgement.is_whole = False
        return
    pragmas = read_pragmas(tools, source)
    judgement.findings.update(include_findings(unit, owns))
    judgement.findings.update(hardware_findings(unit, source, pragmas, owns))
    functions = []
    before: list[Loop] = []
    for node in own_nodes(unit, owns):
        for rule in (name_findings(node, owns), untraceable_findings(node), jump_findings(node)):
            judgement.findings.update(rule)
        if node.cursor.kind in FUNCTIONS and node.cursor.is_definition():
            functions.append(node.cursor)
        loop = loop_of(node, pragmas, before)
        if loop is not None:
            where = loop.path, loop.cursor.extent.start.offset
            judgement.loops[where] = loop, list(loop_findings(unit, loop))
            before.append(loop)
    judgement.graph.add(functions, owns)


def _judge_whole(judgement: _Judgement) -> None:
    """Apply the rules that need all sources of a kernel."""
    kernel, graph = judgement.kernel, judgement.graph
    judgement.findings.update(graph.recursion_findings())
    hardware = graph.hardware()
    for where, (loop, findings) in list(judgement.loops.items()):
        if loop.function is None or place_of(loop.function) in hardware:
            judgement.findings.update(findings)
        else:
            del judgement.loops[where]
    in_folder = (place for place in graph.calls if kernel.folder in place[0].parents)
    reached = graph.reached_from(in_folder)
    loops = [
        loop
        for loop, _ in judgement.loops.values()
        if kernel.folder in loop.path.parents
        or (loop.function is not None and place_of(loop.function) in reached)
    ]
    judgement.findings.update(qor_findings(kernel, loops))
