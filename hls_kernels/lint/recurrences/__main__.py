"""``python -m hls_kernels.lint.recurrences``: see the package for what is computed.

Exit code 0 where all loops hold, 1 where one does not, 2 when a tool is missing or a
pipelined loop cannot be timed.
"""

from __future__ import annotations

import sys

from ecorl.errors import EcorlError
from hls_kernels.lint.recurrences import time_loops
from hls_kernels.lint.recurrences.carried import read_operators


def main() -> int:
    """Print each pipelined loop's worst recurrence."""
    try:
        loops = time_loops()
    except EcorlError as error:
        print(f"lint-hls: {error}", file=sys.stderr)
        return 2
    operators = read_operators()
    for assumption in operators.assumptions:
        print(f"assumed: {assumption}")
    for loop in loops:
        place = f"{loop.source.path.parent.name}/{loop.source.path.name}:{loop.source.line}"
        asked = f"II {loop.source.ii}, least {loop.least_ii}, {loop.delay_ns:.2f} ns"
        asked += f", depth {loop.depth}"
        print(f"{place}: {loop.label}: {asked}" + (", missed" if loop.is_missed else ""))
        if loop.is_missed:
            print(f"    through {', '.join(loop.lines)}")
    missed = sum(loop.is_missed for loop in loops)
    worst = max((loop.delay_ns / loop.source.ii for loop in loops), default=0.0)
    print(
        f"lint-hls: {len(loops)} pipelined loops, {missed} that miss {operators.period_ns:.2f} ns "
        f"({operators.clock_mhz:g} MHz, {operators.uncertainty:.0%} uncertainty), worst "
        f"{worst:.2f} ns a cycle"
    )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
