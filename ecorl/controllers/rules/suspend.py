"""Suspend while the grid is dirty, resume when it is clean: the rule of Wait&Scale and ecovisor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ecorl.carbon.series import Series
from ecorl.control import GearChoice, Why
from ecorl.controllers.problem.table import PAUSE
from ecorl.controllers.problem.training import TrainingProblem
from ecorl.controllers.protocol import Memoryless, Seen
from ecorl.controllers.step import choice
from ecorl.errors import ConfigError

PAST_DAYS = 7
"""How much of the past the percentile is of. A week, so that each day of it counts once."""


class SuspendResume(Memoryless):
    """Pauses above a threshold, and trains at full speed at and below it.

    Papers set the threshold at a percentile of the intensities; here it is one of the last
    `PAST_DAYS`, which is known at the time. Where the intensity is unknown, or too little of the
    past is to say what is clean (less than a day), training runs at full speed. The rule looks at
    no deadline: the shield of the control step ends the pauses in time.

    Args:
        problem: what has to be met.
        percentile: 0 to 100, of the past: at or below it the grid counts as clean.
        threshold_g_per_kwh: in place of the percentile, g/kWh; None: the percentile counts.
        day_s: length of a day of the grid, s.

    Raises:
        ConfigError: for a percentile that is none.
    """

    name = "suspend"

    def __init__(
        self,
        problem: TrainingProblem,
        percentile: float = 30.0,
        *,
        threshold_g_per_kwh: float | None = None,
        day_s: float = 86400.0,
    ) -> None:
        if not 0.0 <= percentile <= 100.0:
            raise ConfigError(f"{problem.key}.percentile", percentile, "a number from 0 to 100")
        self._problem, self._day_s = problem, day_s
        self._percentile, self._fixed = percentile, threshold_g_per_kwh

    def decide(self, now_s: float, seen: Seen) -> GearChoice:
        """See `Controller.decide`."""
        assert seen.progress is not None
        p, fastest = self._problem, self._problem.fastest(seen.progress)
        if seen.intensity is None:
            told = "the grid's intensity is unknown"
            return choice(self.name, now_s, p, seen, fastest, Why.UNKNOWN, told)
        limit = self._limit(seen.past)
        if limit is None:
            told = "less than a day of the grid's past is known"
            return choice(self.name, now_s, p, seen, fastest, Why.UNKNOWN, told)
        known = f"{seen.intensity.g_per_kwh:.0f} {seen.intensity.gas}"
        if seen.intensity.g_per_kwh <= limit:
            told = f"{known} is at most {limit:.0f}"
            found = choice(self.name, now_s, p, seen, fastest, Why.CLEAN, told)
        else:
            told = f"{known} is above {limit:.0f}"
            found = choice(self.name, now_s, p, seen, PAUSE, Why.DIRTY, told)
        return replace(found, threshold_g_per_kwh=limit)

    def _limit(self, past: Series | None) -> float | None:
        """At or below which intensity training runs, g/kWh; None: nobody can say."""
        if self._fixed is not None:
            return self._fixed
        if past is None:
            return None
        per_day = self._day_s / past.step_s
        values = past.values[-max(1, round(PAST_DAYS * per_day)) :]
        known = values[np.isfinite(values)]
        if len(known) < per_day - 1e-6:
            return None
        return float(np.percentile(known, self._percentile))
