"""What a lock of a GPU's clock, and FP8 in place of BF16, would change in a stage; nothing is set.

FP8 makes steps faster at about the same power, so a stage takes as much less energy as it takes
less time. How much depends on the model's size: the share of a step that large matrix products
take grows with it. In training it was published end to end at 7 to 8 B (1.13 to 1.25 times as fast:
Transformer Engine with LLaMA-Factory, torchao) and at 405 B (1.5: torchao on 512 GPUs); at 1 B this
project measured 0.96 and 0.88 of the joules of BF16 on an H100. In rollouts FP8 was published to be
1.15 to 1.44 times as fast (NeMo RL, FP8-RL).

A lower format changes numbers. That of training alone keeps what is sampled; in the rollout it
widens the distance between the sampler's and the trainer's probabilities.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Literal

import numpy as np

from ecorl.devices import DeviceFigure, DeviceProfile
from ecorl.devices.clocks import LEAST_CLOCK, ClockCurve, clock_curves
from ecorl.operate.levers.step import PricedStep, StageDraw
from ecorl.records import INFERENCE_STAGES, Stage
from ecorl.stages.figures import Number

End = Literal["low", "usual", "high"]
"""Which end of an interval a figure is taken at."""

ENDS: tuple[End, End, End] = ("low", "usual", "high")

_TRAINING = ((1e9, 1.04, 1.14), (8e9, 1.13, 1.25), (405e9, 1.5, 1.5))
"""Parameters, and speed of a training step in FP8 over BF16 at both ends; in between it goes with
the logarithm of the parameters."""

_ROLLOUT = {"low": 1.15, "usual": 1.25, "high": 1.44}

TRAINED = (Stage.ACTOR_TRAIN, Stage.CRITIC_TRAIN)


def has_fp8(gpu: DeviceProfile) -> bool:
    """Tell whether a GPU has units for FP8.

    Args:
        gpu: its profile.
    """
    return gpu.get("peak_fp8_flops") is not None


def training_gain(n_params: float, end: End = "usual") -> float:
    """Compute the speed of a training step in FP8 over BF16.

    Args:
        n_params: parameters of the model.
        end: of the interval; the usual one is its middle.
    """
    low, high = (_interpolated(n_params, column) for column in (1, 2))
    return {"low": low, "usual": 0.5 * (low + high), "high": high}[end]


def _interpolated(n_params: float, column: int) -> float:
    points = [(math.log(row[0]), row[column]) for row in _TRAINING]
    x = min(max(math.log(n_params), points[0][0]), points[-1][0])
    for (x0, y0), (x1, y1) in pairwise(points):
        if x <= x1:
            return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return points[-1][1]


def geared(draw: StageDraw, end: End = "usual", *, rollout: bool = False) -> StageDraw:
    """Return a stage in FP8; one that does not train stays as it is.

    Args:
        draw: in BF16.
        end: of the published gains.
        rollout: whether generation is in FP8 as well.
    """
    if draw.stage in TRAINED:
        gain = training_gain(draw.n_params, end)
    elif rollout and draw.stage is Stage.GENERATION:
        gain = _ROLLOUT[end]
    else:
        return draw
    return draw.scaled(1.0 / gain, 1.0 / gain)


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
