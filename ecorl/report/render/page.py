"""The report as one self-contained page: no script, no font, no picture from elsewhere."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import PurePath
from typing import Any

from ecorl.html.pages import render
from ecorl.report.decisions.savings import saving_words
from ecorl.report.energy.carbon_model import Footprint
from ecorl.report.energy.model import Cause, Spending
from ecorl.report.model import Report
from ecorl.report.notes import pue_words
from ecorl.report.render import carbon_tables, event_tables, spending_tables
from ecorl.report.render.course_tables import SAVED_TITLE, course_section
from ecorl.report.render.gear_tables import beside_section, training_stage_section
from ecorl.report.render.key import TITLE as KEY_TITLE
from ecorl.report.render.key import key
from ecorl.report.render.lines import Section, visible
from ecorl.report.render.numbers import MISSING, bounded, duration, figure, grams, joules, share
from ecorl.report.render.plots import plots
from ecorl.report.sharing.files import plain
from ecorl.report.training_stage.words import choices_words


def sections(report: Report) -> list[Section]:
    """All sections in order; one without anything to show says so in its lead."""
    geared = report.training_stage
    return [
        *([] if report.course is None else [course_section(report.course)]),
        spending_tables.energy_section(report.spending),
        carbon_tables.carbon_section(report.footprint, report.stages, report.spending.parts),
        *(
            []
            if report.pauses is None
            else [carbon_tables.pauses_section(report.pauses, choices_words(geared))]
        ),
        *([] if report.beside is None else [beside_section(report.beside)]),
        spending_tables.stages_section(report.stages, report.remarks),
        *([] if geared is None else [training_stage_section(geared)]),
        spending_tables.comparisons_section(
            report.comparisons, report.balance, report.card_timeline, report.head.path
        ),
        event_tables.training_section(report),
        event_tables.waits_section(report),
        event_tables.decisions_section(report),
        event_tables.faults_section(report),
        event_tables.telemetry_section(report.telemetry),
        *([event_tables.nodes_section(report.nodes)] if report.nodes else []),
    ]


@dataclasses.dataclass(frozen=True, slots=True)
class Tile:
    """One of the figures at the top of the page."""

    label: str
    value: str
    remark: str
    provenance: str


def render_html(report: Report) -> str:
    """Render the whole page as text."""
    started = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(report.head.started_unix_s))
    tiles, parts = _tiles(report), sections(report)
    return render(
        __package__,
        "report.html",
        finalize=shown,
        report=report,
        head=report.head,
        facts=_facts(report, started),
        saved_title=SAVED_TITLE,
        saved=[saving_words(one) for one in report.savings],
        tiles=tiles,
        sections=parts,
        plots=plots(report),
        key_title=KEY_TITLE,
        key=key(_texts(report, tiles, parts), report.head.path),
    )


def _texts(report: Report, tiles: list[Tile], parts: list[Section]) -> list[str]:
    """Collect what the page says, for its key."""
    # Not the notes: they explain words as well.
    found = [*report.verdict, *map(saving_words, report.savings), *report.missing]
    for tile in tiles:
        found += [tile.label, tile.remark, tile.provenance]
    for part in parts:
        found += [part.title, part.lead, *part.remarks]
        for t in part.tables:
            found += [t.caption, *t.columns, *(cell for row in t.rows for cell in row)]
    return found


def shown(value: Any) -> Any:
    """Escape control characters of a user's text; markup stays markup, by keeping the type."""
    return type(value)(visible(value)) if isinstance(value, str) else value


def _facts(report: Report, started: str) -> list[tuple[str, str]]:
    head = report.head
    facts = {
        "algorithm": head.algorithm,
        "adapter": head.adapter,
        "policy": head.policy,
        **({} if head.attached else {"seed": None if head.seed is None else str(head.seed)}),
        **({"config": head.config_remark} if head.config_remark else {}),
        "steps": f"{head.n_steps_done}"
        + (f" of {head.n_steps_planned}" if head.n_steps_planned is not None else ""),
        "attempts": str(head.n_attempts),
        "devices": ", ".join(head.devices),
        # A flag is shown as it is typed.
        **{
            name if name.startswith("--") else name.replace("_", " "): value
            for name, value in head.trainer.items()
        },
        "models": ", ".join(f"{k} {_short(v)}" for k, v in head.models.items()),
        "commit": head.commit,
        "started": started,
        "run time": duration(head.run_time_s),
        "state": head.state,
    }
    return [(name, value or MISSING) for name, value in facts.items()]


def _short(path: str) -> str:
    """Shorten a long path to its end; all of it is in the JSON."""
    parts = PurePath(path).parts
    return path if len(parts) < 4 else "/".join(("...", *parts[-2:]))


def _tiles(report: Report) -> list[Tile]:
    tiles = [
        *_energy_tiles(report.spending),
        *_carbon_tiles(report.footprint),
        *_worth_tiles(report.spending),
    ]
    for g in report.gains[:1]:
        if g.gain is not None:
            error = "" if g.standard_error is None else f" ± {figure(g.standard_error, 2)} (SE)"
            tiles.append(
                Tile(f"{g.name} gain", f"{g.gain:+.2g}{error}", f"{g.n_pairs} items", "measured")
            )
    if report.barriers.total_s is not None:
        remark = f"p95 {duration(report.barriers.p95_s)}"
        value = duration(report.barriers.total_s)
        tiles.append(Tile("waited at the barrier", value, remark, "measured"))
    return tiles


def _energy_tiles(s: Spending) -> list[Tile]:
    """Make the tiles of the machine's energy and of what a simulated card would have drawn."""
    tiles = []
    for c in s.shown:
        known = "at least " if c.at_least else ""
        remark = f"{known}{figure(c.energy_kwh)} kWh"
        kind = "" if c.title == str(c.provenance) else f", {c.title}"
        label = f"energy of {s.owner}{kind}" if s.card else f"energy{kind}"
        if c is s.card:
            idle_j = c.by_cause.get(Cause.IDLE, 0.0)
            label = "simulated card, not spent"
            work_j = c.energy_j - idle_j - c.paused_j
            paused = f"paused {joules(c.paused_j)}, " if c.paused_j else ""
            remark = f"idle {joules(idle_j)}, {paused}at work {joules(work_j)}; {remark}"
        tiles.append(Tile(label, known + joules(c.energy_j), remark, str(c.provenance)))
    return tiles


def _carbon_tiles(footprint: Footprint) -> list[Tile]:
    """Make the tiles of what the machines emitted, one for each kind of intensity."""
    tiles = []
    for facts in footprint.intensities:
        c = footprint.total(facts.kind)
        if c is not None and c.emitted.carbon_g is not None:
            known = "at least " if c.at_least else ""
            remark = f"mean {figure(facts.mean_g_per_kwh)} g/kWh, PUE {pue_words(footprint)}"
            value = known + grams(c.emitted.carbon_g, c.gas)
            label = f"emissions, {facts.kind} intensity"
            tiles.append(Tile(label, value, remark, str(c.provenance)))
    return tiles


def _worth_tiles(s: Spending) -> list[Tile]:
    """Make the tiles of what the joules of the machine bought."""
    if not s.columns:
        return []
    last, tiles = s.columns[-1], []
    if last.tokens_per_joule is not None:
        value = bounded(last.tokens_per_joule, last.at_least, "at most")
        remark = "output tokens, idle included"
        both = s.with_card
        if both is not None and both.tokens_per_joule is not None:
            with_it = bounded(both.tokens_per_joule, both.at_least, "at most")
            remark += f"; {with_it} with the simulated card ({both.provenance})"
        tiles.append(Tile("tokens per joule", value, remark, str(last.provenance)))
    if last.energy_j and not s.unknown_causes:
        value = share(last.wasted_j / last.energy_j, 0)
        whose = f" ({s.owner})" if s.card else ""
        remark = "idle, barrier, superseded"
        tiles.append(Tile(f"bought nothing{whose}", value, remark, str(last.provenance)))
    return tiles


def render_json(report: Report) -> str:
    """Write all figures with their provenance as JSON; missing is null.

    Single decisions are left out: they are most of a long run's report, the ledger holds them, and
    ``decisions`` and ``expectation`` sum them up.
    """
    fields = (f.name for f in dataclasses.fields(report) if f.name != "placements")
    data = {name: plain(getattr(report, name)) for name in fields}
    return json.dumps(data, indent=1, allow_nan=False)
