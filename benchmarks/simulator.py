"""How fast is the simulator, batched and plain?

Decisions a second of whole episodes, with the drawing of the episodes and with the observations
that a learner gets, random actions, one core. Both forms run the same pure stage function; plain is
the Gymnasium environment, one episode in floats. In turns. The target is on their ratio: steps a
second say as much about the machine as about ecorl.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np

from benchmarks.harness.command import run_benchmark
from benchmarks.harness.figures import Figure, Target
from ecorl.bench.rounds import TimeBox, balanced_order
from ecorl.bench.stats import median, spread_of
from ecorl.records import Provenance
from ecorl.sim.batched import BatchedEnv, batch_from
from ecorl.sim.env import PlacementEnv, drawing_from
from ecorl.sim.families.training import paper_scenarios
from ecorl.sim.simulation import N_STAGES

MEASURED = Provenance.MEASURED


def measure(options: argparse.Namespace) -> tuple[dict[str, object], list[Figure]]:
    """Measure; returns the settings that the figures depend on, and the figures."""
    n_envs, n_rounds, n_plain = (256, 2, 1) if options.quick else (4096, 6, 3)
    scenarios = paper_scenarios(11, 16)
    n_steps = N_STAGES * scenarios[0].n_iterations
    batched = BatchedEnv(batch_from(scenarios), n_envs, seed=1)
    batched.reset()
    plain = PlacementEnv(drawing_from(scenarios))
    actions = np.random.default_rng(2).integers(0, 3, (64, n_envs))

    def many() -> float:
        for i in range(n_steps):
            batched.step_async(actions[i % 64])
            batched.step_wait()
        return float(n_steps * n_envs)

    def one() -> float:
        for episode in range(n_plain):
            plain.reset(seed=episode)
            for i in range(n_steps):
                plain.step(actions[i % 64, episode])
        return float(n_steps * n_plain)

    arms = {"batched": many, "plain": one}
    for arm in arms.values():
        arm()
    speeds: dict[str, list[float]] = {name: [] for name in arms}
    for order in balanced_order(list(arms), n_rounds, TimeBox(options.box_s)):
        for name in order:
            start_s = time.perf_counter()
            n = arms[name]()
            speeds[name].append(n / (time.perf_counter() - start_s))
    ratios = [a / b for a, b in zip(speeds["batched"], speeds["plain"], strict=True)]
    figures = [
        Figure("env.steps_per_s", median(speeds["batched"]), "step/s", MEASURED,
               spread_of(speeds["batched"]),
               note="batched, one core, whole episodes with their drawing and observations"),
        Figure("env.plain_steps_per_s", median(speeds["plain"]), "step/s", MEASURED,
               spread_of(speeds["plain"]), note="the Gymnasium environment, one episode"),
        Figure("env.batched_vs_plain", median(ratios), "1", MEASURED, spread_of(ratios),
               Target(low=25.0), "steps a second of the batched form over the plain one"),
    ]  # fmt: skip
    return {"n_envs": n_envs, "n_rounds": len(ratios), "n_steps": n_steps}, figures


if __name__ == "__main__":
    sys.exit(run_benchmark("simulator", measure))
