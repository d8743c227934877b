"""What ecorl's controllers find for the claims about training that follows the grid.

All is played along recordings, in epochs of an hour: the study's training of 512 GPUs
(`benchmarks.studies.carbon.control.scenario`), and jobs of `JOB_H` for CARL.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from benchmarks.studies.carbon.control.grid_study import saving
from benchmarks.studies.carbon.control.scenario import (
    DAY_S,
    DEFAULT,
    GPUS,
    STUDY_FP8_GAIN,
    Regrets,
    Study,
    cases,
    each_grid,
    filled,
    hour_means,
    regrets,
)
from benchmarks.studies.papers.carbon_claims import GEAR
from ecorl.carbon.forecasts.history import HOUR_S
from ecorl.carbon.series import Series
from ecorl.control import Gear
from ecorl.controllers.catalogue import build
from ecorl.controllers.clairvoyant.lp import lp_bound
from ecorl.controllers.learning.soft_q import SOFT_Q_PRINTED
from ecorl.controllers.planning.baselines import raced
from ecorl.controllers.problem.training import TrainingProblem
from ecorl.controllers.protocol import Controller, Seen
from ecorl.controllers.replay.knowledge import Knowledge
from ecorl.controllers.replay.playing import Training, play
from ecorl.controllers.step import action_of

JOB_H, WINDOW_H = 6.0, 24.0
"""A job of CARL's, h, and within which time of its submission it is to be done."""

JOB_EVERY_H = 175
"""From one submission to the next, h: a week and seven hours, so that all hours come round."""

HORIZONS_DAYS = (7.0, 30.0, 120.0)
"""Lengths of the trainings whose regrets are compared."""

N_STARTS = 3
"""Starts of trainings on each grid."""

GAIN = 1.25
"""A published gain of FP8 over BF16 end to end, at 8 B."""

BOX_S = 20.0
"""About how long all grids may take, s."""

_CUTS_OF_A_START, _CUTS_OF_THE_JOBS = 4.5, 6.5
"""How many times longer than the savings of one start all of a start takes, and the jobs."""


def control_found(
    grids: Mapping[str, Series], box_s: float = BOX_S, *, is_quick: bool = False
) -> dict[str, tuple[dict[str, float], int]]:
    """What ecorl finds by grid: figures by claim, and the number of starts of trainings.

    Each grid is played in a process of its own, as many at once as there are cores. Grids that are
    too short for a start of the study are absent.

    Args:
        grids: recorded intensities by grid, g/kWh.
        box_s: about how long all may take, s: a slow machine takes fewer starts.
        is_quick: play one start, and trainings of up to 30 days.
    """
    usable = {
        name: hour_means(filled(series)) for name, series in grids.items() if _is_usable(series)
    }
    return dict(each_grid(usable, partial(by_grid, is_quick=is_quick), box_s))


def modelled() -> dict[str, float]:
    """What the study's joules a token alone say, by claim."""
    table = Study().table()
    watts = {gear: float(table.power_w[table.gears.index(gear), -1]) for gear in table.gears}
    share = GEAR["fp8_time"]
    power = share * watts[Gear.FP8] + (1.0 - share) * watts[Gear.BF16]
    rate = share * STUDY_FP8_GAIN + (1.0 - share)
    return {"gear_width_fixed": 1.0 - power / rate / watts[Gear.BF16]}


def by_grid(
    series: Series, *, box_s: float = BOX_S, is_quick: bool = False
) -> tuple[dict[str, float], int]:
    """Figures of one grid by claim, and the number of starts.

    Args:
        series: the recording, g/kWh, in intervals of an hour, without missing values.
        box_s: about how long it may take, s.
        is_quick: play one start, and trainings of up to 30 days.
    """
    study = Study(epoch_s=HOUR_S)
    days = study.starts(series)
    n = 1
    if not is_quick:
        bounds(study, series, days[:1])  # what is imported with the first one is not counted
        began_s = time.monotonic()
        cuts(study, series, days[:1])
        each_s = time.monotonic() - began_s
        n = min(N_STARTS, max(1, int((box_s / each_s - _CUTS_OF_THE_JOBS) / _CUTS_OF_A_START)))
    days = days[:: max(1, len(days) // N_STARTS)][:n]
    found = {f"gear_intensity_{model}": float(series.values.mean()) for model in ("13b", "70b")}
    found |= cuts(study, series, days) | bounds(study, series, days)
    horizons = HORIZONS_DAYS[: 2 if is_quick else None]
    last = len(series.values) * series.step_s / DAY_S - max(horizons)
    if begins := [day for day in days if day <= last]:
        found |= growths(study, series, begins, horizons)
        found |= deficits(study, series, begins, horizons)
    every_h = JOB_EVERY_H * (8 if is_quick else 1)
    return found | shifted_jobs(series, study.history_days, every_h), len(days)


def cuts(study: Study, series: Series, days: Sequence[int]) -> dict[str, float]:
    """What the default controller saves of static BF16, and how much of it FP8 alone.

    Args:
        study: the training.
        series: the recording.
        days: on which it starts.
    """
    played = regrets(DEFAULT, cases(study, series, days), series)
    saved = saving(played, series)
    measured = cases(replace(study, fp8_gain=GAIN), series, days)
    in_fp8 = sum(run.played.tokens_by_gear.get(Gear.FP8, 0.0) for run in played.runs)
    found = dict.fromkeys(
        ("gear_cut_13b", "gear_cut_70b", "gear_across", "gear_caiso", "gear_miso"),
        saved.static_bf16,
    )
    return found | {
        "gear_cut_gain_125": saving(regrets(DEFAULT, measured, series), series).static_bf16,
        "gear_width_fixed": saved.gear,
        "gear_fp8_time": in_fp8 / sum(run.played.tokens for run in played.runs),
    }


def bounds(study: Study, series: Series, days: Sequence[int]) -> dict[str, float]:
    """What nobody could save more than: at static BF16's throughput, and in BF16 alone.

    Args:
        study: the training.
        series: the recording.
        days: on which it starts.
    """
    table = study.table()
    bf16 = table.only((Gear.BF16,))
    # Tokens that need all of the time in BF16; some of that time in FP8 is as many tokens.
    at_once = [replace(study, slack=1.0).problem(_start(series, day), bf16) for day in days]
    free = [replace(problem, table=table) for problem in at_once]
    part = [replace(problem, low_share=GEAR["fp8_time"] * STUDY_FP8_GAIN) for problem in free]
    slack = [study.problem(_start(series, day), bf16) for day in days]
    alone = _saved_at_best(slack, slack, series)
    return {
        "gear_cut_same_throughput": _saved_at_best(free, at_once, series),
        "gear_cut_37": _saved_at_best(part, at_once, series),
        "gear_spot_static_13b": alone,
        "gear_spot_static_70b": alone,
    }


def _saved_at_best(
    problems: Sequence[TrainingProblem], static: Sequence[TrainingProblem], series: Series
) -> float:
    """Share of a static training's emissions that the clairvoyant optimum saves."""
    best = sum(lp_bound(problem, series).carbon_g for problem in problems)
    return 1.0 - best / sum(raced(problem, series).carbon_g for problem in static)


def growths(
    study: Study, series: Series, days: Sequence[int], horizons: Sequence[float]
) -> dict[str, float]:
    """To which power of the number of epochs the regret in grams grows, by controller.

    Args:
        study: the training; its budget grows with its length.
        series: the recording.
        days: on which it starts, with a recording of the longest length after each.
        horizons: lengths, days.
    """
    lengths = [cases(replace(study, days=n), series, days) for n in horizons]
    controllers: dict[str, tuple[str, tuple[Gear, ...] | None]] = {
        "gear_regret": (SOFT_Q_PRINTED, (Gear.FP8,)),
        "gear_regret_dual": ("dual", None),
        "gear_regret_ours": (DEFAULT, None),
    }
    return {
        id: power_of(
            horizons, [_regret_g(regrets(name, chosen, series, gears=gears)) for chosen in lengths]
        )
        for id, (name, gears) in controllers.items()
    }


def _regret_g(found: Regrets) -> float:
    return float(np.mean([run.played.cost_g - run.case.bound_g for run in found.runs]))


def power_of(lengths: Sequence[float], values: Sequence[float]) -> float:
    """The exponent by which values grow with lengths: the slope of their logarithms.

    Args:
        lengths: rising.
        values: above 0, one for each.
    """
    return float(np.polyfit(np.log(lengths), np.log(values), 1)[0])


def deficits(
    study: Study, series: Series, days: Sequence[int], horizons: Sequence[float]
) -> dict[str, float]:
    """What soft Q-learning as printed leaves untrained without a shield.

    Args:
        study: the training.
        series: the recording.
        days: on which it starts, with a recording of the longest length after each.
        horizons: lengths, days; among them that of the study.
    """
    missing, shares = [], {}
    for n in horizons:
        problems = [replace(study, days=n).problem(_start(series, day)) for day in days]
        left = [unshielded(build(SOFT_Q_PRINTED, p), p, series) for p in problems]
        missing.append(float(np.mean(left)))
        shares[n] = missing[-1] / problems[0].tokens
    found = {"gear_deficit_share": shares[study.days]}
    return found | ({"gear_deficit": power_of(horizons, missing)} if min(missing) > 0.0 else {})


def unshielded(controller: Controller, problem: TrainingProblem, series: Series) -> float:
    """Tokens that are missing at the deadline when a controller has its way in each epoch.

    Args:
        controller: who decides.
        problem: what would have to be met.
        series: the recording, g/kWh.
    """
    knowledge, training = Knowledge(series), Training(problem, series)
    while not training.is_over:
        view = knowledge.at(training.now_s)
        seen = Seen(
            intensity=view.intensity,
            forecast=view.forecast,
            past=view.past,
            progress=training.progress,
            has_begun=training.running_s > 0.0,
        )
        training.run(action_of(controller.decide(training.now_s, seen)))
    return training.progress.tokens_left


def shifted_jobs(series: Series, first_day: int, every_h: int) -> dict[str, float]:
    """What CARL and the optimum save of running jobs at once, at constant power.

    Args:
        series: the recording.
        first_day: of the first submission.
        every_h: from one submission to the next, h.
    """
    table = Study().table().only((Gear.BF16,), (GPUS,))  # all workers in BF16, or none
    jobs = Study(days=WINDOW_H / 24.0, slack=WINDOW_H / JOB_H, epoch_s=HOUR_S, base_w=0.0)
    last_h = len(series.values) * series.step_s / HOUR_S - WINDOW_H
    at_once = shifted = best = 0.0
    for hour in range(first_day * 24, int(last_h) + 1, every_h):
        problem = jobs.problem(series.start_s + hour * HOUR_S, table)
        at_once += raced(problem, series).carbon_g
        shifted += play(build("carl", problem), problem, Knowledge(series), series).carbon_g
        best += lp_bound(problem, series).carbon_g
    return {"carl_cut": 1.0 - shifted / at_once, "carl_cut_best": 1.0 - best / at_once}


def _start(series: Series, day: int) -> float:
    return series.start_s + day * DAY_S


def _is_usable(series: Series) -> bool:
    per_hour = HOUR_S / series.step_s
    is_hourly = per_hour >= 1.0 and abs(per_hour - round(per_hour)) < 1e-9
    return is_hourly and bool(Study().starts(series)) and bool(np.isfinite(series.values).any())
