"""Rules that plan nothing: they go by what is seen now, or by nothing at all."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import numpy as np

from ecorl.carbon.series import Series
from ecorl.control import Command, Gear, GearChoice, Why
from ecorl.controllers import waiting
from ecorl.controllers.problem.table import PAUSE, TrainingAction
from ecorl.controllers.problem.training import TrainingProblem
from ecorl.controllers.protocol import Memoryless, Seen
from ecorl.controllers.step import choice
from ecorl.controllers.waiting import Waiting


class StaticRule(Memoryless):
    """Does the same in each epoch, whatever the grid does.

    With the full width and BF16 it is the paper's STATIC-BF16 (CarbonGearRL, section 5).

    Args:
        problem: what has to be met.
        action: of the problem's table.
        name: under which its choices are recorded.
    """

    def __init__(
        self, problem: TrainingProblem, action: TrainingAction, name: str = "static"
    ) -> None:
        self.name = name
        self._problem, self._action = problem, action

    def decide(self, now_s: float, seen: Seen) -> GearChoice:
        """See `Controller.decide`."""
        told = "the same width and gear in each epoch"
        return choice(self.name, now_s, self._problem, seen, self._action, Why.STATIC, told)


def full_width(problem: TrainingProblem, gear: Gear | None = None) -> TrainingAction:
    """All workers with one gear.

    Args:
        problem: whose table is meant.
        gear: which; None: the one of `high_gear`.
    """
    return TrainingAction(problem.table.widths[-1], gear or high_gear(problem))


def high_gear(problem: TrainingProblem) -> Gear:
    """The fastest gear that is not of low precision; of equally fast ones BF16.

    Where all gears are of low precision it is the fastest of those.

    Args:
        problem: whose table is meant.
    """
    table = problem.table
    gears = [gear for gear in table.gears if not gear.is_low] or list(table.gears)
    width = table.widths[-1]
    return max(gears, key=lambda g: (problem.rate(TrainingAction(width, g)), g is Gear.BF16))


class Race(Memoryless):
    """Trains at full speed from the begin on, with the fastest gear that the cap still allows.

    Args:
        problem: what has to be met.
    """

    name = "race"

    def __init__(self, problem: TrainingProblem) -> None:
        self._problem = problem

    def decide(self, now_s: float, seen: Seen) -> GearChoice:
        """See `Controller.decide`."""
        assert seen.progress is not None
        fastest = self._problem.fastest(seen.progress)
        told = "full speed from the begin on"
        return choice(self.name, now_s, self._problem, seen, fastest, Why.STATIC, told)


class Fcfs(StaticRule):
    """First come, first served: all workers from submission on, in no low precision.

    It is the baseline of the CARL paper, which is performance-maximalist: nothing is deferred,
    nothing is throttled, and the format is the usual one. With one training and no queue it is
    the static rule at full width, under a name of its own.

    Args:
        problem: what has to be met.
    """

    def __init__(self, problem: TrainingProblem) -> None:
        super().__init__(problem, full_width(problem), "fcfs")


_PERCENTILE = 30.0
"""At or below which a grid counts as clean: of the past where a rule suspends, of the coming day
where one waits. So both differ in what they look at alone."""

PAST_DAYS = 7
"""How much of the past the percentile is of. A week, so that each day of it counts once."""


class SuspendResume(Memoryless):
    """Pauses above a threshold, and trains at full speed at and below it.

    Papers set the threshold at a percentile of the intensities; here it is the `_PERCENTILE` of the
    last `PAST_DAYS`, which is known at the time. Where the intensity is unknown, or too little of
    the past is to say what is clean (less than a day), training runs at full speed. The rule looks
    at no deadline: the shield of the control step ends the pauses in time.

    Args:
        problem: what has to be met.
        day_s: length of a day of the grid, s.
    """

    name = "suspend"

    def __init__(
        self,
        problem: TrainingProblem,
        day_s: float = 86400.0,
    ) -> None:
        self._problem, self._day_s = problem, day_s

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
        if past is None:
            return None
        per_day = self._day_s / past.step_s
        values = past.values[-max(1, round(PAST_DAYS * per_day)) :]
        known = values[np.isfinite(values)]
        if len(known) < per_day - 1e-6:
            return None
        return float(np.percentile(known, _PERCENTILE))


class SpotOnly:
    """Scales the width with the price of a worker, in the fastest gear of full precision.

    CarbonGearRL says of its baseline only that it "scales n_k with spot-instance prices but keeps
    precision fixed". The rule here is an invention, and the simplest one that does so:

        n = the largest width of the table with n * price <= n_max * base_price

    so that an hour costs at most what the full width costs at the base price, which is the mean of
    the prices seen so far, and all workers train
    at or below it. But n is never so small that the rest of the budget, at its pace, would take
    longer than until the deadline; so the rule does not lean on the shield. Where the price is
    unknown, it is the full width.

    Args:
        problem: what has to be met.
    """

    name = "spot"

    def __init__(self, problem: TrainingProblem) -> None:
        self._problem, self._gear = problem, high_gear(problem)
        table = problem.table
        self._widths = np.array(table.widths)
        self._rates = table.tokens_per_s[table.gears.index(self._gear)]
        self._n_seen, self._sum_seen = 0, 0.0

    def decide(self, now_s: float, seen: Seen) -> GearChoice:
        """See `Controller.decide`."""
        assert seen.progress is not None
        p, price = self._problem, seen.spot_price
        widest = len(self._widths) - 1
        if price is None or not math.isfinite(price):
            action = TrainingAction(int(self._widths[widest]), self._gear)
            told = "the price of a worker is unknown"
            return choice(self.name, now_s, p, seen, action, Why.UNKNOWN, told)
        self._n_seen, self._sum_seen = self._n_seen + 1, self._sum_seen + max(price, 0.0)
        base = self._sum_seen / self._n_seen
        affordable = self._widths * max(price, 0.0) <= self._widths[widest] * base * (1 + 1e-9)
        by_price = int(np.count_nonzero(affordable)) - 1
        left_s = p.deadline_s - now_s
        pace = seen.progress.tokens_left / left_s if left_s > 0 else math.inf
        by_pace = int(np.searchsorted(self._rates, pace * (1 - 1e-9)))
        place = min(widest, max(0, by_price, by_pace))
        action = TrainingAction(int(self._widths[place]), self._gear)
        told = f"a worker costs {price:.4g} an hour, against {base:.4g}"
        return choice(self.name, now_s, p, seen, action, Why.PRICED, told)

    def memory(self) -> Mapping[str, object]:
        """Number and sum of the prices seen so far."""
        return {"n_seen": self._n_seen, "sum_seen": self._sum_seen}

    def recall(self, memory: Mapping[str, object]) -> None:
        """Go on from the prices that were seen.

        Args:
            memory: number and sum of them.
        """
        self._n_seen = cast("int", memory.get("n_seen", 0))
        self._sum_seen = cast("float", memory.get("sum_seen", 0.0))


class ThresholdWait(Memoryless):
    """Runs or waits as `ecorl.controllers.waiting` decides, and where it runs at full speed.

    It waits for the cleanest hours of the coming day, at any step and for as long as the deadline
    allows. It takes a forecast, without which nothing is waited for.

    Args:
        problem: what has to be met.
    """

    name = waiting.NAME

    def __init__(self, problem: TrainingProblem) -> None:
        self._problem = problem
        self._rule = Waiting(
            threshold_g_per_kwh=None,
            max_wait_s=problem.deadline_s - problem.start_s,
            recheck_s=problem.epoch_s,
            percentile=_PERCENTILE,
            deadline_s=problem.deadline_s,
            at_steps=True,
        )

    def decide(self, now_s: float, seen: Seen) -> GearChoice:
        """See `Controller.decide`."""
        assert seen.progress is not None
        found = waiting.decide(self._rule, now_s, seen)
        if found.command is not Command.RUN:
            return replace(found, width=0, gear=None)
        fastest = self._problem.fastest(seen.progress)
        return replace(found, width=fastest.width, gear=fastest.gear)
