"""``ecorl policy``: train, compare, export and explain the learned scheduler.

Nothing of the extra ``policy`` is imported before a command needs it.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ecorl.cli.exits import (
    STOPPED_TEXT,
    Stopped,
    help_without_command,
    needs_policy_extra,
    reading_named_ledger,
)
from ecorl.cli.options import option, with_options
from ecorl.cli.output import make_console, say, writable, writing
from ecorl.errors import ConfigError

if TYPE_CHECKING:
    from ecorl.policy.calibration.calibration import Calibration

_IN_THE_FOLDER = "scheduler.onnx in the folder"

policy_app = typer.Typer(help="Train, compare, adapt and explain the learned scheduler.")


@policy_app.callback(invoke_without_command=True)
def _top(context: typer.Context) -> None:
    """Train, compare, adapt and explain the learned scheduler."""
    help_without_command(context)


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """What a training is asked for."""

    family: Literal["roofline", "paper"] | None = option(
        "Scenarios to train on: of every family, most of them from the device profiles "
        "(roofline), or with the figures that the EcoRL-Sched paper prints alone (paper).",
        shown="roofline",
    )
    calibration: Path | None = option(
        "Train on variations of one run instead: a file of ecorl policy calibrate, or a "
        "result of gpu_stages (.json).",
        "FILE",
        "none",
    )
    runs: list[Path] | None = option(
        "Replay this recorded run too; give it for each of several. Half of them are kept "
        "out of the training.",
        "FOLDER",
        "none",
        names=("--runs",),
    )
    out: Path | None = option("Policy file to write.", "FILE", _IN_THE_FOLDER)
    folder: Path | None = option("Work folder.", "FOLDER", "runs/policy-FAMILY")
    resume: bool = option(
        "Go on in the folder, with the plan in it.", names=("--resume",), default=False
    )
    scenarios: int | None = option(
        "Scenarios in the training pool, 1 or more.", "N", "480; 8 with --quick"
    )
    rounds: int | None = option(
        "Rounds in which the planner is imitated, 1 or more.", "N", "4; 2 with --quick"
    )
    ppo_steps: int | None = option(
        "Decisions that PPO trains on after that; 0: no PPO.", "N", "200000; 0 with --quick"
    )
    seed: int | None = option("Seed of all chance, 0 or more.", "N", "0")
    quick: bool = option(
        "Take seconds, to try out; the policy is not good.", names=("--quick",), default=False
    )
    compare: bool = option(
        "Compare with simple rules, planner and optimum, for the report.", default=True
    )


@policy_app.command()
@with_options
def train(asked: TrainOptions) -> None:
    """Train a policy in the simulator; write it and a report.

    It learns to imitate a planner, then PPO goes on. No GPU or card is needed. The values that the
    training goes by are printed first; ecorl policy evaluate makes the comparison that counts.
    """  # fmt: skip
    with needs_policy_extra():
        from ecorl.cli.policy import training as work
        from ecorl.cli.policy.evaluate import add_replays

        given = {
            "n_scenarios": asked.scenarios,
            "n_rounds": asked.rounds,
            "ppo_steps": asked.ppo_steps,
            "seed": asked.seed,
        }
        family, runs, resume = asked.family, asked.runs or (), asked.resume
        job = work.prepare(family, asked.calibration, asked.folder, given, resume, asked.quick)
        with reading_named_ledger():
            job = add_replays(job, runs, resume)
        out = writable(asked.out or job.folder / "scheduler.onnx", "--out")
        try:
            work.run(job, out, asked.compare, make_console())
        except KeyboardInterrupt as error:
            words = ["ecorl", "policy", "train", "--resume", "--folder", str(job.folder)]
            words += [word for run in runs for word in ("--runs", str(run))]
            hint = f"; go on with: {shlex.join(words)}"
            raise Stopped(STOPPED_TEXT + hint) from error


@dataclass(frozen=True, slots=True)
class EvaluateOptions:
    """What a comparison is asked for."""

    family: Literal["real_pairs", "mixed", "wrong_tables", "drift", "paper", "hypothetical"] = (
        option(
            "Scenarios: pairs of devices that are bought (real_pairs), clusters of two "
            "kinds whose cost tables are right (mixed), wrong (wrong_tables) or wrong and "
            "drifting (drift), with the paper's figures (paper), or on cards at the limit of "
            "their silicon (hypothetical).",
            default="drift",
        )
    )
    calibration: Path | None = option(
        "Compare on variations of one run instead: a file of ecorl policy calibrate, or a "
        "result of gpu_stages (.json).",
        "FILE",
        "none",
    )
    runs: list[Path] | None = option(
        "Compare on a replay of this recorded run instead; give it for each of several, "
        "all of which are compared.",
        "FOLDER",
        "none",
        names=("--runs",),
    )
    scenarios: int = option("How many scenarios.", "N", default=8, min=1)
    seeds: int = option("Episodes of each.", "N", default=4, min=2)
    iterations: int = option("Iterations of an episode.", "N", default=100, min=2)
    as_json: Path | None = option(
        "Write every score to this file.", "FILE", "none", names=("--json",)
    )
    report: Path | None = option("Write a page to this file.", "FILE", "none")


@policy_app.command()
@with_options
def evaluate(
    *,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", show_default="the shipped one", help="Policy file."),
    ] = None,
    asked: EvaluateOptions,
) -> None:
    """Compare a policy with others on scenarios that it never saw.

    The others are simple rules, the planner and the optimum.
    """  # fmt: skip
    with needs_policy_extra():
        from ecorl.cli.policy import evaluate as work

        as_json, report = writable(asked.as_json, "--json"), writable(asked.report, "--report")
        size = (asked.scenarios, asked.seeds, asked.iterations)
        with reading_named_ledger():
            found = work.comparison(
                file, asked.family, asked.calibration, size, make_console(), asked.runs or ()
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
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder of an ecorl policy train.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default=_IN_THE_FOLDER,
            help="Policy file to write; one that is there is replaced.",
        ),
    ] = None,
) -> None:
    """Write a finished training as a policy file (ONNX).

    The file holds the network and, with it, how it was trained; nothing else is needed to use it.
    It is for a run's config (placement.policy = {type = "learned", path = "FILE"}), for ecorl plan
    --policy FILE and ecorl policy evaluate FILE, and to give to others: it is read by ONNX Runtime,
    without PyTorch. A training writes the same file at its end; export writes it once more, for a
    training whose file was lost or went elsewhere.

    Example:
      ecorl policy train --quick --folder runs/policy-try
      ecorl policy export runs/policy-try --out my_scheduler.onnx
    """
    with needs_policy_extra():
        from ecorl.cli.policy import training as work

        folder = folder.expanduser()
        path = writable(out or folder / "scheduler.onnx", "--out")
        work.export(folder, path)
        say(f"policy: {path}")


def _calibration(source: Path, rows: int | None) -> Calibration:
    """Fit to a run, or to a result of gpu_stages where the source is a JSON file."""
    if source.suffix == ".json":
        from ecorl.policy.calibration.stages import USUAL_ROWS, stages_calibration

        return stages_calibration(source, rows or USUAL_ROWS)
    if rows is not None:
        raise ConfigError("--rows", rows, "nothing for a run, which has its own")
    from ecorl.policy.calibration.calibrate import calibrate as fit

    with reading_named_ledger():
        return fit(source)


@policy_app.command()
def calibrate(
    run_dir: Annotated[
        Path, typer.Argument(metavar="RUN", help="Run folder, or a result of gpu_stages (.json).")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default="calibration.toml in the folder",
            help="Calibration to write.",
        ),
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            show_default="128",
            help="Of a result of gpu_stages: completions of a batch.",
        ),
    ] = None,
) -> None:
    """Fit the simulator to a run or to measured stages.

    The run must have computed reward and reference both where your framework computes and on the
    card, at least 10 times each with a sound reading, and in batches of differing lengths if the
    costs are to hold for others. That is checked first; such a run comes from this config.

    Example:
      placement.policy = {type = "threshold"}
      placement.profile_both_paths = true   # every other batch stays off the card
      placement.n_profiling = 24            # for so many batches
      trainer.steps = 24

    What comes out holds for the devices, models, rows and lengths of that run; it says so, in the
    file too. From a result of python -m benchmarks.gpu_stages it takes the levels of the stages.
    """  # fmt: skip
    with needs_policy_extra():
        from ecorl.policy.calibration.calibration import holds_for
        from ecorl.report.render.lines import readable_width, wrapped

        run_dir = run_dir.expanduser()
        folder = run_dir if run_dir.is_dir() else run_dir.parent
        path = writable(out or folder / "calibration.toml", "--out")
        made = _calibration(run_dir, rows)
        made.save(path)
        say(f"calibration: {path}")
        console = make_console()
        width = readable_width(console.width)
        said = [f"of run {made.run_id}", *holds_for(made), *made.notes]
        for line in [line for sentence in said for line in wrapped(sentence, width, "- ")]:
            say(line, console)


@policy_app.command()
def adapt(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")],
    folder: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER", help="Folder of the policy and its history; made if need be."
        ),
    ],
    policy: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default="the shipped policy",
            help="Policy file that a new folder begins with.",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Tune even where the workload has not shifted.")
    ] = False,
) -> None:
    """Tune a policy to a run; swap it if it is better in the simulator.

    The run must be one that ecorl policy calibrate accepts.
    """
    with needs_policy_extra():
        from ecorl.policy.adaptation.adapt import adapt_command

        with reading_named_ledger():
            adapt_command(run_dir.expanduser(), folder.expanduser(), policy, force, say)


@policy_app.command()
def rollback(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of the policy.")],
) -> None:
    """Put back the policy that was in use before the last swap."""
    with needs_policy_extra():
        from ecorl.policy.adaptation.adapt import rollback_command

        rollback_command(folder.expanduser(), say)


@policy_app.command()
def explain(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")],
    iteration: Annotated[
        int | None,
        typer.Option(
            metavar="N", show_default="the last with a choice", help="Iteration of the decision."
        ),
    ] = None,
    stage: Annotated[
        Literal["reward", "reference"] | None,
        typer.Option(show_default="either", help="Stage of the decision."),
    ] = None,
) -> None:
    """Say what each choice of a recorded decision would have cost."""
    from ecorl.cli.policy.explain import decision, lines

    row, place = decision(run_dir.expanduser(), iteration, stage)
    for line in lines(row.placement, place):
        say(line)
