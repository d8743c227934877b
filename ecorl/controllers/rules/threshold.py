"""Waiting for a clean window, as a controller with width and gear."""

from __future__ import annotations

from dataclasses import replace

from ecorl.control import Command, GearChoice
from ecorl.controllers import waiting
from ecorl.controllers.problem.training import TrainingProblem
from ecorl.controllers.protocol import Memoryless, Seen
from ecorl.controllers.waiting import Waiting

_PERCENTILE = 30.0
"""Of the coming day, at or below which a grid counts as clean by default: that of
`ecorl.controllers.rules.suspend`, so that both differ in what they look at alone."""


class ThresholdWait(Memoryless):
    """Runs or waits as `ecorl.controllers.waiting` decides, and where it runs at full speed.

    Args:
        problem: what has to be met.
        rule: what may be waited for; None: for the cleanest hours of the coming day, at any step
            and for as long as the deadline allows. It takes a forecast, without which nothing is
            waited for.
    """

    name = waiting.NAME

    def __init__(self, problem: TrainingProblem, rule: Waiting | None = None) -> None:
        self._problem = problem
        self._rule = rule or Waiting(
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
