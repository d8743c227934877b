"""Made-up forecasts of a recording: the truth, with errors as large as forecasts really have."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ecorl.carbon.forecasts.forecast import Forecast
from ecorl.carbon.series import Series
from ecorl.controllers.problem.table import FloatArray

MODEL = "the recording with made-up errors"
_TO_DEVIATION = math.sqrt(math.pi / 2.0)
"""Standard deviation over mean absolute value of a normal distribution."""


@dataclass(frozen=True, slots=True)
class ErrorShape:
    """How far off forecasts are.

    Attributes:
        first: mean absolute relative error of the first hour, as a fraction.
        last: the same of the last hour; it grows in a line between them.
        hours: how far the forecast reaches.
        memory_h: after how many hours an error has fallen to 1/e: they are AR(1).
        every_h: after how many hours errors are drawn anew: when a new forecast is issued.
    """

    first: float = 0.06
    last: float = 0.12
    hours: int = 96
    memory_h: float = 24.0
    every_h: int = 24


KIND = ErrorShape()
"""Errors of 6 growing to 12 %, as the study behind the targets has them."""

AS_ARCHIVED = ErrorShape(first=0.18, last=0.20)
"""Errors as large as archived forecasts': CarbonCast's mean errors in California from 2020 to 2022
were 18 to 20 %."""


class MadeUpForesight:
    """Forecasts along a recording, by seed.

    Each issue errs in its own way, and keeps to its error until the next one: an hour's forecast
    changes within an issue by getting nearer alone.

    Args:
        truth: the recording, without missing values.
        shape: how far off the forecasts are.
        seed: of the errors.
    """

    def __init__(self, truth: Series, shape: ErrorShape = KIND, seed: int = 0) -> None:
        self._truth, self._shape, self._seed = truth, shape, seed
        self._per_hour = round(3600.0 / truth.step_s)
        self._issue, self._errors = -1, np.zeros(0)
        n = shape.hours * self._per_hour
        hours = np.arange(n) / self._per_hour
        growth = (shape.last - shape.first) * hours / max(1, shape.hours - 1)
        self._deviation = _TO_DEVIATION * (shape.first + growth)

    def after(self, n_known: int) -> Forecast | None:
        """The forecast when the first intervals of the recording are known.

        Args:
            n_known: how many are; the forecast begins with the next one.
        """
        truth = self._truth
        values = truth.values[n_known : n_known + len(self._deviation)]
        if not len(values):
            return None
        every = self._shape.every_h * self._per_hour
        issue = n_known // every
        if issue != self._issue:
            self._issue, self._errors = issue, self._drawn(issue, every + len(self._deviation))
        at = n_known - issue * every
        errors = self._errors[at : at + len(values)] * self._deviation[: len(values)]
        start_s = truth.start_s + n_known * truth.step_s
        middle = values * np.maximum(0.05, 1.0 + errors)
        return Forecast(MODEL, start_s, start_s, truth.step_s, middle)

    def _drawn(self, issue: int, n: int) -> FloatArray:
        """Unit errors of the hours from an issue on."""
        draw = np.random.default_rng((self._seed, issue)).standard_normal(n)
        stay = math.exp(-1.0 / (self._shape.memory_h * self._per_hour))
        errors = np.empty(n)
        error = draw[0]
        for number in range(n):
            errors[number] = error
            error = stay * error + math.sqrt(1.0 - stay * stay) * draw[(number + 1) % n]
        return errors
