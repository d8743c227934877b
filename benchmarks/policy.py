"""How close does the shipped policy come to the best there is, on scenarios it has not seen?

Compares it with others on kept-out scenarios; what takes training is in
`benchmarks.policy_training`. Everything here is modelled: what the simulator gives. 0 % is
always-GPU, 100 % the clairvoyant dynamic programme, or the best planner without a view of the
future for the causal share.

Which scenarios a share is a mean over stands in its spread under ``counts``. ``hard`` are those in
which simple rules fail (random at most 0 %, best static 60 %, tuned threshold 90 %): all shares
under the paper's calibration at the drawn size. ``valued`` are those in which the optimum gains
0.1 % or more, whatever simple rules reach: too few physical scenarios are hard, so that the shares
of the shipped policy, those out of distribution and those at other numbers of GPUs are of these.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict

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
from ecorl.records import Provenance
from ecorl.scheduler.learned import PolicyFile
from ecorl.sim.scenario import Scenario

MODELLED, MEASURED = Provenance.MODELLED, Provenance.MEASURED
OURS = "learned"
SCALED = "on U55Cs scaled in clock and power, none of which is real"


def say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


def measure(options: argparse.Namespace) -> tuple[dict[str, object], list[Figure]]:
    n_seeds = 2 if options.quick else 10
    figures, config = _roofline(options.quick, n_seeds)
    return {"n_seeds": n_seeds, **config}, figures


def moved(scenarios: Sequence[Scenario], policy: FilePolicy, n_seeds: int) -> list[ScenarioResult]:
    """Scenarios in which there is something to share, without the simple rules."""
    found = compare(scenarios, {OURS: policy}, n_seeds=n_seeds, baselines=False)
    return list(found.valued())


def differences_of(found: PolicyComparison) -> dict[str, object]:
    return {name: asdict(d) for name, d in found.differences(OURS).items()}


def _roofline(quick: bool, n_seeds: int) -> tuple[list[Figure], dict[str, object]]:
    file = FilePolicy(PolicyFile())
    drawn = runs.kept_out_roofline(3 if quick else 24)
    found = runs.compared(drawn + runs.natural(), {OURS: file}, n_seeds, say)
    kept_out = [r for r in found.results if r.scenario in drawn]
    figures = [
        _loss("policy.roofline_worst_loss", found.results, 0.001,
              "most energy above always-GPU, all scenarios and seeds, share of it"),
        share_figure("policy.roofline_causal_share", found.valued(), "planner", 0.95,
               f"shipped policy, kept-out GPU and model size, {SCALED}", counts="valued",
               more={"cards": runs.card_factors(drawn)}),
        share_figure("policy.roofline_causal_share_hard", found.hard(), "planner", 0.95,
               "of these, where simple rules fail"),
        share_figure("policy.roofline_lookahead_causal_share", found.valued(), "planner", None,
               "look-ahead over one iteration, which needs no training, in the same scenarios",
               "lookahead", counts="valued", more={"ours_less_this": _difference(found)}),
        above_without_cards("roofline", kept_out, f"shipped policy, {SCALED}"),
        *_real_pairs([r for r in found.results if r.scenario not in drawn], n_seeds),
    ]  # fmt: skip
    bases = [r.scenario for r in kept_out if r.has_value]
    figures += _out_of_distribution(bases[: 1 if quick else 6], file, n_seeds)
    return figures, {"roofline": found.as_dict(), "roofline_differences": differences_of(found)}


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
            share_figure(f"policy.ood_causal_share_{name}", moved.valued(), "planner", None,
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
    figures.append(
        share_figure("policy.ood_causal_share_worst_scenario", worst, "planner", None, note,
                     counts="valued", n_drawn=len(results))
    )  # fmt: skip
    figures.append(_loss("policy.ood_worst_loss", results, 0.005,
                         "most energy above always-GPU out of distribution"))  # fmt: skip
    return figures


def above_without_cards(family: str, results: Sequence[ScenarioResult], whose: str) -> Figure:
    """In how many scenarios the policy takes more energy than the same GPUs without cards."""
    ratios = {r.scenario.name: r.energy_without_cards(OURS) for r in results}
    n_above = sum(ratio > 1.0 + 1e-9 for ratio in ratios.values())
    spread = {"n": len(ratios), "n_above": n_above, "median": float(np.median([*ratios.values()])),
              "max": max(ratios.values()), "scenarios": ratios}  # fmt: skip
    note = "share of scenarios in which the policy takes more energy than the same GPUs in a "
    note += f"machine without cards ({whose}); always-GPU's bill holds the cards that idle"
    id = f"policy.above_gpus_without_cards_{family}"
    return Figure(id, n_above / len(ratios), "1", MODELLED, spread, None, note)


def share_figure(
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
