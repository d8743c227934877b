"""What the rules on hardware look at: the functions of a source that are reached, and traces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from clang.cindex import TranslationUnit

from hls_kernels.lint.compiling import Pragmas
from hls_kernels.lint.elaboration.reader import Reader, definitions_in
from hls_kernels.lint.elaboration.syntax import (
    Declare,
    Function,
    SourceLine,
    expressions_in,
    statements_in,
)
from hls_kernels.lint.elaboration.trace import ElaborationTrace
from hls_kernels.lint.elaboration.walker import trace_of
from hls_kernels.lint.findings import Finding
from hls_kernels.lint.tree import Owns


@dataclass(frozen=True, slots=True)
class Design:
    """The hardware of one source: a trace from each function that nothing in it calls."""

    traces: tuple[ElaborationTrace, ...]

    def functions(self) -> list[Function]:
        """All functions that are reached, each once."""
        found = {
            scope.function: None
            for trace in self.traces
            for scope in trace.top.within()
            if scope.function is not None
        }
        return list(found)

    def declarations(self) -> Iterator[Declare]:
        """The variables that the functions declare."""
        for function in self.functions():
            for statement in statements_in(function.body):
                if isinstance(statement, Declare):
                    yield statement


def design_of(unit: TranslationUnit, source: Path, pragmas: Pragmas, owns: Owns) -> Design:
    """Read a source.

    Args:
        unit: its syntax tree.
        source: the file.
        pragmas: of all files.
        owns: whether a file is the project's.
    """
    reader = Reader(unit, pragmas, owns)
    definitions = definitions_in(unit, source)
    reader.read_all(definitions)
    called = {
        expression.callee
        for function in reader.functions.values()
        for expression in expressions_in(function.body)
    }
    tops = [reader.function(definition) for definition in definitions]
    return Design(tuple(trace_of(top) for top in tops if top not in called))


def found(at: SourceLine, rule: str, what: str) -> Finding:
    """A finding at a place."""
    return Finding(at.path, at.line, rule, what)
