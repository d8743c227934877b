"""What a lock of a GPU's clock would change in a stage; nothing is set."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ecorl.devices import DeviceFigure, DeviceProfile
from ecorl.devices.clocks import LEAST_CLOCK, ClockCurve, clock_curves
from ecorl.operate.levers.gears import TRAINED, End
from ecorl.operate.levers.step import PricedStep, StageDraw
from ecorl.records import INFERENCE_STAGES, Stage
from ecorl.stages.figures import Number

CLOCKS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.55, LEAST_CLOCK)
"""Locks that are tried, over the greatest clock."""

_MEASURED = {
    **dict.fromkeys(INFERENCE_STAGES, "scoring_clock_hz"),
    **dict.fromkeys(TRAINED, "training_clock_hz"),
}
"""Figures of a profile that hold the natural clock of stages under the board's limit."""


def natural_clock(
    draw: StageDraw, step: PricedStep, curve: ClockCurve, end: End = "usual"
) -> float:
    """Return the clock at which a stage runs while nothing is set, over the greatest.

    It is the greatest where the board's limit leaves room for it; else what the profile holds as
    measured, or where it holds nothing, the clock at which the modelled power meets the limit.

    Args:
        draw: the stage, one of the step's.
        step: whose GPUs it runs on.
        curve: how power follows the clock.
        end: of what was measured.
    """
    if step.limit_w is None or draw.unlimited_w <= step.limit_w:
        return 1.0
    figure = measured_clock(draw.stage, step.gpu)
    if figure is not None:
        at = {"low": figure.low, "usual": figure.value, "high": figure.high}[end]
        return (at or figure.value) / step.gpu.value("clock_max_hz")
    standing_w = float(draw.idle_w + draw.memory_j / draw.time_s)
    return curve.under_limit((step.limit_w - standing_w) / (draw.unlimited_w - standing_w))


def measured_clock(stage: Stage, gpu: DeviceProfile) -> DeviceFigure | None:
    """Return what a profile holds of a stage's natural clock under the board's limit, Hz.

    Args:
        stage: of a step.
        gpu: the profile; one that does not hold the greatest clock says nothing of a share of it.
    """
    has_greatest = gpu.get("clock_max_hz") is not None
    return gpu.figures.get(_MEASURED.get(stage, "")) if has_greatest else None


def natural_clocks(step: PricedStep) -> dict[Stage, float]:
    """Return the natural clocks of a step's stages, as usual; none where no curve is known.

    Args:
        step: as it is.
    """
    curves = clock_curves(step.gpu)
    if curves is None:
        return {}
    return {draw.stage: natural_clock(draw, step, curves.usual) for draw in step.draws}


def clocked(draw: StageDraw, lock: Number, curve: ClockCurve, natural: float = 1.0) -> StageDraw:
    """Return a stage under a lock of the processors' clock.

    Args:
        draw: while nothing is set.
        lock: over the greatest clock, above 0 and at most 1; a float or an array.
        curve: how time and power follow the clock.
        natural: clock of the stage while nothing is set.
    """
    ratios = curve.locked(lock, natural)
    above_idle_w = np.maximum(0.0, draw.busy_w - draw.idle_w)
    return replace(
        draw,
        memory_s=draw.memory_s * ratios.memory_time,
        compute_s=draw.compute_s * ratios.compute_time,
        busy_w=draw.busy_w - above_idle_w * (1.0 - ratios.power),
        compute_j=draw.compute_j * ratios.power * ratios.compute_time,
    )
