"""``ecorl carbon``: what the grid emits now and in the next hours, and when to train."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from ecorl.cli.exits import FAULT, help_without_command
from ecorl.cli.options import (
    ConfigOption,
    JsonOption,
    OverridesOption,
    chosen_config,
    option,
    with_options,
)
from ecorl.cli.output import make_console, writable
from ecorl.control import Gear
from ecorl.controllers.planning.defaults import COMPARED, EXPONENT, FP8_GAIN
from ecorl.devices.llama import MODEL_SIZES

GPU, WORKERS, MODEL = "h100_sxm", 8, "8b"
"""Of a modelled table, where neither option nor config says."""

_TOKENS = "Tokens to train; else carbon.control.tokens."
_DEADLINE = "When the last token has to be trained, e.g. 2026-03-01T08:00Z; UTC."

PlotOption = Annotated[
    Path | None, typer.Option(help="PNG of the intensity, and of width and gear over time.")
]

ForecastKind = Literal["none", "kind", "archived"]
"""What controllers are told of the time ahead."""


@dataclass(frozen=True, slots=True)
class TableTerms:
    """What the options say about the table; None: nothing."""

    table: Path | None = option(
        "TOML of power and throughput by width and gear, as `ecorl carbon profile` writes it; "
        "else carbon.control.table, else one is modelled from the next options."
    )
    gpu: str | None = option(f"Of a modelled table: profile of a worker (default: {GPU}).")
    workers: int | None = option(
        f"Of a modelled table: workers at most (default: {WORKERS}).", min=1
    )
    model: str | None = option(
        f"Of a modelled table: size that is trained, {', '.join(MODEL_SIZES)} (default: {MODEL})."
    )
    fp8_gain: float | None = option(
        f"Of a modelled table: throughput of FP8 over BF16 (default: {FP8_GAIN:g}, published "
        "for 8 B by torchao)."
    )
    scaling: float | None = option(
        "Of a modelled table: power of the width with which throughput grows "
        f"(default: {EXPONENT:g}, assumed)."
    )


@dataclass(frozen=True, slots=True)
class SpanOptions:
    """What the options say about time and budget of a plan; None: nothing."""

    trace: Path | None = option(
        "Recording in the place of the config's feeds; what it has after the start is not "
        "looked at.",
        "FILE",
    )
    tokens: float | None = option(_TOKENS)
    deadline: str | None = option(_DEADLINE, "DATE")
    days: float | None = option(
        "The deadline as days after the start. One of the two, or carbon.control.deadline.",
        min=0.01,
    )
    soft_deadline: str | None = option(
        "When training should be over; each hour after it counts as carbon.control.late_g_per_h.",
        "DATE",
    )
    start: str | None = option(
        "When training may begin, UTC; by default now, or where an older recording ends.", "DATE"
    )


@dataclass(frozen=True, slots=True)
class SimulatedSpan:
    """What is played, and what the options say about time and budget of it; None: nothing."""

    controller: list[str] | None = option(
        "To play; repeatable. The static ones always stand "
        f"beside (default: {', '.join(COMPARED)}).",
        "NAME",
    )
    days: float | None = option("To the deadline (default: 30).", min=0.04, max=3660)
    deadline: str | None = option(_DEADLINE, "DATE")
    slack: float | None = option(
        "Time there is over the least time that the tokens take (default: 1.67).", min=1, max=1000
    )
    tokens: float | None = option(_TOKENS)
    start: str | None = option(
        "Begin of the training, UTC (default: 60 days after the recording's).", "DATE"
    )
    every_days: float | None = option(
        "Play again every so many days; figures are then means.", min=0.04
    )


@with_options
def plan(
    *,
    config: ConfigOption = None,
    overrides: OverridesOption = None,
    span: SpanOptions,
    terms: TableTerms,
    as_json: JsonOption = False,
    plot: PlotOption = None,
) -> None:
    """Say when to train until a deadline, and what that saves.

    Also with how many workers, and in which gear (numeric format of the training stage). The grid
    is that of the config's feeds, or a recording. The plan is the default controller's on the
    course that is expected; in use it decides anew each hour, by what the grid then does.
    """  # fmt: skip
    plot = writable(plot, "--plot")
    settings = chosen_config(config, overrides)
    from ecorl.cli.carbon.planning.plan import run_plan

    run_plan(settings, span, terms, plot, as_json=as_json)


@with_options
def simulate(
    *,
    traces: Annotated[
        Path | None,
        typer.Option(
            "--traces",
            "--trace",
            metavar="FILE",
            help="CSV of a grid's intensity: "
            "EIA-930, an export of Electricity Maps, or time and intensity; else that of "
            "the config's first replay feed.",
        ),
    ] = None,
    config: ConfigOption = None,
    overrides: OverridesOption = None,
    span: SimulatedSpan,
    terms: TableTerms,
    forecast: Annotated[
        ForecastKind,
        typer.Option(
            help="What controllers know: the past alone; also the recording ahead, with "
            "made-up errors of 6 to 12 %; or with errors as archived forecasts had."
        ),
    ] = "none",
    as_json: JsonOption = False,
    csv_file: Annotated[
        Path | None,
        typer.Option("--csv", metavar="FILE", help="Write a row for each controller and start."),
    ] = None,
    plot: PlotOption = None,
) -> None:
    """Play controllers of the training along a recorded grid.

    Prints what each emits, what it saves and how far it is from the optimum. Each has to train the
    same tokens by the deadline. The bound knew all hours beforehand: no controller can emit less.
    """  # fmt: skip
    plot, csv_file = writable(plot, "--plot"), writable(csv_file, "--csv")
    settings = chosen_config(config, overrides)
    from ecorl.cli.carbon.planning.simulate import run_simulation

    run_simulation(
        settings, traces, span, terms, forecast, rows=csv_file, plot=plot, as_json=as_json
    )


def profile(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the table as TOML.")
    ] = None,
    gear: Annotated[
        Gear | None,
        typer.Option(help="Of executions that tell no gear; else these are left out."),
    ] = None,
    width: Annotated[
        int | None,
        typer.Option(min=1, help="Workers of executions that tell none; else these are left out."),
    ] = None,
    skip: Annotated[
        int,
        typer.Option(min=0, help="Executions to leave out after each begin and each change."),
    ] = 1,
    as_json: JsonOption = False,
) -> None:
    """Read power and throughput of the training stage from a run.

    By gear (numeric format) and width (number of workers). Figures are means over the executions
    with their standard deviations, of the provenance that the record has. A simulated gear has no
    price: its executions are left out, as are steps that were computed anew. What --out writes is
    what carbon.control.table reads.
    """
    out = writable(out, "--out")
    from ecorl.cli.carbon.planning.profile import run_profile
    from ecorl.controllers.problem.table import TrainingAction

    # What is not told stays so: a width of 0 stands for none.
    run_profile(run.expanduser(), out, TrainingAction(width or 0, gear), skip, as_json=as_json)


_HELP = "Say what the grid emits now and later, and when to train."

carbon_app = typer.Typer(help=_HELP)


@carbon_app.callback(invoke_without_command=True)
def _top(context: typer.Context) -> None:
    """Say what the grid emits now and later, and when to train."""
    help_without_command(context)


@carbon_app.command()
def now(
    config: ConfigOption = None, overrides: OverridesOption = None, as_json: JsonOption = False
) -> None:
    """Say what the grid emits now, and whether a run would train.

    The feeds of the config are asked once. Exit code 1 when an intensity is unknown: the feeds that
    were asked, and why none counts, are told all the same.
    """
    settings = chosen_config(config, overrides)
    from ecorl.cli.carbon.now import ask_grid, now_data, show_now

    grid = ask_grid(settings, looks_ahead=False)
    if as_json:
        typer.echo(json.dumps(now_data(grid), indent=2, allow_nan=False))
    else:
        show_now(grid, make_console())
    if not grid.is_known:
        raise typer.Exit(FAULT)


@carbon_app.command()
def forecast(
    config: ConfigOption = None,
    overrides: OverridesOption = None,
    hours: Annotated[int, typer.Option(min=1, max=48, help="Of the table.")] = 24,
    as_json: JsonOption = False,
) -> None:
    """Say what the grid will emit, and when the next clean window is.

    Hour by hour. It is of the intensity that carbon.waits_for names. Exit code 1 when there is no
    forecast, except for a stated figure, which has none.
    """
    settings = chosen_config(config, overrides)
    from ecorl.cli.carbon.forecast import forecast_data, is_missed, show_forecast
    from ecorl.cli.carbon.now import ask_grid

    grid = ask_grid(settings, looks_ahead=True)
    if as_json:
        typer.echo(json.dumps(forecast_data(grid), indent=2, allow_nan=False))
    else:
        show_forecast(grid, hours, make_console())
    if is_missed(grid):
        raise typer.Exit(FAULT)


carbon_app.command()(plan)
carbon_app.command()(simulate)
carbon_app.command()(profile)
