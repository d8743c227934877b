"""What becomes of the EcoRL-Sched paper's scheduler claims on our simulator?

Every claim with its printed value, what the simulator gives under the ``paper`` calibration (costs
as printed) and under ``roofline`` (bounded by physics), and why they differ; and the printed
figures against one another. No target: these are figures of a paper, not of this project. Beside
the JSON stands the same as a Markdown table.
"""

from __future__ import annotations

import argparse
import sys

from rich.console import Console

from benchmarks.harness.command import default_path, run_benchmark
from benchmarks.harness.figures import Figure
from benchmarks.studies.papers.claims import (
    FULL,
    QUICK,
    figures,
    markdown,
    report,
    tables,
    write_markdown,
)
from benchmarks.studies.papers.systems import LEARNED, POLICIES, policy_maker
from ecorl.bench.machine import describe_machine
from ecorl.errors import ConfigError

NAME = "paper_scheduler"
TABLE_WIDTH = 160


def measure(options: argparse.Namespace) -> tuple[dict[str, object], list[Figure]]:
    """Measure; returns the settings that the figures depend on, and the figures."""
    passes = QUICK if options.quick else FULL
    found = report(passes, policy_maker(options.policy))
    console = Console(width=TABLE_WIDTH)
    for table in tables(found):
        console.print(table)
    setting = (
        f"70 B policy, 8 B reward, reference and critic, 32 H100, 4 U55C, 256 rows; "
        f"{passes.n_episodes} episodes of {passes.n_iterations} iterations "
        f"({passes.n_sweep} in sweeps), seed {passes.seed}; policy under test: {options.policy}."
    )
    json = options.json or (None if options.quick else default_path(NAME, describe_machine().slug))
    if json is not None:
        path = json.with_suffix(".md")
        try:
            write_markdown(markdown(found, setting), path)
        except OSError as error:
            raise ConfigError("--json", str(path), f"a place to write to ({error})") from error
        print(f"written: {path}")
    return {**passes._asdict(), "policy": options.policy}, figures(found)


def options(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's own options."""
    parser.add_argument(
        "--policy",
        default="planner",
        help=f"the policy under test: {', '.join([*sorted(POLICIES), LEARNED])}, or an .onnx file",
    )


if __name__ == "__main__":
    sys.exit(run_benchmark(NAME, measure, options=options))
