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
from collections.abc import Callable
from functools import partial

import numpy as np

from benchmarks.harness import Figure, FigureTable, in_turns, run_benchmark
from ecorl.bench.rounds import TimeBox
from ecorl.sim.batched import BatchedEnv, batch_from
from ecorl.sim.env import PlacementEnv, drawing_from
from ecorl.sim.families.training import paper_scenarios
from ecorl.sim.simulation import N_STAGES

FIGURES = FigureTable("simulator")


def measure(options: argparse.Namespace) -> tuple[dict[str, object], list[Figure]]:
    """Measure; returns the settings that the figures depend on, and the figures."""
    n_envs, n_rounds, n_plain = (256, 2, 1) if options.quick else (4096, 6, 3)
    scenarios = paper_scenarios(11, 16)
    n_steps = N_STAGES * scenarios[0].n_iterations
    batched = BatchedEnv(batch_from(scenarios), n_envs, seed=1)
    batched.reset()
    plain = PlacementEnv(drawing_from(scenarios))
    actions = np.random.default_rng(2).integers(0, 3, (64, n_envs))

    def many() -> int:
        for i in range(n_steps):
            batched.step_async(actions[i % 64])
            batched.step_wait()
        return n_steps * n_envs

    def one() -> int:
        for episode in range(n_plain):
            plain.reset(seed=episode)
            for i in range(n_steps):
                plain.step(actions[i % 64, episode])
        return n_steps * n_plain

    def speed(arm: Callable[[], int]) -> float:
        start_s = time.perf_counter()
        return arm() / (time.perf_counter() - start_s)

    arms = {"batched": partial(speed, many), "plain": partial(speed, one)}
    for arm in arms.values():
        arm()
    speeds = in_turns(arms, n_rounds, TimeBox(options.box_s))
    figures = [
        FIGURES.median("env.steps_per_s", speeds["batched"]),
        FIGURES.median("env.plain_steps_per_s", speeds["plain"]),
        FIGURES.ratio("env.batched_vs_plain", speeds["batched"], speeds["plain"]),
    ]
    return {"n_envs": n_envs, "n_rounds": len(speeds["plain"]), "n_steps": n_steps}, figures


if __name__ == "__main__":
    sys.exit(run_benchmark("simulator", measure))
