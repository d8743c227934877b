"""Rules on pragmas of ports, and on how a dataflow region calls its processes."""

from __future__ import annotations

from collections.abc import Iterator

from hls_kernels.lint.elaboration.pragmas import Pragma
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
from hls_kernels.lint.elaboration.widths import Kind, Type
from hls_kernels.lint.findings import Finding
from hls_kernels.lint.hardware.design import Design, found

_BURST_LENGTHS = ("max_read_burst_length", "max_write_burst_length")
_DEFAULT_BURST = 16  # words, of Vitis HLS
_DEFAULT_BUNDLE = ""  # of all ports without one; its name depends on the release of Vitis HLS
_MOST_BURST_BITS = 8 * 4096
_BY_ADDRESS = frozenset((Kind.REFERENCE, Kind.POINTER, Kind.ARRAY))


def axi_aggregate(design: Design) -> Iterator[Finding]:
    """No AGGREGATE with compact=bit on a port of m_axi.

    The Vitis HLS guide (UG1399) forbids it: on m_axi the host lays structs out by bytes. A struct
    whose members fill its bytes needs no pragma; without padding between them one with compact=byte
    is the same.
    """
    for function in design.functions():
        pragmas = function.body.pragmas
        ports = {p.variable for p in pragmas if p.is_m_axi}
        for pragma in pragmas:
            is_packed = pragma.name == "AGGREGATE" and pragma.options.get("compact") == "bit"
            if is_packed and pragma.variable in ports:
                what = f"compact=bit on {pragma.variable}, a port of m_axi"
                yield found(SourceLine(pragma.path, pragma.line), "axi-aggregate", what)


def burst_size(design: Design) -> Iterator[Finding]:
    """A burst of a port of m_axi has 4 KB at most: its longest number of words times their width.

    No burst of AXI crosses 4 KB: 64 words of 512 bits, 128 of 256, and 256 words of any width. A
    longer one that a port states never comes, but its adapter holds storage for it, as many words
    as it states for each transfer that may be under way. A length that is not written in digits
    cannot be held against this, and is refused. Where none is stated Vitis HLS takes 16. Ports of
    one bundle are one port of the widest words, and so are all ports without a bundle.
    """
    for function in design.functions():
        bits = {p.name: _port_bits(p.type) for p in function.parameters}
        ports = [pragma for pragma in function.body.pragmas if pragma.is_m_axi]
        for pragma in ports:
            bundle = _bundle_of(pragma)
            width = max(bits.get(p.variable, 0) for p in ports if _bundle_of(p) == bundle)
            for length in _BURST_LENGTHS:
                is_stated = length in pragma.options
                words = pragma.number(length) if is_stated else _DEFAULT_BURST
                what = f"{pragma.variable} has {length} = {pragma.options.get(length, words)}"
                at = SourceLine(pragma.path, pragma.line)
                if not words:
                    yield found(at, "burst-size", f"{what}: not a number of words")
                elif words * width > _MOST_BURST_BITS:
                    yield found(at, "burst-size", f"{what}: {words * width // 8:,} bytes")


def _bundle_of(port: Pragma) -> str:
    return port.options.get("bundle", _DEFAULT_BUNDLE)


def _port_bits(type_: Type) -> int:
    """The width of a port of m_axi: that of its element, as a power of two."""
    bits = 0 if type_.inner is None else type_.inner.bits
    return 1 << (bits - 1).bit_length() if bits else 0


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
