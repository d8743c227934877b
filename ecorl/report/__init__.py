"""The report of a run: what it spent, where, and whether offloading paid.

`write_report` reads a run folder, prints the tables and leaves ``report.html`` (one self-contained
page) and ``report.json`` (all figures with their provenance) in it. It works on a finished, a live
and a killed run, and says what is missing.
"""

from ecorl.report.aggregate import build_report
from ecorl.report.model import Report
from ecorl.report.run_config import RunConfig, read_config
from ecorl.report.write import write_report

__all__ = ["Report", "RunConfig", "build_report", "read_config", "write_report"]
