"""The shipped policy against the strongest simple rules, family by family, in figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from benchmarks.harness.figures import Figure, Target, missing
from ecorl.policy.evaluation.comparison import (
    LITTLE,
    RULES,
    UNTUNED,
    PolicyComparison,
    ScenarioResult,
    estimate,
)
from ecorl.policy.evaluation.evaluate import SimPolicy, compare
from ecorl.policy.evaluation.pools import FAMILIES, LEARNING, kept_out
from ecorl.records import Provenance
from ecorl.scheduler.tables import Float64

MODELLED = Provenance.MODELLED
OURS = "learned"

LEAST_ELSEWHERE = -0.005
"""Eq. 7 an iteration that the policy may be worse than the best rule where there is not."""
LEAST_SHARE_DRIFT = 0.90
MOST_ENERGY = 1.001
"""Energy over that of the cards standing by, at most, where the energy guard is on."""


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


def compared(
    extent: Extent, policies: Mapping[str, SimPolicy], say: Callable[[str], None]
) -> dict[str, PolicyComparison]:
    """Play every family.

    Args:
        extent: how much of it.
        policies: beside the rules and the planners, by name; one is `OURS`.
        say: prints a line of progress.
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
    made = []
    for kind, saved in zip(("energy", "time"), found.value(), strict=True):
        note = (
            f"{kind} that the clairvoyant optimum saves over the same GPUs in a machine without "
            "cards, mean over scenarios; below 0 where cards that stand by draw more than is won"
        )
        spread = _spread(100.0 * saved)
        spread["n_valued"] = sum(r.has_value for r in found.results)
        spread["n_hard"] = len(found.hard())
        id = f"policy.value_{family}_{kind}"
        made.append(Figure(id, 100.0 * float(saved.mean()), "%", MODELLED, spread, note=note))
    return made


def gains(family: str, found: PolicyComparison) -> list[Figure]:
    """Return what the policy gains over the best rule, and over the best that needs no tuning.

    Args:
        family: name of the family.
        found: its comparison.
    """
    best, untuned = found.best_rule(), found.best_rule(UNTUNED)
    gain, over_untuned = found.gain(OURS, best), found.gain(OURS, untuned)
    scores = {name: _mean(found, name) for name in found.policies}
    spread: dict[str, object] = {
        **asdict(gain), "n_scenarios": len(found.results), "best_rule": best, "scores": scores,
        "scores_without_cards": {name: _mean_alone(found, name) for name in found.policies},
    }  # fmt: skip
    id = f"policy.gain_vs_best_rule_{family}"
    note = (
        f"Eq. 7 an iteration of the shipped policy less that of {best}, the best of {len(RULES)} "
        "rules by what it reached here, on the same episodes"
    )
    untuned_note = (
        f"the same less that of {untuned}, the best rule that is not tuned to the job on trial "
        "runs of its kind; the shipped policy is not tuned to it either"
    )
    least = 0.0 if family in LEARNING else LEAST_ELSEWHERE
    low_note = "lower end of its interval over scenarios (95 %)"
    return [
        Figure(id, gain.mean, "1", MODELLED, spread, note=note),
        Figure(f"{id}_low", gain.low, "1", MODELLED, {"n": len(found.results)},
               Target(low=least), low_note),
        Figure(f"policy.gain_vs_untuned_{family}", over_untuned.mean, "1", MODELLED,
               {**asdict(over_untuned), "best_rule": untuned}, note=untuned_note),
    ]  # fmt: skip


def _share_drift(found: PolicyComparison | None) -> Figure:
    id, goal = "policy.share_of_true_planner_drift", Target(low=LEAST_SHARE_DRIFT)
    if found is None:
        return missing(id, "1", "the family was not played", goal)
    valued = [r for r in found.results if r.scores["planner"].score.mean() >= LITTLE]
    if not valued:
        return missing(id, "1", "no scenario has anything to share", goal)
    ours, planner = (
        np.array([r.scores[name].score.mean() for r in valued]) for name in (OURS, "planner")
    )
    note = (
        "summed Eq. 7 of the shipped policy over that of the causal planner that knows the true "
        "costs, in the scenarios in which that gains anything"
    )
    spread: dict[str, object] = {
        "n_scenarios": len(valued),
        "scenarios": {r.scenario.name: r.share(OURS, "planner") for r in valued},
        "best_rule": float(
            sum(r.scores[found.best_rule()].score.mean() for r in valued) / planner.sum()
        ),
    }
    return Figure(id, float(ours.sum() / planner.sum()), "1", MODELLED, spread, goal, note)


def energies(results: Sequence[ScenarioResult]) -> list[Figure]:
    """Return the most energy that the policy takes, against idle cards and against none.

    Args:
        results: of all families.
    """
    guarded = [r for r in results if r.scenario.limits.energy_margin == 0.0]
    idle = {r.scenario.name: float(r.scores[OURS].energy.max()) for r in guarded}
    made = [missing("policy.energy_over_idle_device_worst", "1", "no scenario has the guard on",
                    Target(high=MOST_ENERGY))]  # fmt: skip
    if idle:
        note = "most energy over the same job with the cards standing by, where the guard is on"
        spread: dict[str, object] = {"n": len(idle), "scenarios": idle}
        made = [Figure("policy.energy_over_idle_device_worst", max(idle.values()), "1", MODELLED,
                       spread, Target(high=MOST_ENERGY), note)]  # fmt: skip
    alone = {r.scenario.name: float(r.scores[OURS].energy_without_cards.max()) for r in results}
    standing = {
        r.scenario.name: float(r.scores["always_gpu"].energy_without_cards.mean()) for r in results
    }
    worst = max(alone, key=lambda name: alone[name])
    note = "most energy over the same GPUs in a machine without cards, guard on or off"
    spread = {"scenario": worst, "standing_by_there": standing[worst], "scenarios": alone,
              "standing_by": standing}  # fmt: skip
    made.append(Figure("policy.energy_over_gpus_alone_worst", alone[worst], "1", MODELLED, spread,
                       note=note))  # fmt: skip
    return made


def _mean(found: PolicyComparison, name: str) -> float:
    return float(np.mean([r.scores[name].score.mean() for r in found.results]))


def _mean_alone(found: PolicyComparison, name: str) -> float:
    return float(np.mean([r.scores[name].score_alone.mean() for r in found.results]))


def _spread(shares: Float64) -> dict[str, object]:
    made: dict[str, object] = {
        "n_scenarios": len(shares), "min": float(shares.min()), "max": float(shares.max()),
        "median": float(np.median(shares)),
    }  # fmt: skip
    if len(shares) > 1:
        within = estimate(shares)
        made |= {"low": within.low, "high": within.high}
    return made
