"""Pools of scenarios: variations of a calibrated run, replays, and what training never sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ecorl.errors import ConfigError
from ecorl.policy.calibration.calibration import Calibration
from ecorl.sim.families import jobs
from ecorl.sim.families.training import hypothetical_scenarios, paper_scenarios
from ecorl.sim.scenario import Scenario

KEPT_OUT_SEED = 9_001
"""Seed of the scenarios that policies are compared on. Training draws from its plan's seed and the
one after it, so a plan must not be given this one."""

_LOAD = (0.5, 1.5)
_LENGTH = (0.8, 1.25)
_NOISE = (0.7, 1.4)
"""Least and greatest factor on other jobs' load, on all lengths, and on their drift and noise.
Assumed: what one run shows of these is itself uncertain by about as much."""

MOST_LOAD = 0.9
"""Most of the cards' time that other jobs may take in a variation."""


def variations(scenario: Scenario, n: int, seed: int = 0) -> list[Scenario]:
    """A scenario and variations of it, for training on what a run was found to be.

    The first is the scenario itself. The costs are the same in all: only the workload varies.

    Args:
        scenario: e.g. of a `Calibration`.
        n: scenarios.
        seed: of the draw.
    """
    rng = np.random.default_rng([seed, 17])
    return [scenario, *(_varied(scenario, rng, f"{scenario.name}-{i}") for i in range(1, n))][:n]


def _varied(base: Scenario, rng: np.random.Generator, name: str) -> Scenario:
    def factor(bounds: tuple[float, float]) -> float:
        return float(np.exp(rng.uniform(*np.log(bounds))))

    return replace(
        base,
        name=name,
        load=min(base.load * factor(_LOAD), MOST_LOAD),
        burst_s=base.burst_s * factor(_LOAD),
        length_scale=base.length_scale * factor(_LENGTH),
        drift_std=base.drift_std * factor(_NOISE),
        noise_std=base.noise_std * factor(_NOISE),
    )


FAMILIES = ("real_pairs", "mixed", "wrong_tables", "drift", "paper", "hypothetical")
"""Families of scenarios that policies are compared on, beside those of a calibrated run."""
LEARNING = ("wrong_tables", "drift")
"""Those of them in which there is something to learn by measuring."""


REPLAYED = "replayed"
"""The family of replays of recorded runs."""

_SPLIT_SEED = 29


def run_id_of(scenario: Scenario) -> str:
    """Name of the run that a scenario replays.

    Args:
        scenario: with a replay.
    """
    assert scenario.replay is not None  # the caller has made it from a run
    return scenario.replay.run_id


def split_runs(
    runs: Sequence[Scenario], seed: int = 0
) -> tuple[tuple[Scenario, ...], tuple[Scenario, ...]]:
    """Split replays into those to train on and those to compare on, so that no run is in both.

    Folders whose runs have one name stay together: a run that was repeated with the same name and
    seed goes through much the same batches.

    Args:
        runs: replays (`ecorl.policy.calibration.replayed`).
        seed: of the draw.

    Returns:
        The half to train on, rounded down, and the half that is kept out, both in the order of
        `runs`; a single run is kept out.
    """
    ids = sorted({run_id_of(s) for s in runs})
    drawn = np.random.default_rng([seed, _SPLIT_SEED]).permutation(len(ids))[: len(ids) // 2]
    training = {ids[int(i)] for i in drawn}
    return (
        tuple(s for s in runs if run_id_of(s) in training),
        tuple(s for s in runs if run_id_of(s) not in training),
    )


def kept_out(
    family: str,
    n: int,
    *,
    n_iterations: int = 200,
    calibration: Calibration | None = None,
    runs: Sequence[Scenario] = (),
) -> list[Scenario]:
    """Scenarios to compare policies on; no training draws them.

    Each family but the paper's holds pairs of devices that are bought; `real_pairs` are nothing
    else.

    Args:
        family: one of `FAMILIES`, ``fitted`` or ``replayed``.
        n: scenarios; of `real_pairs` and of ``replayed`` at most as many as there are.
        n_iterations: of an episode.
        calibration: of the run, for ``fitted``.
        runs: replays of runs that no training has seen, for ``replayed``; see `split_runs`.

    Raises:
        ConfigError: for another family, ``fitted`` without a calibration, or ``replayed`` without a
            run.
    """
    if family == "fitted":
        if calibration is None:
            raise ConfigError("family", family, "fitted with --calibration FILE")
        drawn = variations(calibration.scenario(), n + 1, KEPT_OUT_SEED)[1:]
    elif family == REPLAYED:
        if not runs:
            raise ConfigError("family", family, "replayed with --runs FOLDER")
        drawn = list(runs)[:n]
    elif family == "paper":
        drawn = paper_scenarios(KEPT_OUT_SEED, n, harder=True, name="paper")
    elif family == "real_pairs":
        drawn = jobs.real_pairs()[:n]
    elif family in _DRAWS:
        drawn = _DRAWS[family](KEPT_OUT_SEED, n, held_out=True)
    else:
        raise ConfigError("family", family, f"one of {[*FAMILIES, 'fitted', REPLAYED]}")
    # A comparison plays in worker processes, which a read-only mapping cannot be sent to.
    return [replace(s, n_iterations=n_iterations, sizes=dict(s.sizes)) for s in drawn]


_DRAWS = {
    "mixed": jobs.mixed_scenarios,
    "wrong_tables": jobs.wrong_table_scenarios,
    "drift": jobs.drift_scenarios,
    "hypothetical": hypothetical_scenarios,
}
