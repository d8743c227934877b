"""The commands ``run``, ``report`` and ``doctor``, and the application that holds all of them."""

from __future__ import annotations

import contextlib
import inspect
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core
from rich.console import Console

from ecorl import __version__
from ecorl.cli.bench import bench_app
from ecorl.cli.carbon.app import carbon_app
from ecorl.cli.config import config_app
from ecorl.cli.exits import (
    NOTHING_RECORDED,
    STOPPED,
    STOPPED_TEXT,
    Stopped,
    help_without_command,
    reading_named_ledger,
    run_to_exit,
    stopped_text,
)
from ecorl.cli.fpga.app import fpga_app
from ecorl.cli.options import ConfigOption, OverridesOption, chosen_config
from ecorl.cli.output import LastingOutput, check_text, log_plainly, make_console, say
from ecorl.cli.plan import plan
from ecorl.cli.policy.app import policy_app
from ecorl.cli.runs import runs
from ecorl.config import (
    ArithmeticTask,
    Config,
    config_toml,
    load_config,
    parse_config,
    preset_names,
)
from ecorl.errors import RunError, UserError


def what_next(run_dir: Path, *, is_own: bool = True) -> str:
    """Say what to do after a run was stopped, as the end of a line.

    Args:
        run_dir: folder of the run.
        is_own: whether a record in there is that of the run that was stopped.
    """
    from ecorl.ledger import LEDGER_FILE
    from ecorl.runtime.runs.record import is_complete, resume_command

    if not is_own or not (run_dir / LEDGER_FILE).is_file():
        return NOTHING_RECORDED
    if is_complete(run_dir):
        return f"the run is complete: {shlex.join(['ecorl', 'report', str(run_dir)])} shows it"
    return f"go on with: {resume_command(run_dir)}"


class _Commands(typer.core.TyperGroup):
    """A command group that reports Ctrl-C; the parser itself would end without a word."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise Stopped(stopped_text(sys.argv[1:])) from error


app = typer.Typer(
    cls=_Commands,
    help="Measure, place and account for the energy of RLHF training, stage by stage.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None if os.environ.get("NO_COLOR") else "rich",
)


app.add_typer(policy_app, name="policy")
app.add_typer(fpga_app, name="fpga")
app.add_typer(carbon_app, name="carbon")
app.add_typer(config_app, name="config")
app.add_typer(bench_app, name="bench")


def main() -> None:
    """Run the command that was asked for, and exit."""
    log_plainly()
    run_to_exit(app)


def _version(shown: bool) -> None:
    if shown:
        typer.echo(f"ecorl {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _top(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """The commands."""
    help_without_command(context)


_RUN_EXAMPLES = "\n\n".join(
    (
        "Examples:",
        "ecorl run --config demo",
        "ecorl run --config my.toml --check",
        "ecorl run --config my.toml --set trainer.steps=200 --set seed=7",
        "ecorl run --resume runs/my-7",
    )
)


@app.command(epilog=_RUN_EXAMPLES)
def run(
    config: ConfigOption = None,
    overrides: OverridesOption = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", help="Run folder to go on with.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Check config, files and prompts, write nothing, stop.")
    ] = False,
    show: Annotated[
        bool, typer.Option("--show-config", help="Print the resolved config and stop.")
    ] = False,
) -> None:
    """Train with the configured framework and leave a ledger and a report."""
    # Small models on a CPU lose time with more threads; the config decides within the process.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    console = make_console(file=LastingOutput(sys.stdout))
    settings = (
        _to_start(config, overrides or ())
        if resume is None
        else _to_resume(resume, config is not None or bool(overrides))
    )
    if show:
        typer.echo(config_toml(settings))
        return
    run_dir = resume.expanduser() if resume is not None else None
    if check:
        with reading_named_ledger():
            given = settings if resume is None else None
            place = run_dir or settings.run_dir_at("{time}")
            _adapter(settings.adapter, "check")(given, place, console)
        return
    made = None
    if run_dir is None:
        from ecorl.runtime.runs.folder import in_new_folder

        settings, timed = in_new_folder(settings), settings.names_time
        run_dir = settings.resolved_run_dir()
        made = run_dir if timed else None
    try:
        has_finished = _trained(settings, run_dir, resume is not None, console)
    finally:
        if made is not None:  # refused before anything was written
            with contextlib.suppress(OSError):
                made.rmdir()
    if not has_finished:
        from ecorl.runtime.runs.record import resume_command

        say(f"stopped; go on with: {resume_command(run_dir)}", console)
        raise typer.Exit(STOPPED)
    try:
        _report(run_dir, make_console())
    except KeyboardInterrupt as error:
        raise Stopped(f"{STOPPED_TEXT}; {what_next(run_dir)}") from error


def _trained(settings: Config, run_dir: Path, resumed: bool, console: Console) -> bool:
    """Hand the run to the adapter of its framework; False when a signal stopped it."""
    from ecorl.ledger import LEDGER_FILE

    ledger = run_dir / LEDGER_FILE
    others = False
    with contextlib.suppress(OSError):  # the adapter says what is wrong with the path
        others = not resumed and ledger.exists()
    try:
        if resumed:
            with reading_named_ledger():
                return bool(_adapter(settings.adapter, "resume")(run_dir, console))
        return bool(_adapter(settings.adapter, "run")(settings, run_dir, console))
    except KeyboardInterrupt as error:
        raise Stopped(f"{STOPPED_TEXT}; {what_next(run_dir, is_own=not others)}") from error


def _to_start(config: str | None, overrides: Sequence[str]) -> Config:
    """Read the config of a fresh run."""
    if config is None:
        presets = ", ".join(preset_names())
        raise UserError(
            f"what shall run? Give --config FILE, --config PRESET ({presets}) or --resume RUN"
        )
    return load_config(config, overrides)


def _to_resume(resume: Path, with_others: bool) -> Config:
    """Read the config of a run to go on with; no other option may change it."""
    if with_others:
        raise UserError("--resume goes alone: a run keeps its own config (no --config, --set)")
    from ecorl.ledger import LEDGER_FILE, LedgerReader

    run_dir = resume.expanduser()
    if not (run_dir / LEDGER_FILE).is_file():
        raise RunError(f"{run_dir} holds no run to resume (there is no {LEDGER_FILE} in it)")
    with reading_named_ledger(), LedgerReader(run_dir) as reader:
        # Not config.toml, which may have been edited: one record is of one config.
        return parse_config(reader.run().config_toml, f"the ledger of {run_dir}")


def _adapter(name: str, function: str) -> Any:
    """Load a function of a framework's adapter."""
    from ecorl.runtime.adapters import adapter_function

    return adapter_function(name, function)


@app.command()
def report(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")],
    other: Annotated[
        Path | None,
        typer.Argument(metavar="OTHER", help="Another run, to be held against the first."),
    ] = None,
    model_card: Annotated[
        bool, typer.Option("--model-card", help="Print the block that a model card needs.")
    ] = False,
    annex_xi: Annotated[
        bool,
        typer.Option("--annex-xi", help="Print the energy part of the EU AI Act's Annex XI."),
    ] = False,
) -> None:
    """Print a run's report, or compare two runs.

    Of one run it also writes the report as files into the run's folder, if it can.

    Of two it says first whether they did the same work under the same instruments, then what the
    second saved against the first as far as that follows, and writes comparison_report.html and
    comparison_report.json into the second one's folder.
    """
    if sum((other is not None, model_card, annex_xi)) > 1:
        raise UserError("report: a second run, --model-card and --annex-xi go one at a time")
    with reading_named_ledger():
        if other is not None:
            _comparison(run_dir.expanduser(), other.expanduser(), make_console())
        elif model_card or annex_xi:
            from ecorl.report.sharing.printing import printed

            typer.echo(printed(run_dir.expanduser(), as_card=model_card), nl=False)
        else:
            _report(run_dir.expanduser(), make_console())


def _comparison(first: Path, other: Path, console: Console) -> None:
    from ecorl.report.comparison.write import write_comparison

    page = write_comparison(first, other, console)
    if page is not None:
        say(f"comparison: {page}", console)


def _report(run_dir: Path, console: Console) -> None:
    from ecorl.report import write_report

    page = write_report(run_dir, console=console)
    if page is not None:
        say(f"report: {page}", console)


app.command()(runs)


@app.command()
def doctor(
    config: ConfigOption = None,
    overrides: OverridesOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what hardware, drivers and tools are here, and what they allow.

    With --config it also says which of the config's carbon feeds can be built. No network is asked.
    """
    settings = None
    if config is not None or overrides:
        settings = chosen_config(config, overrides)
    from ecorl import doctor as clinic

    findings = clinic.examine(settings)
    if as_json:
        typer.echo(clinic.to_json(findings))
    else:
        clinic.render(findings, make_console())


_CACHE_DIR = ArithmeticTask().cache_dir

_NEXT = (
    ("check a config before it trains", "ecorl run --config {0}/ecorl.toml --check"),
    ("train, and leave a report", "ecorl run --config {0}/ecorl.toml"),
    (
        "is INT8 good enough for the reward model?",
        "ecorl fpga validate --model {0}/reward --pairs {0}/pairs.jsonl",
    ),
    (
        "what would a card take for both models?",
        "ecorl fpga estimate --model {0}/reward --tokens 512 --reference {0}/policy",
    ),
    ("answer log-probs over HTTP, until Ctrl-C", "ecorl fpga serve --model {0}/policy"),
    ("train with a TRL script of your own, to which ecorl is attached", "python {0}/train.py"),
)
"""What can be typed next, and what for; the folder is filled in."""


demo_app = typer.Typer(help="Make small models and data, to try the other commands with.")


@demo_app.callback(invoke_without_command=True)
def _demo_top(context: typer.Context) -> None:
    """Make small models and data, to try the other commands with."""
    help_without_command(context)


@demo_app.command()
def models(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="New or empty folder, or one made before.")
    ],
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Of the models.")] = 42,
    cache_dir: Annotated[
        Path, typer.Option(help="Folder that keeps the models for the next time.")
    ] = _CACHE_DIR,
) -> None:
    """Write a small policy, reward model, prompts and pairs, a config and a training script.

    They are made in about a minute, and the next time copied. What to type next is
    printed. A folder that was made before gets what is missing in it.
    """
    check_text(folder, "DIR")
    check_text(cache_dir, "--cache-dir")
    # Read when the libraries are loaded, which the adapter does.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    make = _adapter(str(Config.model_fields["adapter"].default), "demo_models")
    for line in _told(folder, make(folder, seed, cache_dir, make_console())):
        say(line)


def _told(folder: Path, written: list[str]) -> list[str]:
    """Say what was written, and what can be typed now."""
    if written:
        names = sorted({f"{name.partition('/')[0]}/" if "/" in name else name for name in written})
        first = f"{folder}: wrote {', '.join(names)}"
    else:
        first = f"{folder} holds all of it already; nothing was written"
    name = shlex.quote(str(folder))
    lines = [first, "", "To type next:"]
    for text, command in _NEXT:
        lines += [f"  # {text}", f"  {command.format(name)}"]
    return lines


_AS_WRITTEN = "\b\n"
"""What tells the parser to leave the lines of a paragraph as they are."""


def reflow(app: typer.Typer) -> None:
    """Join the lines of each paragraph in the help of all commands; examples stay as they are.

    The parser does so with the first paragraph alone, and then breaks the lines of the others in
    the middle.

    Args:
        app: the application; the groups in it are gone through too.
    """
    for command in app.registered_commands:
        text = command.help or (inspect.getdoc(command.callback) if command.callback else None)
        if text:
            command.help = "\n\n".join(map(_joined, text.split("\n\n")))
    for group in app.registered_groups:
        if group.typer_instance is not None:
            reflow(group.typer_instance)


def _joined(paragraph: str) -> str:
    # An example: its lines are indented.
    if any(line.startswith("  ") for line in paragraph.splitlines()):
        return _AS_WRITTEN + paragraph
    return " ".join(paragraph.split())


app.add_typer(demo_app, name="demo")
app.command()(plan)
reflow(app)
