"""What placing reward and reference on a second device would change in a step, priced at once.

Each fixed placement is carried through the stage function (`ecorl.stages`) for one iteration of
mean length on idle devices. That is a fraction of a millisecond; what queues, drift and chance make
of it is for the simulator to say (``ecorl plan --thorough``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from ecorl.devices import DeviceProfile
from ecorl.operate.levers.step import StageDraw
from ecorl.records import Action, Stage
from ecorl.scheduler.iteration_costs import (
    ACTION_CODE,
    Circumstances,
    TableConstants,
    iteration_costs,
)
from ecorl.scheduler.tables import COLUMN, COLUMNS, CostTable, Setting, roofline_table
from ecorl.stages.figures import BATCH, Between, Number
from ecorl.stages.graph import FROZEN_STAGES
from ecorl.stages.guards import outlook
from ecorl.stages.iteration import advance, begin

REST_C = Circumstances().ambient_c
"""Temperature of devices that have done nothing, degrees Celsius."""


@dataclass(frozen=True, slots=True)
class Accelerators:
    """Second devices of a job, with what the stages cost on them.

    Attributes:
        profile: of one of them.
        n: how many there are.
        table: costs at the job's mean length; its first row counts.
    """

    profile: DeviceProfile
    n: int
    table: CostTable

    @property
    def usable(self) -> tuple[Stage, ...]:
        """The frozen stages that they can run."""
        can = dict(zip((Stage.REWARD, Stage.REFERENCE), self.table.card_usable, strict=False))
        return tuple(stage for stage in FROZEN_STAGES if can[stage])

    @property
    def why_not(self) -> str:
        """Why they cannot run a stage; empty where they can run all."""
        return "; ".join(self.table.notes)


@dataclass(frozen=True, slots=True)
class PlacedStep:
    """A step under one placement; figures are floats, or arrays side by side.

    Attributes:
        actions: of the stages that leave the GPUs.
        on_gpus: the stages that do not.
        time_s: time of the step, s.
        energy_j: of GPUs and second devices, those that stand by included, J.
        bubble_s: time in which the GPUs wait for the others, s.
    """

    actions: Mapping[Stage, Action]
    on_gpus: tuple[StageDraw, ...]
    time_s: Number
    energy_j: Number
    bubble_s: Number


def accelerators(setting: Setting, length: float) -> Accelerators:
    """Price the stages on a job's second devices.

    Args:
        setting: job and devices.
        length: mean completion, tokens.

    Raises:
        ConfigError: when a stage cannot be priced on the GPUs.
    """
    # A table needs two lengths; the second is not looked at.
    table = roofline_table(setting, np.array([length, 2.0 * length]))
    return Accelerators(setting.card, setting.n_cards, table)


def placed_steps(draws: Sequence[StageDraw], others: Accelerators) -> Iterator[PlacedStep]:
    """Price each placement that sends at least one stage to the second devices.

    Args:
        draws: of the stages where they stay on the GPUs.
        others: the second devices.
    """
    stages = [stage for stage in others.usable if any(draw.stage is stage for draw in draws)]
    for actions in product(Action, repeat=len(stages)):
        chosen = {s: a for s, a in zip(stages, actions, strict=True) if a is not Action.GPU}
        if chosen:
            yield placed(draws, others, chosen)


def best_placed(draws: Sequence[StageDraw], others: Accelerators) -> PlacedStep | None:
    """Return the placement of least energy, be it a loss; None where the devices run no stage.

    Args:
        draws: of the stages where they stay on the GPUs, figures being floats.
        others: the second devices.
    """
    return min(placed_steps(draws, others), key=lambda p: float(p.energy_j), default=None)


def placed(
    draws: Sequence[StageDraw], others: Accelerators, actions: Mapping[Stage, Action]
) -> PlacedStep:
    """Price one placement.

    Args:
        draws: of the stages where they stay on the GPUs.
        others: the second devices.
        actions: of the frozen stages that leave.
    """
    row: list[Number] = [0.0] * len(COLUMNS)
    for name in ("reward_card_s", "reference_card_s", "critic_card_s"):
        row[COLUMN[name]] = float(others.table.values[0][COLUMN[name]])
    for draw in draws:
        names = (
            ("generation_short", "generation_long")
            if draw.stage is Stage.GENERATION
            else (str(draw.stage),)
        )
        for name in names:
            row[COLUMN[f"{name}_s"]] = draw.time_s
            row[COLUMN[f"{name}_j"]] = draw.energy_j
    around = Circumstances(n_cards=float(max(others.n, 1)))
    work = iteration_costs(row=row, constants=TableConstants.of(others.table), around=around)
    carry = begin(work, Between(0.0, REST_C, 0.0, 0.0))
    last = Stage.GENERATION
    for stage in Stage:
        if stage is Stage.ACTOR_TRAIN:
            break
        action = actions.get(stage, Action.GPU)
        carry = advance(stage, carry, work, ACTION_CODE[action], BATCH)
        last = stage
    time_s, energy_j, bubble_s = outlook(last, carry, work, 0.0, BATCH)
    on_gpus = tuple(draw for draw in draws if draw.stage not in actions)
    return PlacedStep(dict(actions), on_gpus, time_s, energy_j, bubble_s)
