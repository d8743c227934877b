"""What becomes of the EcoRL-Sched paper's scheduler claims on our simulator?

Every claim with its printed value, what the simulator gives under the ``paper`` calibration (costs
as printed) and under ``roofline`` (bounded by physics), and why they differ; and the printed
figures against one another. No target: these are figures of a paper, not of this project. Beside
the JSON stands the same as a Markdown table.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping

from benchmarks.harness import Figure, run_benchmark
from benchmarks.studies.papers.claims import (
    FIGURES,
    Claim,
    ClaimTable,
    printed_words,
    publish,
    published,
    with_unit,
)
from benchmarks.studies.papers.scheduler_claims import CLAIMS, SLIPS
from benchmarks.studies.papers.simulated import Outcome, Outcomes, simulate
from benchmarks.studies.papers.systems import LEARNED, POLICIES, Passes, PolicyMaker, policy_maker
from ecorl.bench.stats import spread_of
from ecorl.sim.scenario import SimCalibration

NAME = "paper_scheduler"
TABLE_WIDTH = 160

CALIBRATIONS: tuple[SimCalibration, ...] = ("paper", "roofline")

FULL = Passes()
QUICK = Passes(n_episodes=2, n_sweep=1, n_iterations=6, card_counts=(0, 1, 4, 8), n_lengths=21)

HOW = (
    "EcoRL-Sched stands here for RLHFuse's stage order with the best placement of every iteration, "
    "chosen with its lengths known: least energy for figures of energy, least time for figures of "
    "time. No placement of reward and reference does better on that order. Headline figures and "
    "the last rung of the ladder have the adaptive batch too. Rows 'the policy in the placement "
    "simulator' show the policy under test on DeepSpeed-Chat's order."
)

Report = Mapping[str, Outcomes]
"""Simulated outcomes by calibration and claim."""


def measure(options: argparse.Namespace) -> tuple[dict[str, object], list[Figure]]:
    """Measure; returns the settings that the figures depend on, and the figures."""
    passes = QUICK if options.quick else FULL
    found = report(passes, policy_maker(options.policy))
    setting = (
        f"70 B policy, 8 B reward, reference and critic, 32 H100, 4 U55C, 256 rows; "
        f"{passes.n_episodes} episodes of {passes.n_iterations} iterations "
        f"({passes.n_sweep} in sweeps), seed {passes.seed}; policy under test: {options.policy}."
    )
    publish(NAME, document(found, setting), options, TABLE_WIDTH)
    return {**passes._asdict(), "policy": options.policy}, figures(found)


def report(passes: Passes, make_policy: PolicyMaker) -> Report:
    """Simulate every claim under both calibrations.

    Args:
        passes: how much is played.
        make_policy: makes the policy under test for the episodes of a trace.
    """
    return {c: simulate(c, passes, make_policy) for c in CALIBRATIONS}


def figures(found: Report) -> list[Figure]:
    """All figures: printed ones are published, ours modelled, and never in the same figure."""
    made: list[Figure] = []
    for claim in CLAIMS:
        made += published("paper", claim, "the paper")
        made += [_simulated(claim, name, outcomes[claim.id]) for name, outcomes in found.items()]
    for slip in SLIPS:
        made += published("paper", slip, "the paper")
    return made


def _simulated(claim: Claim, calibration: str, outcome: Outcome) -> Figure:
    note = "; ".join(part for part in (claim.text, outcome.note, claim.why) if part)
    spread = spread_of(outcome.values) if len(outcome.values) > 1 else None
    words = {"claim": claim, "calibration": calibration, "outcome": outcome, "note": note}
    return FIGURES.figure("paper.{claim.id}.{calibration}", outcome.value, spread, words=words)


def document(found: Report, setting: str) -> list[str | ClaimTable]:
    """Both tables, and what is said around them.

    Args:
        found: what was found.
        setting: one line on what was run.
    """
    claims = ClaimTable(
        "Scheduler claims of the EcoRL-Sched paper",
        ("claim", "printed", "under paper", "under roofline", "why"),
        [_row(claim, {c: found[c][claim.id] for c in CALIBRATIONS}) for claim in CLAIMS],
    )
    slips = ClaimTable(
        "Its printed figures against one another",
        ("printed figure", "printed", "from its other figures", "how"),
        [(s.text, printed_words(s, _number), _words(s.derived, s.unit), s.why) for s in SLIPS],
    )
    return [
        f"# {claims.title}",
        "Printed values are published; the other columns are modelled by our simulator.",
        setting,
        HOW,
        claims,
        f"## {slips.title}",
        "Both columns come from what the paper prints.",
        slips,
    ]


def _row(claim: Claim, outcomes: Mapping[str, Outcome]) -> tuple[str, ...]:
    values = [_words(o.value, claim.unit) for o in outcomes.values()]
    notes = [f"Under {c}: {o.note}." for c, o in outcomes.items() if o.value is None or o.in_table]
    why = " ".join([claim.why, *notes])
    return claim.text, printed_words(claim, _number), *values, why


def _words(value: float | None, unit: str) -> str:
    return "none" if value is None else with_unit(_number(value), unit)


def _number(value: float) -> str:
    return f"{value:.4g}"


def options(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's own options."""
    parser.add_argument(
        "--policy",
        default="planner",
        help=f"the policy under test: {', '.join([*sorted(POLICIES), LEARNED])}, or an .onnx file",
    )


if __name__ == "__main__":
    sys.exit(run_benchmark(NAME, measure, options=options))
