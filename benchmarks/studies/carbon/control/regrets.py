"""What controllers emit beyond the optimum, over many starts of a recording."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.studies.carbon.control.scenario import DAY_S, Study
from ecorl.carbon.series import Series
from ecorl.controllers.clairvoyant.lp import lp_bound
from ecorl.controllers.planning.baselines import raced
from ecorl.controllers.problem.training import TrainingProblem
from ecorl.controllers.protocol import Controller
from ecorl.controllers.replay.knowledge import Foresight, Knowledge
from ecorl.controllers.replay.playing import PlayedTraining, play

Make = Callable[[TrainingProblem], Controller]
"""Makes a controller for a problem."""


@dataclass(frozen=True, slots=True)
class StudyCase:
    """A start of a training with its bound.

    Attributes:
        day: of the recording on which it starts.
        problem: what has to be met.
        bound_g: the least emissions that anybody who knew the course could reach, gCO2e.
        race_g: emissions of the fastest gear at full width from the start on, gCO2e.
    """

    day: int
    problem: TrainingProblem
    bound_g: float
    race_g: float


@dataclass(frozen=True, slots=True)
class StudyRun:
    """One controller in one case.

    Attributes:
        case: the start.
        played: what became of it.
    """

    case: StudyCase
    played: PlayedTraining

    @property
    def regret(self) -> float:
        """Emissions beyond the bound, as a share of the bound."""
        return self.played.cost_g / self.case.bound_g - 1.0


@dataclass(frozen=True, slots=True)
class Regrets:
    """One controller over all cases of a recording.

    Attributes:
        runs: in the order of the starts.
    """

    runs: tuple[StudyRun, ...]

    @property
    def mean(self) -> float:
        """Mean of the regrets, as a fraction."""
        return float(np.mean([run.regret for run in self.runs]))

    @property
    def by_day(self) -> dict[int, float]:
        """Regret by the day of the start, as a fraction."""
        return {run.case.day: run.regret for run in self.runs}

    @property
    def captured(self) -> float:
        """Share of what the bound saves against racing that was saved, all starts together."""
        raced_g = sum(run.case.race_g for run in self.runs)
        bound = sum(run.case.bound_g for run in self.runs)
        emitted = sum(run.played.cost_g for run in self.runs)
        return (raced_g - emitted) / (raced_g - bound)

    @property
    def deficit(self) -> float:
        """Largest token deficit, as a share of the budget."""
        return max(run.played.deficit / run.case.problem.tokens for run in self.runs)


def cases(study: Study, series: Series, days: Sequence[int], **changes: object) -> list[StudyCase]:
    """Problems and bounds of some starts.

    Args:
        study: the training.
        series: the recording, without missing values.
        days: of the recording on which it starts.
        changes: of the problem's attributes.
    """
    found = []
    table = study.table()
    for day in days:
        problem = study.problem(series.start_s + day * DAY_S, table)
        problem = replace(problem, **changes)  # type: ignore[arg-type]
        raced_g = raced(problem, series).cost_g
        found.append(StudyCase(day, problem, lp_bound(problem, series).cost_g, raced_g))
    return found


def regrets(
    make: Make,
    chosen: Sequence[StudyCase],
    series: Series,
    *,
    foresight: Foresight | None = None,
    late: int = 0,
    history_days: int | None = None,
) -> Regrets:
    """Play a controller in some cases.

    Args:
        make: makes it, anew for each case.
        chosen: the cases.
        series: the recording, without missing values.
        foresight: forecasts that it is told.
        late: for how many intervals a value is not told yet.
        history_days: how much of the recording before a start it is told; None: all of it.
    """
    runs = []
    for case in chosen:
        told = series if history_days is None else _from(series, case.day - history_days)
        knowledge = Knowledge(told, late, foresight)
        runs.append(StudyRun(case, play(make(case.problem), case.problem, knowledge, series)))
    return Regrets(tuple(runs))


def _from(series: Series, day: int) -> Series:
    """The part of a recording from a day on; earlier values are missing to whoever is told it."""
    first = max(0, round(day * DAY_S / series.step_s))
    return Series(series.start_s + first * series.step_s, series.step_s, series.values[first:])
