"""The study along one recorded grid: all that its figures are made of."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from benchmarks.studies.carbon.control.scenario import (
    DAY_S,
    DEFAULT,
    MEASURED_GAINS,
    SLACKS,
    Regrets,
    Study,
    StudyRun,
    cases,
    regrets,
)
from ecorl.carbon.series import Series
from ecorl.control import Gear
from ecorl.controllers.horizon.receding import GEAR_FIXED, WIDTH_FIXED
from ecorl.controllers.learning.soft_q import SOFT_Q_PRINTED
from ecorl.controllers.planning.baselines import static_training
from ecorl.controllers.planning.foresight import MadeUpForesight
from ecorl.controllers.problem.training import HOUR_S
from ecorl.controllers.rules.carbonscaler import CARBONSCALER_FP8
from ecorl.errors import ConfigError

PEER = CARBONSCALER_FP8
"""The controller that people know, at its best setting: CarbonScaler in FP8."""

IN_GEARS = {SOFT_Q_PRINTED: (Gear.FP8,)}
"""Controllers that know of some gears only: with these it is at its best."""

BESIDE = ("receding", WIDTH_FIXED, GEAR_FIXED, PEER, "suspend", "race", "dual", SOFT_Q_PRINTED)
"""Controllers that stand beside the default one, played in epochs of an hour."""

_RUNS_OF_A_START, _RUNS_OF_A_GRID = 9.0, 12.5
"""About how many runs of the default controller in short epochs a start costs, all together, and
what there is beside."""


@dataclass(frozen=True, slots=True)
class ControlSaving:
    """What the default controller saves at a slack, all starts together, as fractions.

    Attributes:
        static_fp8, static_bf16: of the emissions of all workers in that gear from the start on.
        gear: what FP8 alone saves of static BF16.
        timing: what running in other hours saves on top, all workers or none; None: not played.
        width: what other widths save on top of both; None: not played.
        bf16_days: how long static BF16 takes, days: past the deadline with little slack.
        n_starts: number of starts.
    """

    static_fp8: float
    static_bf16: float
    gear: float
    timing: float | None
    width: float | None
    bf16_days: float
    n_starts: int


@dataclass(frozen=True, slots=True)
class GridStudy:
    """All that was played along one grid.

    Attributes:
        history: the default controller from its past alone, at the study's nine starts.
        history_60: the same told the last 60 days before each start only, in epochs of an hour.
        late: the same as `history` at starts from July on, in epochs of an hour.
        forecast: the default controller with forecasts of 96 h.
        race: the fastest gear at full width.
        soft_q_all: mean regret of soft Q-learning with all gears, over three starts.
        beside: other controllers by name, in epochs of an hour.
        savings: by printed slack.
        by_gain: savings at slack 1.67 by the gain of FP8 over BF16.
        n_left_out: number of the study's starts that the time did not suffice for.
    """

    history: Regrets
    history_60: Regrets
    late: Regrets | None
    forecast: Regrets
    race: float
    soft_q_all: float
    beside: Mapping[str, Regrets]
    savings: Mapping[str, ControlSaving]
    by_gain: Mapping[float, ControlSaving]
    n_left_out: int


def study_grid(series: Series, study: Study, box_s: float, *, n_late: int = 8) -> GridStudy | None:
    """Play all of a grid.

    Args:
        series: the recording, without missing values.
        study: the training; its epochs are those of the figures with a target.
        box_s: about how long it may take, s: a slow machine takes fewer starts.
        n_late: number of starts from July on.

    Returns:
        What was played; None where the recording is too short for a single start.
    """
    days = study.starts(series)
    if not days:
        return None
    every = cases(study, series, days)
    began_s = time.monotonic()
    played = regrets(DEFAULT, every, series)
    each_s = max(1e-3, time.monotonic() - began_s) / len(days)
    taken = _taken(days, (box_s / each_s - _RUNS_OF_A_GRID) / _RUNS_OF_A_START)
    few = taken[:: max(1, len(taken) // 3)]
    chosen = [case for case in every if case.day in taken]
    late_days = study.late_starts(series, min(n_late, len(taken)))
    hourly = study.hourly(series)
    coarse = cases(hourly, series, taken)
    coarse_few = [case for case in coarse if case.day in few]
    history = Regrets(tuple(run for run in played.runs if run.case.day in taken))

    def by(some: Study, at: Sequence[int]) -> Regrets:
        return regrets(DEFAULT, cases(some, series, at), series)

    return GridStudy(
        history=history,
        history_60=regrets(DEFAULT, coarse, series, history_days=study.history_days),
        late=by(hourly, late_days) if late_days else None,
        forecast=regrets(DEFAULT, chosen, series, foresight=MadeUpForesight(series)),
        race=sum(case.race_g / case.bound_g - 1.0 for case in chosen) / len(chosen),
        soft_q_all=regrets(SOFT_Q_PRINTED, coarse_few, series).mean,
        beside={n: regrets(n, coarse, series, gears=IN_GEARS.get(n)) for n in BESIDE},
        savings={
            name: saving(
                history if slack == study.slack else by(replace(hourly, slack=slack), taken),
                series,
                few,
            )
            for name, slack in SLACKS.items()
        },
        by_gain={
            gain: saving(by(replace(hourly, fp8_gain=gain), few), series) for gain in MEASURED_GAINS
        },
        n_left_out=len(days) - len(taken),
    )


def _taken(days: Sequence[int], n: float) -> list[int]:
    """As many starts as there is time for, spread over the recording; at least two."""
    wanted = max(2, int(n))
    if wanted >= len(days):
        return list(days)
    return [days[round(i * (len(days) - 1) / (wanted - 1))] for i in range(wanted)]


def saving(played: Regrets, series: Series, split: Sequence[int] = ()) -> ControlSaving:
    """What a controller saves, and by what.

    Args:
        played: the controller with all freedom; starts are left out whose static BF16 the
            recording ends before.
        series: the recording.
        split: days of those starts by which timing and width are told apart: the default
            controller plays them once more, at full width in the hours that it chooses.

    Raises:
        ConfigError: when the recording is too short for all of them.
    """
    found = [one for run in played.runs if (one := _emitted(run, series, split)) is not None]
    if not found:
        raise ConfigError("--traces", len(series.values), "a recording that static BF16 fits into")
    bf16, fp8, all_ = (sum(getattr(one, name) for one in found) for name in ("bf16", "fp8", "all"))
    told = [one for one in found if one.timed is not None]
    of = sum(one.bf16 for one in told)
    timed = sum(one.timed or 0.0 for one in told)
    return ControlSaving(
        static_fp8=1.0 - all_ / fp8,
        static_bf16=1.0 - all_ / bf16,
        gear=1.0 - fp8 / bf16,
        timing=(sum(one.fp8 for one in told) - timed) / of if told else None,
        width=(timed - sum(one.all for one in told)) / of if told else None,
        bf16_days=max(one.bf16_days for one in found),
        n_starts=len(found),
    )


class _Emitted(NamedTuple):
    """Emissions of one start, gCO2e: static, at full width in chosen hours, and all freedom."""

    bf16: float
    fp8: float
    timed: float | None
    all: float
    bf16_days: float


def _emitted(run: StudyRun, series: Series, split: Sequence[int]) -> _Emitted | None:
    problem, timed = run.case.problem, None
    # Nothing is decided on the way, so that long epochs give the same in less time.
    coarse = replace(problem, epoch_s=max(problem.epoch_s, min(HOUR_S, series.step_s)))
    bf16, fp8 = (static_training(coarse, series, gear) for gear in (Gear.BF16, Gear.FP8))
    if bf16 is None or fp8 is None:
        return None
    if run.case.day in split:
        whole = run.case._replace(problem=problem.of(widths=problem.table.widths[-1:]))
        timed = regrets(DEFAULT, [whole], series).runs[0].played.carbon_g
    assert bf16.done_s is not None
    days = (bf16.done_s - problem.start_s) / DAY_S
    return _Emitted(bf16.carbon_g, fp8.carbon_g, timed, run.played.carbon_g, days)
