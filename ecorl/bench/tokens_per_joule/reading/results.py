"""Reads a benchmark's folder: all of its runs that there are, with what is missing and why."""

from __future__ import annotations

from ecorl.bench.tokens_per_joule.arms import SUPERVISED
from ecorl.bench.tokens_per_joule.plan import stand_of
from ecorl.bench.tokens_per_joule.reading.model import RunFigures
from ecorl.bench.tokens_per_joule.reading.runs import read_run, read_supervised
from ecorl.bench.tokens_per_joule.result import ArmEntry, BenchResult, targets_of
from ecorl.bench.tokens_per_joule.running.folder import BenchFolder
from ecorl.bench.tokens_per_joule.running.known_truth import ARM, KnownTruth, known_truth
from ecorl.bench.tokens_per_joule.running.session import arms_in

LEFT_OUT = "it was not run"


def read_folder(folder: BenchFolder) -> BenchResult:
    """Read what a benchmark has found so far.

    Args:
        folder: of the benchmark.

    Raises:
        RunError: when there is none in it.
    """
    plan, stand = folder.plan()
    folder.open_notes()
    arms = arms_in(plan, folder)
    runs: list[RunFigures] = []
    supervised: list[RunFigures] = []
    for seed in plan.seeds:
        for arm in arms:
            if arm.config is None:
                continue
            run = _read(folder, arm.name, seed, plan.warm_up)
            (supervised if arm.name == SUPERVISED else runs).append(run)
    commit = stand.commit or stand_of(plan).commit
    return BenchResult(
        stand=stand,
        commits=(commit,) if commit else (),
        plan=plan.as_dict(),
        arms=tuple(
            ArmEntry(a.name, a.placement, a.extra, a.why) for a in arms if a.name != SUPERVISED
        ),
        runs=tuple(runs),
        supervised=tuple(supervised),
        idle=tuple(folder.idle),
        known_truth=_truth(folder, plan.warm_up, plan.base.trainer.per_device_batch_size),
        targets=targets_of(runs, plan.reward, plan.correct),
    )


def _read(folder: BenchFolder, arm: str, seed: int, warm_up: int) -> RunFigures:
    """The figures of a run; without any where it failed or was not made."""
    if folder.is_done(arm, seed):
        read = read_supervised if arm == SUPERVISED else None
        run_dir = folder.run_dir(arm, seed)
        return read(run_dir, seed, warm_up) if read else read_run(run_dir, arm, seed, warm_up)
    return RunFigures(arm, seed, missing=folder.failure(arm, seed) or LEFT_OUT)


def _truth(folder: BenchFolder, warm_up: int, rows_a_step: int) -> KnownTruth | None:
    if folder.is_done(ARM, 0):
        return known_truth(folder.run_dir(ARM, 0), warm_up, rows_a_step)
    why = folder.failure(ARM, 0)
    return KnownTruth(None, None, why) if why else None
