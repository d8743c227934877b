"""Compares a policy with others, for ``ecorl policy evaluate``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from ecorl.cli.policy.replays import read_runs, unseen
from ecorl.cli.policy.training import OURS, telling
from ecorl.errors import ConfigError
from ecorl.policy.calibration.calibration import Calibration
from ecorl.policy.calibration.stages import load_calibration
from ecorl.policy.evaluation.comparison import PolicyComparison
from ecorl.policy.evaluation.evaluate import FilePolicy, compare
from ecorl.policy.evaluation.page import choices, reference_scenario, render_page, write_page
from ecorl.policy.evaluation.pools import REPLAYED, kept_out
from ecorl.policy.evaluation.summary import COLUMNS, rows, sentences
from ecorl.policy.training.origin import is_stale
from ecorl.report.render.lines import aligned, readable_width, wrapped
from ecorl.scheduler.policy_file import PolicyFile
from ecorl.sim.scenario import Scenario


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
