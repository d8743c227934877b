"""Runs a plan, reads what came of it, and writes the results: all that a command needs."""

from __future__ import annotations

import contextlib

from ecorl.bench.tokens_per_joule.arms import SUPERVISED
from ecorl.bench.tokens_per_joule.plan import BenchPlan, stand_of
from ecorl.bench.tokens_per_joule.reading.model import RunFigures
from ecorl.bench.tokens_per_joule.reading.runs import read_run, read_supervised
from ecorl.bench.tokens_per_joule.result import ArmEntry, BenchResult, result_json, targets_of
from ecorl.bench.tokens_per_joule.running.folder import (
    CSV_FILE,
    HTML_FILE,
    JSON_FILE,
    BenchFolder,
)
from ecorl.bench.tokens_per_joule.running.known_truth import ARM, KnownTruth, known_truth
from ecorl.bench.tokens_per_joule.running.session import Say, arms_in, run_session
from ecorl.bench.tokens_per_joule.telling.csv_file import result_csv
from ecorl.bench.tokens_per_joule.telling.page import render_page
from ecorl.errors import EcorlError

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


def run_plan(
    plan: BenchPlan, folder: BenchFolder, say: Say, box_s: float | None = None
) -> BenchResult:
    """Run what is not done yet of a plan, and write the results of all that is.

    Args:
        plan: what is to be run.
        folder: of the benchmark.
        say: shows a line of progress.
        box_s: time up to the end of the rounds, s; None for no limit.

    Raises:
        UserError: for a config, a file or a folder that cannot be used.
        KeyboardInterrupt: when Ctrl-C came.

    After an error and after Ctrl-C too, the results of what has finished are written.
    """
    try:
        run_session(plan, folder, say, box_s)
    except (KeyboardInterrupt, EcorlError):
        # A full disk, or a folder that was not begun, is told of by the first error.
        with contextlib.suppress(EcorlError):
            if folder.holds_runs:
                write_results(folder, read_folder(folder))
        raise
    result = read_folder(folder)
    write_results(folder, result)
    return result


def write_results(folder: BenchFolder, result: BenchResult) -> None:
    """Write JSON, CSV and page.

    Args:
        folder: in which they go.
        result: of the benchmark.

    Raises:
        RunError: when a file cannot be written.
    """
    folder.write(JSON_FILE, result_json(result))
    folder.write(CSV_FILE, result_csv(result))
    folder.write(HTML_FILE, render_page(result))
