"""As fast as possible at once: what is done where nobody looks at the grid."""

from __future__ import annotations

from ecorl.control import GearChoice, Why
from ecorl.controllers.problem.training import TrainingProblem
from ecorl.controllers.protocol import Memoryless, Seen
from ecorl.controllers.rules.static import StaticRule, full_width
from ecorl.controllers.step import choice


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
