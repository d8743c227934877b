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
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.harness import Figure, run_benchmark
from benchmarks.harness.command import default_path
from benchmarks.studies.carbon.traces import WHY_MISSING, add_traces_option, recorded_grids
from benchmarks.studies.papers.carbon_claims import CLAIMS, SOURCES
from benchmarks.studies.papers.carbon_found import along_grids, without_grids
from benchmarks.studies.papers.claims import (
    FIGURES,
    Claim,
    ClaimTable,
    printed_words,
    publish,
    published,
    with_unit,
)
from benchmarks.studies.papers.control_found import BOX_S, control_found, modelled
from ecorl.bench.machine import describe_machine
from ecorl.carbon.series import Series
from ecorl.records import Provenance

NAME = "paper_carbon"
TABLE_WIDTH = 180

FOLLOWS = 0.005
"""A printed figure follows from its inputs within this relative difference: it has two or three
digits."""

NOT_TRAINED = {
    "accumulation": "see the example: it takes a training loop, which this benchmark does not run",
    "gears": "benchmarks.trainer trains for it; no result of it is kept for this device",
}
"""Why there is no figure of a claim, by what it needs."""

_NOT_HERE = {"accumulation": "see the example", "gears": "see benchmarks.trainer"}

_OURS = {
    "": Provenance.MODELLED,
    "accumulation": Provenance.MEASURED,
    "gears": Provenance.EMULATED,  # a CPU rounds as FP8 does, and computes in another format
}
"""Provenance of ecorl's figures, by what a claim needs."""

_OF_TRAINER = {
    "gear_variance": "norm_variance_ratio",
    "gear_perplexity_13b": "perplexity_ratio",
    "gear_perplexity_70b": "perplexity_ratio",
}
"""What of the spread of the kept figure of ``benchmarks.trainer`` stands beside a claim."""

HOW = (
    "'From its inputs' is what the same source's other figures give, with nothing of ecorl in it, "
    "and 'off by' is how far that lies from the printed figure. "
    "'ecorl' is modelled: by its made-up day, which has the extremes of the blog's mock data, or "
    "as the last column says, or, of trainings, measured, those in simulated FP8 emulated. "
    "'Grids' are recordings, along which jobs and trainings are played; "
    "jobs draw constant power. All intensities are averages, for inventories."
)


class CarbonReport(NamedTuple):
    """All that is set beside the claims.

    Attributes:
        ours: what ecorl finds without a recording, by claim; trainings included.
        by_grid: what it finds along recordings, by grid and claim.
        n_starts: number of starts of the trainings that controllers played, by grid.
    """

    ours: Mapping[str, float]
    by_grid: Mapping[str, Mapping[str, float]]
    n_starts: Mapping[str, int]

    def grids(self, claim: Claim) -> dict[str, float]:
        """What ecorl finds for a claim in each recording that it is about."""
        return {
            name: found[claim.id]
            for name, found in self.by_grid.items()
            if claim.id in found and (not claim.only_grids or name in claim.only_grids)
        }

    def is_untested(self, claim: Claim) -> bool:
        """Whether a claim cannot be tested here, for the reason that it has."""
        return bool(claim.not_tested) and claim.id not in self.ours and not self.grids(claim)


def measure(options: argparse.Namespace) -> tuple[dict[str, object], list[Figure]]:
    """Measure; returns the settings that the figures depend on, and the figures."""
    traces = recorded_grids(options)
    by_gears, told = gears_found(default_path("trainer", describe_machine().slug))
    trained = {**by_gears, **(trained_claims() if options.train else {})}
    recorded = {name: trace.series for name, trace in traces.items()}
    found = report(recorded, trained, box_s=options.box_s or BOX_S, is_quick=options.quick)
    files = [trace.path.name for trace in traces.values()]
    setting = f"Grids: {', '.join(files) or WHY_MISSING}."
    if found.n_starts:
        starts = ", ".join(f"{name} {n}" for name, n in found.n_starts.items())
        setting += f" Starts of the controllers' trainings: {starts}."
    setting += f" {told}" if told else ""
    publish(NAME, document(found, setting), options, TABLE_WIDTH)
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


def gears_found(path: Path) -> tuple[dict[str, float], str]:
    """What trainings without gamma gave over those with it, out of the kept result of a trainer.

    The trainings take half a minute and are those of ``benchmarks.trainer``: they are not made
    twice.

    Args:
        path: of the result; where there is none, or none of these figures in it, nothing is found.

    Returns:
        Medians over the seeds by claim, and one sentence on where they come from.
    """
    try:
        result: Any = json.loads(path.read_text("utf-8"))
        figures = {figure["id"]: figure for figure in result["figures"]}
        spread = figures["optim.no_gamma_loss_ratio"]["spread"]
        by_claim = {
            claim: statistics.median(spread[name].values()) for claim, name in _OF_TRAINER.items()
        }
        n_steps, commit = result["config"]["recipe"]["n_steps"], result["commit"]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}, ""
    made_by = commit or "an unknown commit"
    return by_claim, (
        f"Trainings with gears: {path.name} of this device, {n_steps} steps, commit {made_by}."
    )


def report(
    grids: Mapping[str, Series],
    trained: Mapping[str, float] | None = None,
    *,
    box_s: float = BOX_S,
    is_quick: bool = False,
) -> CarbonReport:
    """Recompute every claim.

    Args:
        grids: recorded intensities by grid, g/kWh; none leaves that column empty.
        trained: figures of the claims that need a training, by claim.
        box_s: about how long playing trainings along the grids may take, s.
        is_quick: play fewer and shorter ones.
    """
    ours = without_grids() | modelled() | dict(trained or {})
    alone = along_grids(grids)
    played = control_found(grids, box_s, is_quick=is_quick)
    by_grid = {
        name: alone.get(name, {}) | (played[name][0] if name in played else {}) for name in grids
    }
    return CarbonReport(ours, by_grid, {name: n for name, (_, n) in played.items()})


def figures(found: CarbonReport) -> list[Figure]:
    """All figures; those of different provenance are different figures."""
    made: list[Figure] = []
    for claim in CLAIMS:
        made += published(NAME, claim, "the source")
        made += _ours(claim, found)
        made += [
            FIGURES.figure("paper_carbon.{claim.id}.grid_{grid}", value, claim=claim, grid=name)
            for name, value in found.grids(claim).items()
        ]
    return made


def _ours(claim: Claim, found: CarbonReport) -> list[Figure]:
    key, value, need = (
        "paper_carbon.{claim.id}.ours",
        found.ours.get(claim.id),
        claim.needs_training,
    )
    if value is not None:
        return [FIGURES.figure(key, value, provenance=_OURS[need], claim=claim)]
    why = claim.not_tested if found.is_untested(claim) else NOT_TRAINED.get(need)
    return [FIGURES.figure(key, None, why=why, claim=claim)] if why else []


def document(found: CarbonReport, setting: str) -> list[str | ClaimTable]:
    """One table a source, and what is said around them.

    Args:
        found: what stands beside the claims.
        setting: one line on what was run.
    """
    head = ("claim", "printed", "from its inputs", "off by", "ecorl", "grids", "why")
    made: list[str | ClaimTable] = ["# Claims about carbon", setting, HOW]
    for source, title in SOURCES.items():
        rows = [_row(claim, found) for claim in CLAIMS if claim.source == source]
        made += [f"## {title}", ClaimTable(f"Claims about carbon: {title}", head, rows)]
    return made


def _row(claim: Claim, found: CarbonReport) -> tuple[str, ...]:
    ours = found.ours.get(claim.id)
    by_ecorl = _NOT_HERE.get(claim.needs_training, "")
    if ours is not None:
        by_ecorl = with_unit(_number(ours), claim.unit)
    elif found.is_untested(claim):
        by_ecorl = f"not tested: {claim.not_tested}"
    return (
        claim.text,
        printed_words(claim, _number),
        "" if claim.derived is None else with_unit(_number(claim.derived), claim.unit),
        off_by(claim.printed, claim.derived),
        by_ecorl,
        ", ".join(f"{name} {_number(v)}" for name, v in found.grids(claim).items()),
        claim.why,
    )


def off_by(printed: float | tuple[float, float] | None, value: float | None) -> str:
    """How far what follows lies from what is printed, in words; empty where one is missing.

    Args:
        printed: the printed figure, or the ends of a range.
        value: what follows from the inputs.
    """
    if printed is None or value is None:
        return ""
    low, high = printed if isinstance(printed, tuple) else (printed, printed)
    nearest = min(max(value, low), high)
    if abs(value - nearest) <= FOLLOWS * abs(nearest):
        return "follows"
    if nearest == 0.0:
        return f"{value:+.3g}"
    ratio = value / nearest
    return f"{100 * (ratio - 1):+.0f} %" if 0.5 < ratio < 2 else f"x {ratio:.2g}"


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def options(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's own options."""
    add_traces_option(parser)
    parser.add_argument("--train", action="store_true", help="train for the claims that need it")


if __name__ == "__main__":
    sys.exit(run_benchmark(NAME, measure, options=options))
