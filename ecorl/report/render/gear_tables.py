"""Gears and widths of the training stage: tables of the page, lines of the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from ecorl.records import Provenance
from ecorl.report.beside import BesideFigures
from ecorl.report.render.lines import CAPTION, GAP, Section, Table, aligned, table, widths, wrapped
from ecorl.report.render.numbers import (
    MISSING,
    count,
    duration,
    edi_unit,
    figure,
    grams,
    joules,
    scaled,
    share,
    tokens,
)
from ecorl.report.training_stage.model import GearRow, TrainingStageFacts
from ecorl.report.training_stage.words import OWN_GEAR, stage_lead, stage_remarks

STAGE_TITLE = "Training stage"

_Origins = tuple[Provenance, Provenance | None]


def training_stage_section(facts: TrainingStageFacts) -> Section:
    """Make the tables by gear and width, one for each pair of provenances, and the remarks.

    Args:
        facts: of the run.
    """
    return Section(
        "training-stage",
        STAGE_TITLE,
        stage_lead(facts),
        "gears",
        tuple(_tables(facts.rows)),
        tuple(stage_remarks(facts)),
    )


def _tables(rows: Sequence[GearRow]) -> list[Table]:
    factor, unit = edi_unit(row.j_per_token for row in rows)
    with_stage = len({row.stage for row in rows}) > 1
    heads = ["stage"] * with_stage
    heads += ["gear", "workers", "steps", "micro-batches", "tokens", "share of tokens"]
    heads += ["time, s", "energy, J", unit, "tokens/s"]
    return [
        table(heads, [_cells(row, factor, with_stage) for row in own], 1 + with_stage, _told(key))
        for key, own in _by_origins(rows)
    ]


def _by_origins(rows: Sequence[GearRow]) -> list[tuple[_Origins, list[GearRow]]]:
    groups: dict[_Origins, list[GearRow]] = {}
    for row in rows:
        groups.setdefault((row.time_provenance, row.energy_provenance), []).append(row)
    return list(groups.items())


def _told(origins: _Origins) -> str:
    time, energy = origins
    return f"time {time}, energy {energy or 'missing'}; tokens of prompts and completions"


def _cells(row: GearRow, factor: float, with_stage: bool) -> tuple[str, ...]:
    # Of a few steps without a figure the sums are of the others.
    timed = figure(row.time_s) + _part(row.n_timed, row.n_steps)
    energy = figure(row.energy_j) + _part(row.n_with_energy, row.n_steps)
    return (
        *([str(row.stage)] * with_stage),
        row.gear or OWN_GEAR,
        count(row.width),
        count(row.n_steps),
        count(row.n_executions),
        tokens(row.n_tokens, row.n_tokens),
        share(row.token_share),
        timed,
        energy,
        figure(scaled(row.j_per_token, factor)),
        figure(row.tokens_per_s),
    )


def _part(n: int, n_steps: int) -> str:
    return "" if n in (0, n_steps) else f" (of {count(n)})"


def training_stage_lines(facts: TrainingStageFacts | None, width: int) -> list[str]:
    """The same for the terminal.

    Args:
        facts: of the run; None where nobody told of a gear or a width.
        width: columns of the terminal.
    """
    if facts is None:
        return []
    factor, unit = edi_unit(row.j_per_token for row in facts.rows)
    with_stage = len({row.stage for row in facts.rows}) > 1
    heads = (*["stage"] * with_stage, "gear", "workers", "steps", "tokens", "share", "time, s",
             "energy, J", unit, "tokens/s")  # fmt: skip
    blocks = [
        (key, [_short_cells(row, factor, with_stage) for row in own])
        for key, own in _by_origins(facts.rows)
    ]
    lines: list[str] = []
    columns = widths([heads, *(cells for _, own in blocks for cells in own)])
    for key, own in blocks:
        lines.append(f"{CAPTION}{_told(key)}")
        text = range(1 + with_stage)
        lines += aligned([heads, *own], text_columns=text, columns=columns, indent=GAP)
    if not facts.rows:
        lines += wrapped(stage_lead(facts), width)
    for remark in stage_remarks(facts):
        lines += wrapped(remark, width, "- ")
    return lines


def _short_cells(row: GearRow, factor: float, with_stage: bool) -> tuple[str, ...]:
    cells = list(_cells(row, factor, with_stage))
    del cells[3 + with_stage]  # micro-batches
    return tuple(cells)


TITLE = "CodeCarbon beside"


def lead(b: BesideFigures) -> str:
    """What is compared with what.

    Args:
        b: the figures of both.
    """
    found = b.found
    return (
        f"CodeCarbon {found.version} measured this machine for {duration(found.duration_s)} of the "
        f"run's {duration(b.run_time_s)}: {joules(found.energy_j)}, and by its own factor "
        f"{grams(found.carbon_g, 'CO2e')}. Where it reads no sensor it estimates, and it counts "
        "all of the machine. Nothing of ecorl's figures goes by it."
    )


def beside_section(b: BesideFigures) -> Section:
    """The section of the page.

    Args:
        b: the figures of both.
    """
    rows = [
        (
            p.name,
            figure(p.theirs_j),
            f"{figure(p.ours_j)} ({p.provenance})" if p.ours_j is not None else MISSING,
            MISSING if p.difference is None else f"{100 * p.difference:+.1f} %",
        )
        for p in b.parts
    ]
    heads = ("part of the machine", "CodeCarbon, J", "ecorl, J", "difference")
    return Section("beside", TITLE, lead(b), "", (table(heads, rows, 1),))


def beside_lines(b: BesideFigures | None, width: int) -> list[str]:
    """The block of the terminal; nothing where CodeCarbon did not run.

    Args:
        b: the figures of both.
        width: columns.
    """
    if b is None:
        return []
    lines = wrapped(lead(b), width)
    for p in b.parts:
        if p.ours_j is not None and p.difference is not None:
            told = (
                f"{p.name}: {joules(p.theirs_j)} by CodeCarbon, {joules(p.ours_j)} here "
                f"({p.provenance}), {share(abs(p.difference))} "
                f"{'more' if p.difference > 0 else 'less'}"
            )
            lines += wrapped(told, width)
    return lines
