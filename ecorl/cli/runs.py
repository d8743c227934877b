"""``ecorl runs``: a line for each run of a folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ecorl.cli.output import make_console, say

if TYPE_CHECKING:
    from ecorl.report.run_list import ListedRun, RunList

NEWEST = 30
"""Runs that are listed unless all are asked for: they fit a terminal, and a long run takes a
moment to read."""


def runs(
    folder: Annotated[
        Path, typer.Argument(metavar="[FOLDER]", help="Folder of runs, or one run's own.")
    ] = Path("runs"),
    newest: Annotated[
        int, typer.Option("--newest", "-n", min=1, metavar="N", help="List the newest N runs.")
    ] = NEWEST,
    every: Annotated[bool, typer.Option("--all", help="List all runs.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the runs of a folder, the newest first.

    A line a run: folder, start in local time, state, steps done of those planned, energy in J and
    output tokens per J. The energy is that of the machines over the whole run, as the run's report
    has it, without what a simulated card would have drawn. Energies that were measured and those
    that were modelled stand in tables of their own. Nothing is written.
    """
    from ecorl.report.run_list import list_runs

    folder = folder.expanduser()
    found = list_runs(folder, None if every else newest)
    if as_json:
        typer.echo(json.dumps(run_list_data(found, folder), indent=2))
        return
    console = make_console()
    for line in run_list_lines(found, folder, console.width):
        say(line, console)


def run_list_data(found: RunList, folder: Path) -> dict[str, Any]:
    """What ``--json`` prints: a figure that is missing is null.

    Args:
        found: the runs.
        folder: that was searched.
    """
    return {
        "folder": str(folder),
        "runs": [_data(run) for run in found.runs],
        "n_older": found.n_older,
        "folders_not_searched": [str(path) for path in found.closed],
    }


def _data(run: ListedRun) -> dict[str, Any]:
    return {
        "name": run.name,
        "folder": str(run.folder),
        "state": run.state,
        "why": run.why,
        "started_unix_s": run.started_unix_s,
        "n_steps_done": run.n_steps_done,
        "n_steps_planned": run.n_steps_planned,
        "energy_j": run.energy_j,
        "energy_provenance": None if run.provenance is None else str(run.provenance),
        "energy_is_at_least": None if run.energy_j is None else run.at_least,
        "output_tokens_per_j": run.tokens_per_j,
    }


def run_list_lines(found: RunList, folder: Path, width: int) -> list[str]:
    """The list as lines of text.

    Args:
        found: the runs.
        folder: that was searched.
        width: of the terminal, columns.
    """
    from ecorl.report.render.lines import readable_width, wrapped

    if not found.runs:
        return [f"{folder} holds no runs", *_not_searched(found, width)]
    lines: list[str] = []
    for block in _blocks([run for run in found.runs if run.started_unix_s is not None]):
        lines += ["", *_table(block)] if lines else _table(block)
    width = readable_width(width)
    remarks = _remarks(found.runs)
    if found.n_older:
        remarks.append(f"{found.n_older} more: ecorl runs {folder} --all")
    if lines and remarks:
        lines.append("")
    for remark in remarks:
        lines += wrapped(remark, width, "- ")
    return lines + _not_searched(found, width)


def _not_searched(found: RunList, width: int) -> list[str]:
    from ecorl.report.render.lines import wrapped

    if not found.closed:
        return []
    names = ", ".join(map(str, found.closed))
    return wrapped(f"not searched, since they may not be read: {names}", width, "- ")


def _blocks(listed: Sequence[ListedRun]) -> list[list[ListedRun]]:
    """The runs by the provenance of their energy, for no column holds figures of two."""
    blocks: dict[Any, list[ListedRun]] = {}
    for run in listed:
        blocks.setdefault(run.provenance, []).append(run)
    return list(blocks.values())


def _table(block: Sequence[ListedRun]) -> list[str]:
    from ecorl.report.render.lines import aligned

    told = block[0].provenance
    heads = ("run", "started", "state", "steps", f"J {told}" if told else "J", "tokens/J")
    return aligned([heads, *map(_cells, block)], text_columns=(0, 1, 2))


def _cells(run: ListedRun) -> tuple[str, ...]:
    from ecorl.report.render.numbers import MISSING, count, figure

    # Where joules are missing, tokens per joule are fewer than it looks.
    least, most = ("≥ ", "≤ ") if run.at_least else ("", "")
    steps = f"{count(run.n_steps_done)}/{count(run.n_steps_planned)}"
    return (
        run.name,
        MISSING if run.started_unix_s is None else _local(run.started_unix_s),
        run.state,
        MISSING if run.n_steps_done is None else steps,
        MISSING if run.energy_j is None else least + figure(run.energy_j),
        MISSING if run.tokens_per_j is None else most + figure(run.tokens_per_j),
    )


def _local(unix_s: float) -> str:
    return f"{datetime.fromtimestamp(unix_s).astimezone():%Y-%m-%d %H:%M}"


def _remarks(listed: Sequence[ListedRun]) -> list[str]:
    """What to know of the states, each reason once, and of bounds."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for run in listed:
        if run.why is not None:
            by_reason.setdefault((run.state, run.why), []).append(run.name)
    remarks = [
        f"{', '.join(names) if len(names) < 4 else f'{len(names)} runs'}: {state}: {why}"
        for (state, why), names in by_reason.items()
    ]
    if any(run.at_least and run.energy_j is not None for run in listed):
        remarks.append("≥ at least, ≤ at most: a part of the energy is missing; its report says "
                       "which")  # fmt: skip
    return remarks
