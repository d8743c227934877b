"""Explains one recorded decision by the costs of its actions, for ``ecorl policy explain``."""

from __future__ import annotations

from pathlib import Path

from ecorl.cli.exits import reading_named_ledger
from ecorl.errors import RunError
from ecorl.ledger import LedgerReader, PlacementRow
from ecorl.records import Action, Placement
from ecorl.report.head import path_name
from ecorl.report.render.lines import aligned
from ecorl.report.render.numbers import duration, joules
from ecorl.scheduler.words import action_name

_STAGES = ("reward", "reference")


def decision(run_dir: Path, iteration: int | None, stage: str | None) -> tuple[PlacementRow, str]:
    """Find a recorded decision; by default the last that had a choice.

    Args:
        run_dir: run folder, or the ledger in it.
        iteration: of the decision; None: any.
        stage: of the decision; None: reward or reference.

    Returns:
        The decision, and what to call where the framework of the run computed.

    Raises:
        RunError: when there is no readable ledger, or no such decision in it.
    """
    with reading_named_ledger(), LedgerReader(run_dir) as reader:
        rows = [r for r in reader.placements() if not r.superseded]
        place = path_name(reader.executions(), reader.devices())
    stages = _STAGES if stage is None else (stage,)
    what = " or ".join(stages)
    rows = [r for r in rows if str(r.placement.stage) in stages]
    if not rows:
        raise RunError(f"{run_dir} holds no decision about {what}")
    if iteration is not None:
        there = sorted({r.placement.iteration for r in rows})
        rows = [r for r in rows if r.placement.iteration == iteration]
        if not rows:
            raise RunError(
                f"{run_dir} holds no decision about {what} in iteration {iteration}; it has "
                f"iterations {there[0]} to {there[-1]}"
            )
    with_choice = [r for r in rows if len(r.placement.costs) > 1]
    return (with_choice or rows)[-1], place


def lines(p: Placement, place: str) -> list[str]:
    """Write the decision in lines of text.

    Args:
        p: the decision.
        place: where the framework computed, ``GPU`` or ``host``.
    """

    def name(action: Action) -> str:
        return action_name(action, place, p.stage)

    told = [f"iteration {p.iteration}, {p.stage}, policy {p.policy}", ""]
    if p.costs:
        table = [
            (
                name(c.action),
                duration(c.time_s),
                joules(c.energy_j),
                duration(c.wait_s),
                str(c.provenance),
            )
            for c in p.costs
        ]
        told += aligned(
            [("action", "time", "energy", "wait", "provenance"), *table], text_columns=(0, 4)
        )
        told += [
            "",
            "Expected before the decision; wait: how long training would stand still for it.",
            f"card: the {place} waits for the card; card beside {place}: it goes on meanwhile.",
        ]
    else:
        told.append(f"The ledger holds no costs of this decision: {p.policy} did not ask for them.")
    if p.proposed is p.action:
        told.append(f"proposed and done: {name(p.action)}")
    else:
        told.append(f"proposed: {name(p.proposed)}")
        told.append(f"done, since a limit forbids it: {name(p.action)}")
    return [*told, f"why: {p.reason}"]
