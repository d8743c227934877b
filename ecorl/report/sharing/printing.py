"""What `ecorl report RUN --model-card` and `--annex-xi` print."""

from __future__ import annotations

from pathlib import Path

from ecorl.ledger import LedgerReader
from ecorl.report.aggregate import build_report
from ecorl.report.run_config import read_config
from ecorl.report.sharing.annex_xi import annex_xi
from ecorl.report.sharing.model_card import model_card as card_of
from ecorl.report.sharing.summary import summarise


def printed(run_dir: Path, *, model_card: bool) -> str:
    """The text about a run.

    Args:
        run_dir: its folder, or the ledger in it.
        model_card: the block of a model card; else the energy part of Annex XI.

    Raises:
        RunError: when there is no ledger.
        LedgerError: when it is damaged.
    """
    with LedgerReader(run_dir) as reader:
        known = read_config(reader.run(), run_dir.parent if run_dir.is_file() else run_dir)
        report = build_report(reader, known)
        summary = summarise(report, reader, known)
    if model_card:
        return card_of(summary)
    return annex_xi(summary, report.telemetry, report.spending.covered_share)
