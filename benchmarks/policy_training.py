"""Is the shipped policy what training gives, and how good is one trained on the paper's costs?

Trains the shipped policy from nothing as ``make policy`` does (timed, and compared with the shipped
file), makes the policies that stand beside it under the paper's calibration, and those of
simulators fitted from a ledger. Part of ``make bench-long`` alone. What the shares are of is said
in `benchmarks.policy`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from benchmarks.policy import (
    MEASURED,
    MODELLED,
    OURS,
    above_without_cards,
    differences_of,
    moved,
    say,
    share_figure,
)
from ecorl.bench import policy_runs as runs
from ecorl.bench.command import run_benchmark
from ecorl.bench.figures import Figure, Target
from ecorl.policy.evaluation.evaluate import FilePolicy
from ecorl.policy.planners.heuristics import lookahead_deferring
from ecorl.policy.training.train import NetworkPolicy, TrainingPlan
from ecorl.scheduler.learned import PolicyFile

DEFERRING = "lookahead_deferring"
UNSHIPPED = "a network that this benchmark trains for it, not the shipped one"


def measure(options: argparse.Namespace) -> tuple[dict[str, object], list[Figure]]:
    quick = options.quick
    n_seeds = 2 if quick else 10
    with tempfile.TemporaryDirectory(prefix="ecorl-bench-policy-") as name:
        folder = Path(name)
        figures = _rebuilt(folder, quick)
        paper, config = _paper(folder, quick, n_seeds)
        figures += [*paper, *_fitted(folder, quick)]
    return {"n_seeds": n_seeds, **config}, figures


def _short(plan: TrainingPlan, quick: bool) -> TrainingPlan:
    if not quick:
        return plan
    steps = 20_000 if plan.ppo_steps else 0
    return replace(plan, n_scenarios=8, n_iterations=20, n_rounds=1, n_epochs=2, ppo_steps=steps)


def _rebuilt(folder: Path, quick: bool) -> list[Figure]:
    """The shipped policy from nothing: time, and whether it is the same."""
    plan = _short(runs.SHIPPED_PLAN, quick)
    again = runs.trained(plan, folder / "shipped", say)
    rebuilt = runs.saved(again.made, folder / "rebuilt.onnx")
    gap = runs.difference(rebuilt, FilePolicy(PolicyFile()))
    note = "from nothing to the shipped policy on this machine, two worker processes"
    return [
        Figure("train.seconds", again.time_s, "s", MEASURED, {"n": 1},
               Target(high=900.0), note),
        Figure("policy.rebuilt_difference", gap, "1", MEASURED, target=Target(high=0.0),
               note="largest difference of logits, rebuilt against shipped policy"),
    ]  # fmt: skip


def _paper(folder: Path, quick: bool, n_seeds: int) -> tuple[list[Figure], dict[str, object]]:
    made = runs.trained(_short(runs.PAPER_PLAN, quick), folder / "paper", say)
    alone = runs.trained(_short(runs.PPO_PLAN, quick), folder / "ppo", say)
    assert made.made.imitated is not None  # the plan imitates
    policies = {
        OURS: runs.saved(made.made, folder / "paper.onnx"),
        "imitation_only": NetworkPolicy(made.made.imitated.arrays()),
        "ppo_only": NetworkPolicy(alone.made.network.arrays()),
        DEFERRING: lookahead_deferring,
    }
    scenarios = runs.kept_out_paper(2 if quick else 12)
    found = runs.compared(scenarios, policies, n_seeds, say)
    whose = f"paper calibration; {UNSHIPPED}"
    figures = [
        share_figure("policy.causal_share_paper", found.hard(), "planner", 0.98, whose),
        share_figure("policy.dp_share_paper", found.hard(), "dp", 0.95, whose),
        above_without_cards("paper", found.results, whose),
    ]
    for name in ("imitation_only", "ppo_only", "threshold", "static", "lookahead", DEFERRING,
                 "algorithm1", "edi", "edi_queue", "random", "planner"):  # fmt: skip
        note = "share of the dynamic programme, paper calibration"
        figures.append(share_figure(f"policy.{name}_share", found.hard(), "dp", None, note, name))
    hard = list(found.hard())[: 1 if quick else 4]
    for n_gpus, scaled in runs.scaled([r.scenario for r in hard]).items():
        # At 32 GPUs they are the scenarios themselves.
        results = hard if n_gpus == 32 else moved(scaled, policies[OURS], n_seeds)
        figures.append(
            share_figure(f"policy.causal_share_n{n_gpus}", results, "planner", 0.97,
                   f"paper calibration on {n_gpus} GPUs, without retraining; {UNSHIPPED}",
                   counts="hard" if n_gpus == 32 else "valued", n_drawn=len(scaled))
        )  # fmt: skip
    config: dict[str, object] = {
        "paper": found.as_dict(),
        "paper_differences": differences_of(found),
        "paper_train_s": round(made.time_s, 1),
        "ppo_train_s": round(alone.time_s, 1),
    }
    return figures, config


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
