"""`write_report`: from a run folder to the terminal, the page and the JSON."""

from __future__ import annotations

import logging
from pathlib import Path

from rich.console import Console

from ecorl.ledger import LedgerReader
from ecorl.report.aggregate import build_report
from ecorl.report.render.page import render_html, render_json
from ecorl.report.render.text import print_report
from ecorl.report.run_config import read_config
from ecorl.report.sharing.files import is_written, texts_of

HTML_FILE = "report.html"
JSON_FILE = "report.json"

logger = logging.getLogger(__name__)


def write_report(run_dir: Path, *, console: Console) -> Path | None:
    """Print the text, then write the report's files into the run folder.

    These are ``report.html`` and ``report.json``, and, for others to read, ``footprint.json`` and
    ``emissions.csv``.

    The text comes first: it needs no writable folder, and a file that cannot be written costs a
    warning and no more.

    Args:
        run_dir: folder of a finished, live or killed run, or the ledger in it.
        console: where the tables go.

    Returns:
        Path of the page, or None when it could not be written.

    Raises:
        RunError: when the folder holds no ledger.
        LedgerError: when the ledger is damaged.
    """
    run_dir = Path(run_dir)
    with LedgerReader(run_dir) as reader:
        if run_dir.is_file():
            run_dir = run_dir.parent
        known = read_config(reader.run(), run_dir)
        report = build_report(reader, known)
        texts = texts_of(report, reader, known)
    try:
        print_report(report, console)
    finally:  # whoever reads the text may leave early (`| head`): the files come all the same
        page = run_dir / HTML_FILE
        written = is_written(page, render_html(report), logger)
        for name, text in {JSON_FILE: render_json(report), **texts}.items():
            is_written(run_dir / name, text, logger)
    return page if written else None
