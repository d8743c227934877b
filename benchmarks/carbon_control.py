"""How near do width and gear controllers come to what nobody could do better?

A training of 512 GPUs for 30 days is played along each recorded grid that ``--traces`` or
``ECORL_TRACES`` names, in epochs of 300 s, through the very control step that a run acts on. Regret
is what a controller emits beyond the optimum of a linear programme that knows the whole course. The
default controller knows the past alone (``_history``), or has forecasts of 96 h whose errors grow
from 6 to 12 % (``_forecast96``). Power and throughput are modelled: those of the study that the
targets come from. Savings stand beside static FP8 and static BF16.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from benchmarks.harness import Figure, FigureTable, run_benchmark
from benchmarks.studies.carbon.control.grid_study import PEER, GridStudy, study_grid
from benchmarks.studies.carbon.control.harder import harder_cases, marginal_series
from benchmarks.studies.carbon.control.scenario import (
    DAY_S,
    DEFAULT,
    SLACKS,
    Regrets,
    Study,
    cases,
    each_grid,
    filled,
    regrets,
)
from benchmarks.studies.carbon.traces import (
    KNOWN_GRIDS,
    WHY_MISSING,
    add_traces_option,
    recorded_grids,
)
from ecorl.bench.stats import bootstrap_interval, median
from ecorl.carbon.series import Series
from ecorl.carbon.traces.trace import GridTrace
from ecorl.controllers.catalogue import build
from ecorl.controllers.clairvoyant.lp import lp_bound
from ecorl.controllers.learning.soft_q import SOFT_Q_PRINTED
from ecorl.controllers.protocol import Seen
from ecorl.controllers.replay.knowledge import Knowledge
from ecorl.controllers.replay.playing import Training, play
from ecorl.controllers.step import action_of, control_step

FIGURES = FigureTable("carbon")

BOX_S = 70.0
"""Time for all grids together, s."""

HISTORY_DAYS = 60
"""What comes before the training whose play is timed, days."""

REGRETS = (
    "regret_{grid}_history", "regret_{grid}_history_h2", "regret_{grid}_forecast96",
    "capture_{grid}_history", "carbonscaler_regret_{grid}", "paper_dual_regret_{grid}",
    "paper_softq_regret_{grid}", "static_fp8_regret_{grid}",
)  # fmt: skip
"""Figures of a grid, beside savings."""

_SAVING = "carbon.saving_vs_static_{gear}_{grid}_{slack}"


def measure(options: argparse.Namespace) -> tuple[dict[str, object], list[Figure]]:
    """Measure; returns the settings that the figures depend on, and the figures."""
    study = Study()
    grids = recorded_grids(options)
    figures = speed_figures(options.quick)
    box_s = 6.0 if options.quick else (options.box_s or BOX_S)
    deficits = []
    recorded = {name: filled(trace.series) for name, trace in grids.items()}
    # All of it before the harder cases: beside them the last grids would have half of the time.
    one_grid = partial(study_grid, study=study, n_late=2 if options.quick else 8)
    for name, found in list(each_grid(recorded, one_grid, box_s)):
        trace = grids[name]
        if found is None:
            days = len(trace.series.values) * trace.series.step_s / DAY_S
            figures += missing_figures(name, f"its {days:.0f} days are too few for one start")
            continue
        figures += grid_figures(name, found)
        if options.harder:
            figures += harder_figures(name, study, trace)
        several = (found.history, found.history_60, found.forecast, found.late)
        deficits += [one.deficit for one in (*several, *found.beside.values()) if one is not None]
    if not grids:
        figures += [f for name in KNOWN_GRIDS for f in missing_figures(name, WHY_MISSING)]
    most = max(deficits, default=None)
    figures.append(FIGURES.figure("carbon.token_deficit_max", most, why="nothing was played"))
    about = {name: _about(trace) for name, trace in grids.items()}
    return {"study": asdict(study), "traces": about}, figures


def grid_figures(grid: str, found: GridStudy) -> list[Figure]:
    """All figures of one grid."""
    left = found.n_left_out
    return [
        _history_figure(grid, found),
        _late_figure(grid, found.late),
        _regret("carbon.regret_{grid}_forecast96", grid, found.forecast, n_left_out=left),
        FIGURES.figure(
            "carbon.capture_{grid}_history", found.history.captured,
            {"n_starts": len(found.history.runs)}, grid=grid, judged=not left,
        ),
        _peer_figure(grid, found),
        _regret("carbon.paper_dual_regret_{grid}", grid, found.beside["dual"]),
        _regret(
            "carbon.paper_softq_regret_{grid}", grid, found.beside[SOFT_Q_PRINTED],
            soft_q_all=found.soft_q_all,
        ),
        FIGURES.figure("carbon.static_fp8_regret_{grid}", found.race, grid=grid),
        *(one for slack in SLACKS for one in _saving_figures(grid, slack, found)),
    ]  # fmt: skip


def harder_figures(grid: str, study: Study, trace: GridTrace) -> list[Figure]:
    """Regrets in the harder cases, and of CARL, which takes long to train; without targets."""
    series = filled(trace.series)
    hourly, days = study.hourly(series), study.starts(series)
    found = harder_cases(hourly, series, days, marginal_series(trace))
    carl = regrets("carl", cases(hourly, series, days), series)
    return [_regret("carbon.carl_regret_{grid}", grid, carl)] + [
        FIGURES.figure(
            "carbon.harder_{case}_{grid}", one.regrets.mean,
            {"by_start_day": one.regrets.by_day, "race": one.race, "saved_against_race": one.saved},
            grid=grid, case=case, one=one, n=len(one.regrets.runs),
        )
        for case, one in found.items()
    ]  # fmt: skip


def _history_figure(grid: str, found: GridStudy) -> Figure:
    beside = {one: played.mean for one, played in found.beside.items()}
    others = sorted(beside.items(), key=lambda item: item[1])
    best, least = others[0]
    return _regret(
        "carbon.regret_{grid}_history",
        grid,
        found.history,
        {"beside": beside, "history_60": found.history_60.by_day},
        n_left_out=found.n_left_out,
        history_60=found.history_60,
        others=", ".join(f"{name} {100 * regret:.1f} %" for name, regret in others),
        best=best if least <= found.history.mean else "the default one itself",
    )


def _late_figure(grid: str, late: Regrets | None) -> Figure:
    key = "carbon.regret_{grid}_history_h2"
    if late is None:
        why = "the recording ends before a start in July"
        return FIGURES.figure(key, None, grid=grid, why=why)
    tuned = ", none of which the controller was tuned on"
    return _regret(
        key, grid, late, tuned="; this grid was tuned on all year" if grid == "BPAT" else tuned
    )


def _peer_figure(grid: str, found: GridStudy) -> Figure:
    """CarbonScaler, and how much less the default controller emits from the same starts."""
    peer, ours = found.beside[PEER], found.history.by_day
    less = [100 * (peer.by_day[day] - ours[day]) for day in ours]
    between = ""
    if (ends := bootstrap_interval(less, of_mean=True)) is not None:
        between = f" ({ends[0]:.2f} to {ends[1]:.2f}, 95 % by bootstrap)"
    return _regret(
        "carbon.carbonscaler_regret_{grid}", grid, peer, {"less_by_points": less},
        less=float(np.mean(less)), between=between,
    )  # fmt: skip


def _saving_figures(grid: str, slack: str, found: GridStudy) -> list[Figure]:
    s, split, late, gains, epochs = found.savings[slack], "", "", "", "an hour"
    if s.timing is not None and s.width is not None:
        split = (
            f", running in other hours {100 * s.timing:.1f} % more, other widths "
            f"{100 * s.width:.1f} % more (these two by every third start)"
        )
    if s.bf16_days > 30.0:
        late = f"; static BF16 takes {s.bf16_days:.1f} days and misses the deadline of 30"
    if slack == "1.67":
        epochs = "300 s"
        gains = "; with a measured gain of FP8 over BF16 in place of 1.45, by every third start: "
        gains += ", ".join(
            f"{gain:g} {100 * one.static_fp8:.1f} % of static FP8, {100 * one.static_bf16:.1f} % "
            f"of static BF16" for gain, one in found.by_gain.items()
        )  # fmt: skip
    return [
        FIGURES.figure(
            _SAVING, value, asdict(s), grid=grid, gear=gear, slack=slack, s=s, split=split,
            late=late, gains=gains, epochs=epochs,
        )
        for gear, value in (("fp8", s.static_fp8), ("bf16", s.static_bf16))
    ]  # fmt: skip


def _regret(
    key: str,
    grid: str,
    found: Regrets,
    more: Mapping[str, object] | None = None,
    n_left_out: int = 0,
    **words: Any,
) -> Figure:
    values = list(found.by_day.values())
    left = f", {n_left_out} left out for want of time" if n_left_out else ""
    mean = (
        f"mean over {len(values)} starts of 30 days{left}, slack 1.67, emissions beyond the "
        "clairvoyant optimum"
    )
    spread = {
        "by_start_day": found.by_day,
        "worst": max(values),
        "median": float(np.median(values)),
        **(more or {}),
    }
    # The targets are of all nine starts, which differ from each other tenfold.
    judged = not n_left_out
    return FIGURES.figure(key, found.mean, spread, judged=judged, grid=grid, mean=mean, **words)


def speed_figures(quick: bool) -> list[Figure]:
    """How long a decision, a bound and a year take."""
    times = decision_times(days=1.0 if quick else 4.0)
    lp_s, year = lp_seconds(2 if quick else 5), year_seconds(30 if quick else 365)
    return [
        FIGURES.figure("carbon.decision_ms", times["median_ms"], times, **times),
        FIGURES.figure("carbon.lp_30d_s", lp_s[len(lp_s) // 2], {"all": lp_s}),
        FIGURES.figure("carbon.year_s", year["seconds"], year, **year),
    ]


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


def decision_times(days: float = 4.0) -> dict[str, Any]:
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


def year_seconds(days: int = 365) -> dict[str, Any]:
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


def missing_figures(grid: str, why: str) -> list[Figure]:
    """The figures of a grid that cannot be made."""
    savings = [
        FIGURES.figure(_SAVING, None, why=why, grid=grid, gear=gear, slack=slack)
        for slack in SLACKS
        for gear in ("fp8", "bf16")
    ]
    keys = [f"carbon.{name}" for name in REGRETS]
    return FIGURES.all_missing(keys, why, judged=False, grid=grid) + savings


def _about(trace: GridTrace) -> dict[str, object]:
    values = trace.series.values
    return {
        "file": trace.path.name,
        "n": len(values),
        "n_missing": int(np.count_nonzero(~np.isfinite(values))),
        "factors": trace.factors,
    }


def options(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's own options."""
    add_traces_option(parser)
    parser.add_argument(
        "--harder", action="store_true", help="the harder cases too, half a minute a grid"
    )


if __name__ == "__main__":
    sys.exit(run_benchmark("carbon_control", measure, options=options))
