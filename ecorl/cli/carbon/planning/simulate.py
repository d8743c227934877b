"""``ecorl carbon simulate``: controllers along a recorded grid, beside the optimum."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import typer

from ecorl.carbon.series import Series
from ecorl.carbon.traces.reading import read_trace
from ecorl.carbon.traces.trace import GridTrace
from ecorl.cli.carbon.app import ForecastKind, SimulatedSpan, TableTerms
from ecorl.cli.carbon.planning.plan import (
    DAY_S,
    counting,
    deadline_of,
    scope_of,
    seconds_of,
    spot_prices,
    table_of,
)
from ecorl.cli.carbon.planning.scores import (
    SimulatedSetting,
    show_simulation,
    simulation_data,
    write_files,
)
from ecorl.cli.carbon.times import utc_text
from ecorl.cli.output import make_console, say
from ecorl.config import Config, ReplayFeedConfig
from ecorl.controllers.planning.comparison import (
    RecordedGrid,
    compared,
    start_times,
)
from ecorl.controllers.planning.defaults import COMPARED
from ecorl.controllers.planning.history import bridged
from ecorl.controllers.planning.problems import budget_at, training_problem
from ecorl.controllers.problem.table import GearTable
from ecorl.controllers.replay.knowledge import Foresight
from ecorl.errors import ConfigError, DataError
from ecorl.grid import Scope

_DAYS, _SLACK = 30.0, 1.67


def run_simulation(
    config: Config,
    traces: Path | None,
    span: SimulatedSpan,
    terms: TableTerms,
    forecast: ForecastKind,
    *,
    rows: Path | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Do what ``ecorl carbon simulate`` was asked for.

    Args:
        config: of the command.
        traces: the recording; None: that of the config.
        span: controllers, time and budget.
        terms: the table.
        forecast: what the controllers are told.
        rows: CSV of a row a controller and start; None: not asked for.
        plot: PNG; None: not asked for.
        as_json: whether JSON is printed.

    Raises:
        ConfigError: for what is missing or cannot be, as a budget that cannot be met.
        DataError: for a recording that cannot be used.
    """
    if span.slack is not None and span.tokens is not None:
        raise ConfigError("--slack", span.slack, "nothing beside --tokens, or the other way round")
    controllers = tuple(span.controller or COMPARED)
    trace = _trace(config, traces)
    setting = _setting(config, trace, table_of(terms, config), span, forecast)
    prices = spot_prices(config, controllers)
    _check_prices(setting, prices)
    grid = RecordedGrid(setting.series, _foresight(setting), prices)
    n = len(setting.problems) * (1 + len(controllers))
    with counting("playing", n) as tell:
        seed = config.carbon.control.seed
        found = compared(grid, setting.problems, controllers, seed, tell)
    write_files(setting, found, rows, plot)
    if as_json:
        typer.echo(json.dumps(simulation_data(setting, found), indent=2, allow_nan=False))
        return
    show_simulation(setting, found, make_console())
    for name, path in (("rows", rows), ("picture", plot)):
        if path is not None:
            say(f"{name}: {path}")


def _trace(config: Config, path: Path | None) -> GridTrace:
    """The recording that the option names, else that of the config's first replay feed."""
    if path is not None:
        if not path.expanduser().is_file():
            raise ConfigError("--traces", str(path), "a file that can be read")
        return read_trace(path.expanduser(), scope_of(config))
    feeds = enumerate(config.carbon.feeds)
    found = next(((n, one) for n, one in feeds if isinstance(one, ReplayFeedConfig)), None)
    if found is None:
        allowed = "a recording, here or in a feed of the config with type = 'replay'"
        raise ConfigError("--traces", None, allowed)
    number, feed = found
    key = f"carbon.feeds.{number}.path"
    if not feed.path.expanduser().is_file():
        raise ConfigError(key, str(feed.path), "a file that can be read")
    try:
        return read_trace(feed.path.expanduser(), None if feed.scope is None else Scope(feed.scope))
    except DataError as error:
        raise ConfigError(key, str(feed.path), f"a trace ({error})") from error


def _setting(
    config: Config, trace: GridTrace, table: GearTable, span: SimulatedSpan, forecast: ForecastKind
) -> SimulatedSetting:
    """The problems of all starts."""
    series, n_bridged = bridged(trace.series)
    start_s = seconds_of(span.start, "--start")
    if span.deadline is not None and start_s is None:
        raise ConfigError("--deadline", span.deadline, "a date together with --start")
    if span.deadline is not None and span.every_days is not None:
        raise ConfigError("--deadline", span.deadline, "--days in its place with --every-days")
    length_s = (_DAYS if span.days is None else span.days) * DAY_S
    if start_s is not None and span.deadline is not None:
        deadline_s = deadline_of(config, start_s, span.deadline, span.days)
        assert deadline_s is not None
        length_s = deadline_s - start_s
    elif span.days is None and config.carbon.control.deadline_in_s is not None:
        length_s = config.carbon.control.deadline_in_s
    epoch_s = config.carbon.control.epoch_s
    problems = []
    for begin_s in start_times(series, length_s, start_s, span.every_days):
        span_s = (begin_s, begin_s + length_s)
        tokens = config.carbon.control.tokens if span.tokens is None else span.tokens
        if tokens is None or span.slack is not None:
            slack = span.slack or config.carbon.control.slack or _SLACK
            tokens = budget_at(config, table, span_s, epoch_s, slack)
        problems.append(training_problem(config, table, span_s, tokens, epoch_s))
    return SimulatedSetting(config, trace, series, n_bridged, table, tuple(problems), forecast)


def _check_prices(setting: SimulatedSetting, prices: Series | None) -> None:
    """Refuse prices of another time than that of the trainings."""
    for problem in setting.problems if prices is not None else ():
        assert prices is not None
        hours = np.arange(problem.start_s, problem.deadline_s, 3600.0)
        if all(prices.at(float(t_s)) is None for t_s in hours):
            path = str(setting.config.carbon.control.spot_prices)
            allowed = f"prices of the time from {utc_text(problem.start_s)} on"
            raise ConfigError("carbon.control.spot_prices", path, allowed)


def _foresight(setting: SimulatedSetting) -> Foresight | None:
    """The forecasts that controllers are told, or None."""
    from ecorl.controllers.planning.foresight import AS_ARCHIVED, KIND, MadeUpForesight

    if setting.forecast == "none":
        return None
    step_s = setting.series.step_s
    if step_s > 3600.0:
        allowed = f"none for a recording in intervals of {step_s / 3600:g} h"
        raise ConfigError("--forecast", setting.forecast, allowed)
    shape = KIND if setting.forecast == "kind" else AS_ARCHIVED
    return MadeUpForesight(setting.series, shape, setting.config.carbon.control.seed)
