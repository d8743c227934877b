"""What the options of the planning commands name: tables, times, prices."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

from ecorl.carbon.series import Series
from ecorl.cli.carbon.planning.options import GPU, MODEL, WORKERS, SpanTerms, TableTerms
from ecorl.cli.carbon.times import utc_text
from ecorl.cli.output import make_console
from ecorl.config import Config, ReplayFeedConfig
from ecorl.controllers.planning.modelled import (
    EXPONENT,
    FP8_GAIN,
    modelled_table,
    offered_gears,
    offered_widths,
)
from ecorl.controllers.planning.tables import read_table
from ecorl.controllers.problem.table import GearTable
from ecorl.controllers.rules.prices import read_prices
from ecorl.controllers.rules.reactive import SpotOnly
from ecorl.devices.llama import model_shape
from ecorl.devices.profile import load_profile
from ecorl.errors import ConfigError, DataError
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
    path = terms.path or config.carbon.control.table
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


def deadline_of(config: Config, start_s: float, terms: SpanTerms) -> float | None:
    """The hard deadline that the options name, else that of the config; None: there is none.

    Args:
        config: of the command.
        start_s: begin of the training, s since 1970.
        terms: what the options say.

    Raises:
        ConfigError: when two are given, or the deadline does not lie after the start.
    """
    c, days = config.carbon.control, terms.days
    if terms.deadline is not None and days is not None:
        raise ConfigError("--days", days, "nothing beside --deadline, or the other way round")
    found, key = seconds_of(terms.deadline, "--deadline"), "--deadline"
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
