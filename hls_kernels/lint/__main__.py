"""``python -m hls_kernels.lint [FILES]``: see the package for the rules.

Exit code 0 without findings, 1 with findings, 2 when a tool or a file is missing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ecorl.errors import EcorlError, MissingToolError
from hls_kernels.lint import rules
from hls_kernels.lint.kernels import ROOT, all_kernels, kernels_of


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge the kernels that are named, by default all that have a qor.json."""
    does = "Check that kernel sources can be synthesised."
    parser = argparse.ArgumentParser(prog="lint-hls", description=does)
    which = "kernel sources; default: all kernels of the project"
    parser.add_argument("files", nargs="*", type=Path, help=which)
    files = parser.parse_args(arguments).files
    try:
        return _report(files)
    except EcorlError as error:
        print(f"lint-hls: {error}", file=sys.stderr)
        return 2


def _report(files: Sequence[Path]) -> int:
    kernels = kernels_of(files) if files else all_kernels()
    if not kernels:
        raise MissingToolError(f"no folder of {ROOT} has a qor.json")
    try:
        import clang.cindex  # noqa: F401
    except ImportError as error:
        raise MissingToolError('libclang is not installed: pip install "ecorl[dev]"') from error
    from hls_kernels.lint.judge import judge  # it imports clang

    findings, loops = judge(kernels)
    for finding in findings:
        print(finding)
    outcome = _counted(len(findings), "finding") if findings else "no findings"
    counts = ((len(kernels), "kernel"), (loops, "loop"), (len(rules()), "rule"))
    print(f"lint-hls: {', '.join(_counted(*count) for count in counts)}, {outcome}")
    return 1 if findings else 0


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


if __name__ == "__main__":
    sys.exit(main())
