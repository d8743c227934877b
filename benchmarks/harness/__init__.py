"""What every benchmark script shares: command line, figures and their tables, arms in turns."""

from benchmarks.harness.command import run_benchmark
from benchmarks.harness.figures import Figure, Target
from benchmarks.harness.rounds import in_turns
from benchmarks.harness.table import FigureTable

__all__ = ["Figure", "FigureTable", "Target", "in_turns", "run_benchmark"]
