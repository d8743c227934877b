"""The study along one recorded grid: all that its figures are made of."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from benchmarks.studies.carbon.control.regrets import (
    Make,
    Regrets,
    StudyCase,
    StudyRun,
    cases,
    regrets,
)
from benchmarks.studies.carbon.control.scenario import (
    MEASURED_GAINS,
    SLACKS,
    Study,
)
from benchmarks.studies.carbon.control.side_by_side import each_grid
from ecorl.carbon.series import Series
from ecorl.control import Gear
from ecorl.controllers.catalogue import build
from ecorl.controllers.horizon.receding import GEAR_FIXED, WIDTH_FIXED
from ecorl.controllers.planning.baselines import static_training
from ecorl.controllers.planning.foresight import MadeUpForesight
from ecorl.controllers.problem.training import TrainingProblem
from ecorl.controllers.protocol import Controller
from ecorl.controllers.rules.carbonscaler import CARBONSCALER_FP8
from ecorl.errors import ConfigError

DEFAULT = "stochastic"

PEER = CARBONSCALER_FP8
"""The controller that people know, at its best setting: CarbonScaler in FP8."""

BESIDE = ("receding", WIDTH_FIXED, GEAR_FIXED, PEER, "suspend", "race")
"""Controllers that stand beside the default one, played in epochs of an hour."""

HOUR = 3600.0


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
        dual, soft_q: the paper's controllers, in epochs of an hour; the second with FP8 alone,
            which is the best for it.
        soft_q_all: mean regret of the second with all gears, over three starts.
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
    dual: Regrets
    soft_q: Regrets
    soft_q_all: float
    beside: Mapping[str, Regrets]
    savings: Mapping[str, ControlSaving]
    by_gain: Mapping[float, ControlSaving]
    n_left_out: int


def study_grids(
    recorded: Mapping[str, Series], study: Study, box_s: float, *, n_late: int = 8
) -> Iterator[tuple[str, GridStudy | None]]:
    """Play all of some grids, each in a process of its own, as many at once as there are cores.

    Args:
        recorded: the recordings by grid, without missing values.
        study: the training.
        box_s: about how long all may take, s.
        n_late: number of starts from July on.

    Yields:
        Each grid with its study, in their order; None where the recording is too short.
    """
    yield from each_grid(recorded, partial(study_grid, study=study, n_late=n_late), box_s)


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
    played = regrets(_default, every, series)
    each_s = max(1e-3, time.monotonic() - began_s) / len(days)
    taken = _taken(days, (box_s / each_s - _RUNS_OF_A_GRID) / _RUNS_OF_A_START)
    few = taken[:: max(1, len(taken) // 3)]
    chosen = [case for case in every if case.day in taken]
    late_days = study.late_starts(series, min(n_late, len(taken)))
    hourly = replace(study, epoch_s=min(HOUR, series.step_s))
    coarse, coarse_few = cases(hourly, series, taken), cases(hourly, series, few)
    history = Regrets(tuple(run for run in played.runs if run.case.day in taken))
    return GridStudy(
        history=history,
        history_60=regrets(_default, coarse, series, history_days=study.history_days),
        late=regrets(_default, cases(hourly, series, late_days), series) if late_days else None,
        forecast=regrets(_default, chosen, series, foresight=MadeUpForesight(series)),
        race=_mean_race(chosen),
        dual=regrets(_maker("dual"), coarse, series),
        soft_q=regrets(_soft_q_in_fp8, coarse, series),
        soft_q_all=regrets(_maker("soft-q-printed"), coarse_few, series).mean,
        beside={name: regrets(_maker(name), coarse, series) for name in BESIDE},
        savings={
            name: saving(history, series, few)
            if slack == study.slack
            else saving(_played(replace(hourly, slack=slack), series, taken), series, few)
            for name, slack in SLACKS.items()
        },
        by_gain={
            gain: saving(_played(replace(hourly, fp8_gain=gain), series, few), series)
            for gain in MEASURED_GAINS
        },
        n_left_out=len(days) - len(taken),
    )


_RUNS_OF_A_START, _RUNS_OF_A_GRID = 9.0, 12.5
"""About how many runs of the default controller in short epochs a start costs, all together, and
what there is beside."""


def _played(study: Study, series: Series, days: Sequence[int]) -> Regrets:
    return regrets(_default, cases(study, series, days), series)


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
    found = [one for one in (_emitted(run, series, split) for run in played.runs)
             if one is not None]  # fmt: skip
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


@dataclass(frozen=True, slots=True)
class _Emitted:
    """Emissions of one start, gCO2e: static, at full width in chosen hours, and all freedom."""

    bf16: float
    fp8: float
    timed: float | None
    all: float
    bf16_days: float


def _emitted(run: StudyRun, series: Series, split: Sequence[int]) -> _Emitted | None:
    case, timed = run.case, None
    problem = case.problem
    # Nothing is decided on the way, so that long epochs give the same in less time.
    coarse = replace(problem, epoch_s=max(problem.epoch_s, min(HOUR, series.step_s)))
    bf16, fp8 = (static_training(coarse, series, gear) for gear in (Gear.BF16, Gear.FP8))
    if bf16 is None or fp8 is None:
        return None
    if case.day in split:
        full = problem.of(widths=problem.table.widths[-1:])
        whole = StudyCase(case.day, full, case.bound_g, case.race_g)
        timed = regrets(_default, [whole], series).runs[0].played.carbon_g
    assert bf16.done_s is not None
    return _Emitted(
        bf16=bf16.carbon_g,
        fp8=fp8.carbon_g,
        timed=timed,
        all=run.played.carbon_g,
        bf16_days=(bf16.done_s - problem.start_s) / 86400.0,
    )


def _taken(days: Sequence[int], n: float) -> list[int]:
    """As many starts as there is time for, spread over the recording; at least two."""
    wanted = max(2, int(n))
    if wanted >= len(days):
        return list(days)
    return [days[round(i * (len(days) - 1) / (wanted - 1))] for i in range(wanted)]


def _mean_race(chosen: Sequence[StudyCase]) -> float:
    return sum(case.race_g / case.bound_g - 1.0 for case in chosen) / len(chosen)


def _default(problem: TrainingProblem) -> Controller:
    return build(DEFAULT, problem)


def _soft_q_in_fp8(problem: TrainingProblem) -> Controller:
    return build("soft-q-printed", problem.of(gears=(Gear.FP8,)))


def _maker(name: str) -> Make:
    return lambda problem: build(name, problem)
