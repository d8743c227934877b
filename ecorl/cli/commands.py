"""The commands, and what ends them.

A user's mistake ends with one clear line on standard error and exit code 2.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
import typer.core
from rich.console import Console

from ecorl import __version__
from ecorl.cli import STOPPED, STOPPED_TEXT
from ecorl.cli.fpga.app import fpga_app
from ecorl.cli.output import LastingOutput, make_console
from ecorl.cli.plan import plan
from ecorl.cli.policy.app import policy_app
from ecorl.config import Config, config_toml, load_config, parse_config, preset_names
from ecorl.errors import ConfigError, EcorlError, LedgerError, MissingToolError, RunError, UserError

FAULT = 1
USER_ERROR = 2

_UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""What the argument parser raises; some releases of typer bring a parser of their own."""


class Stopped(Exception):
    """Ctrl-C; the message says how to go on, where that is possible."""


class _Commands(typer.core.TyperGroup):
    """The commands; the parser itself would end on Ctrl-C without a word."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise Stopped(STOPPED_TEXT) from error


app = typer.Typer(
    cls=_Commands,
    help="Measure, place and account for the energy of RLHF training, stage by stage.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None if os.environ.get("NO_COLOR") else "rich",
)


app.add_typer(policy_app, name="policy")
app.add_typer(fpga_app, name="fpga")


def main() -> None:
    """Entry point of the ``ecorl`` command."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
    except UserError as error:
        _fail(str(error), USER_ERROR)
    except EcorlError as error:
        _fail(str(error), FAULT)
    except _UsageError as error:
        _fail(_usage(error), USER_ERROR)
    except Stopped as error:
        _fail(str(error), STOPPED)
    except typer.Abort:
        _fail(STOPPED_TEXT, STOPPED)
    except OSError as error:
        if not _lost_output():
            raise
        _fail(f"the output cannot be written ({error.strerror or error})", FAULT)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int) -> NoReturn:
    line = " ".join(part.strip() for part in message.splitlines())
    make_console(stderr=True, soft_wrap=True).print(
        f"ecorl: {line}", style="red", markup=False, highlight=False
    )
    sys.exit(code)


def _lost_output() -> bool:
    """Whether standard output cannot be written; it then ends in nothing.

    Else what is left in its buffer would fail once more when the process ends.
    """
    try:
        sys.stdout.write("\n")
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


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
    console = make_console(file=LastingOutput(sys.stdout))
    settings = (
        _to_start(config, overrides or ())
        if resume is None
        else _to_resume(resume, config is not None or bool(overrides))
    )
    if show:
        typer.echo(config_toml(settings))
        return
    run_dir = settings.resolved_run_dir() if resume is None else resume.expanduser()
    if not _trained(settings, run_dir, resume is not None, console):
        _say(f"stopped; go on with: ecorl run --resume {run_dir}", console)
        raise typer.Exit(STOPPED)
    _report(run_dir, make_console())


def _trained(settings: Config, run_dir: Path, resumed: bool, console: Console) -> bool:
    """Hand the run to the adapter of its framework; False when a signal stopped it."""
    from ecorl.ledger import LEDGER_FILE

    ledger = run_dir / LEDGER_FILE
    others = not resumed and ledger.exists()
    try:
        if resumed:
            with _users_file():
                return bool(_adapter(settings.adapter, "resume")(run_dir, console))
        return bool(_adapter(settings.adapter, "run")(settings, run_dir, console))
    except KeyboardInterrupt as error:
        begun = ledger.is_file() and not others
        hint = f"; go on with: ecorl run --resume {run_dir}" if begun else ""
        raise Stopped(STOPPED_TEXT + hint) from error


@contextlib.contextmanager
def _users_file() -> Iterator[None]:
    """A ledger that the user named and that cannot be read is the user's mistake."""
    try:
        yield
    except LedgerError as error:
        raise RunError(str(error)) from error


def _to_start(config: str | None, overrides: Sequence[str]) -> Config:
    """The config of a fresh run."""
    if config is None:
        presets = ", ".join(preset_names())
        raise UserError(
            f"what shall run? Give --config FILE, --config PRESET ({presets}) or --resume RUN"
        )
    return load_config(config, overrides)


def _to_resume(resume: Path, with_others: bool) -> Config:
    """The config of a run to go on with; no other option may change it."""
    if with_others:
        raise UserError("--resume goes alone: a run keeps its own config (no --config, --set)")
    from ecorl.ledger import LEDGER_FILE, LedgerReader

    run_dir = resume.expanduser()
    if not (run_dir / LEDGER_FILE).is_file():
        raise RunError(f"{run_dir} holds no run to resume (there is no {LEDGER_FILE} in it)")
    with _users_file(), LedgerReader(run_dir) as reader:
        # Not config.toml, which may have been edited: one record is of one config.
        return parse_config(reader.run().config_toml, f"the ledger of {run_dir}")


def _say(line: str, console: Console) -> None:
    """Print a line with a path, which may hold bytes that are no text."""
    told = line.encode(console.encoding, "backslashreplace").decode(console.encoding)
    console.print(told, highlight=False, markup=False, soft_wrap=True)


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
    """Print a run's report and write report.html and report.json into its folder if it can."""
    with _users_file():
        _report(run_dir.expanduser(), make_console())


def _report(run_dir: Path, console: Console) -> None:
    from ecorl.report import write_report

    page = write_report(run_dir, console=console)
    if page is not None:
        _say(f"report: {page}", console)


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say which hardware, drivers and tools are here, and what that makes possible."""
    from ecorl import doctor as clinic

    findings = clinic.examine()
    if as_json:
        typer.echo(clinic.to_json(findings))
    else:
        clinic.render(findings, make_console())


app.command()(plan)
