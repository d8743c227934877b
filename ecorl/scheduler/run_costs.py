"""Cost tables of a run, computed when a batch of a new kind comes.

Pricing a stage costs milliseconds, a decision some tens of microseconds. So the costs of all
batches of one size and of similar lengths are computed once (`RunTable`) and interpolated linearly.
Costs that the run has measured on its GPUs replace computed ones.
"""

from __future__ import annotations

import logging
import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ecorl.errors import EcorlError
from ecorl.records import NO_ABILITIES, Abilities, Algorithm, SchedulerState, Stage
from ecorl.scheduler.iteration_costs import Circumstances, TableConstants, iteration_costs
from ecorl.scheduler.paper_table import paper_table
from ecorl.scheduler.policies import RunSetting
from ecorl.scheduler.tables import COLUMN, CostTable, Float64, Setting, roofline_table
from ecorl.stages import NO_LIMIT, Rules, Work, choices

log = logging.getLogger(__name__)

LEAST_COUNT = 5
"""Executions from which a mean counts; the first are slower than the rest."""

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
        measured: stages of which the run has measured the GPU path's costs.
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
        self.constants = TableConstants.of(table)
        self.why_not = "; ".join(table.notes)
        self.log_rows = math.log2(n_rows)
        self.measured: frozenset[Stage] = frozenset()
        self._n_rows, self._n_cards = n_rows, float(n_cards)
        self._role_name = ""
        self._lengths = list(map(float, table.lengths))
        self._first = math.log(self._lengths[0])
        self._slope = (len(self._lengths) - 1) / (math.log(self._lengths[-1]) - self._first)
        self._values = _neighbours(table.values)
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
        x = (math.log(length) - self._first) * self._slope
        low = min(max(int(x), 0), len(self._lengths) - 2)
        shorter, longer = self._lengths[low], self._lengths[low + 1]
        share = min(max((length - shorter) / (longer - shorter), 0.0), 1.0)
        longest = work.max_length - (work.n_tokens - n_output) / n_rows
        around = Circumstances(
            longest_over_mean=longest / length if longest > length else 1.0,
            cards_up=1.0 if state.fpga_available else 0.0,
            n_cards=self._n_cards,
        )
        rest = 1.0 - share
        row = [a * rest + b * share for a, b in self._values[low]]
        self._work = iteration_costs(row=row, constants=self.constants, around=around)
        self._batch = batch
        return self._work

    def _use_measured(self, state: SchedulerState) -> None:
        """Scale the computed costs of the GPU path to those that the run has measured.

        A roofline is a lower bound; small models need many times as long. The measured mean a
        token sets the level of each stage, the computed table its change with the length.
        """
        self._paths, self._batch = state.paths, ()
        self._role_name = state.work.role_name
        values, place = self.table.values, len(self._lengths) // 2
        n_tokens = self._n_rows * self._lengths[place]
        computed = values[place].tolist()
        factors = [1.0] * len(computed)
        measured = _measured(state)
        for stage, per_unit in measured.items():
            for per_token, columns in zip(per_unit, _GPU_COLUMNS[stage], strict=True):
                for column in columns:
                    if computed[column] > 0 and per_token > 0:
                        factors[column] = per_token * n_tokens / computed[column]
        self._values = _neighbours(values * factors)
        self.measured = frozenset(measured)


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


def _measured(state: SchedulerState) -> dict[Stage, tuple[float, float]]:
    """Return what stages have cost on the GPUs for each token: time in s, energy in J."""
    # The stage at hand is placed for one of its models, whose own cost counts: the models of a
    # stage may differ in size by orders. Of another stage all models run in each iteration, so
    # the table's single figure for it is their sum. A sum that lacks a model would be too low, so
    # a stage counts as measured once each model that was seen has been often enough.
    found: dict[Stage, tuple[float, float]] = {}
    rare = {path.stage for path in state.paths if path.count < LEAST_COUNT}
    for path in state.paths:
        time_s, energy_j = found.get(path.stage, (0.0, 0.0))
        if path.stage is state.work.stage:
            if path.role_name == state.work.role_name and path.count >= LEAST_COUNT:
                found[path.stage] = (path.time_s_per_token, path.energy_j_per_token)
        elif path.stage not in rare:
            found[path.stage] = (
                time_s + path.time_s_per_token,
                energy_j + path.energy_j_per_token,
            )
    return found


def _neighbours(values: Float64) -> list[list[tuple[float, float]]]:
    """Return each column's value at a length and at the next, for each length but the last."""
    return [list(zip(below, above, strict=True)) for below, above in pairwise(values.tolist())]


def _gpu_columns(stage: Stage, unit: str) -> tuple[int, ...]:
    if stage is Stage.GENERATION:
        return COLUMN[f"generation_short_{unit}"], COLUMN[f"generation_long_{unit}"]
    return (COLUMN[f"{stage}_{unit}"],)


_GPU_COLUMNS = {stage: (_gpu_columns(stage, "s"), _gpu_columns(stage, "j")) for stage in Stage}
"""Columns of a stage's time and of its energy on the GPUs."""
