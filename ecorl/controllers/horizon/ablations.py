"""The default controller without a part of its freedom: all workers or none, or one gear.

What the freedom is worth shows beside the default controller. Both keep the budget with what they
may do; where that does not suffice from the begin on, the shield takes the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ecorl.control import Gear, GearChoice
from ecorl.controllers.horizon.receding import RecedingHorizon
from ecorl.controllers.problem.table import PAUSE
from ecorl.controllers.problem.training import TrainingProblem
from ecorl.controllers.protocol import Seen
from ecorl.controllers.step import shielded
from ecorl.errors import ConfigError

WIDTH_FIXED, GEAR_FIXED = "width-fixed", "gear-fixed"


class Ablation:
    """The default controller with some gears and widths.

    Args:
        name: under which its choices are recorded.
        problem: what has to be met.
        gears: which it may take; None: all.
        widths: which it may take beside a pause; None: all.
        day_s: length of a day of the grid, s.
    """

    def __init__(
        self,
        name: str,
        problem: TrainingProblem,
        *,
        gears: tuple[Gear, ...] | None = None,
        widths: tuple[int, ...] | None = None,
        day_s: float = 86400.0,
    ) -> None:
        self.name = name
        some = problem.table.only(gears, widths).actions()
        self._actions = frozenset((PAUSE, *some))
        self._inner = RecedingHorizon(problem, day_s=day_s, some=some, name=name)
        try:
            self._part: TrainingProblem | None = problem.of(gears, widths)
        except ConfigError:
            self._part = None

    def decide(self, now_s: float, seen: Seen) -> GearChoice:
        """See `Controller.decide`."""
        progress, wanted = seen.progress, self._inner.decide(now_s, seen)
        assert progress is not None
        if self._part is None:
            return wanted
        if progress.action not in self._actions:
            progress = replace(progress, action=PAUSE)
        return shielded(self._part, now_s, seen, progress, wanted)

    def memory(self) -> Mapping[str, object]:
        """See `Controller.memory`."""
        return self._inner.memory()

    def recall(self, memory: Mapping[str, object]) -> None:
        """See `Controller.recall`.

        Args:
            memory: of a controller of this kind for the same problem.
        """
        self._inner.recall(memory)


def width_fixed(problem: TrainingProblem, day_s: float = 86400.0) -> Ablation:
    """The default controller with all workers or none.

    Args:
        problem: what has to be met.
        day_s: length of a day of the grid, s.
    """
    return Ablation(WIDTH_FIXED, problem, widths=problem.table.widths[-1:], day_s=day_s)


def gear_fixed(problem: TrainingProblem, gear: Gear, day_s: float = 86400.0) -> Ablation:
    """The default controller in one gear.

    Args:
        problem: what has to be met.
        gear: which.
        day_s: length of a day of the grid, s.
    """
    return Ablation(GEAR_FIXED, problem, gears=(gear,), day_s=day_s)
