"""Scenarios under the paper's calibration: its 70 B policy on H100s, one U55C for every eight."""

from __future__ import annotations

import numpy as np

from ecorl.records import Algorithm, Stage
from ecorl.sim.families.pools import ALGORITHMS, ALL
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
    algorithm = Algorithm.PPO if harder or rng.random() < 0.7 else Algorithm(rng.choice(ALGORITHMS))
    return Scenario(
        name,
        calibration="paper",
        algorithm=algorithm,
        sizes={Stage.GENERATION: "70b"},
        n_gpus=n_gpus,
        n_cards=max(1, n_gpus // 8),
        n_rows=256 if harder else int(rng.choice([128, 256, 512, 1024])),
        abilities=ALL,
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
