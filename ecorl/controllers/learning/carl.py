"""CARL, the learned controller of the Eco-Orchestrator paper: pass through, throttle or defer.

The paper's are what the agent sees (utilisation, the work that is left, the intensity now and in
the next six hours), its three actions, and the reward: few emissions, and the job done by its soft
deadline. How it learns the paper does not tell: see `ecorl.controllers.learning.carl_training`. The
time that is left is ours too, without which no deadline can be kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import numpy as np

from ecorl.carbon.series import Series
from ecorl.control import GearChoice, Why
from ecorl.controllers.horizon.levels import DAY_H, hourly
from ecorl.controllers.learning import carl_training
from ecorl.controllers.learning.pace import number, pace_end_s, unknown
from ecorl.controllers.problem.table import PAUSE
from ecorl.controllers.problem.training import TrainingProblem
from ecorl.controllers.protocol import Seen
from ecorl.controllers.step import choice

CARL = "carl"


class Carl:
    """Does what an agent has learned from the past that it is shown.

    The agent is trained at the first decision at which three days are known, by that past alone,
    and not again. Until then, and while the intensity is unknown, it passes through.

    Throttling asks for a clock in the choice (`GearChoice.clock_share`) beside the full width.
    Nothing sets clocks yet, so that it runs and emits as passing through does; the effect that the
    agent is trained with is modelled.

    Args:
        problem: what has to be met.
        seed: of the training.
        shape: how the agent is trained.
        day_s: length of a day of the grid, s.
    """

    def __init__(
        self,
        problem: TrainingProblem,
        seed: int = 0,
        shape: carl_training.CarlShape | None = None,
        day_s: float = 86400.0,
    ) -> None:
        self.name = CARL
        self._problem, self._seed, self._shape = problem, seed, shape
        self._day_s, self._hour_s = day_s, day_s / DAY_H
        self._values: carl_training.CarlValues | None = None
        self._around: tuple[tuple[float, int], float, float] | None = None

    def decide(self, now_s: float, seen: Seen) -> GearChoice:
        """See `Controller.decide`."""
        p, progress, known = self._problem, seen.progress, seen.intensity
        assert progress is not None
        if self._values is None and seen.past is not None:
            span_h = (pace_end_s(p) - p.start_s) / self._hour_s
            hours = hourly(seen.past, self._day_s)
            self._values = carl_training.train(hours, span_h, self._seed, self._shape)
        around = None if seen.past is None else self._surroundings(seen.past)
        if self._values is None or known is None or around is None:
            return unknown(self.name, now_s, p, seen)
        mean, expected = around
        told = self._forecast(now_s, seen)
        facts = (
            p.needed_s(progress) / self._hour_s,
            max(0.0, pace_end_s(p) - now_s) / self._hour_s,
            1.0 if seen.utilisation is None else seen.utilisation,
            known.g_per_kwh / mean,
            (expected if told is None else told) / mean,
        )
        state = carl_training.CarlState(*(np.array([fact]) for fact in facts))
        return self._done(now_s, seen, self._values.best(state))

    def memory(self) -> Mapping[str, object]:
        """See `Controller.memory`."""
        found = self._values
        if found is None:
            return {"values": None}
        others = [found.scale_h, found.missing_g, found.least_gain]
        return {"values": {"weights": found.weights.tolist(), "others": others}}

    def recall(self, memory: Mapping[str, object]) -> None:
        """See `Controller.recall`.

        Args:
            memory: of a controller of this kind for the same problem.
        """
        self._values = None
        if memory["values"] is not None:
            told = cast(Mapping[str, list[object]], memory["values"])
            weights = np.array([number(one) for one in told["weights"]])
            self._values = carl_training.CarlValues(
                weights, *(number(one) for one in told["others"])
            )

    # ------------------------------------------------------------ parts of a decision

    def _done(self, now_s: float, seen: Seen, action: carl_training.CarlAction) -> GearChoice:
        p = self._problem
        assert seen.progress is not None
        if action is carl_training.CarlAction.DEFER:
            told = "the agent defers: it expects cleaner hours before the deadline"
            return choice(self.name, now_s, p, seen, PAUSE, Why.PRICED, told)
        fastest = p.fastest(seen.progress)
        if action is carl_training.CarlAction.PASS:
            told = "the agent passes through"
            return choice(self.name, now_s, p, seen, fastest, Why.PRICED, told)
        clock = carl_training.THROTTLE_CLOCK
        told = f"the agent throttles to {100 * clock:.0f} % of the clock (modelled)"
        found = choice(self.name, now_s, p, seen, fastest, Why.PRICED, told)
        return replace(found, clock_share=clock)

    def _surroundings(self, past: Series) -> tuple[float, float] | None:
        """Mean of the newest weeks, and of the next hours by the day profile, g/kWh."""
        key = (past.end_s, len(past.values))
        if self._around is None or self._around[0] != key:
            n = round(carl_training.MEAN_DAYS * self._day_s / past.step_s)
            newest = Series(0.0, past.step_s, past.values[-max(1, n) :])
            hours = hourly(newest, self._day_s)
            if not hours.size:
                return None
            expected = float(carl_training.outlook_by_profile(hours)[-1])
            self._around = key, max(float(hours.mean()), 1e-9), expected
        return self._around[1:]

    def _forecast(self, now_s: float, seen: Seen) -> float | None:
        """Mean of the forecast of the next six hours, g/kWh; None where it tells not all of it."""
        found = seen.forecast
        if found is None or found.start_s > now_s + self._hour_s:
            return None
        until_s = now_s + carl_training.OUTLOOK_H * self._hour_s
        begin = max(0, int((now_s - found.start_s) / found.step_s + 1e-9))
        end = int(np.ceil((until_s - found.start_s) / found.step_s - 1e-9))
        part = found.middle[begin:end]
        is_whole = end <= len(found.middle) and part.size > 0 and bool(np.isfinite(part).all())
        return float(part.mean()) if is_whole else None
