"""Trains and exports policies, for ``ecorl policy train`` and ``export``."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from ecorl.cli.output import say, writing
from ecorl.errors import ConfigError, RunError
from ecorl.policy.calibration.calibration import Calibration, holds_for
from ecorl.policy.calibration.stages import load_calibration
from ecorl.policy.evaluation.comparison import PolicyComparison
from ecorl.policy.evaluation.evaluate import FilePolicy, compare
from ecorl.policy.evaluation.page import choices, reference_scenario, render_page, write_page
from ecorl.policy.evaluation.pools import kept_out, variations
from ecorl.policy.training.export import save_onnx
from ecorl.policy.training.network import PolicyNetwork
from ecorl.policy.training.train import (
    NETWORK_FILE,
    PLAN_FILE,
    QUICK,
    RECORD_FILE,
    Family,
    TrainingPlan,
    load_arrays,
    other_plan,
    pool_of,
    train,
)
from ecorl.report.render.lines import aligned
from ecorl.runtime.progress import progress
from ecorl.scheduler.policy_file import PolicyFile
from ecorl.sim.scenario import Scenario

CALIBRATION_FILE, RESULT_FILE = "calibration.toml", "gpu_stages.json"
"""The calibration that a training began with, or the result of gpu_stages that it is made of."""

REPORT_FILE = "report.html"
OURS = "learned"

_COMPARED, _COMPARED_QUICK = (4, 5, 60), (1, 2, 10)
"""Scenarios, seeds and iterations of the comparison in the report of a training: small, since
``ecorl policy evaluate`` makes the one that counts."""
_COMPARED_ON: dict[Family, str] = {"roofline": "drift", "paper": "paper", "fitted": "fitted"}
"""Family that it is made on, by the family trained on; of kept-out jobs, like ``evaluate``'s."""


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """A training that is about to begin or to go on.

    Attributes:
        plan: how.
        folder: where.
        calibration: of the run to train on, or None.
        source: the file that it was read from, to be kept in the folder; None when it is there.
        replays: of recorded runs, added to the pool.
        held_back: names of the runs that were given and are kept out.
    """

    plan: TrainingPlan
    folder: Path
    calibration: Calibration | None
    source: Path | None
    replays: tuple[Scenario, ...] = ()
    held_back: tuple[str, ...] = ()


def prepare(
    family: Family | None,
    calibration: Path | None,
    folder: Path | None,
    given: Mapping[str, int | None],
    resume: bool,
    quick: bool,
) -> TrainingJob:
    """Check everything that the user gave; nothing is written.

    Args:
        family: of the scenarios; None: the plan's own.
        calibration: of a run to train on in place of a family.
        folder: work folder; None: one under ``runs``.
        given: values of the plan by name; None for those that were not given.
        resume: whether to go on in the folder.
        quick: whether to take the short plan.

    Raises:
        ConfigError: when options exclude each other, or a value is not acceptable.
        RunError: when the folder may not be used.
    """
    if calibration is not None and family is not None:
        raise ConfigError("--family", family, "no family beside --calibration")
    chosen: Family | None = "fitted" if calibration is not None else family
    folder = (folder or Path("runs") / f"policy-{chosen or 'roofline'}").expanduser()
    changes: dict[str, Any] = {k: v for k, v in given.items() if v is not None}
    if chosen is not None:
        changes["family"] = chosen
    if not resume:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise RunError(f"{folder} is there and not empty: go on in it with --resume, or "
                           "choose another --folder")  # fmt: skip
        plan = replace(QUICK if quick else TrainingPlan(), **changes)
        made = None if calibration is None else load_calibration(calibration)
        return TrainingJob(plan, folder, made, calibration)
    if quick:
        raise ConfigError("--quick", True, "a fresh training: a plan goes on as it began")
    stored = _stored_plan(folder)
    plan = replace(stored, **changes)
    if plan != stored:
        raise other_plan(folder)
    return TrainingJob(plan, folder, _stored_calibration(folder, plan, calibration), None)


def _stored_plan(folder: Path) -> TrainingPlan:
    path = folder / PLAN_FILE
    if not path.is_file():
        raise RunError(f"{folder} holds no training to go on with (there is no {PLAN_FILE} in it)")
    try:
        return TrainingPlan(**json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise RunError(f"{path} is not a plan that this program wrote ({error})") from error


def _stored_calibration(folder: Path, plan: TrainingPlan, given: Path | None) -> Calibration | None:
    """The calibration that the training began with; another one would be another pool."""
    if plan.family != "fitted":
        return None
    as_result = folder / RESULT_FILE
    kept = as_result if as_result.is_file() else folder / CALIBRATION_FILE
    if given is not None and kept.is_file():
        load_calibration(given)
        if given.read_bytes() != kept.read_bytes():
            raise RunError(f"{folder} holds the training of another calibration than {given}")
    return load_calibration(kept)


def run(job: TrainingJob, out: Path, with_comparison: bool, console: Console) -> None:
    """Train, write the policy file and the report, and say where they are.

    Args:
        job: what to train.
        out: policy file.
        with_comparison: whether the report holds a comparison.
        console: where progress goes.
    """
    pool = None
    for line in used(job, out, with_comparison):
        say(line)
    _claim(job)
    if job.calibration is not None:
        run_of = job.calibration.scenario(n_iterations=job.plan.n_iterations)
        pool = variations(run_of, job.plan.n_scenarios, job.plan.seed)
    if job.replays:
        pool = [*(pool or pool_of(job.plan)), *job.replays]
    with telling("training", console) as tell:
        made = train(job.plan, job.folder, scenarios=pool, tell=tell)
    _save(made.network, made.record, out)
    say(f"policy: {out}")
    file = PolicyFile(out)
    found = _compared(job, file, console) if with_comparison else None
    family = "roofline" if job.plan.family == "fitted" else job.plan.family
    scenario = reference_scenario(family)
    if job.calibration is not None:
        scenario = job.calibration.scenario()
    page = job.folder / REPORT_FILE
    text = render_page(made.record, found, choices(file, scenario), title=out.name, ours=OURS)
    write_page(page, text)
    say(f"report: {page}")


def used(job: TrainingJob, out: Path, with_comparison: bool) -> list[str]:
    """The values that a training goes by, one line each.

    Args:
        job: what to train.
        out: policy file.
        with_comparison: whether the report holds a comparison.
    """
    plan, fitted = job.plan, job.calibration
    scenarios = plan.family if fitted is None else f"variations of run {fitted.run_id} (fitted)"
    rows = [
        ("scenarios", f"{plan.n_scenarios}, {scenarios}"),
        ("episode", f"{plan.n_iterations} iterations"),
        ("imitation", f"{plan.n_rounds} rounds of {plan.n_epochs} epochs, the last of three times "
                      "as many"),
        ("PPO", f"{plan.ppo_steps:,} decisions" if plan.ppo_steps else "none"),
        ("seed", str(plan.seed)),
        ("compared", f"at the end, {_COMPARED_ON[plan.family]}" if with_comparison else "no"),
        ("folder", str(job.folder)),
        ("policy file", str(out)),
    ]  # fmt: skip
    if job.replays:
        replays = f"{len(job.replays)} of {', '.join(plan.runs)}; kept out: "
        rows.insert(1, ("replays", replays + ", ".join(job.held_back)))
    reach = [] if fitted is None else ["Its calibration:", *(f"  {t}" for t in holds_for(fitted))]
    return ["Values used:", *aligned(rows, text_columns=(0, 1), indent="  "), *reach]


def _claim(job: TrainingJob) -> None:
    """Keep the calibration in the folder, so that the training can go on without its run."""
    if job.source is None:
        return
    try:
        job.folder.mkdir(parents=True, exist_ok=True)
        name = RESULT_FILE if job.source.suffix == ".json" else CALIBRATION_FILE
        shutil.copyfile(job.source, job.folder / name)
    except OSError as error:
        raise RunError(f"{job.folder} cannot be written ({error.strerror})") from error


def _compared(job: TrainingJob, file: PolicyFile, console: Console) -> PolicyComparison:
    quick = job.plan.n_iterations <= QUICK.n_iterations
    n, n_seeds, n_iterations = _COMPARED_QUICK if quick else _COMPARED
    family = _COMPARED_ON[job.plan.family]
    scenarios = kept_out(family, n, n_iterations=n_iterations, calibration=job.calibration)
    with telling("comparing", console) as tell:
        return compare(scenarios, {OURS: FilePolicy(file)}, n_seeds=n_seeds, tell=tell)


def export(folder: Path, out: Path) -> None:
    """Write the network of a finished training as a policy file.

    Args:
        folder: of the training.
        out: policy file.

    Raises:
        RunError: when the folder holds none.
    """
    network, record = folder / NETWORK_FILE, folder / RECORD_FILE
    for path in (network, record):
        if not path.is_file():
            raise RunError(f"{folder} holds no finished training (there is no {path.name} in it)")
    try:
        made = json.loads(record.read_text("utf-8"))
        weights = PolicyNetwork.from_arrays(load_arrays(network))
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:120]
        raise RunError(f"{folder} is not a training that this program wrote ({reason})") from error
    _save(weights, made, out)


def _save(network: PolicyNetwork, record: Mapping[str, object], out: Path) -> None:
    with writing(out, "--out"):
        save_onnx(network, record, out)


@contextmanager
def telling(title: str, console: Console) -> Iterator[Callable[[str, float], None]]:
    """Show progress in percent of the whole.

    Args:
        title: of the bar.
        console: where it goes.

    Yields:
        A function to call with the step under way and the share that is done, 0 to 1.
    """
    done = 0
    with progress(title, 100, console) as task:

        def tell(step: str, share: float) -> None:
            nonlocal done
            n = max(0, int(100 * share) - done)
            done += n
            task.advance(n, note=step)

        yield tell
