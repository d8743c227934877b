"""Always the same width and gear, until the budget is met."""

from __future__ import annotations

from ecorl.control import Gear, GearChoice, Why
from ecorl.controllers.problem.table import TrainingAction
from ecorl.controllers.problem.training import TrainingProblem
from ecorl.controllers.protocol import Memoryless, Seen
from ecorl.controllers.step import choice
from ecorl.errors import ConfigError


class StaticRule(Memoryless):
    """Does the same in each epoch, whatever the grid does.

    With the full width and BF16 it is the paper's STATIC-BF16 (CarbonGearRL, section 5).

    Args:
        problem: what has to be met.
        action: of the problem's table.
        name: under which its choices are recorded.

    Raises:
        ConfigError: when the table does not have the action.
    """

    def __init__(
        self, problem: TrainingProblem, action: TrainingAction, name: str = "static"
    ) -> None:
        table = problem.table
        if action not in table.actions():
            widths = ", ".join(map(str, table.widths))
            allowed = f"a width of {widths} with a gear of {', '.join(table.gears)}"
            given = f"width {action.width}, gear {action.gear}"
            raise ConfigError(f"{problem.key}.action", given, allowed)
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


def checked_gear(problem: TrainingProblem, gear: Gear | None) -> Gear:
    """A gear that a rule is to keep to; by default that of `high_gear`.

    Args:
        problem: whose table has to have it.
        gear: which; None: the default.

    Raises:
        ConfigError: when the table does not have it.
    """
    if gear is None:
        return high_gear(problem)
    if gear not in problem.table.gears:
        allowed = f"one of {', '.join(problem.table.gears)}"
        raise ConfigError(f"{problem.key}.gear", str(gear), allowed)
    return gear
