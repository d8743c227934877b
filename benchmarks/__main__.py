"""Runs all benchmarks, one process each: ``python -m benchmarks [--quick] [--long]``.

A benchmark that is cut off, by its limit, Ctrl-C or SIGTERM, leaves no process behind.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from benchmarks.harness.processes import run_to_end, sigterm_as_exit
from ecorl.bench.machine import repository

STOPPED = 130
"""Exit code after Ctrl-C."""

NAMES = (
    "engine", "kernels", "precision", "simulator", "decision", "costmodel", "fpga_physics", "serve",
    "levers", "host", "trainer", "paper_carbon", "carbon", "carbon_control", "adapter", "policy",
    "placement_live", "paper_scheduler", "tokens_per_joule", "overhead", "demo",
)  # fmt: skip
"""In order. Those that take longest stand last: where the time does not suffice, all others have
ended before one is cut off."""

LONG_ONLY = ("sampler", "policy_training")
"""Benchmarks of the long pass alone, after the others: windows of 5 s take their time whatever the
machine, and training policies takes longer than all others together."""

BOX_S = {
    "kernels": 5.0, "costmodel": 5.0, "decision": 10.0, "precision": 10.0, "fpga_physics": 15.0,
    "levers": 5.0, "simulator": 20.0, "paper_carbon": 20.0, "carbon": 25.0, "host": 25.0,
    "serve": 40.0, "adapter": 40.0, "paper_scheduler": 60.0, "carbon_control": 70.0,
    "trainer": 75.0, "policy": 60.0, "placement_live": 20.0, "tokens_per_joule": 78.0,
    "engine": 85.0, "overhead": 130.0, "demo": 190.0,
}  # fmt: skip
"""Time of each benchmark's repetitions in ``make bench``, s: 600 together for those of ecorl's own
parts, 550 for those of adapters with their policies, of controllers and of the trainer, and 78 for
whole trainings under several placements, whose rounds end within it. What a benchmark builds first
does not count. Repetitions stop when the time is used, but not before there are enough of them for
an interval. Benchmarks that do one thing once take no notice of it."""

FULL = {"demo": ("--install",)}
"""Options of every pass but the quick one: the installation is measured too."""

LONG = {
    "overhead": ("--blocks", "40"), "demo": ("--long",), "paper_carbon": ("--train",),
    "carbon_control": ("--harder",), "trainer": ("--long",), "policy": ("--full",),
    "placement_live": ("--full",), "tokens_per_joule": ("--full",),
}  # fmt: skip
"""Options of the long pass, in place of those above: more blocks, more seeds."""

UNLIMITED_LONG = frozenset({"demo"})
"""Benchmarks that the long pass never cuts off: each of their runs counts, however slow it is."""

TIMEOUT_S = 2400.0
"""Limit of all of them together, s; in the long pass that of each, but for `UNLIMITED_LONG`."""


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
    given = {**({} if chosen.quick else FULL), **(LONG if chosen.long else {})}
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
            limit_s = None if name in UNLIMITED_LONG else TIMEOUT_S
        print(f"== {name}", flush=True)
        code = run_to_end(command, cwd=repository(), limit_s=limit_s)
        if code is None:
            print(f"did not end in {limit_s:.0f} s", file=sys.stderr)
        # An end by the limit or by a signal counts as exit code 1.
        worst = max(worst, 1 if code is None or code < 0 else code)
    return worst


if __name__ == "__main__":
    sys.exit(main())
