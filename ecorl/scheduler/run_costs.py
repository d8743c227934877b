"""Cost tables of a run, computed when a batch of a new kind comes.

Pricing a stage costs milliseconds, a decision some tens of microseconds. So the costs of all
batches of one size and of similar lengths are computed once (`RunTable`) and interpolated linearly.
What the run has measured on either path sets the level of the computed costs.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ecorl.errors import EcorlError
from ecorl.records import NO_ABILITIES, Abilities, Algorithm, PathCost, SchedulerState, Stage
from ecorl.scheduler.iteration_costs import Circumstances, TableConstants, iteration_costs
from ecorl.scheduler.measured import UNREAD, Readings, level
from ecorl.scheduler.paper_table import paper_table
from ecorl.scheduler.path_columns import (
    PATH_COLUMNS,
    STAGE_PLACE,
    PathColumns,
    costs_by_place,
    stages_at,
)
from ecorl.scheduler.policies import RunSetting
from ecorl.scheduler.tables import COLUMN, CostTable, Float64, Setting, roofline_table
from ecorl.stages import NO_LIMIT, Rules, Work, choices

log = logging.getLogger(__name__)

LEAST_COUNT = 5
"""Executions from which a plain mean counts, where there are no recent figures: it holds the first
execution, which is slower than the rest."""

_N_LENGTHS = 5
_OCTAVES = 4.0
"""A table spans lengths of a factor of 4 on `_N_LENGTHS` points; the next starts where it ends."""

_PROMPT_STEP = 1.19
"""Prompts within 19 % of one another share a table."""


class BatchKind(NamedTuple):
    """The properties that batches priced by one table have in common.

    Attributes:
        algorithm: of the trainer.
        n_rows: completions of the batch.
        octave: of the mean length of completions, in powers of `_OCTAVES`.
        prompt_step: of the mean prompt, in powers of `_PROMPT_STEP`; -1 without a prompt.
    """

    algorithm: Algorithm
    n_rows: int
    octave: int
    prompt_step: int

    @classmethod
    def of(cls, state: SchedulerState) -> BatchKind | None:
        """Return the kind of the batch that is to be placed, or None for an empty one."""
        work = state.work
        n_rows, n_output = work.n_sequences, work.n_output_tokens
        if n_rows < 1 or n_output < 1:
            return None
        prompt = max(work.n_tokens - n_output, 0) / n_rows
        step = round(math.log(prompt, _PROMPT_STEP)) if prompt >= 1.0 else -1
        return cls(state.algorithm, n_rows, math.floor(math.log(n_output / n_rows, _OCTAVES)), step)


def priced(setting: RunSetting, kind: BatchKind, margin: float | None) -> RunTable:
    """Compute what batches of one kind cost.

    Args:
        setting: what the run is; models that are not known left out.
        kind: of the batches.
        margin: the energy margin where the run has none; None: no limit.

    Raises:
        EcorlError: when a stage cannot be priced.
    """
    run = Setting(
        algorithm=kind.algorithm,
        models=setting.models,
        n_rows=kind.n_rows,
        prompt_length=_PROMPT_STEP**kind.prompt_step if kind.prompt_step >= 0 else 0.0,
        gpu=setting.gpu,
        n_gpus=setting.devices.n_gpus,
        card=setting.card,
        n_cards=setting.n_cards,
        with_reference=Stage.REFERENCE in setting.models,
        divides_rows=False,
        by_role=setting.by_role,
    )
    lengths = np.geomspace(_OCTAVES**kind.octave, _OCTAVES ** (kind.octave + 1), _N_LENGTHS)
    make = paper_table if setting.devices.calibration == "paper" else roofline_table
    table = make(run, lengths)
    rules = run_rules(setting, table, margin)
    return RunTable(table, kind.n_rows, rules, setting.abilities, setting.n_cards)


def run_rules(setting: RunSetting, table: CostTable, margin: float | None) -> Rules:
    """Return the rules of a run: what its framework lets be chosen, within its guards.

    Args:
        setting: what the run is.
        table: says what the card can run.
        margin: the energy margin where the run has none; None: no limit.
    """
    if setting.energy_margin is not None:
        margin = setting.energy_margin
    allowed = choices(
        setting.abilities,
        table.card_usable,
        setting.n_cards,
        has_critic=Stage.CRITIC_TRAIN in setting.models,
    )
    return Rules(
        *allowed,
        q_max=float(setting.q_max),
        l_max=float(setting.l_max),
        energy_limit=NO_LIMIT if margin is None else 1.0 + margin,
    )


class RunTable:
    """Costs of batches of one kind, ready for quick look-up.

    Args:
        table: the costs, on lengths evenly spaced in the logarithm.
        n_rows: completions of a batch.
        rules: what may be done.
        abilities: of the framework, from which the rules follow.
        n_cards: cards.

    Attributes:
        constants: figures that do not depend on the length, the cards' power as measured.
        measured: stages of which the run has measured the GPU path's costs.
        measured_on_card: stages of which it has measured the card's.
        why_not: why the card cannot run some stage; empty where it can.
    """

    def __init__(
        self,
        table: CostTable,
        n_rows: int,
        rules: Rules,
        abilities: Abilities = NO_ABILITIES,
        n_cards: int = 1,
    ) -> None:
        self.table, self.rules, self.abilities = table, rules, abilities
        self.constants = self._computed = TableConstants.of(table)
        self.why_not = "; ".join(table.notes)
        self.log_rows = math.log2(n_rows)
        self.measured: frozenset[Stage] = frozenset()
        self.measured_on_card: frozenset[Stage] = frozenset()
        self._n_rows, self._n_cards = n_rows, float(n_cards)
        self._role_name = ""
        self._lengths = list(map(float, table.lengths))
        self._first = math.log(self._lengths[0])
        self._slope = (len(self._lengths) - 1) / (math.log(self._lengths[-1]) - self._first)
        self._values = _neighbours(table.values)
        self._factors = [1.0] * len(COLUMN)
        self._readings: dict[int, Readings] = {}
        # Of the cards that a batch keeps busy; where it is not known no energy is told by it.
        self._card_w = self._computed.card_active_w * self._computed.card_share or math.inf
        self._paths: object = ()
        self._batch: tuple[object, ...] = ()
        self._work: Work

    def work(self, state: SchedulerState) -> Work:
        """Return what the stages of the iteration cost whose batch is to be placed.

        A run knows the longest row, prompt and completion together. Its completion is estimated by
        subtracting the mean prompt.
        """
        work = state.work
        if state.paths is not self._paths or work.role_name != self._role_name:
            self._use_measured(state)
        n_rows, n_output = work.n_sequences, work.n_output_tokens
        # The reward and the reference of one batch ask one after the other, for the same figures.
        batch = (n_rows, n_output, work.n_tokens, work.max_length, state.fpga_available)
        if batch == self._batch:
            return self._work
        length = n_output / n_rows
        low, share = self._place(length)
        longest = work.max_length - (work.n_tokens - n_output) / n_rows
        around = Circumstances(
            longest_over_mean=longest / length if longest > length else 1.0,
            cards_up=1.0 if state.fpga_available else 0.0,
            n_cards=self._n_cards,
        )
        rest = 1.0 - share
        row = [
            (a * rest + b * share) * factor
            for (a, b), factor in zip(self._values[low], self._factors, strict=True)
        ]
        self._work = iteration_costs(row=row, constants=self.constants, around=around)
        self._batch = batch
        return self._work

    def readings(self, stage: Stage) -> tuple[Readings, Readings]:
        """Return what had been measured of a stage when `work` was last asked: GPU path, card.

        Of a stage with several models it is that of the model at hand where the stage is to be
        placed, and else of all of them together.

        Args:
            stage: the stage.
        """
        place = 2 * STAGE_PLACE[stage]
        return self._readings.get(place, UNREAD), self._readings.get(place + 1, UNREAD)

    def _place(self, length: float) -> tuple[int, float]:
        """Find a length in the table: the place below it, and its share of the way to the next."""
        x = (math.log(length) - self._first) * self._slope
        low = min(max(int(x), 0), len(self._lengths) - 2)
        shorter, longer = self._lengths[low], self._lengths[low + 1]
        return low, min(max((length - shorter) / (longer - shorter), 0.0), 1.0)

    def _use_measured(self, state: SchedulerState) -> None:
        """Bring the computed costs to the level that the run has measured on either path.

        A roofline is a lower bound; small models need many times as long. What was measured sets
        the level of each stage, the computed table its change with the length. Where the time was
        measured and the energy was not, the energy changes with the time: the computed one is a
        power over a time, and nothing says that another power was drawn.
        """
        self._paths, self._batch = state.paths, ()
        self._role_name = state.work.role_name
        self._factors = [1.0] * len(COLUMN)
        self._readings = {}
        powers: list[float] = []
        measured: list[int] = []
        for place, costs in costs_by_place(state).items():
            n_recent = min([cost.n_recent for cost in costs])
            if n_recent or min([cost.count for cost in costs]) >= LEAST_COUNT:
                power = self._scale(place, costs, n_recent)
                if place % 2 and power > 0:
                    powers.append(power)
                measured.append(place)
        self.measured, self.measured_on_card = stages_at(tuple(measured))
        self.constants = self._computed
        if powers:
            active_w = self._computed.card_active_w * (sum(powers) / len(powers))
            self.constants = self._computed._replace(card_active_w=active_w)

    def _scale(self, place: int, costs: Sequence[PathCost], n_recent: int) -> float:
        """Scale a stage's columns to what its models have cost on a path.

        Args:
            place: of the stage and the path in `PATH_COLUMNS`.
            costs: of those of its models that count.
            n_recent: readings behind the recent figures; 0: there are none, the plain means count.

        Returns:
            The factor by which the stage's power changes with that; 0.0 where it is not known, of
            one of the models or of all.
        """
        columns = PATH_COLUMNS[place]
        if len(costs) == 1:
            (cost,) = costs
            ratios, spread, age = self._ratios(cost, columns, n_recent), cost.spread, cost.age
        else:
            ratios = _sums([self._ratios(cost, columns, n_recent) for cost in costs])
            spread, age = _mean_spread(costs), max(cost.age for cost in costs)
        # What is not known stays as computed.
        if n_recent:
            levels = [level(ratio, n_recent) if ratio > 0 else 1.0 for ratio in ratios]
        else:
            levels = [ratio if ratio > 0 else 1.0 for ratio in ratios]
        # On the card the times alone: its energy has no column, it is its power over the time.
        for column, factor in zip(columns.scaled, levels, strict=False):
            self._factors[column] = factor
        ratio, j_ratio = ratios if len(ratios) == 2 else _middles(ratios)
        if ratio <= 0:
            return 0.0
        if n_recent:
            self._readings[place] = Readings(
                ratio, j_ratio or 1.0, spread, float(n_recent), float(age)
            )
        # An energy that follows its time is no word on the power, and must not pass for one.
        metered = all(_figures(cost, n_recent)[1] is not None for cost in costs)
        return levels[-1] / levels[0] if metered and j_ratio > 0 else 0.0

    def _ratios(self, cost: PathCost, columns: PathColumns, n_recent: int) -> list[float]:
        """Return measured times, then energies, over the computed ones; 0.0 where not known.

        Energies that are not known have the ratios of the times: the same power, for longer.

        They are compared at the length of the measured rows, so that longer rows do not pass for
        slower ones; beyond the table's lengths, and where it is not known, at the nearest and the
        middle one.
        """
        length = self._lengths[len(self._lengths) // 2]
        time_s, energy_j = _figures(cost, n_recent)
        if n_recent and cost.mean_length:
            length = min(max(cost.mean_length, self._lengths[0]), self._lengths[-1])
        low, share = self._place(length)
        values, n_tokens, ratios = self._values[low], self._n_rows * length, []
        for column in columns.times:
            shorter, longer = values[column]
            computed_s = shorter + (longer - shorter) * share
            ratios.append(time_s * n_tokens / computed_s if computed_s > 0 else 0.0)
        if energy_j is None:
            return ratios + ratios
        if columns.on_card:
            energy_j /= self._card_w
        for column in columns.energies:
            shorter, longer = values[column]
            computed_j = shorter + (longer - shorter) * share
            ratios.append(energy_j * n_tokens / computed_j if computed_j > 0 else 0.0)
        return ratios


class RunTables:
    """The tables of a run, one for each kind of batch that has come.

    Args:
        setting: what the run is.
        margin: the energy margin where the run has none.
    """

    MOST = 64

    def __init__(self, setting: RunSetting, margin: float | None) -> None:
        self._setting, self._margin = setting, margin
        self._tables: dict[BatchKind, RunTable | None] = {}

    def of(self, state: SchedulerState) -> RunTable | None:
        """Return the table of the batch that is to be placed; None when it cannot be priced."""
        kind = BatchKind.of(state)
        if kind is None:
            return None
        if kind not in self._tables:
            if len(self._tables) >= self.MOST:
                self._tables.pop(next(iter(self._tables)))
            try:
                self._tables[kind] = priced(self._setting, kind, self._margin)
            except EcorlError as error:
                log.warning("the learned policy cannot price this run's stages: %s", error)
                self._tables[kind] = None
        return self._tables[kind]


def _figures(cost: PathCost, n_recent: int) -> tuple[float, float | None]:
    """Return the time and the energy of an output token that count; the energy may be unknown.

    Args:
        cost: what a model has cost.
        n_recent: readings behind the recent figures; 0: the plain means count.
    """
    if n_recent:
        return cost.recent_s_per_token or 0.0, cost.recent_j_per_token
    return cost.time_s_per_token, cost.energy_j_per_token


def _sums(ratios: Sequence[Sequence[float]]) -> list[float]:
    """Add up the ratios of several models; a sum that lacks one is not known."""
    return [sum(own) if all(own) else 0.0 for own in zip(*ratios, strict=True)]


def _middles(ratios: Sequence[float]) -> tuple[float, float]:
    """Return generation's two ratios: to its costs at a longest row midway between the columns'."""
    short_s, long_s, short_j, long_j = ratios
    ratio = 2.0 / (1.0 / short_s + 1.0 / long_s) if short_s and long_s else 0.0
    return ratio, 2.0 / (1.0 / short_j + 1.0 / long_j) if short_j and long_j else 0.0


def _mean_spread(costs: Sequence[PathCost]) -> float:
    """Average the models' spreads by the times that they take."""
    times_s = [cost.recent_s_per_token or 0.0 for cost in costs]
    total_s = sum(times_s)
    weighed = sum(cost.spread * t for cost, t in zip(costs, times_s, strict=True))
    return weighed / total_s if total_s else 0.0


def _neighbours(values: Float64) -> list[list[tuple[float, float]]]:
    """Return each column's value at a length and at the next, for each length but the last."""
    return [list(zip(below, above, strict=True)) for below, above in pairwise(values.tolist())]
