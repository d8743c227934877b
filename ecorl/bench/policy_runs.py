"""Training and comparing policies for the benchmark, step by step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ecorl.bench.hidden_runs.ledger_writer import write_ledger
from ecorl.bench.hidden_runs.scenario import hidden_scenario
from ecorl.devices import load_profile
from ecorl.policy.calibration.calibrate import calibrate
from ecorl.policy.evaluation.evaluate import (
    FilePolicy,
    PolicyComparison,
    SimPolicy,
    compare,
)
from ecorl.policy.evaluation.statistics import estimate, ratio_values
from ecorl.policy.planners.planner import Clairvoyant, Planner
from ecorl.policy.training.export import save_onnx
from ecorl.policy.training.train import Made, NetworkPolicy, TrainingPlan, train
from ecorl.scheduler.learned import PolicyFile
from ecorl.sim.families import SHIFTS, at_scale, paper_scenarios, roofline_scenarios
from ecorl.sim.scenario import Limits, Scenario
from ecorl.sim.simulation import Simulation, play
from ecorl.sim.trace import draw_trace

Say = Callable[[str], None]

SHIPPED_PLAN = TrainingPlan()
PAPER_PLAN = TrainingPlan("paper", n_scenarios=32, n_rounds=3, ppo_steps=100_000)
PPO_PLAN = TrainingPlan("paper", n_scenarios=64, ppo_steps=500_000, imitate=False)
FITTED_PLAN = TrainingPlan("fitted", n_scenarios=6, n_rounds=3, n_epochs=10, ppo_steps=0)

KEPT_OUT_SEED = 9001
"""Training draws its scenarios from small seeds."""

SIZES = (8, 32, 128, 1024)
NO_LIMITS = Limits(1e9, 1e9, None)
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
    from ecorl.sim.batched import observe

    rng = np.random.default_rng(seed)
    scenarios = roofline_scenarios(77, 4)
    simulation = Simulation(draw_trace(scenarios, rng))
    worst = 0.0
    for _ in range(60):
        states = observe(simulation)[0]
        gap = np.abs(ours.file.batch(states) - theirs.file.batch(states))
        worst = max(worst, float(gap.max()))
        simulation.step(rng.integers(0, 3, len(scenarios)))
    return worst


def kept_out_paper(n: int) -> list[Scenario]:
    """Scenarios under the paper's calibration that no training has seen."""
    return paper_scenarios(KEPT_OUT_SEED, n, harder=True, name="paper")


def kept_out_roofline(n: int) -> list[Scenario]:
    """Physical scenarios on a GPU and a model size that no training has seen."""
    return roofline_scenarios(KEPT_OUT_SEED, n, held_out=True)


def natural() -> list[Scenario]:
    """Real profiles as they are: where offloading to a U55C mostly does not pay."""
    from ecorl.records import Algorithm, Stage
    from ecorl.sim.families import FROZEN, cpu_profile

    limits = Limits(8.0, 2048.0, 0.0)
    tiny = dict.fromkeys(Stage, "160k")
    small = dict.fromkeys(Stage, "0.5b")
    common = {"abilities": FROZEN, "limits": limits, "load": 0.2}
    return [
        Scenario("h100x32-8b", **common),  # type: ignore[arg-type]
        Scenario("h100x8-8b-grpo", algorithm=Algorithm.GRPO, n_gpus=8, **common),  # type: ignore[arg-type]
        Scenario("a100x8-8b", gpu="a100_sxm", n_gpus=8, **common),  # type: ignore[arg-type]
        Scenario("l4-0.5b", gpu="l4", n_gpus=1, n_cards=1, sizes=small, n_rows=64,
                 length_scale=0.25, max_length=1024.0, **common),  # type: ignore[arg-type]
        Scenario("cpu-tiny", gpu=cpu_profile(2), n_gpus=1, n_cards=1, sizes=tiny, n_rows=64,
                 algorithm=Algorithm.GRPO, prompt_length=16.0, length_scale=0.01, max_length=64.0,
                 **common),  # type: ignore[arg-type]
    ]  # fmt: skip


def unguarded(scenarios: Sequence[Scenario]) -> list[Scenario]:
    """The same jobs with every guard wide open: neither length, queue nor energy stops offload."""
    return [replace(s, name=f"{s.name}-unguarded", limits=NO_LIMITS) for s in scenarios]


def card_factors(scenarios: Sequence[Scenario], name: str = "u55c") -> dict[str, object]:
    """How far the cards of some scenarios are from the real one that they were scaled from.

    Args:
        scenarios: each with a scaled card.
        name: profile of the real card.

    Returns:
        Least and greatest factor on clock and power, the greatest clock (Hz) and the greatest
        power of one card (W).
    """
    real, cards = load_profile(name), [s.setting.card for s in scenarios]
    clocks = [card.value("clock_hz") for card in cards]
    powers_w = [card.value("active_w") for card in cards]
    clock_hz, power_w = real.value("clock_hz"), real.value("active_w")
    return {
        "scaled_from": name,
        "n_real": sum(card.name == name for card in cards),
        "speed_factors": [min(clocks) / clock_hz, max(clocks) / clock_hz],
        "power_factors": [min(powers_w) / power_w, max(powers_w) / power_w],
        "greatest_clock_hz": max(clocks),
        "greatest_card_w": max(powers_w),
    }


def scaled(scenarios: Sequence[Scenario]) -> dict[int, list[Scenario]]:
    """The same jobs on other numbers of GPUs."""
    return {n: [at_scale(s, n) for s in scenarios] for n in SIZES}


def shifted(scenarios: Sequence[Scenario]) -> dict[str, list[Scenario]]:
    """The same jobs out of distribution; what cannot be priced any more is left out."""
    from ecorl.errors import EcorlError

    found: dict[str, list[Scenario]] = {}
    for name, shift in SHIFTS.items():
        kept = []
        for scenario in scenarios:
            moved = shift(scenario)
            try:
                _ = moved.table
            except EcorlError:
                continue
            kept.append(moved)
        found[name] = kept
    return found


def fitted_share(folder: Path, seed: int, say: Say) -> tuple[float, dict[str, float]]:
    """Share of the hidden scenario's optimum that a policy of the fitted simulator reaches.

    Args:
        folder: work folder.
        seed: of the hidden scenario.
        say: prints a line of progress.

    Returns:
        The share over ten episodes of the hidden scenario, and how far it can be trusted.
    """
    from ecorl.policy.evaluation.pools import variations

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


def compared(
    scenarios: Sequence[Scenario], policies: dict[str, SimPolicy], n_seeds: int, say: Say
) -> PolicyComparison:
    """Compare policies and say so before.

    Args:
        scenarios: to compare on.
        policies: by name.
        n_seeds: episodes of each scenario.
        say: prints a line of progress.
    """
    say(f"comparing on {len(scenarios)} scenarios x {n_seeds} seeds")
    return compare(scenarios, policies, n_seeds=n_seeds)
