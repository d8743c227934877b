"""What nobody who looks at the grid has to beat: full speed at once, in one gear."""

from __future__ import annotations

import math
from dataclasses import replace

from ecorl.carbon.series import Series
from ecorl.control import Gear
from ecorl.controllers.problem.training import TrainingProblem
from ecorl.controllers.replay.knowledge import Knowledge
from ecorl.controllers.replay.playing import PlayedTraining, play
from ecorl.controllers.rules.reactive import Race, StaticRule, full_width, high_gear
from ecorl.errors import ConfigError


def static_training(problem: TrainingProblem, truth: Series, gear: Gear) -> PlayedTraining | None:
    """All workers in one gear from the start on, whatever the grid does.

    Its deadline is put off where it cannot be kept, as for BF16 with little slack; machines that
    are kept until the deadline are then kept until its end. In a gear of low precision it goes on
    with the fastest other one when the cap is reached.

    Args:
        problem: what has to be met.
        truth: the intensities, g/kWh.
        gear: the gear.

    Returns:
        What became of it; None where the table lacks the gear, or the series ends before it does.
    """
    if gear not in problem.table.gears:
        return None
    action = full_width(problem, gear)
    if gear.is_low and problem.low_share < 1.0:
        return raced(problem, truth)
    needed_s = problem.tokens / problem.rate(action) + problem.width_change_s
    epochs = math.ceil(needed_s / problem.epoch_s - 1e-9)
    end_s = max(problem.deadline_s, problem.start_s + epochs * problem.epoch_s)
    table = problem.table.only((gear,))
    alone = replace(problem, table=table, low_share=1.0, deadline_s=end_s)
    try:
        return play(StaticRule(alone, action, f"static {gear}"), alone, Knowledge(truth), truth)
    except ConfigError:
        if end_s == problem.deadline_s:
            raise
        return None


def static_trainings(
    problem: TrainingProblem, truth: Series
) -> tuple[PlayedTraining | None, PlayedTraining | None]:
    """The static trainings in the fastest gear of full precision and in FP8, or None for each.

    Args:
        problem: what has to be met.
        truth: the intensities, g/kWh.
    """
    gear = high_gear(problem)
    high = None if gear.is_low else static_training(problem, truth, gear)
    return high, static_training(problem, truth, Gear.FP8)


def raced(problem: TrainingProblem, truth: Series) -> PlayedTraining:
    """Full speed from the start on, in the fastest gear that the cap still allows.

    Args:
        problem: what has to be met.
        truth: the intensities, g/kWh.
    """
    return play(Race(problem), problem, Knowledge(truth), truth)


def saving(emitted: float, instead_of: float | None) -> float | None:
    """What is saved, as a fraction; None where the other figure is missing.

    Args:
        emitted: gCO2e.
        instead_of: gCO2e.
    """
    return None if instead_of is None or instead_of <= 0.0 else 1.0 - emitted / instead_of
