"""Does the shipped policy earn its keep, on scenarios that it has not seen?

First what there is to gain at all: what the clairvoyant optimum saves over the same GPUs in a
machine without a second device. Then the shipped policy against the best of the simple rules, tuned
on episodes of their own, scenario by scenario on the same episodes. Families: pairs of devices that
are bought (`real_pairs`), mixed clusters whose tables are right (`mixed`), wrong (`wrong_tables`)
or drift (`drift`), the paper's calibration, and cards at the limit of a named part's silicon
(`hypothetical`). Everything here is modelled: what the simulator gives. What takes training is in
`benchmarks.policy_training`.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict

from benchmarks.harness.command import run_benchmark
from benchmarks.harness.figures import Figure
from benchmarks.studies.placement import policy_families as families
from ecorl.policy.evaluation.evaluate import FilePolicy
from ecorl.scheduler.policy_file import PolicyFile


def say(text: str) -> None:
    """Print a line of progress at once."""
    print(f"  {text}", file=sys.stderr, flush=True)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's own options."""
    parser.add_argument(
        "--full", action="store_true", help="all scenarios, a quarter of an hour on two cores"
    )


def measure(options: argparse.Namespace) -> tuple[dict[str, object], list[Figure]]:
    """Measure; returns the settings that the figures depend on, and the figures."""
    extent = families.SHORT
    if options.quick or options.full:
        extent = families.QUICK if options.quick else families.FULL
    found = families.compared(extent, {families.OURS: FilePolicy(PolicyFile())}, say)
    config: dict[str, object] = {"extent": asdict(extent)}
    config |= {name: comparison.as_dict() for name, comparison in found.items()}
    return config, families.figures_of(found)


if __name__ == "__main__":
    sys.exit(run_benchmark("policy", measure, options=add_options))
