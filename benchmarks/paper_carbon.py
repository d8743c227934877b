"""What becomes of four sources' claims about carbon?

Each printed figure of a blog post on carbon-aware training, of the EcoRL-Sched paper's carbon
sections, of CarbonGearRL and of Eco-Orchestrator, beside what follows from the same source's own
inputs, beside what ecorl finds by its made-up day or a model, and by recorded grids where
``--traces`` or ``ECORL_TRACES`` names some; and why they differ, or that they do not. Along the
grids, ecorl's controllers play the study's training in epochs of an hour, from three starts or,
where the time does not suffice, from fewer, which the tables tell; and CARL's jobs all through the
year. No target: these are figures of others. Claims about memory and accuracy need trainings,
which ``--train`` makes: the example classifier with 1, 2, 4 and 8 backward passes a step, about a
minute; what trainings without gamma give comes from the kept result of ``benchmarks.trainer``.
Beside the JSON stands the same as Markdown tables.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from benchmarks.harness.command import default_path, run_benchmark
from benchmarks.harness.figures import Figure
from benchmarks.studies.carbon.traces import WHY_MISSING, add_traces_option, recorded_grids
from benchmarks.studies.papers.carbon_claims import figures, markdown, report, tables, write_tables
from benchmarks.studies.papers.control_found import BOX_S
from benchmarks.studies.papers.gears_found import gears_found
from ecorl.bench.machine import describe_machine
from ecorl.errors import ConfigError

NAME = "paper_carbon"
TABLE_WIDTH = 180


def measure(options: argparse.Namespace) -> tuple[dict[str, object], list[Figure]]:
    """Measure; returns the settings that the figures depend on, and the figures."""
    traces = recorded_grids(options)
    gears = gears_found(default_path("trainer", describe_machine().slug))
    trained = {**gears.by_claim, **(trained_claims() if options.train else {})}
    recorded = {name: trace.series for name, trace in traces.items()}
    box_s = options.box_s or BOX_S
    found = report(recorded, trained, box_s=box_s, is_quick=options.quick)
    console = Console(width=TABLE_WIDTH)
    for table in tables(found):
        console.print(table)
    files = [trace.path.name for trace in traces.values()]
    setting = f"Grids: {', '.join(files)}." if files else f"Grids: {WHY_MISSING}."
    if found.n_starts:
        told = ", ".join(f"{name} {n}" for name, n in found.n_starts.items())
        setting += f" Starts of the controllers' trainings: {told}."
    setting += f" {gears.source}" if gears.source else ""
    json = options.json or (None if options.quick else default_path(NAME, describe_machine().slug))
    if json is not None:
        path = json.with_suffix(".md")
        try:
            write_tables(markdown(found, setting), path)
        except OSError as error:
            raise ConfigError("--json", str(path), f"a place to write to ({error})") from error
        print(f"written: {path}")
    return {"traces": files, "n_starts": dict(found.n_starts)}, figures(found)


def trained_claims() -> dict[str, float]:
    """Memory, accuracy and loss of the example's trainings, by claim; memory is what the resident
    memory of the process rises by, which is of the training alone.
    """
    from roll_adapters.examples.classifier import train_all

    with tempfile.TemporaryDirectory() as folder:
        first, *others = train_all(Path(folder))
    found = {}
    for run in others:
        if first.host_rise_bytes and run.host_rise_bytes is not None:
            share = 1.0 - run.host_rise_bytes / first.host_rise_bytes
            found[f"memory_{run.accumulation_steps}"] = share
    found["accuracy"] = max(-run.gain_over(first)[0] for run in others)
    found["loss"] = max(abs(run.final_loss / first.final_loss - 1.0) for run in others)
    return found


def options(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's own options."""
    add_traces_option(parser)
    parser.add_argument("--train", action="store_true", help="train for the claims that need it")


if __name__ == "__main__":
    sys.exit(run_benchmark(NAME, measure, options=options))
