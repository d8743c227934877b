"""The training that a config describes, as a problem for controllers."""

from __future__ import annotations

import math

from ecorl.carbon.pue import read_pue
from ecorl.config import Config
from ecorl.controllers.problem.table import GearTable
from ecorl.controllers.problem.training import Kept, TrainingProblem
from ecorl.errors import ConfigError, DataError

_KEY = "carbon.control"


def training_problem(
    config: Config,
    table: GearTable,
    span_s: tuple[float, float],
    tokens: float,
    epoch_s: float,
    soft_deadline_s: float | None = None,
) -> TrainingProblem:
    """The problem of a config, in one span of time.

    Args:
        config: its ``[carbon.control]`` and ``[accounting]`` count.
        table: power and throughput.
        span_s: start and hard deadline, s since 1970.
        tokens: the budget.
        epoch_s: time between two decisions, s.
        soft_deadline_s: when training should be over, s since 1970; None without one.

    Raises:
        ConfigError: when the budget cannot be met, with the earliest deadline that can.
    """
    c = config.carbon.control
    return TrainingProblem(
        table,
        tokens=tokens,
        start_s=span_s[0],
        deadline_s=span_s[1],
        epoch_s=epoch_s,
        base_w=c.base_w,
        idle_w=c.idle_w,
        kept=Kept(c.kept),
        width_change_s=c.width_change_s,
        gear_change_s=c.gear_change_s,
        low_share=c.low_share,
        soft_deadline_s=soft_deadline_s,
        late_g_per_h=c.late_g_per_h,
        pue=pue_at(config, span_s[0]),
    )


def budget_at(
    config: Config, table: GearTable, span_s: tuple[float, float], epoch_s: float, slack: float
) -> float:
    """The budget that leaves a slack: time there is over the least time that it takes.

    Args:
        config: its ``[carbon.control]`` counts.
        table: power and throughput.
        span_s: start and hard deadline, s since 1970.
        epoch_s: time between two decisions, s.
        slack: 1 or more.

    Returns:
        Tokens.

    Raises:
        ConfigError: when nothing at all can be trained in that time.
    """
    one = training_problem(config, table, (span_s[0], math.inf), 1.0, epoch_s)
    most = one.most_tokens((span_s[1] - span_s[0]) / slack)
    if not most > 0.0:
        allowed = "a time in which more than changes of width and gear can be made"
        raise ConfigError(f"{_KEY}.deadline", f"{(span_s[1] - span_s[0]) / 3600:.3g} h", allowed)
    return most


def slack_of(problem: TrainingProblem) -> float:
    """Time there is over the least time that the budget takes.

    Args:
        problem: what has to be met.
    """
    return (problem.deadline_s - problem.start_s) / problem.needed_s(problem.begin())


def pue_at(config: Config, t_s: float) -> float:
    """The power usage effectiveness that counts at a time.

    Args:
        config: with one figure, or a file of times and figures.
        t_s: time, s since 1970.

    Raises:
        ConfigError: when the file cannot be read, or begins later.
    """
    path = config.accounting.pue_csv
    if path is None:
        return config.accounting.pue
    key = "accounting.pue_csv"
    try:
        steps = read_pue(path.expanduser())
    except DataError as error:
        raise ConfigError(key, str(path), f"times and PUE ({error})") from error
    before = [pue for start_s, pue in steps if start_s <= t_s]
    if not before:
        raise ConfigError(key, str(path), "a file that begins before the training does")
    return before[-1]
