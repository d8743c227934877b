"""The report on the terminal: a summary that fits 80 columns. All else is on the page.

No line is broken within a word, and no column holds figures of two provenances: stages stand in
one block per pair of provenances, totals in one column per provenance.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text

from ecorl.plain_text import plain
from ecorl.records import Stage
from ecorl.report.decisions.savings import saving_line
from ecorl.report.energy.causes import CAUSES, PAUSE_CAUSES
from ecorl.report.energy.model import StageRow
from ecorl.report.model import DecisionGroup, NodeFacts, Report
from ecorl.report.render.carbon_tables import PAUSES_TITLE
from ecorl.report.render.carbon_text import carbon_lines, pauses_lines
from ecorl.report.render.course_tables import COURSE_TITLE, SAVED_TITLE, course_lines
from ecorl.report.render.event_tables import fault_place, node_cells, rows_fallback
from ecorl.report.render.gear_tables import STAGE_TITLE, beside_lines, training_stage_lines
from ecorl.report.render.gear_tables import TITLE as BESIDE_TITLE
from ecorl.report.render.key import TITLE as KEY_TITLE
from ecorl.report.render.key import key
from ecorl.report.render.lines import (
    CAPTION,
    GAP,
    aligned,
    readable_width,
    visible,
    widths,
    wrapped,
)
from ecorl.report.render.numbers import (
    MISSING,
    bounded,
    count,
    duration,
    edi_unit,
    figure,
    interval_95,
    scaled,
    tokens,
)
from ecorl.report.render.spending_tables import (
    PAUSED_APART,
    SHORT_CALLS,
    by_provenances,
    cause_cell,
    comparison_groups,
    short_share,
    tokens_cell,
    tokens_with_card,
)
from ecorl.report.training_stage.words import choices_words
from ecorl.scheduler.words import action_name

PIPED_WIDTH = 100
"""Columns where there is no terminal to ask, and no COLUMNS."""
_MAX_GROUPS = 4
"""Groups of decisions of one stage that are listed."""

Lines = list[str]


def print_report(report: Report, console: Console) -> None:
    """Print the summary of a run.

    Args:
        report: what to print.
        console: where to; styles vanish by themselves when it is no terminal.
    """
    width = _width(console)
    _say(console, [_rule(report.head.run_id, width, console)], "bold")
    _say(console, _facts(report, width), "dim")
    blocks = {
        "": [line for s in report.verdict for line in wrapped(s, width, "- ")],
        SAVED_TITLE: [
            line for s in report.savings for line in wrapped(saving_line(s), width, "- ")
        ],
        COURSE_TITLE: course_lines(
            report.course, width, report.head.path, has_blocks=_has_blocks(console)
        ),
        "Stages": [
            *_stages(report.stages, width),
            *(line for s in report.remarks for line in wrapped(s, width)),
        ],
        STAGE_TITLE: training_stage_lines(report.training_stage, width),
        "Energy": _energy(report, width),
        "What the energy emitted": carbon_lines(report.footprint, width),
        PAUSES_TITLE: pauses_lines(report.pauses, width, choices_words(report.training_stage)),
        BESIDE_TITLE: beside_lines(report.beside, width),
        "Did offloading pay?": _offloading(report, width),
        "Learned": _learned(report, width),
        "Waits at the completion barrier (measured)": _waits(report, width),
        "Decisions": _decisions(report.decisions, report.head.path, width),
        "Faults": _faults(report, width),
        "Machines": _nodes(report.nodes),
        "Missing or doubtful": [line for s in report.missing for line in wrapped(s, width, "- ")],
    }
    said = [" ".join((title, *map(str.strip, lines))) for title, lines in blocks.items() if lines]
    blocks[KEY_TITLE] = [
        line
        for name, told in key(said, report.head.path)
        for line in wrapped(f"{name}: {told}", width, "  ", "    ")
    ]
    for title, lines in blocks.items():
        if lines:
            _say(console, ["", title] if title else [""], "bold")
            _say(console, lines)


def _width(console: Console) -> int:
    """Columns to use: those of the terminal, or of COLUMNS where there is none."""
    told = console.is_terminal or os.environ.get("COLUMNS", "").isdigit()
    return readable_width(console.width) if told else PIPED_WIDTH


def _say(console: Console, lines: Iterable[str], style: str = "") -> None:
    for line in lines:
        known = plain(visible(line), console.encoding)
        # The lines are measured already: rich would break them within words.
        shown = "dim" if line.startswith(CAPTION) else style
        console.print(Text(known, shown), soft_wrap=True, highlight=False)


def _rule(title: str, width: int, console: Console) -> str:
    return f"{title} ".ljust(width, "─" if _has_blocks(console) else "-")


def _has_blocks(console: Console) -> bool:
    """Whether what is printed may hold lines and blocks."""
    return console.encoding.lower().startswith("utf")


def _facts(report: Report, width: int) -> Lines:
    head = report.head
    course = [head.algorithm, head.adapter and f"by {head.adapter}"]
    facts = [" ".join(f for f in course if f), head.policy and f"policy {head.policy}"]
    facts += [None if head.seed is None else f"seed {head.seed}", *head.devices]
    text = ", ".join(f for f in facts if f)
    lines = wrapped(text, width, "") if text else []
    if head.trainer:
        told = ", ".join(f"{k} {v}" for k, v in head.trainer.items() if k != "trainer")
        whose = "" if any(k.startswith("--") for k in head.trainer) else " of a script"
        lines += wrapped(f"{head.trainer.get('trainer', 'trainer')}{whose}: {told}", width, "")
    if head.config_remark:
        lines += wrapped(f"config: {head.config_remark}", width, "")
    return lines


# ---------------------------------------------------------------- figures


def _stages(rows: Sequence[StageRow], width: int) -> Lines:
    """Blocks of one table whose columns stand under each other."""
    if not rows:
        return []
    factor, unit = edi_unit(r.edi_j_per_token for r in rows)
    heading = ("stage", "device", "calls", "out tokens", "time, s", "energy, J", unit)
    blocks = [(key, [_stage_cells(r, factor) for r in own]) for key, own in by_provenances(rows)]
    columns = widths([heading, *(row for _, own in blocks for row in own)])
    lines: Lines = []
    for (time, energy), own in blocks:
        lines.append(f"{CAPTION}time {time}, energy {energy or 'missing'}")
        lines += aligned([heading, *own], text_columns=(0, 1), columns=columns, indent=GAP)
    lines += _short_calls(rows, width)
    for r in rows:
        if not (r.n_calls == r.n_timed == r.n_with_energy) and r.n_with_energy:
            part = f"time of {count(r.n_timed)}, energy of {count(r.n_with_energy)}"
            lines += wrapped(f"{r.role} on {r.device}: {part} of {count(r.n_calls)} calls", width)
    return lines


def _short_calls(rows: Sequence[StageRow], width: int) -> Lines:
    """Name the stages whose joules per token are interpolated: their column looks no different."""
    found = [f"{r.role} on {r.device} {short_share(r)}" for r in rows if r.n_interpolated]
    if not found:
        return []
    return wrapped(f"{SHORT_CALLS} Such calls: {', '.join(found)}.", width)


def _stage_cells(r: StageRow, factor: float) -> tuple[str, ...]:
    n = len(r.device_ids)
    return (
        r.role,
        r.device if n == 1 else f"{r.device} x {n}",
        count(r.n_calls),
        tokens(r.n_output_tokens, r.n_tokens),
        figure(r.time_s),
        figure(r.energy_j),
        figure(scaled(r.edi_j_per_token, factor)),
    )


def _energy(report: Report, width: int) -> Lines:
    """The columns of the machine, then that of a simulated card."""
    s = report.spending
    if not s.shown:
        return []
    rows = [["", *(c.title for c in s.shown)]]
    if any(c.origin for c in s.shown):
        rows.append(["", *(c.origin for c in s.shown)])
    rows.append(["energy, J", *(bounded(c.energy_j, c.at_least, ">=") for c in s.shown)])
    unknown = {p.cause for p in s.parts if p.energy_j is None}
    for cause in CAUSES:
        if cause in unknown or any(cause in c.by_cause for c in s.shown):
            rows.append([f"  {cause}", *(cause_cell(cause, c, s) for c in s.shown)])
    per_j = [tokens_cell(c, s, "<=") for c in s.shown]
    rows.append(["output tokens per J", *per_j])
    lines = aligned(rows, indent=GAP)
    told = tokens_with_card(s)
    lines += wrapped(told, width) if told else []
    if any(cause in c.by_cause for c in s.shown for cause in PAUSE_CAUSES):
        lines += wrapped(PAUSED_APART, width)
    return lines


def _offloading(report: Report, width: int) -> Lines:
    """The two paths per token and over the calls that the card took; the card's idle draw."""
    lines: Lines = []
    path = report.head.path
    for group in comparison_groups(report.comparisons, path):
        factor, unit = edi_unit(r.edi_j_per_token for p in group.pairs for r in (p.gpu, p.card))
        rows = [("stage", f"{path} {unit}", "calls", f"card {unit}", "calls", "ratio", "saved, J")]
        rows += [
            (
                p.comparison.role,
                figure(scaled(p.gpu.edi_j_per_token, factor)),
                count(p.gpu.n_edi),
                figure(scaled(p.card.edi_j_per_token, factor)),
                count(p.card.n_edi),
                figure(p.comparison.ratio),
                "<= " * p.comparison.card_at_least + figure(p.comparison.saved_j),
            )
            for p in group.pairs
        ]
        lines += wrapped(group.basis, width, CAPTION)
        lines += aligned(rows, indent=GAP)
    b = report.balance
    if b is not None:
        net = MISSING if b.net_j is None else "at most " * b.net_at_most + figure(b.net_j) + " J"
        paused = f", in pauses {figure(b.paused_j)} J" if b.paused_j != 0 else ""
        without = f", without {' and '.join(b.left_out)}" if b.left_out else ""
        gross = f"{'at least ' * b.at_most}{figure(b.card_j)} J"
        lines += wrapped(
            f"drawn by the card on its calls {gross} (gross) in place of {figure(b.gpu_would_j)} J "
            f"on the {path}: saved {'at most ' * b.at_most}{figure(b.saved_j)} J; drawn by the "
            f"idle {'simulated ' * b.is_simulated}card {figure(b.idle_j)} J"
            f"{' in its modelled time' * b.in_modelled_time}{paused}, net of all{without} {net} "
            f"({b.provenance})",
            width,
        )
    return lines


# ---------------------------------------------------------------- what happened


def _learned(report: Report, width: int) -> Lines:
    lines: Lines = []
    for g in report.gains:
        error = "" if g.standard_error is None else f" +/- {figure(g.standard_error, 2)} (SE)"
        gain = "" if g.gain is None else f": {g.gain:+.3g}{error} over {count(g.n_pairs)} items"
        note = f" ({g.note})" if g.note else ""
        both = None not in (g.mean_before, g.mean_after)
        ends = [(g.before, g.mean_before), (g.after, g.mean_after)]
        told = [(phase, mean) for phase, mean in ends if mean is not None]
        phases = " -> ".join(phase for phase, _ in told) if both else told[0][0] if told else ""
        means = " -> ".join(figure(mean) for _, mean in told)
        lines += wrapped(f"{g.name} {phases}: {means}{gain}{note}", width)
    for sentence in report.evaluated_along:
        lines += wrapped(sentence, width)
    if report.own_evaluations is not None:
        lines += wrapped(report.own_evaluations, width)
    for f in report.flips:
        lines += wrapped(
            f"rank flips, INT8 against float ({f.phase}): {count(f.n_flips)} of "
            f"{count(f.n_pairs)} pairs, {figure(100 * f.share, 2)} % ({interval_95(f.interval)})",
            width,
        )
        if f.shift_abs_mean is not None:
            lines += wrapped(
                f"scores, INT8 against float ({f.phase}): mean |shift| {figure(f.shift_abs_mean)} "
                f"over {count(f.n_scores)}",
                width,
            )
    for s in report.shifts:
        lines += wrapped(
            f"log-probs, INT8 against float ({s.phase}): mean |shift| {figure(s.mean_nats)} nats "
            f"over {count(s.n_rows)} rows, at most {figure(s.max_nats)}",
            width,
        )
    return lines


def _nodes(nodes: Sequence[NodeFacts]) -> Lines:
    """The machines, where there are several; why a record is lost stands with what is missing."""
    if not nodes:
        return []
    rows = [
        (*cells[:4], "there" if n.lost is None else "not whole" if n.devices else "missing")
        for n, cells in zip(nodes, node_cells(nodes), strict=True)
    ]
    heading = ("machine", "attempt", "clock", "devices", "record")
    return aligned([heading, *rows], text_columns=range(5), indent=GAP)


def _waits(report: Report, width: int) -> Lines:
    b = report.barriers
    if not b.n_waits:
        return []
    rows = f"{count(b.n_missing)} of {count(b.n_rows)} rows missing, {count(b.n_late)} late"
    if b.n_duplicates or b.n_unknown:
        rows += f", {count(b.n_duplicates)} delivered twice, {count(b.n_unknown)} not asked for"
    return wrapped(
        f"{count(b.n_waits)} waits, {duration(b.total_s)} in all; p50 {duration(b.p50_s)}, "
        f"p95 {duration(b.p95_s)}, longest {duration(b.max_s)}; {rows}",
        width,
    )


def _decisions(groups: Sequence[DecisionGroup], path: str, width: int) -> Lines:
    """Decisions by stage: how many, what, why."""
    lines: Lines = []
    size = max((len(count(g.n)) for g in groups), default=0)
    longest = max((len(g.role) for g in groups), default=0)
    name_width = max(longest, *(len(s) for s in Stage))
    for role in dict.fromkeys(g.role for g in groups):
        own = [g for g in groups if g.role == role]
        for i, g in enumerate(own[:_MAX_GROUPS]):
            name = role if i == 0 else ""
            did, asked = (action_name(a, path, g.stage) for a in (g.action, g.proposed))
            instead = "" if g.proposed is g.action else f" instead of {asked}"
            start = f"  {name:<{name_width}}  {count(g.n):>{size}} x {did}{instead}: "
            lines += wrapped(g.told, width, start, " " * (name_width + size + 7))
        if len(own) > _MAX_GROUPS:
            n = sum(g.n for g in own[_MAX_GROUPS:])
            more = f"{count(n)} more for {len(own) - _MAX_GROUPS} other reasons: see the page"
            lines += wrapped(more, width, " " * (name_width + 4))
    return lines


def _faults(report: Report, width: int) -> Lines:
    """Faults alike in kind and place, with the newest detail."""
    n_fallback = sum(r.n_rows_fallback for r in report.stages)
    lines: Lines = []
    places = [(f.kind, fault_place(f, report.nodes)) for f in report.faults]
    for kind, where in dict.fromkeys(places):
        own = [f for f, place in zip(report.faults, places, strict=True) if place == (kind, where)]
        when = sorted({f.iteration for f in own if f.iteration is not None})
        told = ", ".join(map(str, when[:6])) + (", ..." if len(when) > 6 else "")
        at = f", iteration {told}" if when else ""
        start = f"  {len(own)} x {kind} at {where}{at}: "
        lines += wrapped(own[-1].detail, width, start, "      ")
    if n_fallback:
        lines += wrapped(rows_fallback(n_fallback), width)
    return lines or ["  none"]
