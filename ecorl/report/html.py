"""The report as one self-contained page: no script, no font, no picture from elsewhere."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from importlib import resources
from pathlib import PurePath
from typing import Any

import jinja2
from markupsafe import Markup

from ecorl.report.model import Report
from ecorl.report.numbers import MISSING, duration, figure, joules, share
from ecorl.report.plots import plots
from ecorl.report.tables import sections


@dataclasses.dataclass(frozen=True, slots=True)
class Tile:
    """One of the figures at the top of the page."""

    label: str
    value: str
    remark: str
    provenance: str


def render_html(report: Report) -> str:
    """The whole page as text."""
    folder = resources.files("ecorl.report") / "templates"
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: (folder / name).read_text(encoding="utf-8")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    started = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(report.head.started_unix_s))
    drawn = {name: Markup(svg) for name, svg in plots(report).items()}
    return environment.get_template("report.html").render(
        report=report,
        head=report.head,
        facts=_facts(report, started),
        tiles=_tiles(report),
        sections=sections(report),
        plots=drawn,
        style=Markup((folder / "style.css").read_text(encoding="utf-8")),
    )


def _facts(report: Report, started: str) -> list[tuple[str, str]]:
    head = report.head
    facts = {
        "algorithm": head.algorithm,
        "adapter": head.adapter,
        "policy": head.policy,
        "seed": None if head.seed is None else str(head.seed),
        "steps": f"{head.n_steps_done}"
        + (f" of {head.n_steps_planned}" if head.n_steps_planned is not None else ""),
        "attempts": str(head.n_attempts),
        "devices": ", ".join(head.devices),
        "models": ", ".join(f"{k} {_short(v)}" for k, v in head.models.items()),
        "commit": head.commit,
        "started": started,
        "run time": duration(head.run_time_s),
        "state": head.state,
    }
    return [(name, value or MISSING) for name, value in facts.items()]


def _short(path: str) -> str:
    """The end of a long path; the whole of it is in the JSON."""
    parts = PurePath(path).parts
    return path if len(parts) < 4 else "/".join(("...", *parts[-2:]))


def _tiles(report: Report) -> list[Tile]:
    tiles = []
    for c in report.spending.columns:
        known = "at least " if c.at_least else ""
        kind = "" if c.title == str(c.provenance) else ", all together"
        remark = f"{known}{figure(c.energy_kwh)} kWh"
        if c.carbon_g is not None:
            remark += f", {figure(c.carbon_g)} gCO2e"
        tiles.append(Tile(f"energy{kind}", known + joules(c.energy_j), remark, str(c.provenance)))
    if report.spending.columns:
        last = report.spending.columns[-1]
        if last.tokens_per_joule is not None:
            bound = "at most " if last.at_least else ""
            value, remark = bound + figure(last.tokens_per_joule), "output tokens, idle included"
            tiles.append(Tile("tokens per joule", value, remark, str(last.provenance)))
        if last.energy_j and not report.spending.unknown_causes:
            value = share(last.wasted_j / last.energy_j, 0)
            remark = "idle, barrier, superseded"
            tiles.append(Tile("bought nothing", value, remark, str(last.provenance)))
    for g in report.gains[:1]:
        if g.gain is not None:
            error = "" if g.standard_error is None else f" ± {figure(g.standard_error, 2)}"
            tiles.append(
                Tile(f"{g.name} gain", f"{g.gain:+.2g}{error}", f"{g.n_pairs} items", "measured")
            )
    if report.barriers.total_s is not None:
        remark = f"p95 {duration(report.barriers.p95_s)}"
        value = duration(report.barriers.total_s)
        tiles.append(Tile("waited at the barrier", value, remark, "measured"))
    return tiles


def render_json(report: Report) -> str:
    """All figures with their provenance; missing is null."""
    return json.dumps(_plain(report), indent=1, allow_nan=False)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, str) else value
