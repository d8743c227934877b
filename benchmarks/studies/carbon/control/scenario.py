"""The study's training: 512 GPUs for 30 days, and where along a recording it may start."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ecorl.carbon.series import Series
from ecorl.control import Gear
from ecorl.controllers.problem.table import GearTable, scaled_table
from ecorl.controllers.problem.training import HOUR_S, TrainingProblem
from ecorl.kinds import Provenance

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
