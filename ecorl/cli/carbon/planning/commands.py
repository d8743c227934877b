"""The planning commands' own words; what they do is imported when one is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ecorl.cli.carbon.planning.options import (
    DeadlineOption,
    ForecastKind,
    Fp8GainOption,
    GpuOption,
    JsonOption,
    ModelOption,
    PlotOption,
    ScalingOption,
    SpanTerms,
    TableOption,
    TableTerms,
    TokensOption,
    WorkersOption,
)
from ecorl.cli.options import ConfigOption, OverridesOption, chosen_config
from ecorl.cli.output import writable
from ecorl.control import Gear
from ecorl.controllers.planning.modelled import COMPARED


def plan(
    config: ConfigOption = None,
    overrides: OverridesOption = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Recording in the place of the config's feeds; what it "
            "has after the start is not looked at.",
        ),
    ] = None,
    tokens: TokensOption = None,
    deadline: DeadlineOption = None,
    days: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            help="The deadline as days after the start. One of the two, or "
            "carbon.control.deadline.",
        ),
    ] = None,
    soft_deadline: Annotated[
        str | None,
        typer.Option(
            metavar="DATE",
            help="When training should be over; each hour after it counts "
            "as carbon.control.late_g_per_h.",
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            metavar="DATE",
            help="When training may begin, UTC; by default now, or where an older recording ends.",
        ),
    ] = None,
    table: TableOption = None,
    gpu: GpuOption = None,
    workers: WorkersOption = None,
    model: ModelOption = None,
    fp8_gain: Fp8GainOption = None,
    scaling: ScalingOption = None,
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
    span = SpanTerms(tokens, deadline, days, start, soft_deadline)
    terms = TableTerms(table, gpu, workers, model, fp8_gain, scaling)
    from ecorl.cli.carbon.planning.plan import run_plan

    run_plan(settings, trace, span, terms, plot, as_json=as_json)


def simulate(
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
    controller: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="To play; repeatable. The static ones always stand "
            f"beside (default: {', '.join(COMPARED)}).",
        ),
    ] = None,
    days: Annotated[
        float | None, typer.Option(min=0.04, max=3660, help="To the deadline (default: 30).")
    ] = None,
    deadline: DeadlineOption = None,
    slack: Annotated[
        float | None,
        typer.Option(
            min=1,
            max=1000,
            help="Time there is over the least time that the tokens take (default: 1.67).",
        ),
    ] = None,
    tokens: TokensOption = None,
    start: Annotated[
        str | None,
        typer.Option(
            metavar="DATE",
            help="Begin of the training, UTC (default: 60 days after the recording's).",
        ),
    ] = None,
    every_days: Annotated[
        float | None,
        typer.Option(min=0.04, help="Play again every so many days; figures are then means."),
    ] = None,
    table: TableOption = None,
    gpu: GpuOption = None,
    workers: WorkersOption = None,
    model: ModelOption = None,
    fp8_gain: Fp8GainOption = None,
    scaling: ScalingOption = None,
    forecast: Annotated[
        ForecastKind,
        typer.Option(
            help="What controllers know: the past alone; also the recording ahead, with "
            "made-up errors of 6 to 12 %; or with errors as archived forecasts had."
        ),
    ] = ForecastKind.NONE,
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
    span = SpanTerms(tokens, deadline, days, start, None, slack, every_days)
    terms = TableTerms(table, gpu, workers, model, fp8_gain, scaling)
    from ecorl.cli.carbon.planning.simulate import Asked, run_simulation

    asked = Asked(traces, tuple(controller or COMPARED), forecast, csv_file, plot, as_json)
    run_simulation(settings, span, terms, asked)


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
