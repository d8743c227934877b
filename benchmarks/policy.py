"""How close does the learned policy come to the best there is, on scenarios it has not seen?

Trains the shipped policy from nothing as ``make policy`` does (timed, and compared with the shipped
file), makes the policies that stand beside it under the paper's calibration, and compares all on
kept-out scenarios. Everything here is modelled: what the simulator gives. 0 % is always-GPU, 100 %
the clairvoyant dynamic programme, or the best planner without a view of the future for the causal
share. Shares count only on scenarios where simple rules fail (random at most 0 %, best static
60 %, tuned threshold 90 %); how many did is in the spread.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ecorl.bench import policy_runs as runs
from ecorl.bench.command import run_benchmark
from ecorl.bench.figures import Figure, Target, missing
from ecorl.policy.evaluation.evaluate import (
    FilePolicy,
    PolicyComparison,
    ScenarioResult,
    compare,
    mean_share,
)
from ecorl.policy.training.train import NetworkPolicy, TrainingPlan
from ecorl.records import Provenance
from ecorl.scheduler.learned import PolicyFile
from ecorl.sim.scenario import Scenario

MODELLED, MEASURED = Provenance.MODELLED, Provenance.MEASURED
OURS = "learned"


def say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


def measure(options: argparse.Namespace) -> tuple[dict[str, object], list[Figure]]:
    quick = options.quick
    n_seeds = 2 if quick else 10
    with tempfile.TemporaryDirectory(prefix="ecorl-bench-policy-") as name:
        folder = Path(name)
        figures = _rebuilt(folder, quick)
        paper, config = _paper(folder, quick, n_seeds)
        figures += paper
        physical, more = _roofline(quick, n_seeds)
        figures += physical
        figures += _fitted(folder, quick)
    return {"n_seeds": n_seeds, **config, **more}, figures


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
    }
    scenarios = runs.kept_out_paper(2 if quick else 12)
    found = runs.compared(scenarios, policies, n_seeds, say)
    figures = [
        _share("policy.causal_share_paper", found.hard(), "planner", 0.98,
               "paper calibration, kept-out scenarios"),
        _share("policy.dp_share_paper", found.hard(), "dp", 0.95,
               "paper calibration, kept-out scenarios"),
    ]  # fmt: skip
    for name in ("imitation_only", "ppo_only", "threshold", "static", "lookahead", "algorithm1",
                 "edi", "edi_queue", "random", "planner"):  # fmt: skip
        note = "share of the dynamic programme, paper calibration"
        figures.append(_share(f"policy.{name}_share", found.hard(), "dp", None, note, name))
    hard = list(found.hard())[: 1 if quick else 4]
    for n_gpus, scaled in runs.scaled([r.scenario for r in hard]).items():
        # At 32 GPUs they are the scenarios themselves.
        results = hard if n_gpus == 32 else _moved(scaled, policies[OURS], n_seeds)
        figures.append(
            _share(f"policy.causal_share_n{n_gpus}", results, "planner", 0.97,
                   f"paper calibration on {n_gpus} GPUs, without retraining; the hard scenarios "
                   "at this size, where there is something to share", n_drawn=len(scaled))
        )  # fmt: skip
    config: dict[str, object] = {
        "paper": found.as_dict(),
        "paper_differences": _differences(found),
        "paper_train_s": round(made.time_s, 1),
        "ppo_train_s": round(alone.time_s, 1),
    }
    return figures, config


def _moved(scenarios: Sequence[Scenario], policy: FilePolicy, n_seeds: int) -> list[ScenarioResult]:
    """Scenarios in which there is something to share, without the simple rules."""
    found = compare(scenarios, {OURS: policy}, n_seeds=n_seeds, baselines=False)
    return list(found.valued())


def _differences(found: PolicyComparison) -> dict[str, object]:
    return {
        name: {
            "mean": d.mean,
            "low": d.low,
            "high": d.high,
            "p": d.p_value,
            "significant": d.significant,
            "level": d.level,
        }
        for name, d in found.differences(OURS).items()
    }


def _roofline(quick: bool, n_seeds: int) -> tuple[list[Figure], dict[str, object]]:
    file = FilePolicy(PolicyFile())
    drawn = runs.kept_out_roofline(3 if quick else 24)
    found = runs.compared(drawn + runs.natural(), {OURS: file}, n_seeds, say)
    figures = [
        _loss("policy.roofline_worst_loss", found.results, 0.001,
              "most energy above always-GPU, all scenarios and seeds, share of it"),
        _share("policy.roofline_causal_share", found.valued(), "planner", 0.95,
               "shipped policy, kept-out GPU and model size, where offload has value"),
        _share("policy.roofline_causal_share_hard", found.hard(), "planner", 0.95,
               "of these, where simple rules fail"),
    ]  # fmt: skip
    shares: list[float] = []
    results: list[ScenarioResult] = []
    bases = [r.scenario for r in found.valued() if r.scenario in drawn]
    for name, shifted in runs.shifted(bases[: 1 if quick else 6]).items():
        say(f"out of distribution: {name}")
        moved = compare(shifted, {OURS: file}, n_seeds=n_seeds, baselines=False)
        results += list(moved.results)
        id, note = f"policy.ood_causal_share_{name}", "shipped policy out of distribution"
        valued = moved.valued()
        figures.append(_share(id, valued, "planner", None, note, n_drawn=len(shifted)))
        share = figures[-1].value
        shares += [] if share is None else [share]
    figures.append(
        Figure("policy.ood_causal_share_min", min(shares) if shares else None, "1", MODELLED,
               {"n": len(shares)}, Target(low=0.90),
               "the lowest of longer outputs, twice the queue, other mix, half the cards")
    )  # fmt: skip
    figures.append(_loss("policy.ood_worst_loss", results, 0.005,
                         "most energy above always-GPU out of distribution"))  # fmt: skip
    return figures, {"roofline": found.as_dict(), "roofline_differences": _differences(found)}


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


def _share(
    id: str,
    results: Sequence[ScenarioResult],
    of: str,
    target: float | None,
    note: str,
    policy: str = OURS,
    n_drawn: int | None = None,
) -> Figure:
    goal = None if target is None else Target(low=target)
    share = mean_share(results, policy, of)
    if share is None:
        return missing(id, "1", f"{note}: no scenario counts", goal)
    spread: dict[str, object] = {
        "n_seeds": share.n, "standard_error": share.error, "low": share.low, "high": share.high,
        "n_scenarios": len(results),
        "scenarios": {r.scenario.name: round(r.share(policy, of), 4) for r in results},
    }  # fmt: skip
    if n_drawn is not None:
        spread["n_drawn"] = n_drawn
    return Figure(id, share.mean, "1", MODELLED, spread, goal, note)


def _loss(id: str, results: Sequence[ScenarioResult], limit: float, note: str) -> Figure:
    losses = {r.scenario.name: round(r.worst_loss(OURS), 6) for r in results}
    spread = {"n_scenarios": len(losses), "scenarios": losses}
    return Figure(id, max(losses.values()), "1", MODELLED, spread, Target(high=limit), note)


if __name__ == "__main__":
    sys.exit(run_benchmark("policy", measure))
