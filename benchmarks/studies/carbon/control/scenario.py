"""The study's training, 512 GPUs for 30 days, and controllers that play it along a recording."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from typing import NamedTuple, TypeVar

import numpy as np

from ecorl.carbon.series import Series
from ecorl.child_process import quiet_worker
from ecorl.control import Gear
from ecorl.controllers.catalogue import build
from ecorl.controllers.clairvoyant.lp import lp_bound
from ecorl.controllers.planning.baselines import raced
from ecorl.controllers.problem.table import GearTable, scaled_table
from ecorl.controllers.problem.training import HOUR_S, TrainingProblem
from ecorl.controllers.replay.knowledge import Foresight, Knowledge
from ecorl.controllers.replay.playing import PlayedTraining, play
from ecorl.kinds import Provenance

Found = TypeVar("Found")

DEFAULT = "stochastic"
"""The controller that a run has where none is named."""

DAY_S = 86400.0
JULY = 181
"""Days before July in a year that is no leap year."""

GPUS = 512
STUDY_FP8_GAIN = 1.45
"""Throughput of FP8 over BF16 in the study; measured gains are smaller, see `MEASURED_GAINS`."""

MEASURED_GAINS = (1.13, 1.25, 1.5)
"""Published gains of FP8 over BF16 end to end: at 7 B (Transformer Engine), at 8 B and at 405 B
(torchao)."""

_WORKER_W = {Gear.FP32: 690.0, Gear.FP16: 690.0, Gear.BF16: 700.0, Gear.FP8: 715.0}

SLACKS = {"1.25": 1.25, "1.67": 1.0 / 0.6, "3.0": 3.0}
"""Time there is over the least time that the budget takes, by how it is printed."""


@dataclass(frozen=True, slots=True)
class Study:
    """A training along a recording.

    Attributes:
        days: from start to hard deadline.
        history_days: what of the recording comes before the first start at least.
        slack: time there is over the least time that the budget takes.
        fp8_gain: throughput of FP8 over BF16.
        epoch_s: time between two decisions, s.
        step: GPUs from one width to the next.
        base_w: drawn for as long as the machines are kept, be it in a pause, W.
    """

    days: float = 30.0
    history_days: int = 60
    slack: float = SLACKS["1.67"]
    fp8_gain: float = STUDY_FP8_GAIN
    epoch_s: float = 300.0
    step: int = 64
    base_w: float = 15_000.0

    def table(self) -> GearTable:
        """Power and throughput; a BF16 GPU alone makes one token a second."""
        rates = {Gear.FP32: 0.50, Gear.FP16: 0.98, Gear.BF16: 1.0, Gear.FP8: self.fp8_gain}
        return scaled_table(
            tuple(range(self.step, GPUS + 1, self.step)),
            rates,
            _WORKER_W,
            exponent=0.97,
            overhead=1.25,
            provenance=Provenance.MODELLED,
            source="the study behind the targets: tau = n^0.97 x gear, P = 1.25 n x W",
        )

    def problem(self, start_s: float, table: GearTable | None = None) -> TrainingProblem:
        """The problem of one start.

        Args:
            start_s: of the training, s since 1970.
            table: power and throughput; by default the study's.
        """
        made = table or self.table()
        most = self.days * DAY_S * float(made.tokens_per_s.max())
        return TrainingProblem(
            made,
            tokens=most / self.slack,
            start_s=start_s,
            deadline_s=start_s + self.days * DAY_S,
            epoch_s=self.epoch_s,
            base_w=self.base_w,
        )

    def hourly(self, series: Series) -> Study:
        """The study with a decision an hour, or an interval of a finer recording."""
        return replace(self, epoch_s=min(HOUR_S, series.step_s))

    def starts(self, series: Series, every_days: int = 34) -> list[int]:
        """Days of a recording on which a training may start: the study's nine.

        Args:
            series: the recording.
            every_days: from one start to the next.
        """
        last = int(len(series.values) * series.step_s / DAY_S - self.days)
        return list(range(self.history_days, last + 1, every_days))

    def late_starts(self, series: Series, n: int = 8) -> list[int]:
        """Days from July on: equally far from each other, none of them seen in tuning.

        Args:
            series: the recording, from January on.
            n: number of starts.
        """
        last = int(len(series.values) * series.step_s / DAY_S - self.days)
        if last < JULY:
            return []
        return sorted({round(day) for day in np.linspace(JULY, last, n)})


def filled(series: Series) -> Series:
    """A recording in which what stood before a missing value holds on.

    Args:
        series: the recording; missing values at its begin take the first known one.
    """
    values = series.values
    known = np.isfinite(values)
    if known.all():
        return series
    numbers = np.where(known, np.arange(len(values)), 0)
    np.maximum.accumulate(numbers, out=numbers)
    numbers[: int(np.argmax(known))] = int(np.argmax(known))
    return replace(series, values=values[numbers])


def hour_means(series: Series) -> Series:
    """A recording of finer intervals as means of its hours; an hourly one as it is.

    Args:
        series: the recording, without missing values, in intervals that an hour is a multiple of.
    """
    per_hour = round(HOUR_S / series.step_s)
    if per_hour == 1:
        return series
    n = len(series.values) // per_hour
    values = series.values[: n * per_hour].reshape(n, per_hour).mean(axis=1)
    return Series(series.start_s, HOUR_S, values)


class StudyCase(NamedTuple):
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


class StudyRun(NamedTuple):
    """What became of a case with one controller."""

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
    controller: str,
    chosen: Sequence[StudyCase],
    series: Series,
    *,
    gears: tuple[Gear, ...] | None = None,
    foresight: Foresight | None = None,
    late: int = 0,
    history_days: int | None = None,
) -> Regrets:
    """Play a controller in some cases.

    Args:
        controller: its name; it is made anew for each case.
        chosen: the cases.
        series: the recording, without missing values.
        gears: those that it knows of; None: all.
        foresight: forecasts that it is told.
        late: for how many intervals a value is not told yet.
        history_days: how much of the recording before a start it is told; None: all of it.
    """
    runs = []
    for case in chosen:
        told, known = series, case.problem
        if history_days is not None:
            first = max(0, round((case.day - history_days) * DAY_S / series.step_s))
            start_s = series.start_s + first * series.step_s
            told = Series(start_s, series.step_s, series.values[first:])
        if gears is not None:
            known = known.of(gears=gears)
        played = play(
            build(controller, known), case.problem, Knowledge(told, late, foresight), series
        )
        runs.append(StudyRun(case, played))
    return Regrets(tuple(runs))


def each_grid(
    recorded: Mapping[str, Series], play: Callable[..., Found], box_s: float
) -> Iterator[tuple[str, Found]]:
    """Play all grids, as many at once as there are cores.

    Args:
        recorded: the recordings by grid.
        play: takes a recording and ``box_s``, about how long it may take, s.
        box_s: about how long all may take, s.

    Yields:
        Each grid with what was found, in their order.
    """
    if not recorded:
        return
    n_workers = min(len(recorded), len(os.sched_getaffinity(0)))
    one = partial(play, box_s=box_s / math.ceil(len(recorded) / n_workers))
    with ProcessPoolExecutor(n_workers, get_context("fork"), initializer=quiet_worker) as pool:
        yield from zip(recorded, pool.map(one, recorded.values()), strict=True)
