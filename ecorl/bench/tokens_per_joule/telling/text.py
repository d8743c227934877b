"""The result on the terminal, in 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from ecorl.bench.tokens_per_joule.result import BenchResult
from ecorl.bench.tokens_per_joule.telling.tables import sections
from ecorl.bench.tokens_per_joule.telling.verdict import missing, notes, verdict
from ecorl.report.render.lines import CAPTION, GAP, Section, aligned, readable_width, wrapped

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
