"""Rules on what Vitis HLS makes of a source: hardware that it refuses, or makes slow or large.

They look at clang's syntax tree with all templates filled in, from each function that nothing in
its source calls (a kernel's top), through all calls: what a partition or a port of m_axi is about
is known in each function that works on it. What is never called is no hardware and not looked at.
What cannot be told passes: no finding is no promise that Vitis takes a source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from clang.cindex import TranslationUnit

from hls_kernels.lint.compiling import Pragmas
from hls_kernels.lint.elaboration.reader import Reader, definitions_in
from hls_kernels.lint.elaboration.trace import ElaborationTrace, Report
from hls_kernels.lint.elaboration.walker import trace_of
from hls_kernels.lint.hardware import arrays, interfaces, loops
from hls_kernels.lint.kernels import Finding
from hls_kernels.lint.tree import Owns

HARDWARE_RULES: dict[str, tuple[Callable[[ElaborationTrace], Report], ...]] = {
    "stream-width": (interfaces.stream_width,),
    "stream-depth": (interfaces.stream_depth,),
    "channels": (interfaces.channels,),
    "pointer-struct": (interfaces.pointer_struct,),
    "carried": (loops.carried,),
    "aggregate": (arrays.aggregate, arrays.ports),
    "partition": (arrays.partition,),
    "mux": (arrays.mux,),
    "wide-scalar": (loops.wide_scalar, loops.long_comparisons),
    "axi-aggregate": (interfaces.axi_aggregate,),
    "dataflow-arguments": (interfaces.dataflow_arguments,),
    "burst": (loops.burst,),
    "burst-size": (interfaces.burst_size,),
    "refill": (loops.refill,),
}
"""The checks of each rule; the first one says what the rule asks for."""


def hardware_findings(
    unit: TranslationUnit, source: Path, pragmas: Pragmas, owns: Owns
) -> Iterator[Finding]:
    """Apply the rules to one source, from each of its functions that nothing in it calls.

    Args:
        unit: its syntax tree.
        source: the file.
        pragmas: of all files.
        owns: whether a file is the project's.
    """
    reader = Reader(unit, pragmas, owns)
    for top in reader.read_all(definitions_in(unit, source)):
        if top not in reader.called:
            trace = trace_of(top)
            for rule, checks in HARDWARE_RULES.items():
                for check in checks:
                    yield from (Finding(at.path, at.line, rule, what) for at, what in check(trace))
