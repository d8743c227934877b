"""Runs a plan, reads what came of it, and writes the results: all that a command needs."""

from __future__ import annotations

import contextlib

from ecorl.bench.tokens_per_joule.plan import BenchPlan
from ecorl.bench.tokens_per_joule.reading.results import read_folder
from ecorl.bench.tokens_per_joule.result import BenchResult, result_json
from ecorl.bench.tokens_per_joule.running.folder import (
    CSV_FILE,
    HTML_FILE,
    JSON_FILE,
    BenchFolder,
)
from ecorl.bench.tokens_per_joule.running.session import Say, run_session
from ecorl.bench.tokens_per_joule.telling.csv_file import result_csv
from ecorl.bench.tokens_per_joule.telling.page import render_page
from ecorl.errors import EcorlError


def run_plan(
    plan: BenchPlan, folder: BenchFolder, say: Say, box_s: float | None = None
) -> BenchResult:
    """Run what is not done yet of a plan, and write the results of all that is.

    Args:
        plan: what is to be run.
        folder: of the benchmark.
        say: shows a line of progress.
        box_s: time up to the end of the rounds, s; None for no limit.

    Raises:
        UserError: for a config, a file or a folder that cannot be used.
        KeyboardInterrupt: when Ctrl-C came.

    After an error and after Ctrl-C too, the results of what has finished are written.
    """
    try:
        run_session(plan, folder, say, box_s)
    except (KeyboardInterrupt, EcorlError):
        # A full disk, or a folder that was not begun, is told of by the first error.
        with contextlib.suppress(EcorlError):
            if folder.holds_runs:
                write_results(folder, read_folder(folder))
        raise
    result = read_folder(folder)
    write_results(folder, result)
    return result


def write_results(folder: BenchFolder, result: BenchResult) -> None:
    """Write JSON, CSV and page.

    Args:
        folder: in which they go.
        result: of the benchmark.

    Raises:
        RunError: when a file cannot be written.
    """
    folder.write(JSON_FILE, result_json(result))
    folder.write(CSV_FILE, result_csv(result))
    folder.write(HTML_FILE, render_page(result))
