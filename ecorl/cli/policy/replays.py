"""Replays of recorded runs, for ``ecorl policy train`` and ``evaluate``."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ecorl.cli.policy.training import TrainingJob
from ecorl.errors import ConfigError, RunError
from ecorl.policy.calibration.replayed import replayed
from ecorl.policy.evaluation.pools import run_id_of, split_runs, variations
from ecorl.policy.training.train import other_plan
from ecorl.sim.scenario import Scenario

N_REPLAYS = 4
"""Scenarios in the training pool for each run: itself, and others with another load on the cards.
Assumed: enough that a handful of runs shows beside hundreds of drawn jobs."""


def read_runs(folders: Sequence[Path]) -> list[Scenario]:
    """Read runs as scenarios that replay them.

    Args:
        folders: of the runs.

    Raises:
        ConfigError: when one is given twice.
        RunError: when one cannot be calibrated.
    """
    given = [folder.expanduser() for folder in folders]
    for i, folder in enumerate(given):
        if folder.resolve() in [other.resolve() for other in given[:i]]:
            raise ConfigError("--runs", str(folder), "each run once")
    return [replayed(folder) for folder in given]


def add_replays(job: TrainingJob, folders: Sequence[Path], resume: bool) -> TrainingJob:
    """Add replays of the training half of some runs to the pool of a training.

    Args:
        job: about to begin or to go on.
        folders: of the runs.
        resume: whether it goes on; its runs must then be those that it began with.

    Raises:
        ConfigError: when there are not runs of two names or more.
        RunError: when a run cannot be calibrated, or the training began with others.
    """
    if not folders:
        if job.plan.runs:
            names = ", ".join(job.plan.runs)
            raise RunError(f"{job.folder} replays {names}: give the --runs that it began with")
        return job
    runs = read_runs(folders)
    training, kept = split_runs(runs, job.plan.seed)
    if not training:
        raise ConfigError("--runs", [run_id_of(s) for s in runs],
                          "runs of two names or more: half of them are kept out")  # fmt: skip
    plan = replace(job.plan, runs=_names(training), runs_digest=_digest(training))
    if resume and plan != job.plan:
        raise other_plan(job.folder)
    replays = [
        one
        for s in training
        for one in variations(replace(s, n_iterations=plan.n_iterations), N_REPLAYS, plan.seed)
    ]
    return replace(job, plan=plan, replays=tuple(replays), held_back=_names(kept))


def unseen(
    runs: Sequence[Scenario], record: Mapping[str, Any]
) -> tuple[list[Scenario], tuple[str, ...]]:
    """Leave out the runs that a policy was trained on.

    Args:
        runs: replays.
        record: how the policy was made, from its file.

    Returns:
        Those that it has not seen, and the names of the others.

    Raises:
        ConfigError: when it has seen all of them.
    """
    plan = record.get("plan") or {}
    trained = set(plan.get("runs") or ())
    found = [s for s in runs if run_id_of(s) not in trained]
    if not found:
        raise ConfigError("--runs", list(_names(runs)), "a run that the policy was not trained on")
    return found, _names([s for s in runs if run_id_of(s) in trained])


def _names(runs: Sequence[Scenario]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(run_id_of(s) for s in runs))


def _digest(runs: Sequence[Scenario]) -> str:
    """One digest of all that is replayed: a run that has gone on since gives another one."""
    found = hashlib.sha256()
    for s in runs:
        assert s.replay is not None  # `read_runs`
        found.update(s.replay.digest.encode())
    return found.hexdigest()
