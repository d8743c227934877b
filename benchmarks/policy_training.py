"""Is the shipped policy what training gives, and what is each part of the training worth?

Trains the shipped policy from nothing as ``make policy`` does (timed, and compared with the shipped
file), and beside it imitation alone, PPO alone, and a network that sees the tables without what was
measured; all are compared on the kept-out families of `benchmarks.policy`. At last the policies of
simulators fitted from a ledger. Part of ``make bench-long`` alone.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

from benchmarks.harness.command import run_benchmark
from benchmarks.harness.figures import Figure, Target
from benchmarks.policy import say
from benchmarks.studies.placement import policy_families as families
from benchmarks.studies.placement import policy_runs as runs
from ecorl.policy.evaluation.evaluate import FilePolicy, SimPolicy
from ecorl.policy.evaluation.pools import LEARNING
from ecorl.policy.training.train import NetworkPolicy, TrainingPlan
from ecorl.records import Provenance
from ecorl.scheduler.policy_file import PolicyFile

MEASURED, MODELLED = Provenance.MEASURED, Provenance.MODELLED

EXTENT = replace(families.FULL, n_scenarios=24, families=LEARNING)


def measure(options: argparse.Namespace) -> tuple[dict[str, object], list[Figure]]:
    """Measure; returns the settings that the figures depend on, and the figures."""
    quick = options.quick
    with tempfile.TemporaryDirectory(prefix="ecorl-bench-policy-") as name:
        folder = Path(name)
        figures, arms = _trained(folder, quick)
        ablations, config = _ablations(arms, quick)
        figures += [*ablations, *_fitted(folder, quick)]
    return config, figures


def _short(plan: TrainingPlan, quick: bool) -> TrainingPlan:
    if not quick:
        return plan
    steps = 20_000 if plan.ppo_steps else 0
    return replace(plan, n_scenarios=8, n_iterations=20, n_rounds=1, n_epochs=2, ppo_steps=steps)


def _trained(folder: Path, quick: bool) -> tuple[list[Figure], dict[str, SimPolicy]]:
    """The shipped policy from nothing, whether it is the same, and those that lack a part."""
    again = runs.trained(_short(runs.SHIPPED_PLAN, quick), folder / "shipped", say)
    rebuilt = runs.saved(again.made, folder / "rebuilt.onnx")
    gap = runs.difference(rebuilt, FilePolicy(PolicyFile()))
    alone = runs.trained(_short(runs.PPO_PLAN, quick), folder / "ppo", say)
    blind = runs.trained(_short(runs.UNMEASURED_PLAN, quick), folder / "unmeasured", say)
    assert again.made.imitated is not None  # the plan imitates
    arms: dict[str, SimPolicy] = {
        families.OURS: rebuilt,
        "imitation_only": NetworkPolicy(again.made.imitated.arrays()),
        "ppo_only": NetworkPolicy(alone.made.network.arrays()),
        "without_measured": NetworkPolicy(blind.made.network.arrays()),
    }
    note = "from nothing to the shipped policy on this machine, two worker processes"
    return [
        Figure("train.seconds", again.time_s, "s", MEASURED, {"n": 1},
               Target(high=900.0), note),
        Figure("policy.rebuilt_difference", gap, "1", MEASURED, target=Target(high=0.0),
               note="largest difference of logits, rebuilt against shipped policy"),
    ], arms  # fmt: skip


def _ablations(arms: dict[str, SimPolicy], quick: bool) -> tuple[list[Figure], dict[str, object]]:
    extent = families.QUICK if quick else EXTENT
    figures: list[Figure] = []
    found = families.compared(extent, arms, say)
    for family, comparison in found.items():
        for name in arms:
            if name == families.OURS:
                continue
            gain = comparison.gain(families.OURS, name)
            note = f"Eq. 7 an iteration of the whole training less that of {name}, {family}"
            id = f"policy.gain_over_{name}_{family}"
            figures.append(Figure(id, gain.mean, "1", MODELLED, asdict(gain), note=note))
    config: dict[str, object] = {"extent": asdict(extent)}
    return figures, config | {name: comparison.as_dict() for name, comparison in found.items()}


def _fitted(folder: Path, quick: bool) -> list[Figure]:
    if quick:
        return []
    shares, spreads = [], {}
    for seed in runs.HIDDEN_SEEDS:
        share, spread = runs.fitted_share(folder, seed, say)
        shares.append(share)
        spreads[str(seed)] = spread
    return [
        Figure("policy.fitted_share", min(shares), "1", MODELLED, spreads, Target(low=0.90),
               "share of the hidden simulator's dynamic programme that a policy of the simulator "
               "fitted from its ledger reaches; the lowest of the hidden scenarios")
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(run_benchmark("policy_training", measure))
