"""The pool of scenarios on which one network is trained for all families.

The paper's calibration has a 70 B policy on H100s and one U55C for every eight. The hypothetical
jobs run on cards that do not exist: named FPGAs at what their silicon could do at most.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ecorl.records import NO_ABILITIES, Abilities, Algorithm, Stage
from ecorl.sim.families import pools
from ecorl.sim.families.jobs import drift_scenarios, mixed_scenarios, wrong_table_scenarios
from ecorl.sim.families.profiles import cpu_profile, silicon_card
from ecorl.sim.scenario import Limits, Scenario


def paper_scenarios(
    seed: int, n: int, *, harder: bool = False, name: str = "paper"
) -> list[Scenario]:
    """Scenarios under the paper's calibration.

    Args:
        seed: of the draw.
        n: scenarios.
        harder: long rows and shared cards, where no simple rule does well.
        name: prefix of the names.
    """
    rng = np.random.default_rng([seed, 1])
    return [_paper(rng, f"{name}-{i}", harder) for i in range(n)]


def _paper(rng: np.random.Generator, name: str, harder: bool) -> Scenario:
    low, high = (2.0, 3.2) if harder else (0.8, 3.4)
    n_gpus = 32 if harder else int(rng.choice([8, 16, 32, 64, 128, 256, 512, 1024]))
    algorithm = (
        Algorithm.PPO if harder or rng.random() < 0.7 else Algorithm(rng.choice(pools.ALGORITHMS))
    )
    return Scenario(
        name,
        calibration="paper",
        algorithm=algorithm,
        sizes={Stage.GENERATION: "70b"},
        n_gpus=n_gpus,
        n_cards=max(1, n_gpus // 8),
        n_rows=256 if harder else int(rng.choice([128, 256, 512, 1024])),
        abilities=pools.ALL,
        limits=Limits(8.0, 8192.0, None),
        max_length=8192.0,
        length_scale=float(rng.uniform(low, high)),
        load=float(rng.uniform(0.45, 0.7) if harder else rng.uniform(0.0, 0.75)),
        burst_s=float(rng.uniform(0.8, 1.6) if harder else rng.uniform(0.4, 2.5)),
        calm=float(rng.uniform(0.85, 0.95)),
        concentration=float(rng.uniform(4.0, 16.0)),
        drift_std=float(rng.uniform(0.15, 0.30)),
        noise_std=float(rng.uniform(0.02, 0.06)),
        failure_rate=0.0 if rng.random() < 0.7 else float(rng.uniform(0.0, 0.01)),
        ambient_c=float(
            rng.uniform(20.0, 30.0) if rng.random() < 0.85 else rng.uniform(36.0, 44.0)
        ),
        slow=1.0 if rng.random() < 0.8 else float(rng.uniform(1.0, 1.4)),
        off_policy=bool(not harder and rng.random() < 0.1),
        reward_calls=1 if harder or rng.random() < 0.9 else 4,
    )


PARTS = ("u55c", "v80")


def _ambient_c(rng: np.random.Generator, *, hot: bool) -> float:
    """Air temperature; above 32 degrees a busy card slows."""
    warm = rng.random() < 0.15
    return float(rng.uniform(34.0, 42.0) if warm and hot else rng.uniform(20.0, 31.0))


def hypothetical_scenarios(
    seed: int, n: int, *, held_out: bool = False, name: str = "hypothetical"
) -> list[Scenario]:
    """Scenarios on the physical calibration, on cards at the limit of a named part's silicon.

    Args:
        seed: of the draw.
        n: scenarios.
        held_out: on the GPU and the model size that training never sees, with any algorithm.
        name: prefix of the names.
    """
    rng = np.random.default_rng([seed, 2])
    found: list[Scenario] = []
    while len(found) < n:
        drawn = _hypothetical(rng, f"{name}-{len(found)}", held_out)
        if drawn is not None:
            found.append(drawn)
    return found


def _hypothetical(rng: np.random.Generator, name: str, held_out: bool) -> Scenario | None:
    gpu = pools.HELD_OUT_GPU if held_out else str(rng.choice(pools.GPUS))
    sizes = list(pools.SIZES)
    inference = (
        pools.HELD_OUT_SIZE if held_out else str(rng.choice(sizes[:3] if gpu == "cpu" else sizes))
    )
    policy = (
        inference if rng.random() < 0.6 else str(rng.choice(sizes[:3] if gpu == "cpu" else sizes))
    )
    n_gpus = 1 if gpu in ("cpu", "l4") else int(rng.choice([1, 2, 4, 8, 16, 32]))
    algorithm = Algorithm(rng.choice(pools.ALGORITHMS if held_out else pools.TRAINING_ALGORITHMS))
    max_length = float(rng.choice([64.0, 256.0, 1024.0, 4096.0]))
    abilities = (NO_ABILITIES, pools.FROZEN, Abilities(early_forward=True), pools.FROZEN)[
        int(rng.integers(4))
    ]
    scenario = Scenario(
        name,
        algorithm=algorithm,
        sizes={Stage.GENERATION: policy, Stage.REWARD: inference, Stage.REFERENCE: policy,
               Stage.CRITIC: inference},
        n_rows=int(rng.choice([32, 64, 128, 256, 512])),
        prompt_length=float(rng.choice([16.0, 64.0, 256.0, 512.0])),
        gpu=cpu_profile(int(rng.choice([2, 4, 16]))) if gpu == "cpu" else gpu,
        n_gpus=n_gpus,
        n_cards=int(rng.choice([1, 2, 4, 8])),
        reward_calls=1 if rng.random() < 0.85 else 4,
        off_policy=bool(rng.random() < 0.15),
        adaptive_batch=bool(rng.random() < 0.2),
        concentration=float(rng.uniform(3.0, 16.0)),
        length_scale=max_length / 4096.0 * float(rng.uniform(0.6, 2.0)),
        max_length=max_length,
        drift_std=float(rng.uniform(0.1, 0.35)),
        noise_std=float(rng.uniform(0.02, 0.06)),
        load=0.0 if rng.random() < 0.35 else float(rng.uniform(0.1, 0.75)),
        burst_s=float(rng.uniform(0.4, 2.5)),
        calm=float(rng.uniform(0.85, 0.97)),
        failure_rate=0.0 if rng.random() < 0.7 else float(rng.uniform(0.0, 0.01)),
        slow=1.0 if rng.random() < 0.8 else float(rng.uniform(1.0, 1.4)),
        abilities=abilities,
        limits=Limits(8.0, float(rng.choice([2048.0, 8192.0])), 0.0),
    )  # fmt: skip
    length_s = pools.iteration_s(scenario)
    if length_s is None:
        return None
    card = silicon_card(str(rng.choice(PARTS)), float(rng.uniform(0.3, 1.0)))
    made = replace(scenario, card=card, ambient_c=_ambient_c(rng, hot=length_s > pools.LONG_S))
    return made if pools.is_priced(made) else None


def training_pool(seed: int, n: int) -> list[Scenario]:
    """Draw scenarios of every family, for one network that serves them all.

    Args:
        seed: of the draw.
        n: scenarios; where they are few the last families have none.
    """
    found: list[Scenario] = []
    for share, draw in POOL:
        found += draw(seed, min(math.ceil(share * n), n - len(found)))
    return found


def paper_pool(seed: int, n: int) -> list[Scenario]:
    """Draw scenarios under the paper's calibration, a third of them harder.

    Args:
        seed: of the draw.
        n: scenarios.
    """
    n_hard = n // 3
    drawn = paper_scenarios(seed, n - n_hard)
    return drawn + paper_scenarios(seed + 1, n_hard, harder=True, name="hard")


POOL: tuple[tuple[float, Callable[[int, int], list[Scenario]]], ...] = (
    (0.33, drift_scenarios),
    (0.27, wrong_table_scenarios),
    (0.25, mixed_scenarios),
    (0.08, paper_pool),
    (0.07, hypothetical_scenarios),
)
"""Families of the training pool, and their shares."""
