"""Runs all benchmarks, one process each: ``python -m benchmarks [--quick] [--long]``.

A benchmark that is cut off, by its limit, Ctrl-C or SIGTERM, leaves no process behind.
"""

from __future__ import annotations

import argparse
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.processes import run_to_end, sigterm_as_exit
from ecorl.bench.machine import repository

STOPPED = 130
"""Exit code after Ctrl-C."""

PASSES: dict[str, Any] = tomllib.loads(Path(__file__).with_name("passes.toml").read_text("utf-8"))
"""Names of the benchmarks, with their options and times."""

NAMES: tuple[str, ...] = tuple(PASSES["names"])
LONG_ONLY: tuple[str, ...] = tuple(PASSES["long_only"])
BOX_S: dict[str, float] = PASSES["box_s"]

TIMEOUT_S = 2400.0
"""Limit of all of them together, s; in the long pass that of each, but for those that it never
cuts off."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmarks; the exit code is the worst of theirs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"only these of {', '.join(NAMES + LONG_ONLY)}")
    parser.add_argument("--quick", action="store_true", help="smaller passes, nothing is kept")
    parser.add_argument("--long", action="store_true", help="more repetitions")
    parser.add_argument("--check", action="store_true", help="fail when a target falls short")
    chosen = parser.parse_args(argv)
    known = NAMES + LONG_ONLY
    unknown = sorted(set(chosen.names) - set(known))
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]}; there are {', '.join(known)}")
    try:
        with sigterm_as_exit():
            return _run_all(chosen)
    except KeyboardInterrupt:
        print("stopped from the keyboard", file=sys.stderr)
        return STOPPED


def _run_all(chosen: argparse.Namespace) -> int:
    """Run the chosen benchmarks one after the other; returns the worst exit code."""
    deadline_s = time.monotonic() + TIMEOUT_S
    given = {**({} if chosen.quick else PASSES["full"]), **(PASSES["long"] if chosen.long else {})}
    worst = 0
    for name in chosen.names or (NAMES + LONG_ONLY if chosen.long else NAMES):
        command = [sys.executable, "-m", f"benchmarks.{name}"]
        command += ["--quick"] if chosen.quick else []
        command += ["--check"] if chosen.check else []
        command += given.get(name, ())
        if not chosen.long and name in BOX_S:
            command += ["--box", str(BOX_S[name])]
        limit_s: float | None = max(1.0, deadline_s - time.monotonic())
        if chosen.long:
            limit_s = None if name in PASSES["unlimited_long"] else TIMEOUT_S
        print(f"== {name}", flush=True)
        code = run_to_end(command, cwd=repository(), limit_s=limit_s)
        if code is None:
            print(f"did not end in {limit_s:.0f} s", file=sys.stderr)
        # An end by the limit or by a signal counts as exit code 1.
        worst = max(worst, 1 if code is None or code < 0 else code)
    return worst


if __name__ == "__main__":
    sys.exit(main())
