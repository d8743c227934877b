"""``ecorl policy``: train, compare, export and explain the learned scheduler.

Nothing of the extra ``policy`` is imported before a command needs it.
"""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ecorl.cli.exits import (
    STOPPED_TEXT,
    Stopped,
    help_without_command,
    needs_policy_extra,
    reading_named_ledger,
)
from ecorl.cli.output import make_console, say, writable, writing

policy_app = typer.Typer(help="Train, compare, adapt and explain the learned scheduler.")


class TrainFamily(StrEnum):
    """Scenarios to train on."""

    ROOFLINE = "roofline"
    PAPER = "paper"


class CompareFamily(StrEnum):
    """Scenarios to compare on."""

    ROOFLINE = "roofline"
    PAPER = "paper"
    OOD = "ood"


class ExplainedStage(StrEnum):
    """Stages that have a choice in a run."""

    REWARD = "reward"
    REFERENCE = "reference"


@policy_app.callback(invoke_without_command=True)
def _top(context: typer.Context) -> None:
    """Train, compare, adapt and explain the learned scheduler."""
    help_without_command(context)


@policy_app.command()
def train(
    family: Annotated[
        TrainFamily | None, typer.Option(help="Scenarios to train on.", show_default="roofline")
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="Train on this calibrated run (ecorl policy calibrate).")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Policy file.", show_default="scheduler.onnx in the folder")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Work folder.", show_default="runs/policy-FAMILY")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on in the folder.")] = False,
    scenarios: Annotated[int | None, typer.Option(help="Scenarios of the pool.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of imitation.")] = None,
    ppo_steps: Annotated[int | None, typer.Option(help="Decisions of PPO; 0: none.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of all chance.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A plan of seconds, to try out.")] = False,
    compare: Annotated[bool, typer.Option(help="Compare at the end, for the report.")] = True,
) -> None:
    """Train a policy offline: imitation of the planner, then PPO; write ONNX and a report."""
    with needs_policy_extra():
        from ecorl.cli.policy import training as work

        given = {"n_scenarios": scenarios, "n_rounds": rounds, "ppo_steps": ppo_steps, "seed": seed}
        job = work.prepare(
            None if family is None else family.value, calibration, folder, given, resume, quick
        )
        out = writable(out or job.folder / "scheduler.onnx", "--out")
        assert out is not None
        try:
            work.run(job, out, compare, make_console())
        except KeyboardInterrupt as error:
            hint = f"; go on with: ecorl policy train --resume --folder {job.folder}"
            raise Stopped(STOPPED_TEXT + hint) from error


@policy_app.command()
def evaluate(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="Policy file; the shipped one if none.")
    ] = None,
    family: Annotated[CompareFamily, typer.Option(help="Which scenarios.")] = (
        CompareFamily.ROOFLINE
    ),
    calibration: Annotated[
        Path | None, typer.Option(help="Compare on variations of this calibrated run instead.")
    ] = None,
    scenarios: Annotated[int, typer.Option(min=1, help="How many.")] = 8,
    seeds: Annotated[int, typer.Option(min=2, help="Episodes of each.")] = 10,
    iterations: Annotated[int, typer.Option(min=2, help="Of an episode.")] = 200,
    as_json: Annotated[
        Path | None, typer.Option("--json", help="Write every score to this file.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Write the page to this file.")] = None,
) -> None:
    """Compare a policy with simple rules, planner and optimum on kept-out scenarios."""
    with needs_policy_extra():
        from ecorl.cli.policy import evaluate as work

        as_json, report = writable(as_json, "--json"), writable(report, "--report")
        found = work.comparison(
            file, family.value, calibration, (scenarios, seeds, iterations), make_console()
        )
        if as_json is not None:
            text = json.dumps(found.comparison.as_dict(), indent=1) + "\n"
            with writing(as_json, "--json"):
                as_json.parent.mkdir(parents=True, exist_ok=True)
                as_json.write_text(text, encoding="utf-8")
        if report is not None:
            work.write_report(found, report)
            say(f"report: {report}")


@policy_app.command()
def export(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of a training.")],
    out: Annotated[
        Path | None, typer.Option(help="Policy file.", show_default="scheduler.onnx in the folder")
    ] = None,
) -> None:
    """Write a finished training as a policy file."""
    with needs_policy_extra():
        from ecorl.cli.policy import training as work

        folder = folder.expanduser()
        path = writable(out or folder / "scheduler.onnx", "--out")
        assert path is not None
        work.export(folder, path)
        say(f"policy: {path}")


@policy_app.command()
def calibrate(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")],
    out: Annotated[
        Path | None, typer.Option(help="File.", show_default="calibration.toml in the run folder")
    ] = None,
) -> None:
    """Fit the simulator to a run's ledger."""
    with needs_policy_extra():
        from ecorl.policy.calibration.calibrate import calibrate as fit

        run_dir = run_dir.expanduser()
        folder = run_dir if run_dir.is_dir() else run_dir.parent
        path = writable(out or folder / "calibration.toml", "--out")
        assert path is not None
        with reading_named_ledger():
            made = fit(run_dir)
        made.save(path)
        say(f"calibration: {path}")
        say(f"  of {made.run_id}, {made.algorithm}, {made.n_rows} rows; {made.provenance}")
        for note in made.notes:
            say(f"  {note}")


@policy_app.command()
def adapt(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")],
    folder: Annotated[
        Path, typer.Option(help="Folder of the policy and its history; made if need be.")
    ],
    policy: Annotated[
        Path | None,
        typer.Option(help="What a new folder begins with.", show_default="the shipped policy"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Even without a shift.")] = False,
) -> None:
    """Re-tune a policy to a run's workload; swap it only if it is better in the simulator."""
    with needs_policy_extra():
        from ecorl.policy.adaptation.adapt import adapt_command

        with reading_named_ledger():
            adapt_command(run_dir.expanduser(), folder.expanduser(), policy, force, say)


@policy_app.command()
def rollback(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of the policy.")],
) -> None:
    """Put the policy back that was in use before the last swap."""
    with needs_policy_extra():
        from ecorl.policy.adaptation.adapt import rollback_command

        rollback_command(folder.expanduser(), say)


@policy_app.command()
def explain(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")],
    iteration: Annotated[
        int | None, typer.Option(help="Of the decision.", show_default="the last with a choice")
    ] = None,
    stage: Annotated[ExplainedStage | None, typer.Option(help="Stage of the decision.")] = None,
) -> None:
    """Say what each action of a recorded decision would have cost, and what was done."""
    from ecorl.cli.policy.explain import decision, lines

    found = decision(run_dir.expanduser(), iteration, None if stage is None else stage.value)
    row, place = found
    for line in lines(row.placement, place):
        say(line)
