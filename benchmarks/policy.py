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
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from benchmarks.harness import Figure, FigureTable, Target, run_benchmark
from ecorl.policy.evaluation.comparison import (
    LITTLE,
    RULES,
    UNTUNED,
    PolicyComparison,
    ScenarioResult,
    estimate,
)
from ecorl.policy.evaluation.evaluate import FilePolicy, SimPolicy, compare
from ecorl.policy.evaluation.pools import FAMILIES, LEARNING, kept_out
from ecorl.scheduler.policy_file import PolicyFile
from ecorl.scheduler.tables import Float64

FLAGS = {"--full": "all scenarios, a quarter of an hour on two cores"}
"""Options without a value, and what the help says of them."""

FIGURES = FigureTable("policy")
OURS = "learned"

LEAST_ELSEWHERE = -0.005
"""Eq. 7 an iteration that the policy may be worse than the best rule where there is not."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is played.

    Attributes:
        n_scenarios: of each family, at most.
        n_seeds: episodes of each scenario.
        n_iterations: of an episode.
        families: which.
    """

    n_scenarios: int
    n_seeds: int
    n_iterations: int
    families: tuple[str, ...] = FAMILIES


MOST_PAPER = 8
"""Scenarios of the paper's calibration, whose planners take many times as long as the others'."""

FULL = Extent(32, 2, 60)
SHORT = Extent(3, 2, 24, ("real_pairs", *LEARNING))
"""What ``make bench`` has time for."""
QUICK = Extent(2, 2, 10, ("real_pairs", "drift"))


def say(text: str) -> None:
    """Print a line of progress at once."""
    print(f"  {text}", file=sys.stderr, flush=True)


def measure(options: argparse.Namespace) -> tuple[dict[str, object], list[Figure]]:
    """Measure; returns the settings that the figures depend on, and the figures."""
    extent = SHORT
    if options.quick or options.full:
        extent = QUICK if options.quick else FULL
    found = compared(extent, {OURS: FilePolicy(PolicyFile())})
    return settings(extent, found), figures_of(found)


def settings(extent: Extent, found: Mapping[str, PolicyComparison]) -> dict[str, object]:
    """What was played, and all comparisons, as plain data."""
    return {
        "extent": asdict(extent),
        **{name: comparison.as_dict() for name, comparison in found.items()},
    }


def compared(extent: Extent, policies: Mapping[str, SimPolicy]) -> dict[str, PolicyComparison]:
    """Play every family.

    Args:
        extent: how much of it.
        policies: beside the rules and the planners, by name; one is `OURS`.
    """
    found = {}
    for family in extent.families:
        n = min(extent.n_scenarios, MOST_PAPER) if family == "paper" else extent.n_scenarios
        drawn = kept_out(family, n, n_iterations=extent.n_iterations)
        say(f"{family}: {len(drawn)} scenarios x {extent.n_seeds} seeds")
        found[family] = compare(drawn, policies, n_seeds=extent.n_seeds)
    return found


def figures_of(found: Mapping[str, PolicyComparison]) -> list[Figure]:
    """Return the figures of all families.

    Args:
        found: the comparisons by family.
    """
    figures: list[Figure] = []
    for family, comparison in found.items():
        figures += values(family, comparison)
        figures += gains(family, comparison)
    figures.append(_share_drift(found.get("drift")))
    results = [r for comparison in found.values() for r in comparison.results]
    return [*figures, *energies(results)]


def values(family: str, found: PolicyComparison) -> list[Figure]:
    """Return what there is to gain at all: the optimum over the same GPUs without cards, per cent.

    Args:
        family: name of the family.
        found: its comparison.
    """
    counts = {"n_valued": sum(r.has_value for r in found.results), "n_hard": len(found.hard())}
    made = []
    for kind, saved in zip(("energy", "time"), found.value(), strict=True):
        words = {"family": family, "kind": kind}
        spread, value = _spread(100.0 * saved) | counts, 100.0 * float(saved.mean())
        made.append(FIGURES.figure("policy.value_{family}_{kind}", value, spread, words=words))
    return made


def gains(family: str, found: PolicyComparison) -> list[Figure]:
    """Return what the policy gains over the best rule, and over the best that needs no tuning.

    Args:
        family: name of the family.
        found: its comparison.
    """
    best, untuned = found.best_rule(), found.best_rule(UNTUNED)
    gain, over_untuned = found.gain(OURS, best), found.gain(OURS, untuned)
    of_all = [(name, [r.scores[name] for r in found.results]) for name in found.policies]
    n = len(found.results)
    spread: dict[str, object] = {
        **asdict(gain), "n_scenarios": n, "best_rule": best,
        "scores": {name: _mean([one.score for one in scores]) for name, scores in of_all},
        "scores_without_cards": {
            name: _mean([one.score_alone for one in scores]) for name, scores in of_all
        },
    }  # fmt: skip
    words = {"family": family, "best": best, "untuned": untuned, "n_rules": len(RULES)}
    id, beside = "policy.gain_vs_best_rule_{family}", {**asdict(over_untuned), "best_rule": untuned}
    target = None if family in LEARNING else Target(low=LEAST_ELSEWHERE)
    return [
        FIGURES.figure(id, gain.mean, spread, words=words),
        FIGURES.figure(f"{id}_low", gain.low, {"n": n}, target=target, words=words),
        FIGURES.figure("policy.gain_vs_untuned_{family}", over_untuned.mean, beside, words=words),
    ]


def _share_drift(found: PolicyComparison | None) -> Figure:
    id = "policy.share_of_true_planner_drift"
    if found is None:
        return FIGURES.figure(id, None)
    valued = [r for r in found.results if r.scores["planner"].score.mean() >= LITTLE]
    if not valued:
        return FIGURES.figure(id, None, why="no scenario has anything to share")
    ours, planner = (
        np.array([r.scores[name].score.mean() for r in valued]) for name in (OURS, "planner")
    )
    best = sum(r.scores[found.best_rule()].score.mean() for r in valued)
    spread: dict[str, object] = {
        "n_scenarios": len(valued),
        "scenarios": {r.scenario.name: r.share(OURS, "planner") for r in valued},
        "best_rule": float(best / planner.sum()),
    }
    return FIGURES.figure(id, float(ours.sum() / planner.sum()), spread)


def energies(results: Sequence[ScenarioResult]) -> list[Figure]:
    """Return the most energy that the policy takes, against idle cards and against none.

    Args:
        results: of all families.
    """
    guarded = [r for r in results if r.scenario.limits.energy_margin == 0.0]
    idle = {r.scenario.name: float(r.scores[OURS].energy.max()) for r in guarded}
    alone = {r.scenario.name: float(r.scores[OURS].energy_without_cards.max()) for r in results}
    standing = {
        r.scenario.name: float(r.scores["always_gpu"].energy_without_cards.mean()) for r in results
    }
    worst = max(alone, key=alone.__getitem__)
    spread = {"scenario": worst, "standing_by_there": standing[worst], "scenarios": alone,
              "standing_by": standing}  # fmt: skip
    return [
        FIGURES.figure(
            "policy.energy_over_idle_device_worst",
            max(idle.values(), default=None),
            {"n": len(idle), "scenarios": idle} if idle else None,
        ),
        FIGURES.figure("policy.energy_over_gpus_alone_worst", alone[worst], spread),
    ]


def _mean(scores: Sequence[Float64]) -> float:
    return float(np.mean([one.mean() for one in scores]))


def _spread(shares: Float64) -> dict[str, object]:
    made: dict[str, object] = {
        "n_scenarios": len(shares), "min": float(shares.min()), "max": float(shares.max()),
        "median": float(np.median(shares)),
    }  # fmt: skip
    if len(shares) > 1:
        within = estimate(shares)
        made |= {"low": within.low, "high": within.high}
    return made


if __name__ == "__main__":
    sys.exit(run_benchmark("policy", measure, flags=FLAGS))
