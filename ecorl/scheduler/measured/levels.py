"""The level of a run's costs: what it has measured of its stages, against a cost table.

A roofline is a lower bound; small models need many times as long. So what was measured sets the
level of each stage, the computed table its change with the length. Where the time was measured and
the energy was not, the energy changes with the time: the computed one is a power over a time, and
nothing says that another power was drawn.

The columns of a stage on a path are found by a number, the place of both in `PATH_COLUMNS`: twice
that of the stage, and one more on the card. The hash of an enum's member is slow, and this is on
the path of a decision.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from ecorl.records import PathCost, SchedulerState, Stage
from ecorl.scheduler.measured.readings import UNREAD, Readings, level
from ecorl.scheduler.tables import COLUMN, CostTable
from ecorl.stages.figures import Number


class PathColumns(NamedTuple):
    """Columns of a stage's time and of its energy on a path; on the card its time stands for both.

    A stage that never runs there has none.

    Attributes:
        times, energies: columns, those of generation at its two longest rows.
        scaled: the columns whose figures a measurement sets: times, then energies.
        on_card: which path it is.
    """

    times: tuple[int, ...]
    energies: tuple[int, ...]
    scaled: tuple[int, ...]
    on_card: bool


def costs_by_place(state: SchedulerState) -> dict[int, list[PathCost]]:
    """Sort what was measured by its place in `PATH_COLUMNS`.

    Args:
        state: at a decision.
    """
    # The stage at hand is placed for one of its models, whose own cost counts: the models of a
    # stage may differ in size by orders. Of another stage all models run in each iteration, so
    # the table's single figure for it is their sum. A sum that lacks a model would be too low, so
    # a stage counts as measured on a path once each model that was seen there has been often
    # enough.
    found: dict[int, list[PathCost]] = {}
    at_hand, role_name = state.work.stage, state.work.role_name
    for path in state.paths:
        if path.stage is not at_hand or path.role_name == role_name:
            place = 2 * STAGE_PLACE[path.stage] + path.on_card
            own = found.get(place)
            if own is not None:
                own.append(path)
            elif PATH_COLUMNS[place].times:
                found[place] = [path]
    return found


@lru_cache(256)
def stages_at(places: tuple[int, ...]) -> tuple[frozenset[Stage], frozenset[Stage]]:
    """Return the stages of places in `PATH_COLUMNS`: those of the GPU path, those of the card.

    Args:
        places: in any order.
    """
    stages = list(Stage)
    return (
        frozenset(stages[place // 2] for place in places if place % 2 == 0),
        frozenset(stages[place // 2] for place in places if place % 2),
    )


def _gpu_columns(stage: Stage, unit: str) -> tuple[int, ...]:
    if stage is Stage.GENERATION:
        return COLUMN[f"generation_short_{unit}"], COLUMN[f"generation_long_{unit}"]
    return (COLUMN[f"{stage}_{unit}"],)


def _columns(stage: Stage) -> tuple[PathColumns, PathColumns]:
    times, energies = _gpu_columns(stage, "s"), _gpu_columns(stage, "j")
    card = tuple(COLUMN[name] for name in (f"{stage}_card_s",) if name in COLUMN)
    own = PathColumns(times, energies, times + energies, on_card=False)
    return own, PathColumns(card, card, card, on_card=True)


STAGE_PLACE = {stage: place for place, stage in enumerate(Stage)}
"""Number of a stage in the order of `Stage`."""

PATH_COLUMNS = tuple(columns for stage in Stage for columns in _columns(stage))
"""By stage and path: first a stage's on the GPU path, then its on the card."""


LEAST_COUNT = 5
"""Executions from which a plain mean counts, where there are no recent figures: it holds the first
execution, which is slower than the rest."""


class MeasuredLevels:
    """What a run has measured of its stages, as factors of a table's costs.

    Args:
        table: the costs, on lengths evenly spaced in the logarithm.
        n_rows: completions of a batch.

    Attributes:
        values: of each column at a length and at the next, for each length but the last.
        factors: of each column; 1.0 where nothing was measured.
        measured: stages of which the GPU path's costs were measured.
        measured_on_card: stages of which the card's were.
    """

    def __init__(self, table: CostTable, n_rows: int) -> None:
        # Each column's value at a length and at the next, for each length but the last.
        rows = pairwise(table.values.tolist())
        self.values = [list(zip(below, above, strict=True)) for below, above in rows]
        self.factors = [1.0] * len(COLUMN)
        self.measured: frozenset[Stage] = frozenset()
        self.measured_on_card: frozenset[Stage] = frozenset()
        # Plain tuples: of the figures of all stages a decision asks for those of one.
        self._readings: dict[int, tuple[Number, ...]] = {}
        self._n_rows = n_rows
        self._trained_length: float | None = None
        self._lengths = list(map(float, table.lengths))
        self._first = math.log(self._lengths[0])
        self._slope = (len(self._lengths) - 1) / (math.log(self._lengths[-1]) - self._first)
        # Of the cards that a batch keeps busy; where it is not known no energy is told by it.
        self._card_w = table.card_active_w * table.card_share or math.inf

    def readings(self, stage: Stage) -> tuple[Readings, Readings]:
        """Return what had been measured of a stage when `use` was last called: GPU path, card.

        Args:
            stage: the stage.
        """
        place, found = 2 * STAGE_PLACE[stage], self._readings
        on_gpu, on_card = found.get(place, UNREAD), found.get(place + 1, UNREAD)
        return Readings._make(on_gpu), Readings._make(on_card)

    def place(self, length: float) -> tuple[int, float]:
        """Find a length in the table: the place below it, and its share of the way to the next."""
        lengths = self._lengths
        low = int((math.log(length) - self._first) * self._slope)
        # Comparisons: `min` and `max` take several times as long, and a decision looks up some ten.
        if low < 0:
            low = 0
        elif low > len(lengths) - 2:
            low = len(lengths) - 2
        shorter = lengths[low]
        share = (length - shorter) / (lengths[low + 1] - shorter)
        return low, 0.0 if share < 0.0 else 1.0 if share > 1.0 else share

    def use(self, state: SchedulerState) -> float:
        """Take over what had been measured when a stage is placed.

        Args:
            state: of the decision.

        Returns:
            The factor by which the power of the cards changes; 0.0 where it is not known.
        """
        self.factors = [1.0] * len(COLUMN)
        self._readings = {}
        powers: list[float] = []
        measured: list[int] = []
        self._trained_length = _trained_length(state)
        for place, costs in costs_by_place(state).items():
            n_recent = min([cost.n_recent for cost in costs])
            if n_recent or min([cost.count for cost in costs]) >= LEAST_COUNT:
                power = self._scale(place, costs, n_recent)
                if power > 0 and place % 2:
                    powers.append(power)
                measured.append(place)
        self.measured, self.measured_on_card = stages_at(tuple(measured))
        return sum(powers) / len(powers) if powers else 0.0

    def _scale(self, place: int, costs: Sequence[PathCost], n_recent: int) -> float:
        """Scale a stage's columns to what its models have cost on a path.

        Args:
            place: of the stage and the path in `PATH_COLUMNS`.
            costs: of those of its models that count.
            n_recent: readings behind what is expected; 0: there are none, the plain means count.

        Returns:
            The factor by which the stage's power changes with that; 0.0 where it is not known, of
            one of the models or of all.
        """
        columns, metered, all_ratios = PATH_COLUMNS[place], True, []
        for cost in costs:
            time_s, energy_j = _figures(cost, n_recent)
            metered = metered and energy_j is not None
            all_ratios.append(self._ratios(cost, columns, n_recent, time_s, energy_j))
        # With one model to a stage, as nearly always, there is nothing to add up.
        ratios = all_ratios[0] if len(costs) == 1 else _sums(all_ratios)
        levels = []
        for ratio in ratios:
            factor = ratio if ratio > 0 else 1.0  # what is not known stays as computed
            levels.append(level(factor, n_recent) if n_recent else factor)
        # On the card the times alone: its energy has no column, it is its power over the time.
        for column, factor in zip(columns.scaled, levels, strict=False):
            self.factors[column] = factor
        ratio, j_ratio = ratios if len(ratios) == 2 else _middles(ratios)
        if ratio <= 0:
            return 0.0
        if n_recent:
            spread, age = cost.spread, cost.age
            if len(costs) > 1:
                spread, age = _mean_spread(costs), max(one.age for one in costs)
            self._readings[place] = (ratio, j_ratio or 1.0, spread, float(n_recent), float(age))
        # An energy that follows its time is no word on the power, and must not pass for one.
        return levels[-1] / levels[0] if metered and j_ratio > 0 else 0.0

    def _ratios(
        self,
        cost: PathCost,
        columns: PathColumns,
        n_recent: int,
        time_s: float,
        energy_j: float | None,
    ) -> list[float]:
        """Return measured times, then energies, over the computed ones; 0.0 where not known.

        Energies that are not known have the ratios of the times: the same power, for longer.

        They are compared at the length of the measured rows, so that longer rows do not pass for
        slower ones; beyond the table's lengths, and where it is not known, at the nearest and the
        middle one. Generation has made a part of each row: the rows are as long as training reads
        them, and the rest is a tool's or an environment's.
        """
        length, made = self._lengths[len(self._lengths) // 2], 1.0
        if n_recent and cost.mean_length:
            length = cost.mean_length
            if cost.stage is Stage.GENERATION and self._trained_length:
                length = self._trained_length
                made = cost.mean_length / length
            length = min(max(length, self._lengths[0]), self._lengths[-1])
        low, share = self.place(length)
        values, n_tokens, ratios = self.values[low], self._n_rows * length * made, []
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


def _trained_length(state: SchedulerState) -> float | None:
    """Return the mean completion that the policy was trained on lately, tokens; None: not known."""
    for path in state.paths:
        if path.stage is Stage.ACTOR_TRAIN and not path.on_card:
            return path.mean_length
    return None


def _figures(cost: PathCost, n_recent: int) -> tuple[float, float | None]:
    """Return the time and the energy of an output token that count; the energy may be unknown.

    Args:
        cost: what a model has cost.
        n_recent: readings behind what is expected; 0: the plain means count.
    """
    if n_recent:
        time_s, energy_j = cost.expected_per_token
        return time_s or 0.0, energy_j
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
    times_s = [cost.expected_per_token[0] or 0.0 for cost in costs]
    total_s = sum(times_s)
    weighed = sum(cost.spread * t for cost, t in zip(costs, times_s, strict=True))
    return weighed / total_s if total_s else 0.0
