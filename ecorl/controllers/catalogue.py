"""All controllers by name, with their default settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from ecorl.control import Gear
from ecorl.controllers.horizon.ablations import (
    GEAR_FIXED,
    WIDTH_FIXED,
    gear_fixed,
    width_fixed,
)
from ecorl.controllers.horizon.receding import RECEDING, STOCHASTIC, RecedingHorizon, stochastic
from ecorl.controllers.learning.carl import Carl
from ecorl.controllers.learning.dual import DualPaced
from ecorl.controllers.learning.soft_q import SoftQ
from ecorl.controllers.problem.training import TrainingProblem
from ecorl.controllers.protocol import Controller
from ecorl.controllers.rules.carbonscaler import CARBONSCALER, CARBONSCALER_FP8, CarbonScaler
from ecorl.controllers.rules.race import Fcfs, Race
from ecorl.controllers.rules.spot import SpotOnly
from ecorl.controllers.rules.static import StaticRule, full_width, high_gear
from ecorl.controllers.rules.suspend import SuspendResume
from ecorl.controllers.rules.threshold import ThresholdWait
from ecorl.errors import ConfigError

DAY_S = 86400.0
"""Length of a day, s; that of a grid whose recording is played faster is shorter."""


class Maker(Protocol):
    """Makes a controller with its default settings."""

    def __call__(
        self, problem: TrainingProblem, *, day_s: float = DAY_S, seed: int = 0
    ) -> Controller:
        """Make it.

        Args:
            problem: what it has to meet.
            day_s: length of a day of the grid, s.
            seed: of what it draws at random.
        """
        ...


def _fixed(make: Callable[[TrainingProblem], Controller]) -> Maker:
    """For controllers that know no day and draw nothing."""

    def made(problem: TrainingProblem, *, day_s: float = DAY_S, seed: int = 0) -> Controller:
        return make(problem)

    return made


def _static(problem: TrainingProblem) -> Controller:
    """All workers in the fastest gear that is not of low precision."""
    return StaticRule(problem, full_width(problem))


def _static_fp8(problem: TrainingProblem) -> Controller:
    """All workers in FP8; in the fastest other gear where the table has no FP8."""
    gear = Gear.FP8 if Gear.FP8 in problem.table.gears else None
    return StaticRule(problem, full_width(problem, gear), "static-fp8")


def _carbonscaler(problem: TrainingProblem, *, day_s: float = DAY_S, seed: int = 0) -> Controller:
    return CarbonScaler(problem, day_s=day_s)


def _carbonscaler_fp8(
    problem: TrainingProblem, *, day_s: float = DAY_S, seed: int = 0
) -> Controller:
    """The same in FP8, where the table has it."""
    gear = Gear.FP8 if Gear.FP8 in problem.table.gears else None
    return CarbonScaler(problem, gear, day_s=day_s, name=CARBONSCALER_FP8)


def _suspend(problem: TrainingProblem, *, day_s: float = DAY_S, seed: int = 0) -> Controller:
    return SuspendResume(problem, day_s=day_s)


def _receding(problem: TrainingProblem, *, day_s: float = DAY_S, seed: int = 0) -> Controller:
    """The receding horizon that expects the middle of the fan alone."""
    return RecedingHorizon(problem, is_stochastic=False, day_s=day_s)


def _stochastic(problem: TrainingProblem, *, day_s: float = DAY_S, seed: int = 0) -> Controller:
    return stochastic(problem, day_s=day_s)


def _width_fixed(problem: TrainingProblem, *, day_s: float = DAY_S, seed: int = 0) -> Controller:
    return width_fixed(problem, day_s)


def _gear_fixed(problem: TrainingProblem, *, day_s: float = DAY_S, seed: int = 0) -> Controller:
    """In the fastest gear that is not of low precision."""
    return gear_fixed(problem, high_gear(problem), day_s)


def _dual(problem: TrainingProblem, *, day_s: float = DAY_S, seed: int = 0) -> Controller:
    return DualPaced(problem, day_s=day_s)


def _dual_printed(problem: TrainingProblem, *, day_s: float = DAY_S, seed: int = 0) -> Controller:
    return DualPaced(problem, printed=True, day_s=day_s)


def _soft_q(problem: TrainingProblem, *, day_s: float = DAY_S, seed: int = 0) -> Controller:
    return SoftQ(problem, corrected=True, seed=seed, day_s=day_s)


def _soft_q_printed(problem: TrainingProblem, *, day_s: float = DAY_S, seed: int = 0) -> Controller:
    return SoftQ(problem, corrected=False, seed=seed, day_s=day_s)


def _carl(problem: TrainingProblem, *, day_s: float = DAY_S, seed: int = 0) -> Controller:
    return Carl(problem, seed=seed, day_s=day_s)


_RULES: Mapping[str, Maker] = {
    "static": _fixed(_static),
    "static-fp8": _fixed(_static_fp8),
    "race": _fixed(Race),
    "fcfs": _fixed(Fcfs),
    CARBONSCALER: _carbonscaler,
    CARBONSCALER_FP8: _carbonscaler_fp8,
    "suspend": _suspend,
    "spot": _fixed(SpotOnly),
    "threshold": _fixed(ThresholdWait),
}

_HORIZONS: Mapping[str, Maker] = {
    RECEDING: _receding,
    STOCHASTIC: _stochastic,
    WIDTH_FIXED: _width_fixed,
    GEAR_FIXED: _gear_fixed,
}

_LEARNING: Mapping[str, Maker] = {
    "dual": _dual,
    "dual-printed": _dual_printed,
    "soft-q": _soft_q,
    "soft-q-printed": _soft_q_printed,
    "carl": _carl,
}

CONTROLLERS: Mapping[str, Maker] = {**_RULES, **_HORIZONS, **_LEARNING}
"""What makes each controller, by the name under which its choices are recorded."""


def build(
    name: str, problem: TrainingProblem, *, day_s: float = DAY_S, seed: int = 0
) -> Controller:
    """Make a controller with its default settings.

    Args:
        name: one of `CONTROLLERS`.
        problem: what it has to meet.
        day_s: length of a day of the grid, s.
        seed: of what it draws at random.

    Raises:
        ConfigError: for another name.
    """
    make = CONTROLLERS.get(name)
    if make is None:
        allowed = f"one of {', '.join(CONTROLLERS)}"
        raise ConfigError(f"{problem.key}.controller", name, allowed)
    return make(problem, day_s=day_s, seed=seed)
