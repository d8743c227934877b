"""The command line that every benchmark shares.

``python -m benchmarks.<name> [--json PATH] [--quick] [--check] [--box SECONDS]``
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.harness.figures import Figure, Result, as_quick, write_result
from ecorl.bench.machine import commit, describe_machine, load_1min, repository
from ecorl.errors import EcorlError, UserError

Measure = Callable[[argparse.Namespace], tuple[Mapping[str, object], Sequence[Figure]]]
"""Measures; returns the settings that the figures depend on, and the figures."""

USER_ERROR = 2
FALLS_SHORT = 3
"""Exit code with ``--check`` when a target does not hold."""


def run_benchmark(
    name: str,
    measure: Measure,
    argv: Sequence[str] | None = None,
    options: Callable[[argparse.ArgumentParser], None] | None = None,
    flags: Mapping[str, str] | None = None,
) -> int:
    """Measure, print one line a figure, write the JSON.

    Without ``--json`` the result goes to ``benchmarks/results/<device>/<name>.json``, that of a
    quick pass nowhere.

    Args:
        name: of the benchmark.
        measure: does the work.
        argv: arguments; those of the process when None.
        options: adds the benchmark's own options.
        flags: its own options without a value, and what the help says of them.

    Returns:
        Exit code: 0; 1 or 2 for an error; 3 with ``--check`` when a target falls short.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}")
    parser.add_argument("--json", type=Path, metavar="PATH", help="where the result goes")
    parser.add_argument(
        "--quick", action="store_true", help="a smaller pass; its figures have ids of their own"
    )
    parser.add_argument(
        "--check", action="store_true", help=f"exit {FALLS_SHORT} when a target falls short"
    )
    parser.add_argument(
        "--box", dest="box_s", type=float, metavar="SECONDS",
        help="stop repeating after this time; what is built first does not count",
    )  # fmt: skip
    if options is not None:
        options(parser)
    for flag, said in (flags or {}).items():
        parser.add_argument(flag, action="store_true", help=said)
    chosen = parser.parse_args(argv)
    machine, start_s, load = describe_machine(), time.monotonic(), load_1min()
    try:
        config, figures = measure(chosen)
    except EcorlError as error:
        print(f"benchmarks.{name}: {error}", file=sys.stderr)
        return USER_ERROR if isinstance(error, UserError) else 1
    if chosen.quick:
        figures = as_quick(figures)
    settings = {
        **config,
        "quick": chosen.quick,
        "load_1min_before": load,
        "load_1min_after": load_1min(),
        "benchmark_s": round(time.monotonic() - start_s, 1),
    }
    result = Result(name, commit(), machine, figures, settings)
    for figure in figures:
        print(figure.line())
    path = chosen.json or (None if chosen.quick else default_path(name, machine.slug))
    if path is not None:
        try:
            write_result(result, path)
        except OSError as error:
            print(f"benchmarks.{name}: {path} cannot be written ({error})", file=sys.stderr)
            return USER_ERROR
        print(f"written: {path}")
    short = any(figure.holds is False for figure in figures)
    return FALLS_SHORT if chosen.check and short else 0


def default_path(name: str, slug: str) -> Path:
    """Name the file in which a checkout keeps a benchmark's result.

    Args:
        name: of the benchmark.
        slug: of the machine.
    """
    return repository() / "benchmarks" / "results" / slug / f"{name}.json"
