"""The EcoRL-Sched paper's scheduler claims beside our simulator: figures, and a table to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.table import Table

from benchmarks.harness.figures import Figure, missing
from benchmarks.studies.papers.printed import CLAIMS, Claim
from benchmarks.studies.papers.printed_figures import printed_figures
from benchmarks.studies.papers.simulated import Outcome, Outcomes, simulate
from benchmarks.studies.papers.slips import Slip, slips
from benchmarks.studies.papers.systems import Passes, PolicyMaker
from ecorl.bench.stats import spread_of
from ecorl.files import write_whole
from ecorl.records import Provenance
from ecorl.sim.scenario import SimCalibration

CALIBRATIONS: tuple[SimCalibration, ...] = ("paper", "roofline")

FULL = Passes()
QUICK = Passes(n_episodes=2, n_sweep=1, n_iterations=6, card_counts=(0, 1, 4, 8), n_lengths=21)

HOW = (
    "EcoRL-Sched stands here for RLHFuse's stage order with the best placement of every iteration, "
    "chosen with its lengths known: least energy for figures of energy, least time for figures of "
    "time. No placement of reward and reference does better on that order. Headline figures and "
    "the last rung of the ladder have the adaptive batch too. Rows 'the policy in the placement "
    "simulator' show the policy under test on DeepSpeed-Chat's order."
)


class ClaimsReport(NamedTuple):
    """Simulated outcomes of the claims, and the slips among the printed figures.

    Attributes:
        outcomes: by calibration and claim.
        slips: printed figures against one another.
    """

    outcomes: Mapping[str, Outcomes]
    slips: tuple[Slip, ...]


def report(passes: Passes, make_policy: PolicyMaker) -> ClaimsReport:
    """Simulate every claim under both calibrations.

    Args:
        passes: how much is played.
        make_policy: makes the policy under test for the episodes of a trace.
    """
    found: dict[str, Outcomes] = {c: simulate(c, passes, make_policy) for c in CALIBRATIONS}
    return ClaimsReport(found, slips())


def figures(found: ClaimsReport) -> list[Figure]:
    """All figures: printed ones are published, ours modelled, and never in the same figure."""
    made: list[Figure] = []
    for claim in CLAIMS:
        made += printed_figures("paper", claim, "the paper")
        for calibration, outcomes in found.outcomes.items():
            made.append(_simulated(claim, calibration, outcomes[claim.id]))
    for slip in found.slips:
        for name, value, note in (
            ("printed", slip.printed, slip.text),
            ("derived", slip.derived, f"from the paper's other figures: {slip.why}"),
        ):
            id = f"paper.slip_{slip.id}.{name}"
            made.append(Figure(id, value, slip.unit, Provenance.PUBLISHED, note=note))
    return made


def _simulated(claim: Claim, calibration: str, outcome: Outcome) -> Figure:
    id = f"paper.{claim.id}.{calibration}"
    if outcome.value is None:
        return missing(id, claim.unit, outcome.note)
    note = "; ".join(part for part in (claim.text, outcome.note, claim.why) if part)
    spread = spread_of(outcome.values) if len(outcome.values) > 1 else None
    return Figure(id, outcome.value, claim.unit, Provenance.MODELLED, spread, note=note)


_HEAD = ("claim", "printed", "under paper", "under roofline", "why")
_SLIP_HEAD = ("printed figure", "printed", "from its other figures", "how")


def claim_rows(found: ClaimsReport) -> list[tuple[str, ...]]:
    """Rows of the table of claims, in words."""
    return [
        (
            claim.text,
            _printed_words(claim),
            *(_words(found.outcomes[c][claim.id].value, claim.unit) for c in CALIBRATIONS),
            _why(claim, [found.outcomes[c][claim.id] for c in CALIBRATIONS]),
        )
        for claim in CLAIMS
    ]


def slip_rows(found: ClaimsReport) -> list[tuple[str, ...]]:
    """Rows of the table of slips, in words."""
    return [
        (s.text, _words(s.printed, s.unit), _words(s.derived, s.unit), s.why) for s in found.slips
    ]


def _why(claim: Claim, outcomes: Sequence[Outcome]) -> str:
    notes = [
        f"Under {c}: {o.note}."
        for c, o in zip(CALIBRATIONS, outcomes, strict=True)
        if o.value is None or o.in_table
    ]
    return " ".join([claim.why, *notes])


def _printed_words(claim: Claim) -> str:
    if claim.printed is None:
        return "no figure"
    if isinstance(claim.printed, tuple):
        low, high = claim.printed
        return f"{low:g} to {high:g}"
    return _words(claim.printed, claim.unit)


def _words(value: float | None, unit: str) -> str:
    if value is None:
        return "none"
    return f"{value:.4g}" if unit == "1" else f"{value:.4g} {unit}"


def tables(found: ClaimsReport) -> tuple[Table, Table]:
    """Both tables for a terminal."""
    made = []
    for title, head, rows in (
        ("Scheduler claims of the EcoRL-Sched paper", _HEAD, claim_rows(found)),
        ("Its printed figures against one another", _SLIP_HEAD, slip_rows(found)),
    ):
        table = Table(title=title, show_lines=True)
        for name in head:
            table.add_column(name)
        for row in rows:
            table.add_row(*row)
        made.append(table)
    return made[0], made[1]


def markdown(found: ClaimsReport, setting: str) -> str:
    """Both tables as Markdown.

    Args:
        found: what was found.
        setting: one line on what was run.
    """
    lines = ["# Scheduler claims of the EcoRL-Sched paper", ""]
    lines += ["Printed values are published; the other columns are modelled by our simulator.", ""]
    lines += [setting, "", HOW, "", *_markdown_table(_HEAD, claim_rows(found))]
    lines += ["", "## Its printed figures against one another", ""]
    lines += ["Both columns come from what the paper prints.", ""]
    lines += _markdown_table(_SLIP_HEAD, slip_rows(found))
    return "\n".join(lines) + "\n"


def _markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return [line(head), line(["---"] * len(head)), *(line(row) for row in rows)]


def write_markdown(text: str, path: Path) -> None:
    """Write a table; the file is whole or not there.

    Args:
        text: Markdown.
        path: of the file; folders are made.

    Raises:
        OSError: when the folder cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text)
