"""Gears that ecorl's default controller chooses along a made-up grid, step by step.

The training has a cap on its tokens in low precision, and a table in which FP8 is the faster gear.
So the controller keeps FP8 for the cleanest hours, and shifts once or twice a day.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np

from ecorl.carbon.series import Series
from ecorl.control import Gear
from ecorl.controllers.catalogue import DAY_S, build
from ecorl.controllers.problem.table import scaled_table
from ecorl.controllers.problem.training import HOUR_S, TrainingProblem
from ecorl.controllers.replay.knowledge import Knowledge
from ecorl.controllers.replay.playing import play
from ecorl.kinds import Provenance

CONTROLLER: Final = "stochastic"
"""The default controller."""

DAYS, PAST_DAYS = 10, 14
"""Length of the training, and what the controller knows of the grid when it begins, days. Invented:
ten days give a dozen shifts or more, and a forecaster needs a week or two."""

SLACK = 1.67
"""Time there is over the least time that the budget takes."""

_WIDTHS = (1, 2, 3, 4)
_RATES = {Gear.BF16: 1.0, Gear.FP8: 1.45}
_WORKER_W = {Gear.BF16: 700.0, Gear.FP8: 715.0}
_MEAN_G_PER_KWH, _DAILY, _BY_DAY, _BY_HOUR, _MEMORY = 300.0, 120.0, 40.0, 12.0, 0.9


def scheduled_gears(n_steps: int, low_share: float, seed: int) -> tuple[Gear, ...]:
    """Play a training of as many steps, and tell the gear of each.

    Args:
        n_steps: of the training; each trains equally many tokens.
        low_share: largest share of the tokens in FP8, 0 to 1.
        seed: of the made-up grid.
    """
    grid = made_up_grid(seed)
    table = scaled_table(
        _WIDTHS,
        _RATES,
        _WORKER_W,
        exponent=0.97,
        overhead=1.25,
        provenance=Provenance.MODELLED,
        source="the controllers' study, with four workers",
    )
    start_s = PAST_DAYS * DAY_S
    tokens = DAYS * DAY_S * float(table.tokens_per_s[0].max()) / SLACK
    problem = TrainingProblem(
        table, tokens, start_s, start_s + DAYS * DAY_S, epoch_s=HOUR_S, low_share=low_share
    )
    # A step is in the gear of the epoch in which it begins: of an epoch's choice counts what was
    # trained before it.
    ends: list[tuple[float, Gear | None]] = []
    controller = build(CONTROLLER, problem)
    play(
        controller,
        problem,
        Knowledge(grid),
        watch=lambda _, choice, before: ends.append((tokens - before.tokens_left, choice.gear)),
    )
    begins = np.array([begin for begin, gear in ends if gear is not None])
    gears = [gear for _, gear in ends if gear is not None]
    steps = np.arange(n_steps) * (tokens / n_steps)
    places = np.maximum(0, np.searchsorted(begins, steps + 1e-6 * tokens, side="right") - 1)
    return tuple(gears[place] for place in places)


def made_up_grid(seed: int) -> Series:
    """Hourly intensities of no grid: a daily wave, good and bad days, and hourly chance.

    Args:
        seed: of the chance.
    """
    n_days = PAST_DAYS + DAYS
    draw = np.random.default_rng(seed)
    hours = np.arange(24 * n_days)
    wave = _DAILY * np.cos((hours % 24 - 18.0) / 24.0 * 2.0 * np.pi)
    days = np.repeat(draw.normal(0.0, _BY_DAY, n_days), 24)
    chance = np.zeros(len(hours))
    for hour, shock in enumerate(draw.normal(0.0, _BY_HOUR, len(hours) - 1)):
        chance[hour + 1] = _MEMORY * chance[hour] + shock
    values = np.maximum(20.0, _MEAN_G_PER_KWH + wave + days + chance)
    return Series(0.0, HOUR_S, values)


def n_switches(gears: tuple[Gear, ...]) -> int:
    """How often a step is in another gear than the one before it.

    Args:
        gears: of the steps.
    """
    return sum(a is not b for a, b in pairwise(gears))
