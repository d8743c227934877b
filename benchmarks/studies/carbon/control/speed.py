"""How long decisions, bounds and simulated years take, on hours that are made up."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.studies.carbon.control.scenario import DAY_S, Study
from ecorl.bench.stats import median
from ecorl.carbon.series import Series
from ecorl.controllers.catalogue import build
from ecorl.controllers.clairvoyant.lp import lp_bound
from ecorl.controllers.protocol import Seen
from ecorl.controllers.replay.knowledge import Knowledge
from ecorl.controllers.replay.playing import Training, play
from ecorl.controllers.step import action_of, control_step

HISTORY_DAYS = 60


@dataclass(frozen=True, slots=True)
class DecisionTimes:
    """How long decisions took.

    Attributes:
        n: number of decisions.
        median_ms, p99_ms: of all, ms.
        new_hour_median_ms: of those with which an hour begins, so that all is planned anew, ms.
    """

    n: int
    median_ms: float
    p99_ms: float
    new_hour_median_ms: float


@dataclass(frozen=True, slots=True)
class SimulatedTime:
    """How long a training took to play.

    Attributes:
        days: of the training.
        n_epochs: number of its decisions.
        seconds: that it took, s.
    """

    days: int
    n_epochs: int
    seconds: float


def made_up_hours(days: int, seed: int = 0) -> Series:
    """Hours of no grid: a day, a week and a level that drifts.

    Args:
        days: number of days.
        seed: of the drift.
    """
    hours = np.arange(days * 24)
    rng = np.random.default_rng(seed)
    level = 250.0 + np.repeat(np.clip(np.cumsum(rng.normal(0, 6.0, days)), -120, 120), 24)
    day = 60.0 * np.sin(2 * np.pi * (hours - 9) / 24)
    week = 15.0 * np.sin(2 * np.pi * hours / 168)
    return Series(0.0, 3600.0, level + day + week + rng.normal(0, 10.0, len(hours)))


def decision_times(days: float = 4.0) -> DecisionTimes:
    """Time decisions of the default controller with 512 widths.

    Args:
        days: of a training of 30 days that are played.
    """
    series = made_up_hours(HISTORY_DAYS + 30)
    problem = Study(step=1).problem(series.start_s + HISTORY_DAYS * DAY_S)
    controller, knowledge = build("stochastic", problem), Knowledge(series)
    training = Training(problem, series)
    taken_s: list[float] = []
    for _ in range(round(days * DAY_S / problem.epoch_s)):
        view = knowledge.at(training.now_s)
        seen = Seen(view.intensity, view.forecast, view.past, training.progress)
        began_s = time.perf_counter()
        found = control_step(controller, problem, training.now_s, seen)
        taken_s.append(time.perf_counter() - began_s)
        training.run(action_of(found))
    an_hour = round(series.step_s / problem.epoch_s)
    taken_ms = [1e3 * one for one in taken_s]
    return DecisionTimes(
        n=len(taken_ms),
        median_ms=median(taken_ms),
        p99_ms=float(np.percentile(taken_ms, 99)),
        new_hour_median_ms=median(taken_ms[::an_hour]),
    )


def lp_seconds(n: int = 5) -> list[float]:
    """Time the bound of a training of 30 days, rising.

    Args:
        n: number of repetitions, each on hours of its own.
    """
    taken_s = []
    for seed in range(n):
        series = made_up_hours(30, seed)
        problem = Study().problem(series.start_s)
        began_s = time.perf_counter()
        lp_bound(problem, series)
        taken_s.append(time.perf_counter() - began_s)
    return sorted(taken_s)


def year_seconds(days: int = 365) -> SimulatedTime:
    """Time the play of one long training in epochs of 300 s.

    Args:
        days: of it.
    """
    series = made_up_hours(HISTORY_DAYS + days)
    study = replace(Study(), days=float(days))
    problem = study.problem(series.start_s + HISTORY_DAYS * DAY_S)
    began_s = time.perf_counter()
    played = play(build("stochastic", problem), problem, Knowledge(series))
    return SimulatedTime(days, played.n_epochs, time.perf_counter() - began_s)
