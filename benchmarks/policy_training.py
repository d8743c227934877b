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
import time
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from benchmarks import policy
from benchmarks.harness import Figure, run_benchmark
from benchmarks.policy import FIGURES, OURS, say
from benchmarks.studies.hidden_runs import hidden_scenario, write_ledger
from ecorl.policy.calibration.calibrate import calibrate
from ecorl.policy.evaluation.comparison import estimate, ratio_values
from ecorl.policy.evaluation.evaluate import FilePolicy, SimPolicy
from ecorl.policy.evaluation.pools import LEARNING, variations
from ecorl.policy.planners.planner import Clairvoyant, Planner
from ecorl.policy.training.export import save_onnx
from ecorl.policy.training.train import Made, NetworkPolicy, TrainingPlan, train
from ecorl.scheduler.policy_file import PolicyFile
from ecorl.sim.batched import observe
from ecorl.sim.families.training import training_pool
from ecorl.sim.simulation import Simulation, play
from ecorl.sim.trace import draw_trace

EXTENT = replace(policy.FULL, n_scenarios=24, families=LEARNING)

SHIPPED_PLAN = TrainingPlan(seed=2)
UNMEASURED_PLAN = TrainingPlan(measured=False, ppo_steps=0)
"""Without what was measured: the network sees the tables alone."""
PPO_PLAN = TrainingPlan(ppo_steps=500_000, imitate=False)
FITTED_PLAN = TrainingPlan("fitted", n_scenarios=6, n_rounds=3, n_epochs=10, ppo_steps=0)

HIDDEN_SEEDS = (1, 2)
"""Hidden scenarios that are hard enough by the same measure as the others."""


def measure(options: argparse.Namespace) -> tuple[dict[str, object], list[Figure]]:
    """Measure; returns the settings that the figures depend on, and the figures."""
    quick = options.quick
    with tempfile.TemporaryDirectory(prefix="ecorl-bench-policy-") as name:
        folder = Path(name)
        figures, arms = _trained(folder, quick)
        ablations, config = _ablations(arms, quick)
        figures += [*ablations, *_fitted(folder, quick)]
    return config, figures


def _train(plan: TrainingPlan, folder: Path, quick: bool) -> Made:
    """Train from nothing; a quick pass trains less."""
    if quick:
        steps = 20_000 if plan.ppo_steps else 0
        plan = replace(
            plan, n_scenarios=8, n_iterations=20, n_rounds=1, n_epochs=2, ppo_steps=steps
        )
    say(f"training: {plan.family}, {plan.n_scenarios} scenarios, PPO {plan.ppo_steps:,} steps")
    return train(plan, folder, tensorboard=False)


def _trained(folder: Path, quick: bool) -> tuple[list[Figure], dict[str, SimPolicy]]:
    """The shipped policy from nothing, whether it is the same, and those that lack a part."""
    start_s = time.monotonic()
    again = _train(SHIPPED_PLAN, folder / "shipped", quick)
    taken_s = time.monotonic() - start_s
    save_onnx(again.network, again.record, folder / "rebuilt.onnx")
    rebuilt = FilePolicy(PolicyFile(folder / "rebuilt.onnx"))
    assert again.imitated is not None  # the plan imitates
    networks = {
        "imitation_only": again.imitated,
        "ppo_only": _train(PPO_PLAN, folder / "ppo", quick).network,
        "without_measured": _train(UNMEASURED_PLAN, folder / "unmeasured", quick).network,
    }
    alone = {name: NetworkPolicy(network.arrays()) for name, network in networks.items()}
    return [
        FIGURES.figure("train.seconds", taken_s, {"n": 1}),
        FIGURES.figure("policy.rebuilt_difference", _difference(rebuilt, FilePolicy(PolicyFile()))),
    ], {OURS: rebuilt, **alone}


def _difference(ours: FilePolicy, theirs: FilePolicy) -> float:
    """Largest difference of the logits of two policies over states of random play."""
    rng = np.random.default_rng(0)
    scenarios = training_pool(77, 8)
    simulation = Simulation(draw_trace(scenarios, rng))
    worst = 0.0
    for _ in range(60):
        states = observe(simulation)[0]
        gap = np.abs(ours.file.batch(states) - theirs.file.batch(states))
        worst = max(worst, float(gap.max()))
        simulation.step(rng.integers(0, 3, len(scenarios)))
    return worst


def _ablations(arms: dict[str, SimPolicy], quick: bool) -> tuple[list[Figure], dict[str, object]]:
    extent = policy.QUICK if quick else EXTENT
    figures: list[Figure] = []
    found = policy.compared(extent, arms)
    for family, comparison in found.items():
        for name in [name for name in arms if name != OURS]:
            gain, words = comparison.gain(OURS, name), {"name": name, "family": family}
            id = "policy.gain_over_{name}_{family}"
            figures.append(FIGURES.figure(id, gain.mean, asdict(gain), words=words))
    return figures, policy.settings(extent, found)


def _fitted(folder: Path, quick: bool) -> list[Figure]:
    if quick:
        return []
    found = {seed: _fitted_share(folder, seed) for seed in HIDDEN_SEEDS}
    spreads = {str(seed): spread for seed, (_, spread) in found.items()}
    lowest = min(share for share, _ in found.values())
    return [FIGURES.figure("policy.fitted_share", lowest, spreads)]


def _fitted_share(folder: Path, seed: int) -> tuple[float, dict[str, float]]:
    """Share of the hidden scenario's optimum that a policy of the fitted simulator reaches.

    Args:
        folder: work folder.
        seed: of the hidden scenario.

    Returns:
        The share over ten episodes of the hidden scenario, and how far it can be trusted.
    """
    say(f"fitting: hidden scenario {seed}")
    hidden = hidden_scenario(seed)
    run = folder / f"hidden-{seed}"
    write_ledger(hidden, run, seed=seed)
    scenario = calibrate(run).scenario(n_iterations=100)
    pool = variations(scenario, FITTED_PLAN.n_scenarios)
    made = train(FITTED_PLAN, folder / f"fitted-{seed}", scenarios=pool, tensorboard=False)
    test = replace(hidden, n_iterations=200)
    trace = draw_trace([test] * 10, np.random.default_rng([seed, 99]))
    ours = play(Simulation(trace), NetworkPolicy(made.network.arrays()))[0]
    best = play(Simulation(trace), Clairvoyant(trace))[0]
    planner = play(Simulation(trace), Planner(trace.scenarios))[0]
    share = estimate(ratio_values(ours, best))
    return share.mean, {
        "n": share.n,
        "standard_error": share.error,
        "low": share.low,
        "high": share.high,
        "planner": float(planner.mean() / best.mean()),
    }


if __name__ == "__main__":
    sys.exit(run_benchmark("policy_training", measure))
