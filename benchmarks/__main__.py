"""Runs all benchmarks, one process each: ``python -m benchmarks [--quick] [--long]``."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence

from ecorl.bench.machine import repository

NAMES = (
    "engine", "kernels", "precision", "overhead", "demo", "simulator", "decision", "policy",
    "paper_scheduler", "fpga_physics", "serve", "host",
)  # fmt: skip
FULL = {"demo": ("--install",)}
"""Options of every pass but the quick one: the installation is measured too."""

LONG = {"overhead": ("--blocks", "40"), "demo": ("--long",)}
"""Options of the long pass, in place of those above: more blocks, more seeds."""

TIMEOUT_S = 2400.0
"""All of them together; the long pass may take that long for each."""

UNLIMITED = ("demo",)
"""Without that limit in the long pass: each run has its own, and results are kept as they come."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmarks; the exit code is the worst of theirs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"only these of {', '.join(NAMES)}")
    parser.add_argument("--quick", action="store_true", help="smaller passes, nothing is kept")
    parser.add_argument("--long", action="store_true", help="more blocks")
    parser.add_argument("--check", action="store_true", help="fail when a target falls short")
    chosen = parser.parse_args(argv)
    unknown = sorted(set(chosen.names) - set(NAMES))
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]}; there are {', '.join(NAMES)}")
    deadline_s = time.monotonic() + TIMEOUT_S
    given = {**({} if chosen.quick else FULL), **(LONG if chosen.long else {})}
    worst = 0
    for name in chosen.names or NAMES:
        command = [sys.executable, "-m", f"benchmarks.{name}"]
        command += ["--quick"] if chosen.quick else []
        command += ["--check"] if chosen.check else []
        command += given.get(name, ())
        limit_s = TIMEOUT_S if chosen.long else max(1.0, deadline_s - time.monotonic())
        print(f"== {name}", flush=True)
        worst = max(worst, _run(command, None if chosen.long and name in UNLIMITED else limit_s))
    return worst


def _run(command: Sequence[str], limit_s: float | None) -> int:
    try:
        return subprocess.run(command, cwd=repository(), timeout=limit_s, check=False).returncode
    except subprocess.TimeoutExpired:
        print(f"did not end in {limit_s:.0f} s", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
