"""Where in a cost table a measured cost belongs: the columns of each stage on each path.

They are found by a number, the place of stage and path in `PATH_COLUMNS`: twice that of the stage,
and one more on the card. The hash of an enum's member is slow, and this is on the path of a
decision.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from ecorl.records import PathCost, SchedulerState, Stage
from ecorl.scheduler.tables import COLUMN


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
