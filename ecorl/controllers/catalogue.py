"""All controllers by name, with their default settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ecorl.control import Gear
from ecorl.controllers.horizon import receding
from ecorl.controllers.learning.carl import CARL, Carl
from ecorl.controllers.learning.dual import DUAL, DUAL_PRINTED, DualPaced
from ecorl.controllers.learning.soft_q import SOFT_Q, SOFT_Q_PRINTED, SoftQ
from ecorl.controllers.problem.training import TrainingProblem
from ecorl.controllers.protocol import Controller
from ecorl.controllers.rules import reactive
from ecorl.controllers.rules.carbonscaler import CARBONSCALER, CARBONSCALER_FP8, CarbonScaler
from ecorl.errors import ConfigError

DAY_S = 86400.0
"""Length of a day, s; that of a grid whose recording is played faster is shorter."""


def _static(problem: TrainingProblem) -> Controller:
    """All workers in the fastest gear that is not of low precision."""
    return reactive.StaticRule(problem, reactive.full_width(problem))


def _static_fp8(problem: TrainingProblem) -> Controller:
    """All workers in FP8; in the fastest other gear where the table has no FP8."""
    return reactive.StaticRule(problem, reactive.full_width(problem, _fp8(problem)), "static-fp8")


def _carbonscaler_fp8(problem: TrainingProblem, day_s: float) -> Controller:
    """The same in FP8, where the table has it."""
    return CarbonScaler(problem, _fp8(problem), day_s=day_s, name=CARBONSCALER_FP8)


def _fp8(problem: TrainingProblem) -> Gear | None:
    return Gear.FP8 if Gear.FP8 in problem.table.gears else None


CONTROLLERS: Mapping[str, Callable[..., Controller]] = {
    "static": _static,
    "static-fp8": _static_fp8,
    "race": reactive.Race,
    "fcfs": reactive.Fcfs,
    CARBONSCALER: CarbonScaler,
    CARBONSCALER_FP8: _carbonscaler_fp8,
    "suspend": reactive.SuspendResume,
    "spot": reactive.SpotOnly,
    "threshold": reactive.ThresholdWait,
    receding.RECEDING: partial(receding.RecedingHorizon, is_stochastic=False),
    receding.STOCHASTIC: receding.RecedingHorizon,
    receding.WIDTH_FIXED: receding.width_fixed,
    receding.GEAR_FIXED: receding.gear_fixed,
    DUAL: DualPaced,
    DUAL_PRINTED: partial(DualPaced, printed=True),
    SOFT_Q: partial(SoftQ, corrected=True),
    SOFT_Q_PRINTED: partial(SoftQ, corrected=False),
    CARL: Carl,
}
"""What makes each controller, by the name under which its choices are recorded."""

_WITHOUT_DAY = frozenset({"static", "static-fp8", "race", "fcfs", "spot", "threshold"})
_DRAWING = frozenset({SOFT_Q, SOFT_Q_PRINTED, CARL})


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
    known: dict[str, Any] = {} if name in _WITHOUT_DAY else {"day_s": day_s}
    if name in _DRAWING:
        known["seed"] = seed
    return make(problem, **known)
