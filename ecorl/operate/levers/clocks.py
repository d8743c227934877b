"""What a lower clock of a GPU's processors would change in a stage; nothing is set."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ecorl.devices.clocks import LEAST_CLOCK, ClockCurve
from ecorl.operate.levers.step import StageDraw
from ecorl.stages import Number

CLOCKS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.55, LEAST_CLOCK)
"""Relative clocks that are tried."""


def clocked(draw: StageDraw, clock: Number, curve: ClockCurve) -> StageDraw:
    """Return a stage at a lower clock of the processors.

    Args:
        draw: at the full clock.
        clock: relative clock, above 0 and at most 1; a float or an array.
        curve: how power follows it.
    """
    power = curve.power(clock)
    above_idle_w = np.maximum(0.0, draw.busy_w - draw.idle_w)
    return replace(
        draw,
        compute_s=draw.compute_s / clock,
        busy_w=draw.busy_w - above_idle_w * (1.0 - power),
        compute_j=draw.compute_j * power / clock,
    )
