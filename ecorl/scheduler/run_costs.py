"""Cost tables of a run, computed when a batch of a new kind comes.

Pricing a stage costs milliseconds, a decision some tens of microseconds. So the costs of all
batches of one size and of similar lengths are computed once (`RunTable`) and interpolated linearly.
What the run has measured on either path sets the level of the computed costs.
"""

from __future__ import annotations

import logging
import math
from typing import NamedTuple

import numpy as np

from ecorl.errors import EcorlError
from ecorl.records import NO_ABILITIES, Abilities, Algorithm, SchedulerState, Stage
from ecorl.scheduler.iteration_costs import Circumstances, TableConstants, iteration_costs
from ecorl.scheduler.measured.levels import MeasuredLevels
from ecorl.scheduler.paper_table import paper_table
from ecorl.scheduler.policies import RunSetting
from ecorl.scheduler.tables import CostTable, Setting, roofline_table
from ecorl.stages.figures import Work
from ecorl.stages.guards import NO_LIMIT, Rules, choices

log = logging.getLogger(__name__)

_ACTIVE_W = TableConstants._fields.index("card_active_w")
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
        levels: what the run has measured of its stages, against the table.
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
        self.levels = MeasuredLevels(table, n_rows)
        self._n_cards = float(n_cards)
        self._values = self.levels.values
        self._paths: object = ()
        self._role_name = ""
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
        low, share = self.levels.place(length)
        longest = work.max_length - (work.n_tokens - n_output) / n_rows
        around = Circumstances(
            longest_over_mean=longest / length if longest > length else 1.0,
            cards_up=1.0 if state.fpga_available else 0.0,
            n_cards=self._n_cards,
        )
        rest = 1.0 - share
        row = [
            (a * rest + b * share) * factor
            for (a, b), factor in zip(self._values[low], self.levels.factors, strict=True)
        ]
        self._work = iteration_costs(row=row, constants=self.constants, around=around)
        self._batch = batch
        return self._work

    def _use_measured(self, state: SchedulerState) -> None:
        """Bring the computed costs to the level that the run has measured on either path."""
        self._paths, self._batch = state.paths, ()
        self._role_name = state.work.role_name
        power = self.levels.use(state)
        self.constants = self._computed
        if power > 0.0:
            figures = [*self._computed]
            figures[_ACTIVE_W] *= power
            self.constants = TableConstants._make(figures)


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
        self._batch: tuple[object, ...] = ()
        self._table: RunTable | None = None

    def of(self, state: SchedulerState) -> RunTable | None:
        """Return the table of the batch that is to be placed; None when it cannot be priced."""
        # The reference of a batch comes after its reward.
        work = state.work
        batch = (state.algorithm, work.n_sequences, work.n_tokens, work.n_output_tokens)
        if batch != self._batch:
            kind = BatchKind.of(state)
            self._batch, self._table = batch, None if kind is None else self._of(kind)
        return self._table

    def _of(self, kind: BatchKind) -> RunTable | None:
        if kind in self._tables:
            return self._tables[kind]
        if len(self._tables) >= self.MOST:
            self._tables.pop(next(iter(self._tables)))
        try:
            self._tables[kind] = priced(self._setting, kind, self._margin)
        except EcorlError as error:
            log.warning("the learned policy cannot price this run's stages: %s", error)
            self._tables[kind] = None
        return self._tables[kind]
