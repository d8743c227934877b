"""The result as one self-contained page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ecorl.bench.tokens_per_joule.result import BenchResult
from ecorl.bench.tokens_per_joule.summary import (
    Getter,
    OverSeeds,
    energy_provenance,
    is_bound,
    over_seeds,
)
from ecorl.bench.tokens_per_joule.telling.plots import plots
from ecorl.bench.tokens_per_joule.telling.tables import sections
from ecorl.bench.tokens_per_joule.telling.text import facts
from ecorl.bench.tokens_per_joule.telling.verdict import missing, notes, verdict
from ecorl.html.pages import render
from ecorl.records import Provenance
from ecorl.report.render.lines import visible
from ecorl.report.render.numbers import figure

_TEMPLATE = "tokens_per_joule.html"


@dataclass(frozen=True, slots=True)
class ArmTile:
    """One arm's figure at the top of the page."""

    label: str
    value: str
    remark: str
    provenance: str


def render_page(result: BenchResult) -> str:
    """Render the page as text.

    Args:
        result: of the benchmark.
    """

    def shown(value: Any) -> Any:
        # Markup stays markup, by keeping the type.
        return type(value)(visible(value)) if isinstance(value, str) else value

    told = {
        name: value.removeprefix(f"{name} ") if name in ("commit", "config") else value
        for name, value in facts(result).items()
    }
    return render(
        __package__,
        _TEMPLATE,
        finalize=shown,
        device=result.stand.machine.gpu or result.stand.machine.cpu,
        facts=list(told.items()),
        verdict=verdict(result),
        tiles=_tiles(result),
        missing=missing(result),
        sections=sections(result),
        plots=plots(result),
        notes=notes(result),
    )


def _tiles(result: BenchResult) -> list[ArmTile]:
    """Tokens per joule of each placement: with the simulated card where there is one."""
    tiles = []
    for arm in result.arms:
        runs = result.of(arm.name)
        if arm.extra or not runs:
            continue
        has_card = any(run.card is not None for run in runs)
        take: Getter = _with_card if has_card else _alone
        found = over_seeds(result, arm.name, take)
        origin = Provenance.MODELLED if has_card else energy_provenance(runs)
        if found is not None and origin is not None:
            whose = "with the simulated card" if has_card else "this machine"
            bound = "at most " * is_bound(runs)
            remark = f"tokens/J, {whose}{_interval(found)}"
            tiles.append(ArmTile(arm.name, f"{bound}{figure(found.median)}", remark, str(origin)))
    return tiles


def _alone(run: Any) -> float | None:
    value: float | None = run.tokens_per_j
    return value


def _with_card(run: Any) -> float | None:
    value: float | None = run.tokens_per_j_with_card
    return value


def _interval(found: OverSeeds) -> str:
    if found.interval is None:
        return ""
    low, high = found.interval
    return f"; {figure(low)} to {figure(high)}"
