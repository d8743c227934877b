"""`write_comparison`: from two run folders to the terminal, the page and the JSON."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ecorl.html.pages import render
from ecorl.ledger import LedgerReader
from ecorl.report.aggregate import build_report
from ecorl.report.comparison.compare import Comparison, compare
from ecorl.report.comparison.sections import comparison_data, sections, verdict
from ecorl.report.render.lines import Section, aligned, readable_width, visible, wrapped
from ecorl.report.render.page import shown
from ecorl.report.run_config import read_config
from ecorl.report.sharing.files import is_written
from ecorl.report.sharing.summary import RunSummary, summarise

logger = logging.getLogger(__name__)

HTML_FILE, JSON_FILE = "comparison_report.html", "comparison_report.json"


def read_summary(run_dir: Path) -> RunSummary:
    """Read the figures of a run that are handed on.

    Args:
        run_dir: its folder, or the ledger in it.

    Raises:
        RunError: when there is no ledger.
        LedgerError: when it is damaged.
    """
    with LedgerReader(run_dir) as reader:
        known = read_config(reader.run(), run_dir.parent if run_dir.is_file() else run_dir)
        return summarise(build_report(reader, known), reader, known)


def write_comparison(baseline: Path, other: Path, console: Console) -> Path | None:
    """Print the comparison, and write page and JSON into the other run's folder.

    Args:
        baseline: folder of the run that the other one is held against.
        other: folder of the other run.
        console: where the tables go.

    Returns:
        The page, or None when it could not be written.

    Raises:
        RunError: when a folder holds no ledger.
        LedgerError: when one is damaged.
    """
    found = compare(read_summary(baseline), read_summary(other))
    titles = (str(baseline), str(other))
    try:
        print_comparison(found, titles, console)
    finally:  # whoever reads the text may leave early (`| head`): the files come all the same
        folder = other.parent if other.is_file() else other
        written = is_written(folder / HTML_FILE, render_comparison(found, titles), logger)
        data = json.dumps(comparison_data(found), indent=2) + "\n"
        is_written(folder / JSON_FILE, data, logger)
    return folder / HTML_FILE if written else None


def render_comparison(c: Comparison, titles: tuple[str, str]) -> str:
    """The page as text.

    Args:
        c: the comparison.
        titles: what to call the two runs.
    """
    return render(
        __package__,
        "comparison.html",
        finalize=shown,
        first=c.baseline.run_id,
        other=c.other.run_id,
        facts=list(zip(("first", "other"), titles, strict=True)),
        verdict=verdict(c),
        sections=sections(c),
    )


def print_comparison(c: Comparison, titles: tuple[str, str], console: Console) -> None:
    """Print the comparison.

    Args:
        c: the comparison.
        titles: what to call the two runs.
        console: where to.
    """
    width = readable_width(console.width)
    lines = [f"first  {visible(titles[0])}", f"other  {visible(titles[1])}", ""]
    for sentence in verdict(c):
        lines += wrapped(sentence, width, "- ")
    for section in sections(c):
        lines += ["", section.title, *_section_lines(section, width)]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _section_lines(section: Section, width: int) -> list[str]:
    lines: list[str] = []
    if section.lead:
        lines += wrapped(section.lead, width)
    for t in section.tables:
        if t.caption:
            lines.append(f"  # {t.caption}")
        text = [i for i, is_number in enumerate(t.numeric) if not is_number]
        rows: Sequence[Sequence[str]] = [t.columns, *t.rows]
        lines += aligned(rows, text_columns=text, indent="  ")
    return lines
