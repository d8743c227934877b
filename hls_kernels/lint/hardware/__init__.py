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
from hls_kernels.lint.findings import Finding
from hls_kernels.lint.hardware.arrays import aggregate, mux, partition
from hls_kernels.lint.hardware.bursts import burst
from hls_kernels.lint.hardware.chains import carried
from hls_kernels.lint.hardware.design import Design, design_of
from hls_kernels.lint.hardware.interfaces import axi_aggregate, burst_size, dataflow_arguments
from hls_kernels.lint.hardware.ports import ports
from hls_kernels.lint.hardware.refills import refill
from hls_kernels.lint.hardware.scalars import wide_scalar
from hls_kernels.lint.hardware.streams import channels, pointer_struct, stream_depth, stream_width
from hls_kernels.lint.tree import Owns

HARDWARE_RULES: dict[str, tuple[Callable[[Design], Iterator[Finding]], ...]] = {
    "stream-width": (stream_width,),
    "stream-depth": (stream_depth,),
    "channels": (channels,),
    "pointer-struct": (pointer_struct,),
    "carried": (carried,),
    "aggregate": (aggregate, ports),
    "partition": (partition,),
    "mux": (mux,),
    "wide-scalar": (wide_scalar,),
    "axi-aggregate": (axi_aggregate,),
    "dataflow-arguments": (dataflow_arguments,),
    "burst": (burst,),
    "burst-size": (burst_size,),
    "refill": (refill,),
}
"""The checks of each rule; the first one says what the rule asks for."""


def hardware_findings(
    unit: TranslationUnit, source: Path, pragmas: Pragmas, owns: Owns
) -> Iterator[Finding]:
    """Apply the rules to one source.

    Args:
        unit: its syntax tree.
        source: the file.
        pragmas: of all files.
        owns: whether a file is the project's.
    """
    design = design_of(unit, source, pragmas, owns)
    for checks in HARDWARE_RULES.values():
        for check in checks:
            yield from check(design)
