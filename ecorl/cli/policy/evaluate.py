"""Compares a policy with others, for ``ecorl policy evaluate``."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from ecorl.cli.policy.training import OURS, TrainingJob, telling
from ecorl.errors import ConfigError, RunError
from ecorl.policy.calibration.calibration import Calibration
from ecorl.policy.calibration.replayed import replayed
from ecorl.policy.calibration.stages import load_calibration
from ecorl.policy.evaluation.comparison import PolicyComparison
from ecorl.policy.evaluation.evaluate import FilePolicy, compare
from ecorl.policy.evaluation.page import choices, reference_scenario, render_page, write_page
from ecorl.policy.evaluation.pools import REPLAYED, kept_out, run_id_of, split_runs, variations
from ecorl.policy.evaluation.summary import COLUMNS, rows, sentences
from ecorl.policy.training.origin import is_stale
from ecorl.policy.training.train import other_plan
from ecorl.report.render.lines import aligned, readable_width, wrapped
from ecorl.scheduler.policy_file import PolicyFile
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


@dataclass(frozen=True, slots=True)
class Found:
    """A comparison with the policy file and the scenario that its page shows."""

    comparison: PolicyComparison
    file: PolicyFile
    reference: Scenario


def comparison(
    path: Path | None,
    family: str,
    calibration: Path | None,
    size: tuple[int, int, int],
    console: Console,
    runs: Sequence[Path] = (),
) -> Found:
    """Compare, and print the table.

    Args:
        path: policy file; None: the shipped one.
        family: of the scenarios.
        calibration: of a run to compare on instead.
        size: scenarios, seeds, iterations.
        console: where to.
        runs: folders of runs to compare on replays of instead, each of them a scenario.

    Raises:
        ConfigError: when options exclude each other, or the policy was trained on all the runs.
        RunError: when a run cannot be calibrated.
    """
    if runs and calibration is not None:
        raise ConfigError("--runs", str(runs[0]), "no runs beside --calibration")
    file = PolicyFile(path)
    fitted = None if calibration is None else load_calibration(calibration)
    n, n_seeds, n_iterations = size
    replays, seen = unseen(read_runs(runs), file.record) if runs else ([], ())
    scenarios = kept_out(
        REPLAYED if runs else family if fitted is None else "fitted",
        len(replays) or n,
        n_iterations=n_iterations,
        calibration=fitted,
        runs=replays,
    )
    with telling("comparing", console) as tell:
        made = compare(scenarios, {OURS: FilePolicy(file)}, n_seeds=n_seeds, tell=tell)
        tell("done", 1.0)
    left_out = [f"- left out, since the policy was trained on it: {name}" for name in seen]
    for line in text(made, console.width) + left_out + stale(file):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return Found(made, file, _pictured(family, fitted, replays))


def _pictured(family: str, fitted: Calibration | None, replays: Sequence[Scenario]) -> Scenario:
    """The scenario that the page shows the policy's choices in."""
    if fitted is not None:
        return fitted.scenario()
    if replays:
        return replays[0]
    return reference_scenario("paper" if family == "paper" else "roofline")


def write_report(found: Found, path: Path) -> None:
    """Write the page of a comparison.

    Args:
        found: the comparison.
        path: of the page.
    """
    picture = choices(found.file, found.reference)
    title = found.file.path.name
    write_page(path, render_page(found.file.record, found.comparison, picture, title=title))


def stale(file: PolicyFile) -> list[str]:
    """Write a line that warns when the figures behind a policy have changed since its training."""
    if not is_stale(file.record):
        return []
    return ["- stale: the cost figures have changed since this policy was trained (make policy)"]


def text(made: PolicyComparison, width: int) -> list[str]:
    """Write the table of a comparison and the sentences below it as text.

    Args:
        made: the comparison.
        width: columns of the terminal.
    """
    width = readable_width(width)
    table = [r.cells() for r in rows(made, OURS)]
    note = "* differs from ours after Bonferroni's correction at 5 % (paired t-test)"
    said = [*sentences(made, OURS), note]
    remarks = [line for sentence in said for line in wrapped(sentence, width, "- ")]
    return [*aligned([COLUMNS, *table]), "", *remarks]
