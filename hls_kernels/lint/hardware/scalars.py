"""The rule on wide scalars: divisions, products and chains of comparisons."""

from __future__ import annotations

from collections.abc import Iterator

from hls_kernels.lint.elaboration.syntax import Return, SourceLine
from hls_kernels.lint.elaboration.trace import Arithmetic
from hls_kernels.lint.elaboration.values import Number
from hls_kernels.lint.findings import Finding
from hls_kernels.lint.hardware.chains import long_comparisons
from hls_kernels.lint.hardware.design import Design, found

_DIVIDING = "quotient"
_WIDE = 48  # bits of a factor; products below it are of few DSPs


def wide_scalar(design: Design) -> Iterator[Finding]:
    """Scalars have the width that they need, and one function divides.

    A division of int64_t is a divider of 64 bits: 68 cycles and thousands of LUTs each time that it
    is written, and a remainder is another one. Vitis HLS makes no multiplication of a division by a
    constant. So only the template ``quotient<N, D>`` divides, which states the widths; divisions by
    a power of two are shifts and stand anywhere. A product of two numbers of 64 bits takes 16 DSPs.
    The highest bit is found by halvings, not by a comparison for each bit.
    """
    for trace in design.traces:
        for event in trace.events():
            if isinstance(event, Arithmetic):
                yield from _arithmetic_findings(event)
    yield from long_comparisons(design)


def _arithmetic_findings(event: Arithmetic) -> Iterator[Finding]:
    if event.operator == "*":
        narrow = min(event.left.bits, event.right.bits)
        if narrow > _WIDE and event.left.exact is None and event.right.exact is None:
            widths = f"{event.left.bits} by {event.right.bits} bits"
            yield found(event.at, "wide-scalar", f"a product of {widths}")
        return
    if _is_shift(event.right) or (event.left.exact is not None and event.right.exact is not None):
        return
    function = next((s.function for s in event.scope.around() if s.function is not None), None)
    if function is not None and function.name == _DIVIDING:
        return
    name = "division" if event.operator == "/" else "remainder"
    divided = f"a {name} of {event.type.bits} bits that is not {_DIVIDING}<N, D>"
    yield found(_written_at(event), "wide-scalar", divided)


def _is_shift(divisor: Number) -> bool:
    value = divisor.exact
    return value is not None and value > 0 and value & (value - 1) == 0


def _written_at(event: Arithmetic) -> SourceLine:
    """Where a division is asked for: helpers of one expression stand where they are called."""
    at = event.at
    for scope in event.scope.around():
        if scope.function is None:
            continue
        statements = scope.function.body.statements
        if scope.parent is None or len(statements) != 1 or not isinstance(statements[0], Return):
            break
        at = scope.at
    return at
