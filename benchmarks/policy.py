"""How close does the learned policy come to the best there is, on scenarios it has not seen?

Trains the shipped policy from nothing as ``make policy`` does (timed, and compared with the shipped
file), makes the policies that stand beside it under the paper's calibration, and compares all on
kept-out scenarios. Everything here is modelled: what the simulator gives. 0 % is always-GPU, 100 %
the clairvoyant dynamic programme, or the best planner without a view of the future for the causal
share.

Which scenarios a share is a mean over stands in its spread under ``counts``. ``hard`` are those in
which simple rules fail (random at most 0 %, best static 60 %, tuned threshold 90 %): all shares
under the paper's calibration at the drawn size. ``valued`` are those in which the optimum gains
0.1 % or more, whatever simple rules reach: too few physical scenarios are hard, so that the shares
of the shipped policy, those out of distribution and those at other numbers of GPUs are of these.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

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
from ecorl.policy.planners.heuristics import lookahead_deferring
from ecorl.policy.training.train import NetworkPolicy, TrainingPlan
from ecorl.records import Provenance
from ecorl.scheduler.learned import PolicyFile
from ecorl.sim.scenario import Scenario

MODELLED, MEASURED = Provenance.MODELLED, Provenance.MEASURED
OURS = "learned"
DEFERRING = "lookahead_deferring"
UNSHIPPED = "a network that this benchmark trains for it, not the shipped one"
SCALED = "on U55Cs scaled in clock and power, none of which is real"


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
        DEFERRING: lookahead_deferring,
    }
    scenarios = runs.kept_out_paper(2 if quick else 12)
    found = runs.compared(scenarios, policies, n_seeds, say)
    whose = f"paper calibration; {UNSHIPPED}"
    figures = [
        _share("policy.causal_share_paper", found.hard(), "planner", 0.98, whose),
        _share("policy.dp_share_paper", found.hard(), "dp", 0.95, whose),
        _above_without_cards("paper", found.results, whose),
    ]
    for name in ("imitation_only", "ppo_only", "threshold", "static", "lookahead", DEFERRING,
                 "algorithm1", "edi", "edi_queue", "random", "planner"):  # fmt: skip
        note = "share of the dynamic programme, paper calibration"
        figures.append(_share(f"policy.{name}_share", found.hard(), "dp", None, note, name))
    hard = list(found.hard())[: 1 if quick else 4]
    for n_gpus, scaled in runs.scaled([r.scenario for r in hard]).items():
        # At 32 GPUs they are the scenarios themselves.
        results = hard if n_gpus == 32 else _moved(scaled, policies[OURS], n_seeds)
        figures.append(
            _share(f"policy.causal_share_n{n_gpus}", results, "planner", 0.97,
                   f"paper calibration on {n_gpus} GPUs, without retraining; {UNSHIPPED}",
                   counts="hard" if n_gpus == 32 else "valued", n_drawn=len(scaled))
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
    return {name: asdict(d) for name, d in found.differences(OURS).items()}


def _roofline(quick: bool, n_seeds: int) -> tuple[list[Figure], dict[str, object]]:
    file = FilePolicy(PolicyFile())
    drawn = runs.kept_out_roofline(3 if quick else 24)
    found = runs.compared(drawn + runs.natural(), {OURS: file}, n_seeds, say)
    kept_out = [r for r in found.results if r.scenario in drawn]
    figures = [
        _loss("policy.roofline_worst_loss", found.results, 0.001,
              "most energy above always-GPU, all scenarios and seeds, share of it"),
        _share("policy.roofline_causal_share", found.valued(), "planner", 0.95,
               f"shipped policy, kept-out GPU and model size, {SCALED}", counts="valued",
               more={"cards": runs.card_factors(drawn)}),
        _share("policy.roofline_causal_share_hard", found.hard(), "planner", 0.95,
               "of these, where simple rules fail"),
        _share("policy.roofline_lookahead_causal_share", found.valued(), "planner", None,
               "look-ahead over one iteration, which needs no training, in the same scenarios",
               "lookahead", counts="valued", more={"ours_less_this": _difference(found)}),
        _above_without_cards("roofline", kept_out, f"shipped policy, {SCALED}"),
        *_real_pairs([r for r in found.results if r.scenario not in drawn], n_seeds),
    ]  # fmt: skip
    bases = [r.scenario for r in kept_out if r.has_value]
    figures += _out_of_distribution(bases[: 1 if quick else 6], file, n_seeds)
    return figures, {"roofline": found.as_dict(), "roofline_differences": _differences(found)}


def _difference(found: PolicyComparison) -> dict[str, object]:
    """The learned policy less the look-ahead where there is something to share."""
    differences = found.differences(OURS, "planner", found.valued())
    return asdict(differences["lookahead"]) if differences else {}


def _real_pairs(results: Sequence[ScenarioResult], n_seeds: int) -> list[Figure]:
    """What offload can gain on real GPUs with the real card."""
    say("real pairs of GPU and card without guards")
    wide = runs.unguarded([r.scenario for r in results])
    free = compare(wide, {}, n_seeds=n_seeds, baselines=False)
    note = "most that the clairvoyant optimum gains over always-GPU, Eq. 7 an iteration, on five"
    note += " real pairs of a GPU (one a CPU) and the U55C as it is"
    return [
        _gain("policy.real_pairs_gain", results, f"{note}, under the guards as they are set"),
        _gain("policy.real_pairs_gain_unguarded", free.results, f"{note}, without any guard"),
    ]


def _gain(id: str, results: Sequence[ScenarioResult], note: str) -> Figure:
    pairs: dict[str, object] = {}
    for r in results:
        best = r.scores["dp"]
        saved = 1.0 - float(best.energy.mean()), 1.0 - float(best.time.mean())
        gain, saved_j, saved_s = (round(x, 9) + 0.0 for x in (r.gain, *saved))
        pairs[r.scenario.name] = {"gain": gain, "energy_saved": saved_j, "time_saved": saved_s}
    gain = max(round(r.gain, 9) + 0.0 for r in results)
    return Figure(id, gain, "1", MODELLED, {"n": len(results), "pairs": pairs}, None, note)


def _out_of_distribution(bases: Sequence[Scenario], file: FilePolicy, n_seeds: int) -> list[Figure]:
    figures: list[Figure] = []
    results: list[ScenarioResult] = []
    valued: list[ScenarioResult] = []
    for name, shifted in runs.shifted(bases).items():
        say(f"out of distribution: {name}")
        moved = compare(shifted, {OURS: file}, n_seeds=n_seeds, baselines=False)
        results += list(moved.results)
        valued += list(moved.valued())
        figures.append(
            _share(f"policy.ood_causal_share_{name}", moved.valued(), "planner", None,
                   f"shipped policy out of distribution, {SCALED}", counts="valued",
                   n_drawn=len(shifted))
        )  # fmt: skip
    shares = [f.value for f in figures if f.value is not None]
    figures.append(
        Figure("policy.ood_causal_share_min", min(shares) if shares else None, "1", MODELLED,
               {"n": len(shares)}, Target(low=0.90),
               "the lowest of longer outputs, twice the queue, other mix, half the cards; each "
               "is a mean over scenarios")
    )  # fmt: skip
    worst = sorted(valued, key=lambda r: r.share(OURS, "planner"))[:1]
    note = "the lowest share of the planner in a single scenario out of distribution"
    figures.append(_share("policy.ood_causal_share_worst_scenario", worst, "planner", None, note,
                          counts="valued", n_drawn=len(results)))  # fmt: skip
    figures.append(_loss("policy.ood_worst_loss", results, 0.005,
                         "most energy above always-GPU out of distribution"))  # fmt: skip
    return figures


def _above_without_cards(family: str, results: Sequence[ScenarioResult], whose: str) -> Figure:
    """In how many scenarios the policy takes more energy than the same GPUs without cards."""
    ratios = {r.scenario.name: r.energy_without_cards(OURS) for r in results}
    n_above = sum(ratio > 1.0 + 1e-9 for ratio in ratios.values())
    spread = {"n": len(ratios), "n_above": n_above, "median": float(np.median([*ratios.values()])),
              "max": max(ratios.values()), "scenarios": ratios}  # fmt: skip
    note = "share of scenarios in which the policy takes more energy than the same GPUs in a "
    note += f"machine without cards ({whose}); always-GPU's bill holds the cards that idle"
    id = f"policy.above_gpus_without_cards_{family}"
    return Figure(id, n_above / len(ratios), "1", MODELLED, spread, None, note)


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
    *,
    counts: str = "hard",
    n_drawn: int | None = None,
    more: Mapping[str, object] | None = None,
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
    spread |= {"counts": counts} | dict(more or {})
    if n_drawn is not None:
        spread["n_drawn"] = n_drawn
    return Figure(id, share.mean, "1", MODELLED, spread, goal, note)


def _loss(id: str, results: Sequence[ScenarioResult], limit: float, note: str) -> Figure:
    losses = {r.scenario.name: round(r.worst_loss(OURS), 6) for r in results}
    spread = {"n_scenarios": len(losses), "scenarios": losses}
    return Figure(id, max(losses.values()), "1", MODELLED, spread, Target(high=limit), note)


if __name__ == "__main__":
    sys.exit(run_benchmark("policy", measure))
