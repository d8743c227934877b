"""Recurrences of the pipelined loops: the least initiation interval that they allow.

Run as ``python -m hls_kernels.lint.recurrences`` or ``make lint-hls DEEP=1``; it needs clang 19.

A pipelined loop cannot begin an iteration before what it takes from an earlier one is there: a
counter, a sum, a word of an array that was written. Each such recurrence is a cycle in the graph of
the loop's operators. With the delays of ``operators.json`` its delay over its iterations and the
clock's period, rounded up, is the least interval that any scheduler can reach: a loop whose pragma
asks for less misses its interval or its clock. Waits for FIFOs, ports and areas are not looked at,
nor is what lies outside of recurrences, which more stages of a pipeline can always hold.

The kernel is compiled by clang with widths as they are (``include/ap_int.h``), all functions in its
top, loops unrolled as their pragmas say; arrays are met again after the iterations that DEPENDENCE
states, or after one. The text of the result is read; nothing of it is ever run. A PIPELINE pragma
is an error where nothing can be timed: on a function, on a loop that the compiler removes, and
around a loop that is not unrolled.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ecorl.errors import BuildError
from hls_kernels.lint.compiling import Pragmas, find_tools, read_pragmas
from hls_kernels.lint.kernels import Kernel, all_kernels
from hls_kernels.lint.recurrences import compiling
from hls_kernels.lint.recurrences.carried import Memory, Operators, graph_of, read_operators
from hls_kernels.lint.recurrences.compiling import SourceLoop
from hls_kernels.lint.recurrences.graph import Cycle
from hls_kernels.lint.recurrences.ir import Metadata, loops_of, read_functions


@dataclass(frozen=True, slots=True)
class LoopTiming:
    """A pipelined loop with its worst recurrence.

    Attributes:
        source: the loop.
        label: its name in the sources.
        cycle: None where it carries nothing.
        depth: cycles of an iteration where all starts as soon as it can.
        period_ns: what the clock leaves for logic.
        lines: those that the recurrence goes through, each once, in order.
    """

    source: SourceLoop
    label: str
    cycle: Cycle | None
    depth: int
    period_ns: float
    lines: tuple[str, ...] = ()

    @property
    def delay_ns(self) -> float:
        """Delay of the worst recurrence, an iteration."""
        return 0.0 if self.cycle is None else self.cycle.per_iteration

    @property
    def least_ii(self) -> int:
        """The least initiation interval."""
        return max(1, -int(-self.delay_ns // self.period_ns))

    @property
    def is_missed(self) -> bool:
        """Whether its pragma asks for less."""
        return self.least_ii > self.source.ii


def time_loops(kernels: Iterable[Kernel] | None = None) -> list[LoopTiming]:
    """The pipelined loops of kernels with their worst recurrences, in order of their places.

    Args:
        kernels: by default those of the project.

    Raises:
        MissingToolError: no clang 19, no compiler or no ap_int headers.
        BuildError: a kernel does not compile, or a PIPELINE pragma is of no loop that can be timed.
    """
    clang, tools, operators = compiling.find_clang(), find_tools(), read_operators()
    worst: dict[SourceLoop, LoopTiming] = {}
    for kernel in all_kernels() if kernels is None else kernels:
        top = json.loads((kernel.folder / "qor.json").read_text(encoding="utf-8"))["top"]
        for source in kernel.sources:
            pragmas = read_pragmas(tools, source)
            plain, text = compiling.compile_kernel(clang, tools, source, top, pragmas)
            timings = timings_of(text, pragmas, operators)
            compiling.check_pipelines(plain, pragmas, (timing.source for timing in timings))
            for found in timings:
                known = worst.setdefault(found.source, found)
                worst[found.source] = max(known, found, key=lambda timing: timing.delay_ns)
    return [worst[loop] for loop in sorted(worst)]


def timings_of(text: str, pragmas: Pragmas, operators: Operators) -> list[LoopTiming]:
    """The pipelined loops of a module; a loop of the sources may be there several times.

    Args:
        text: of LLVM's representation.
        pragmas: of the sources.
        operators: their delays.

    Raises:
        BuildError: a loop that stays is in a pipelined one.
    """
    metadata = Metadata(text)
    sources = compiling.source_loops(metadata, pragmas)
    arrays = {n: int(size) for n, size in re.findall(r"^\s*([%@]\S+) = .*?\[(\d+) x ", text, re.M)}
    constants = frozenset(re.findall(r"^(@\S+) = .*?\bconstant ", text, re.M))
    timings = []
    for function in read_functions(text).values():
        for loop in loops_of(function):
            source = sources.get(loop.name)
            if source is None or not source.is_pipelined:
                continue
            if not set(loop.latches) <= set(loop.blocks):
                fault = "the pipelined loop cannot be timed: a loop in it is not unrolled"
                raise BuildError(f"{source.path}:{source.line}: {fault}")
            graph = graph_of(Memory(loop, source, arrays, constants), operators)
            cycle, depth = graph.worst_cycle(), graph.depth(operators.period_ns)
            values = [function.values.get(node) for node in (cycle.nodes if cycle else ())]
            places = [metadata.place(value.place) for value in values if value is not None]
            lines = dict.fromkeys(f"{p.path.name}:{p.line}" for p in places if p is not None)
            label, period = _label_of(source.path, source.line), operators.period_ns
            timings.append(LoopTiming(source, label, cycle, depth, period, tuple(lines)))
    return timings


def _label_of(path: Path, line: int) -> str:
    """The label on the line before a loop."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    found = re.match(r"\s*(\w+):\s*$", lines[line - 2]) if 2 <= line <= len(lines) else None
    return "" if found is None else found[1]
