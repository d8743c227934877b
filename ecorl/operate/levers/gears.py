"""What FP8 in place of BF16 would change in a stage, by published gains.

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
from itertools import pairwise
from typing import Literal

from ecorl.devices import DeviceProfile
from ecorl.operate.levers.step import StageDraw
from ecorl.records import Stage

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
