"""The result as one self-contained page, as lines of a terminal, and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

from ecorl.bench.tokens_per_joule.reading.model import RunFigures
from ecorl.bench.tokens_per_joule.reading.quality import first_reached
from ecorl.bench.tokens_per_joule.result import BenchResult
from ecorl.bench.tokens_per_joule.summary import (
    TOKENS_PER_J,
    WITH_CARD,
    OverSeeds,
    energy_provenance,
    has_card,
    is_bound,
    over_seeds,
)
from ecorl.bench.tokens_per_joule.telling.plots import plots
from ecorl.bench.tokens_per_joule.telling.tables import sections
from ecorl.bench.tokens_per_joule.telling.verdict import missing, notes, verdict
from ecorl.html.pages import render
from ecorl.records import Provenance
from ecorl.report.render.lines import CAPTION, GAP, Section, aligned, readable_width, wrapped
from ecorl.report.render.numbers import figure
from ecorl.report.render.page import Tile, shown

TITLE = "Tokens per joule"


def text_lines(result: BenchResult, width: int) -> list[str]:
    """The whole result as lines.

    Args:
        result: of the benchmark.
        width: of the terminal, columns.
    """
    width = readable_width(width)
    lines = [f"{TITLE} ".ljust(width, "-")]
    lines += wrapped(", ".join(facts(result).values()), width, "")
    lines += ["", *_bullets(verdict(result), width)]
    for section in sections(result):
        lines += ["", section.title, *_section(section, width)]
    left_out = missing(result)
    if left_out:
        lines += ["", "Missing or doubtful", *_bullets(left_out, width)]
    return [*lines, "", "How the figures came about", *_bullets(notes(result), width)]


def facts(result: BenchResult) -> dict[str, str]:
    """Where and of what the result is, by name.

    Args:
        result: of the benchmark.
    """
    stand, plan = result.stand, result.plan
    device = stand.machine.gpu or f"{stand.machine.cpu} ({stand.machine.n_cores} cores)"
    versions = ", ".join(f"{name} {version}" for name, version in stand.versions.items())
    commits = ", ".join(commit[:12] for commit in result.commits)
    found = {
        "device": device,
        "driver": stand.driver,
        "versions": versions,
        "commit": f"commit {commits}" if commits else "",
        "config": f"config {stand.digest}",
        "steps": f"{plan['steps']} steps, {plan['warm_up']} of them warm-up",
        "seeds": f"seeds {', '.join(map(str, result.seeds))}",
    }
    return {name: value for name, value in found.items() if value}


def _bullets(sentences: Sequence[str], width: int) -> list[str]:
    return [line for sentence in sentences for line in wrapped(sentence, width, "- ")]


def _section(section: Section, width: int) -> list[str]:
    lines = wrapped(section.lead, width) if section.lead else []
    for one in section.tables:
        lines += wrapped(one.caption, width, CAPTION) if one.caption else []
        text = [i for i, is_number in enumerate(one.numeric) if not is_number]
        lines += aligned([one.columns, *one.rows], text_columns=text, indent=GAP)
    for sentence in section.remarks:
        lines += wrapped(sentence, width)
    return lines


_TEMPLATE = "tokens_per_joule.html"


def render_page(result: BenchResult) -> str:
    """Render the page as text.

    Args:
        result: of the benchmark.
    """
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


def _tiles(result: BenchResult) -> list[Tile]:
    """Tokens per joule of each placement: with the simulated card where there is one."""
    tiles = []
    for arm in result.arms:
        runs = result.of(arm.name)
        if arm.extra or not runs:
            continue
        with_card = has_card(result, arm)
        found = over_seeds(result, arm.name, WITH_CARD if with_card else TOKENS_PER_J)
        origin = Provenance.MODELLED if with_card else energy_provenance(runs)
        if found is not None and origin is not None:
            whose = "with the simulated card" if with_card else "this machine"
            bound = "at most " * is_bound(runs)
            remark = f"tokens/J, {whose}{_interval(found)}"
            tiles.append(Tile(arm.name, f"{bound}{figure(found.median)}", remark, str(origin)))
    return tiles


def _interval(found: OverSeeds) -> str:
    if found.interval is None:
        return ""
    low, high = found.interval
    return f"; {figure(low)} to {figure(high)}"


_CARD = "with_card_modelled"
"""Ends the names of figures of machine and simulated card together."""


def result_csv(result: BenchResult) -> str:
    """Write the runs, supervised training among them.

    Names of columns end with the provenance of what is in them; figures of another one stand in
    columns of their own.

    Args:
        result: of the benchmark.
    """
    text = io.StringIO()
    rows = [_row(result, run) for run in (*result.runs, *result.supervised)]
    heads = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(text, heads, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _row(result: BenchResult, run: RunFigures) -> dict[str, object]:
    found: dict[str, object] = {"arm": run.arm, "seed": run.seed, "missing": run.missing}
    if run.missing:
        return found
    found |= {
        "steps": run.n_steps,
        "output_tokens": run.n_tokens,
        "all_tokens": run.n_all_tokens,
        "samples": run.n_samples,
        "faults": run.n_faults,
        "time_s_measured": run.time_s,
        "samples_per_s_measured": run.samples_per_s,
        "bubble_measured": run.bubble,
        "reward_left": run.offloaded.get("reward"),
        "reference_left": run.offloaded.get("reference"),
        "final_reward_measured": None if run.final is None else run.final.reward,
        "final_correct_measured": None if run.final is None else run.final.correct,
    }
    return found | _of_machine(run) | _of_card(run) | dict(_targets(result, run))


def _of_machine(run: RunFigures) -> dict[str, object]:
    m = run.machine
    if m is None:
        return {}
    figures = {
        "energy_j": m.energy_j,
        "useful_j": m.useful_j,
        "wasted_j": m.wasted_j,
        "beside_j": m.beside_j,
        "idle_share": run.idle_share,
        "tokens_per_j": run.tokens_per_j,
        "j_per_sample": run.j_per_sample,
    }
    found: dict[str, object] = {f"{name}_{m.provenance}": value for name, value in figures.items()}
    found["energy_is_at_least"] = m.at_least
    if m.carbon_g is not None:
        found[f"carbon_g_{m.carbon_provenance}"] = m.carbon_g
    return found


def _of_card(run: RunFigures) -> dict[str, object]:
    c = run.card
    if c is None:
        return {}
    return {
        "card_work_j_modelled": c.work_j,
        "card_idle_j_modelled": c.idle_j,
        f"energy_j_{_CARD}": c.both_j,
        f"time_s_{_CARD}": c.time_s,
        f"tokens_per_j_{_CARD}": run.tokens_per_j_with_card,
        f"j_per_sample_{_CARD}": run.j_per_sample_with_card,
        f"samples_per_s_{_CARD}": run.samples_per_s_with_card,
        f"bubble_{_CARD}": run.bubble_with_card,
    }


def _targets(result: BenchResult, run: RunFigures) -> Iterator[tuple[str, object]]:
    for target in result.targets:
        point = first_reached(run, target)
        name = target.measure
        yield f"{name}_target", target.value
        if point is None:
            continue
        yield f"{name}_target_s_measured", point.time_s
        if point.provenance is not None:
            yield f"{name}_target_j_{point.provenance}", point.energy_j
        yield f"{name}_target_s_{_CARD}", point.with_card_s
        yield f"{name}_target_j_{_CARD}", point.with_card_j
