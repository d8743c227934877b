"""The command line: ``ecorl run``, ``ecorl report``, ``ecorl doctor``.

A user's mistake ends with one clear line on standard error and exit code 2.
"""

from __future__ import annotations

import importlib.metadata
import json
import logging
import os
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from ecorl import __version__
from ecorl.config import config_toml, load_config, preset_names
from ecorl.errors import ConfigError, EcorlError, LedgerError, MissingToolError, RunError, UserError

USER_ERROR = 2
STOPPED = 130
"""Exit code of a run that a signal stopped; it can be resumed."""

_UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""What the argument parser raises; some releases of typer bring a parser of their own."""

app = typer.Typer(
    help="Measure, place and account for the energy of RLHF training, stage by stage.",
    add_completion=False,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Entry point of the ``ecorl`` command."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        code = app(standalone_mode=False)
    except UserError as error:
        _fail(str(error), USER_ERROR)
    except EcorlError as error:
        _fail(str(error), 1)
    except _UsageError as error:
        _fail(_usage(error), USER_ERROR)
    except (typer.Abort, KeyboardInterrupt):
        _fail("stopped from the keyboard", STOPPED)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int) -> NoReturn:
    line = " ".join(part.strip() for part in message.splitlines())
    Console(stderr=True, soft_wrap=True).print(
        f"ecorl: {line}", style="red", markup=False, highlight=False
    )
    sys.exit(code)


def _usage(error: Any) -> str:
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "ecorl"
    return f"{error.format_message().rstrip('.')}; see {command} --help"


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
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(USER_ERROR)


@app.command()
def run(
    config: Annotated[
        str | None,
        typer.Option(
            "--config", "-c", help=f"TOML file, or a preset: {', '.join(preset_names())}."
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", metavar="KEY=VALUE", help="Override a value; repeatable."),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", help="Run folder to go on with.")
    ] = None,
    show: Annotated[
        bool, typer.Option("--show-config", help="Print the resolved config and stop.")
    ] = False,
) -> None:
    """Train with the configured framework and leave a ledger and a report."""
    # Small models on a CPU lose time with more threads; the config decides within the process.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    console = Console()
    if resume is not None:
        if config is not None or overrides:
            raise UserError("--resume goes alone: a run keeps its own config (no --config, --set)")
        run_dir = resume.expanduser()
        if not (run_dir / "config.toml").is_file():
            raise RunError(f"{run_dir} holds no run to resume (there is no config.toml in it)")
        settings = load_config(str(run_dir / "config.toml"))
        if show:
            typer.echo(config_toml(settings))
            return
        finished = _adapter(settings.adapter, "resume")(run_dir, console)
    else:
        if config is None:
            presets = ", ".join(preset_names())
            raise UserError(
                f"what shall run? Give --config FILE, --config PRESET ({presets}) or --resume RUN"
            )
        settings = load_config(config, overrides or ())
        if show:
            typer.echo(config_toml(settings))
            return
        run_dir = settings.resolved_run_dir()
        finished = _adapter(settings.adapter, "run")(settings, run_dir, console)
    if not finished:
        console.print(
            f"stopped; go on with: ecorl run --resume {run_dir}", highlight=False, soft_wrap=True
        )
        raise typer.Exit(STOPPED)
    _report(run_dir, console)


def _adapter(name: str, function: str) -> Any:
    """A function of a framework adapter, found by entry point.

    Raises:
        ConfigError: when no adapter of that name is installed.
        MissingToolError: when its framework is not.
    """
    found = {p.name: p for p in importlib.metadata.entry_points(group="ecorl.adapters")}
    if name not in found:
        raise ConfigError("adapter", name, f"one of {sorted(found)}")
    try:
        module = found[name].load()
    except ImportError as error:
        raise MissingToolError(
            f"adapter = {name!r} needs its framework: pip install {name} ({error})"
        ) from error
    return getattr(module, function)


@app.command()
def report(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")],
) -> None:
    """Print a run's report and write report.html and report.json into its folder."""
    try:
        _report(run_dir.expanduser(), Console())
    except LedgerError as error:  # here the file is the user's input
        raise RunError(str(error)) from error


def _report(run_dir: Path, console: Console) -> None:
    from ecorl.report import write_report

    path = write_report(run_dir, console=console)
    console.print(f"report: {path}", highlight=False, soft_wrap=True)


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say which hardware, drivers and tools are here, and what that makes possible."""
    from ecorl import doctor as clinic

    findings = clinic.examine()
    if as_json:
        found = clinic.to_json(findings)
        typer.echo(found if isinstance(found, str) else json.dumps(found, indent=1))
    else:
        clinic.render(findings, Console())


if __name__ == "__main__":
    main()
