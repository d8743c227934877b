"""Training policies for the benchmark, step by step."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.studies.hidden_runs.ledger_writer import write_ledger
from benchmarks.studies.hidden_runs.scenario import hidden_scenario
from ecorl.policy.calibration.calibrate import calibrate
from ecorl.policy.evaluation.comparison import estimate, ratio_values
from ecorl.policy.evaluation.evaluate import FilePolicy
from ecorl.policy.evaluation.pools import variations
from ecorl.policy.planners.planner import Clairvoyant, Planner
from ecorl.policy.training.export import save_onnx
from ecorl.policy.training.train import Made, NetworkPolicy, TrainingPlan, train
from ecorl.scheduler.policy_file import PolicyFile
from ecorl.sim.batched import observe
from ecorl.sim.families.training import training_pool
from ecorl.sim.simulation import Simulation, play
from ecorl.sim.trace import draw_trace

Say = Callable[[str], None]

SHIPPED_PLAN = TrainingPlan(seed=2)
UNMEASURED_PLAN = TrainingPlan(measured=False, ppo_steps=0)
"""Without what was measured: the network sees the tables alone."""
PPO_PLAN = TrainingPlan(ppo_steps=500_000, imitate=False)
FITTED_PLAN = TrainingPlan("fitted", n_scenarios=6, n_rounds=3, n_epochs=10, ppo_steps=0)

HIDDEN_SEEDS = (1, 2)
"""Hidden scenarios that are hard enough by the same measure as the others."""


@dataclass(frozen=True, slots=True)
class Trained:
    """A policy that the benchmark trained itself, and how long that took, s."""

    made: Made
    time_s: float


def trained(plan: TrainingPlan, folder: Path, say: Say) -> Trained:
    """Train from nothing, timed.

    Args:
        plan: how.
        folder: work folder of the training.
        say: prints a line of progress.
    """
    say(f"training: {plan.family}, {plan.n_scenarios} scenarios, PPO {plan.ppo_steps:,} steps")
    start_s = time.monotonic()
    made = train(plan, folder, tensorboard=False)
    return Trained(made, time.monotonic() - start_s)


def saved(made: Made, path: Path) -> FilePolicy:
    """Write a trained policy as an ONNX file and load it.

    Args:
        made: the training's result.
        path: of the file.
    """
    save_onnx(made.network, made.record, path)
    return FilePolicy(PolicyFile(path))


def difference(ours: FilePolicy, theirs: FilePolicy, seed: int = 0) -> float:
    """Largest difference of the logits of two policies over states of random play.

    Args:
        ours: one policy.
        theirs: the other.
        seed: of the random play.
    """
    rng = np.random.default_rng(seed)
    scenarios = training_pool(77, 8)
    simulation = Simulation(draw_trace(scenarios, rng))
    worst = 0.0
    for _ in range(60):
        states = observe(simulation)[0]
        gap = np.abs(ours.file.batch(states) - theirs.file.batch(states))
        worst = max(worst, float(gap.max()))
        simulation.step(rng.integers(0, 3, len(scenarios)))
    return worst


def fitted_share(folder: Path, seed: int, say: Say) -> tuple[float, dict[str, float]]:
    """Share of the hidden scenario's optimum that a policy of the fitted simulator reaches.

    Args:
        folder: work folder.
        seed: of the hidden scenario.
        say: prints a line of progress.

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
