"""`write_report`: from a run folder to the page, the JSON and the terminal."""

from __future__ import annotations

import os
from pathlib import Path

from rich.console import Console

from ecorl.errors import RunError
from ecorl.ledger import LedgerReader
from ecorl.report.aggregate import build_report, read_config
from ecorl.report.html import render_html, render_json
from ecorl.report.text import print_report

HTML_FILE = "report.html"
JSON_FILE = "report.json"


def write_report(run_dir: Path, *, console: Console) -> Path:
    """Write ``report.html`` and ``report.json`` into a run folder and print the text.

    Args:
        run_dir: folder of a finished, live or killed run.
        console: where the tables go.

    Returns:
        Path of the page.

    Raises:
        RunError: when the folder holds no ledger or cannot be written.
        LedgerError: when the ledger is damaged.
    """
    run_dir = Path(run_dir)
    config, gap = read_config(run_dir)
    with LedgerReader(run_dir) as reader:
        report = build_report(reader, config, gap)
    page = run_dir / HTML_FILE
    _replace(page, render_html(report))
    _replace(run_dir / JSON_FILE, render_json(report))
    print_report(report, console)
    return page


def _replace(path: Path, text: str) -> None:
    """Write beside and rename, so that no reader meets half a file."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(path)
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error})") from error
