"""How long decisions, bounds and simulated years take, on hours that are made up."""

from __future__ import annotations

import time

import numpy as np

from benchmarks.studies.carbon.control.scenario import DAY_S, DEFAULT, Study
from ecorl.bench.stats import median
from ecorl.carbon.series import Series
from ecorl.controllers.catalogue import build
from ecorl.controllers.clairvoyant.lp import lp_bound
from ecorl.controllers.protocol import Seen
from ecorl.controllers.replay.knowledge import Knowledge
from ecorl.controllers.replay.playing import Training, play
from ecorl.controllers.step import action_of, control_step

HISTORY_DAYS = 60


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


def decision_times(days: float = 4.0) -> dict[str, float]:
    """Time decisions of the default controller with 512 widths.

    Args:
        days: of a training of 30 days that are played.

    Returns:
        Their number ``n``, ``median_ms`` and ``p99_ms`` of all, and ``new_hour_median_ms`` of those
        with which an hour begins, so that all is planned anew.
    """
    series = made_up_hours(HISTORY_DAYS + 30)
    problem = Study(step=1).problem(series.start_s + HISTORY_DAYS * DAY_S)
    controller, knowledge = build(DEFAULT, problem), Knowledge(series)
    training = Training(problem, series)
    taken_ms: list[float] = []
    for _ in range(round(days * DAY_S / problem.epoch_s)):
        view = knowledge.at(training.now_s)
        seen = Seen(view.intensity, view.forecast, view.past, training.progress)
        began_s = time.perf_counter()
        found = control_step(controller, problem, training.now_s, seen)
        taken_ms.append(1e3 * (time.perf_counter() - began_s))
        training.run(action_of(found))
    return {
        "n": len(taken_ms),
        "median_ms": median(taken_ms),
        "p99_ms": float(np.percentile(taken_ms, 99)),
        "new_hour_median_ms": median(taken_ms[:: round(series.step_s / problem.epoch_s)]),
    }


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


def year_seconds(days: int = 365) -> dict[str, float]:
    """Time the play of one long training in epochs of 300 s.

    Args:
        days: of it.

    Returns:
        ``days``, the number of its decisions as ``n_epochs``, and ``seconds``.
    """
    series = made_up_hours(HISTORY_DAYS + days)
    problem = Study(days=float(days)).problem(series.start_s + HISTORY_DAYS * DAY_S)
    began_s = time.perf_counter()
    played = play(build(DEFAULT, problem), problem, Knowledge(series))
    taken_s = time.perf_counter() - began_s
    return {"days": days, "n_epochs": played.n_epochs, "seconds": taken_s}
