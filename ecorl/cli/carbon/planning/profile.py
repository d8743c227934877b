"""``ecorl carbon profile``: power and throughput of the training stage, from a run's record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from ecorl.cli.carbon.planning.words import show_table
from ecorl.cli.carbon.times import paragraph
from ecorl.cli.exits import reading_named_ledger
from ecorl.cli.output import make_console, say, writing
from ecorl.controllers.planning.executions import MEASUREMENT_S
from ecorl.controllers.planning.measured import TRAINED, TrainingProfile, training_profile
from ecorl.controllers.planning.tables import write_table
from ecorl.controllers.problem.table import TrainingAction
from ecorl.errors import RunError
from ecorl.ledger import LedgerReader
from ecorl.report.render.numbers import edi_unit, figure, scaled, with_spread

_PLURALS = {
    "simulated its gear": "simulated their gear",
    "was computed anew after an overflow": "were computed anew after an overflow",
    "measured the gears in its time": "measured the gears in their time",
    "lacks the record of a machine": "lack the record of a machine",
}
"""Reasons that are told otherwise of several executions."""

_HEADS = ["gear", "workers", "power, W", "tokens/s", "", "executions", "provenance"]


def run_profile(
    run: Path, out: Path | None, own: TrainingAction, skip: int, *, as_json: bool
) -> None:
    """Do what ``ecorl carbon profile`` was asked for.

    Args:
        run: its folder.
        out: the TOML; None: not asked for.
        own: gear and width of executions that tell none; None and 0: unknown.
        skip: executions to leave out after each begin and each change.
        as_json: whether JSON is printed.

    Raises:
        RunError: when the run cannot be read, or no execution of it can be used.
        ConfigError: when power or throughput falls where the width rises.
    """
    with reading_named_ledger(), LedgerReader(run) as reader:
        executions, run_id = reader.executions(), reader.run().run_id
        found = training_profile(
            executions,
            f"run {run_id} in {run}",
            own=own,
            skip=skip,
            faults=reader.faults(),
            lost={node.attempt for node in reader.lost_nodes()},
            metrics=reader.metrics(MEASUREMENT_S),
        )
    if not found.readings:
        raise RunError(f"{run}: no execution of {TRAINED} can be used: {_left_out(found)}")
    table = None if out is None else found.table()
    if as_json:
        typer.echo(json.dumps(profile_data(found), indent=2, allow_nan=False))
    else:
        _show(found)
    if out is not None and table is not None:
        with writing(out, "--out"):
            out.parent.mkdir(parents=True, exist_ok=True)
            write_table(table, out, found.counts)
        if not as_json:
            say(f"table: {out}")


def profile_data(found: TrainingProfile) -> dict[str, Any]:
    """The readings as plain data; what is missing is None.

    Args:
        found: of a run.
    """
    return {
        "source": found.source,
        "left_out": dict(found.left_out),
        "readings": [
            {
                "gear": reading.action.gear, "width": reading.action.width, "n": reading.n,
                "power_w": reading.power_w, "power_spread_w": reading.power_spread_w,
                "tokens_per_s": reading.tokens_per_s,
                "tokens_spread_per_s": reading.tokens_spread_per_s,
                "j_per_token": reading.j_per_token, "provenance": reading.provenance,
            }
            for reading in found.readings
        ],
    }  # fmt: skip


def _show(found: TrainingProfile) -> None:
    console = make_console()
    paragraph(f"Training stage of {found.source}; ± is the standard deviation of one.", console)
    console.print()
    if found.readings:
        factor, unit = edi_unit(one.j_per_token for one in found.readings)
        rows = [[*_HEADS[:4], unit, *_HEADS[5:]]]
        rows += [
            [
                str(one.action.gear),
                str(one.action.width),
                with_spread(one.power_w, one.power_spread_w),
                with_spread(one.tokens_per_s, one.tokens_spread_per_s),
                figure(scaled(one.j_per_token, factor)),
                str(one.n),
                str(one.provenance),
            ]
            for one in found.readings
        ]
        show_table(rows, console)
    if found.left_out:
        paragraph(f"Left out: {_left_out(found)}.", console)
    partial = [r for r in found.readings if r.action.width not in found.widths]
    if partial:
        told = ", ".join(f"{r.action.gear} with {r.action.width}" for r in partial)
        paragraph(f"Not in the table, since another gear was not run there: {told}.", console)


def _left_out(found: TrainingProfile) -> str:
    if not found.left_out:
        return f"the record has none of {TRAINED}"
    parts = [f"{n} that {_PLURALS.get(why, why) if n > 1 else why}"
             for why, n in found.left_out.items()]  # fmt: skip
    return "; ".join(parts)
