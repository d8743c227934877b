"""Rules on pragmas of ports, and on how a dataflow region calls its processes."""

from __future__ import annotations

from collections.abc import Iterator

from hls_kernels.lint.elaboration.syntax import (
    Evaluate,
    Expression,
    Function,
    LoopStatement,
    Op,
    SourceLine,
    Statements,
    statements_in,
)
from hls_kernels.lint.elaboration.widths import Kind
from hls_kernels.lint.findings import Finding
from hls_kernels.lint.hardware.design import Design, found

_BY_ADDRESS = frozenset((Kind.REFERENCE, Kind.POINTER, Kind.ARRAY))


def axi_aggregate(design: Design) -> Iterator[Finding]:
    """No AGGREGATE with compact=bit on a port of m_axi.

    The Vitis HLS guide (UG1399) forbids it: on m_axi the host lays structs out by bytes. A struct
    whose members fill its bytes needs no pragma; without padding between them one with compact=byte
    is the same.
    """
    for function in design.functions():
        pragmas = function.body.pragmas
        ports = {p.variable for p in pragmas if p.name == "INTERFACE" and "m_axi" in p.options}
        for pragma in pragmas:
            is_packed = pragma.name == "AGGREGATE" and pragma.options.get("compact") == "bit"
            if is_packed and pragma.variable in ports:
                what = f"compact=bit on {pragma.variable}, a port of m_axi"
                yield found(SourceLine(pragma.path, pragma.line), "axi-aggregate", what)


def dataflow_arguments(design: Design) -> Iterator[Finding]:
    """A process of a DATAFLOW region takes variables, parameters and constants.

    An expression or a call among the arguments is logic of the region itself, which is then not of
    the form that Vitis HLS takes (HLS 214-114): it makes a process of it, or runs the processes one
    after the other. What is computed becomes a variable before the region, or within the process.
    """
    for function in design.functions():
        for call in _processes(function):
            callee = call.callee
            assert callee is not None
            args = call.args[1:] if callee.is_method else call.args
            for parameter, argument in zip(callee.parameters, args, strict=False):
                if not _is_plain(argument, parameter.type.kind in _BY_ADDRESS):
                    what = f"{callee.name} takes an expression as its {parameter.name}"
                    yield found(argument.at, "dataflow-arguments", what)


def _processes(function: Function) -> Iterator[Expression]:
    """The calls that stand directly in the regions of a function."""
    loops = (s.body for s in statements_in(function.body) if isinstance(s, LoopStatement))
    regions: list[Statements] = [function.body, *loops]
    for region in regions:
        if region.pragma("DATAFLOW") is None:
            continue
        for statement in region.statements:
            if isinstance(statement, Evaluate) and statement.expression.op is Op.CALL:
                yield statement.expression


def _is_plain(argument: Expression, is_by_address: bool) -> bool:
    """Whether an argument is a variable or a constant; a member too where nothing is loaded."""
    while argument.op is Op.CAST:
        argument = argument.args[0]
    if argument.op is Op.MEMBER and is_by_address:
        return _is_plain(argument.args[0], is_by_address=True)
    return argument.op in (Op.VARIABLE, Op.CONSTANT, Op.THIS)
