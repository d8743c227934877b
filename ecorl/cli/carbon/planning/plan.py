"""``ecorl carbon plan``: when to train from now on, and what that is worth."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import typer

from ecorl.carbon.chain import FeedChain
from ecorl.carbon.series import Series
from ecorl.carbon.traces.reading import read_trace
from ecorl.carbon.traces.trace import GridTrace
from ecorl.cli.carbon.app import GPU, MODEL, WORKERS, SpanOptions, TableTerms
from ecorl.cli.carbon.now import Kind, answer_of, open_chains, refusal_text
from ecorl.cli.carbon.planning.schedule import draw_plan, plan_data, show_plan
from ecorl.cli.carbon.times import utc_text
from ecorl.cli.output import make_console, say, writing
from ecorl.config import Config, ReplayFeedConfig
from ecorl.controllers.planning.defaults import EXPONENT, FP8_GAIN
from ecorl.controllers.planning.history import GridPast, past_of_feed, past_of_trace
from ecorl.controllers.planning.modelled import (
    modelled_table,
    offered_gears,
    offered_widths,
)
from ecorl.controllers.planning.plan import carbon_plan, epoch_of, n_plays
from ecorl.controllers.planning.problems import budget_at, training_problem
from ecorl.controllers.planning.tables import read_table
from ecorl.controllers.problem.table import GearTable
from ecorl.controllers.problem.training import TrainingProblem
from ecorl.controllers.rules.prices import read_prices
from ecorl.controllers.rules.reactive import SpotOnly
from ecorl.devices.llama import model_shape
from ecorl.devices.profile import load_profile
from ecorl.errors import ConfigError, DataError, FeedSilent
from ecorl.grid import Scope
from ecorl.runtime.progress import progress

DAY_S = 86400.0

_AUTO = "auto"


def table_of(terms: TableTerms, config: Config) -> GearTable:
    """The table that the options name, else that of the config, else a modelled one.

    Args:
        terms: what the options say.
        config: of the command.

    Raises:
        ConfigError: for a table or a profile that cannot be used, and for options of a modelled
            table beside another one.
    """
    path = terms.table or config.carbon.control.table
    if path is None:
        return _modelled(terms, config)
    options = {
        "--gpu": terms.gpu,
        "--workers": terms.workers,
        "--model": terms.model,
        "--fp8-gain": terms.fp8_gain,
        "--scaling": terms.scaling,
    }
    for option, value in options.items():
        if value is not None:
            raise ConfigError(option, value, f"nothing beside the table {path}")
    return read_table(path)


def _modelled(terms: TableTerms, config: Config) -> GearTable:
    devices = config.devices
    named = None if devices.gpu == _AUTO else devices.gpu
    profile = load_profile(terms.gpu or named or GPU)
    model = model_shape(terms.model or MODEL)
    n_workers = terms.workers or (devices.n_gpus if devices.n_gpus > 1 else WORKERS)
    return modelled_table(
        profile,
        offered_gears(profile),
        offered_widths(profile, n_workers, model),
        model=model,
        fp8_gain=FP8_GAIN if terms.fp8_gain is None else terms.fp8_gain,
        exponent=EXPONENT if terms.scaling is None else terms.scaling,
    )


def scope_of(config: Config) -> Scope | None:
    """Which emissions a recording named by an option is taken for, where it has both or says none.

    Args:
        config: of the command; the scope is that of its first replay feed, else of the first feed
            that has one.
    """
    feeds = config.carbon.feeds
    replays = [feed for feed in feeds if isinstance(feed, ReplayFeedConfig)]
    scopes = [getattr(feed, "scope", None) for feed in replays[:1] or feeds]
    return next((Scope(scope) for scope in scopes if scope is not None), None)


def seconds_of(text: str | None, option: str) -> float | None:
    """The time that an option names, s since 1970; without an offset it is UTC.

    Args:
        text: a date, or date and time, by ISO 8601; None: the option was not given.
        option: its name.

    Raises:
        ConfigError: for another text.
    """
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError as error:
        allowed = "a date, or date and time, such as 2026-03-01 or 2026-03-01T08:00Z"
        raise ConfigError(option, text, allowed) from error
    return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()


def deadline_of(
    config: Config, start_s: float, deadline: str | None, days: float | None
) -> float | None:
    """The hard deadline that the options name, else that of the config; None: there is none.

    Args:
        config: of the command.
        start_s: begin of the training, s since 1970.
        deadline: its date, as an option says.
        days: the same from the start on.

    Raises:
        ConfigError: when two are given, or the deadline does not lie after the start.
    """
    c = config.carbon.control
    if deadline is not None and days is not None:
        raise ConfigError("--days", days, "nothing beside --deadline, or the other way round")
    found, key = seconds_of(deadline, "--deadline"), "--deadline"
    if days is not None:
        return start_s + days * DAY_S
    if found is None and c.deadline_in_s is not None:
        return start_s + c.deadline_in_s
    if found is None and c.deadline is not None:
        found, key = c.deadline.timestamp(), "carbon.control.deadline"
    if found is not None and not found > start_s:
        raise ConfigError(key, utc_text(found), f"a time after the start, {utc_text(start_s)}")
    return found


def spot_prices(config: Config, names: Sequence[str]) -> Series | None:
    """The prices of a worker that the config names.

    Args:
        config: of the command.
        names: of the controllers, one of which may need prices.

    Raises:
        ConfigError: when the file cannot be read or holds a price below 0, or a controller needs
            prices and there are none.
    """
    path, key = config.carbon.control.spot_prices, "carbon.control.spot_prices"
    if path is None:
        if SpotOnly.name in names:
            raise ConfigError(key, None, "a CSV of times and prices, for the controller 'spot'")
        return None
    if not path.expanduser().is_file():
        raise ConfigError(key, str(path), "a file that can be read")
    try:
        return read_prices(path.expanduser())
    except DataError as error:
        raise ConfigError(key, str(path), f"times and prices ({error})") from error


@contextlib.contextmanager
def counting(title: str, total: int) -> Iterator[Callable[[int], None] | None]:
    """A bar on a terminal's standard error; elsewhere nothing is shown.

    Args:
        title: what is being done.
        total: units of work.

    Yields:
        What counts more of them as done, or None.
    """
    console = make_console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    with progress(title, total, console) as task:
        yield task.advance


_LONGEST_DAYS = 400.0
"""How many days of the grid a plan reaches at most. Invented: nobody foresees more than a year."""

_UP_TO_DATE_S = 2 * DAY_S
"""A recording that ends at most so long ago goes on now; an older one is planned from its end."""


def run_plan(
    config: Config,
    span: SpanOptions,
    terms: TableTerms,
    plot: Path | None,
    *,
    as_json: bool,
) -> None:
    """Do what ``ecorl carbon plan`` was asked for.

    Args:
        config: of the command.
        span: time and budget, and the recording in the place of the config's feeds.
        terms: the table.
        plot: the PNG; None: not asked for.
        as_json: whether JSON is printed.

    Raises:
        ConfigError: for what is missing or cannot be, as a budget that cannot be met.
        DataError: for a recording that cannot be used.
        FeedSilent: when the feeds tell too little to plan by.
    """
    start_s, soft_s = seconds_of(span.start, "--start"), _soft(config, span.soft_deadline)
    table = table_of(terms, config)
    if span.trace is None:
        past, now_s = _fed(config), time.time() if start_s is None else start_s
    else:
        past, now_s = _recorded(span.trace, scope_of(config), start_s)
    begin_s = past.begin_s(now_s)
    end_s = deadline_of(config, begin_s, span.deadline, span.days)
    if end_s is None:
        end_s = _by_slack(config, past, table, begin_s, span.tokens)
    problem = _problem(config, past, table, (begin_s, end_s), span.tokens, soft_s)
    with counting("planning", n_plays(past, problem)) as tell:
        found = carbon_plan(past, problem, tell)
    if plot is not None:
        with writing(plot, "--plot"):
            draw_plan(found, plot)
    if as_json:
        typer.echo(json.dumps(plan_data(found), indent=2, allow_nan=False))
        return
    show_plan(found, make_console())
    if plot is not None:
        say(f"picture: {plot}")


def _by_slack(
    config: Config, past: GridPast, table: GearTable, begin_s: float, tokens: float | None
) -> float:
    """The deadline that ``carbon.control.slack`` makes of the least time that the tokens take."""
    c = config.carbon.control
    if c.slack is None:
        allowed = "a date and time, here or as --deadline or --days"
        raise ConfigError("carbon.control.deadline", None, allowed)
    budget = c.tokens if tokens is None else tokens
    if budget is None:
        allowed = "a number of tokens, here or as --tokens, since carbon.control.slack is of them"
        raise ConfigError("carbon.control.tokens", None, allowed)
    free = training_problem(config, table, (begin_s, math.inf), budget, past.hour_s)
    return begin_s + c.slack * free.needed_s(free.begin())


def _soft(config: Config, text: str | None) -> float | None:
    """The soft deadline that the option names, else that of the config, s since 1970."""
    found = seconds_of(text, "--soft-deadline")
    if found is None:
        soft = config.carbon.soft_deadline
        return None if soft is None else soft.timestamp()
    if config.carbon.control.late_g_per_h <= 0.0:
        allowed = "a figure above 0 beside --soft-deadline, or being late costs nothing"
        raise ConfigError("carbon.control.late_g_per_h", 0.0, allowed)
    return found


def _problem(
    config: Config,
    past: GridPast,
    table: GearTable,
    span_s: tuple[float, float],
    tokens: float | None,
    soft_s: float | None,
) -> TrainingProblem:
    """What has to be met."""
    length_s = span_s[1] - span_s[0]
    if length_s > _LONGEST_DAYS * 24 * past.hour_s:
        allowed = f"at most {_LONGEST_DAYS:g} days of the grid after the start"
        days = length_s / past.hour_s / 24
        raise ConfigError("carbon.control.deadline", f"{days:.4g} days on", allowed)
    epoch_s = epoch_of(past, length_s, config.carbon.control.epoch_s)
    budget = config.carbon.control.tokens if tokens is None else tokens
    if budget is None:
        most = budget_at(config, table, span_s, epoch_s, 1.0)
        allowed = f"a number of tokens, here or as --tokens; at most {most:.4g} by the deadline"
        raise ConfigError("carbon.control.tokens", None, allowed)
    soft_s = None if soft_s is None or soft_s <= span_s[0] else soft_s
    return training_problem(config, table, span_s, budget, epoch_s, soft_s)


def _recorded(path: Path, scope: Scope | None, start_s: float | None) -> tuple[GridPast, float]:
    """What a recording tells until the start, and the time from which a plan can begin."""
    if not path.expanduser().is_file():
        raise ConfigError("--trace", str(path), "a file that can be read")
    trace: GridTrace = read_trace(path.expanduser(), scope)
    end_s, now_s = trace.series.end_s, time.time()
    if start_s is None:
        start_s = now_s if now_s - end_s <= _UP_TO_DATE_S else end_s
    if start_s - end_s > _UP_TO_DATE_S:
        told = datetime.fromtimestamp(end_s, UTC).strftime("%Y-%m-%d %H:%M")
        given = datetime.fromtimestamp(start_s, UTC).strftime("%Y-%m-%d %H:%M")
        raise ConfigError("--start", given, f"at most 2 days after the recording's end, {told} UTC")
    return past_of_trace(trace, start_s), start_s


def _fed(config: Config) -> GridPast:
    """What the config's feeds tell of the intensity that is waited for."""
    if not config.carbon.feeds:
        allowed = "feeds, or a recording as --trace: a plan goes by the grid's past"
        raise ConfigError("carbon.feeds", None, allowed)
    with open_chains(config) as chains:
        is_marginal = config.carbon.waits_for == "marginal"
        if is_marginal and chains.marginal is not None:
            return _told(chains.marginal)
        return _told(chains.average)


def _told(chain: FeedChain[Kind]) -> GridPast:
    """What the first of a chain's feeds that has a value tells."""
    answer = answer_of(chain)
    if answer.value is None:
        refused = "; ".join(refusal_text(refusal) for refusal in answer.refusals)
        raise FeedSilent(f"the intensity of the grid is unknown: {refused}")
    return past_of_feed(chain, answer.value, answer.asked_s)
