"""Claims about carbon beside what follows from their inputs and what ecorl finds, as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from rich.table import Table

from benchmarks.harness.figures import Figure, missing
from benchmarks.studies.papers.carbon_derived import derived
from benchmarks.studies.papers.carbon_found import GridFindings, find
from benchmarks.studies.papers.carbon_printed import CLAIMS, SOURCES, CarbonClaim, Source, Training
from benchmarks.studies.papers.control_derived import control_derived
from benchmarks.studies.papers.control_found import BOX_S, control_found, modelled
from benchmarks.studies.papers.printed_figures import printed_figures
from ecorl.carbon.series import Series
from ecorl.files import write_whole
from ecorl.records import Provenance

FOLLOWS = 0.005
"""A printed figure follows from its inputs within this relative difference: it has two or three
digits."""

NOT_TRAINED: Mapping[Training, str] = MappingProxyType(
    {
        "accumulation": "see the example: it takes a training loop, which this benchmark does not "
        "run",
        "gears": "benchmarks.trainer trains for it; no result of it is kept for this device",
    }
)
"""Why there is no figure of a claim, by what it needs."""

_TRAINED: Mapping[Training, Provenance] = MappingProxyType(
    # A CPU rounds as FP8 does, and computes in another format.
    {"accumulation": Provenance.MEASURED, "gears": Provenance.EMULATED}
)

_NOT_HERE: Mapping[Training, str] = MappingProxyType(
    {"accumulation": "see the example", "gears": "see benchmarks.trainer"}
)

NO_TRAINING: Mapping[str, float] = MappingProxyType({})
"""No figures of trainings."""

_NOTHING = GridFindings(None, MappingProxyType({}))

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
        derived: what follows from the printed inputs, by claim.
        found: what ecorl finds, by claim.
        trained: what trainings with accumulation and with gears gave, by claim.
        n_starts: number of starts of the trainings that controllers played, by grid.
    """

    derived: Mapping[str, float]
    found: Mapping[str, GridFindings]
    trained: Mapping[str, float]
    n_starts: Mapping[str, int]

    def ours(self, claim: CarbonClaim) -> float | None:
        """What ecorl finds for a claim without a recording, or None."""
        if claim.needs_training:
            return self.trained.get(claim.id)
        return self.found.get(claim.id, _NOTHING).ours

    def grids(self, claim: CarbonClaim) -> Mapping[str, float]:
        """What ecorl finds for a claim in each recording that it is about."""
        grids = self.found.get(claim.id, _NOTHING).grids
        only = claim.only_grids
        return {name: value for name, value in grids.items() if not only or name in only}

    def is_untested(self, claim: CarbonClaim) -> bool:
        """Whether a claim cannot be tested here, for the reason that it has."""
        return bool(claim.not_tested) and self.ours(claim) is None and not self.grids(claim)


def report(
    grids: Mapping[str, Series],
    trained: Mapping[str, float] = NO_TRAINING,
    *,
    box_s: float = BOX_S,
    is_quick: bool = False,
) -> CarbonReport:
    """Recompute every claim.

    Args:
        grids: recorded intensities by grid, g/kWh; none leaves that column empty.
        trained: measured figures of the claims that need a training loop, by claim.
        box_s: about how long playing trainings along the grids may take, s.
        is_quick: play fewer and shorter ones.
    """
    ours, played = modelled(), control_found(grids, box_s, is_quick=is_quick)
    control = {
        id: GridFindings(ours.get(id), played.by_claim.get(id, {}))
        for id in dict.fromkeys([*ours, *played.by_claim])
    }
    all_derived = derived() | control_derived()
    return CarbonReport(all_derived, find(grids) | control, trained, played.n_starts)


def figures(found: CarbonReport) -> list[Figure]:
    """All figures; those of different provenance are different figures."""
    made: list[Figure] = []
    for claim in CLAIMS:
        made += printed_figures("paper_carbon", claim, "the source")
        id = f"paper_carbon.{claim.id}"
        value = found.derived.get(claim.id)
        if value is not None:
            note = f"from the source's other figures: {claim.why}"
            made.append(Figure(f"{id}.derived", value, claim.unit, Provenance.PUBLISHED, note=note))
        made += _ours(claim, found)
        for name, of_grid in found.grids(claim).items():
            note = f"{claim.text}, {name}: {claim.why}"
            made.append(
                Figure(f"{id}.grid_{name}", of_grid, claim.unit, Provenance.REPLAYED, note=note)
            )
    return made


def _ours(claim: CarbonClaim, found: CarbonReport) -> list[Figure]:
    id, value = f"paper_carbon.{claim.id}.ours", found.ours(claim)
    if found.is_untested(claim):
        return [missing(id, claim.unit, claim.not_tested)]
    if value is None:
        need = claim.needs_training
        return [missing(id, claim.unit, NOT_TRAINED[need])] if need else []
    provenance = _TRAINED.get(claim.needs_training, Provenance.MODELLED)
    return [Figure(id, value, claim.unit, provenance, note=f"{claim.text}: {claim.why}")]


_HEAD = ("claim", "printed", "from its inputs", "off by", "ecorl", "grids", "why")


def rows(found: CarbonReport, source: Source) -> list[tuple[str, ...]]:
    """Rows of the table of one source, in words.

    Args:
        found: what stands beside the claims.
        source: whose claims.
    """
    return [_row(claim, found) for claim in CLAIMS if claim.source == source]


def _row(claim: CarbonClaim, found: CarbonReport) -> tuple[str, ...]:
    value, ours = found.derived.get(claim.id), found.ours(claim)
    if claim.needs_training and ours is None:
        by_ecorl = _NOT_HERE[claim.needs_training]
    elif found.is_untested(claim):
        by_ecorl = f"not tested: {claim.not_tested}"
    else:
        by_ecorl = "" if ours is None else _words(ours, claim.unit)
    return (
        claim.text,
        _printed_words(claim),
        "" if value is None else _words(value, claim.unit),
        off_by(claim.printed, value),
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


def _printed_words(claim: CarbonClaim) -> str:
    if claim.printed is None:
        return "no figure"
    if isinstance(claim.printed, tuple):
        return f"{claim.printed[0]:g} to {claim.printed[1]:g}"
    return _words(claim.printed, claim.unit)


def _words(value: float, unit: str) -> str:
    return _number(value) if unit == "1" else f"{_number(value)} {unit}"


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def tables(found: CarbonReport) -> list[Table]:
    """One table a source, for a terminal."""
    made = []
    for source, title in SOURCES.items():
        table = Table(title=f"Claims about carbon: {title}", show_lines=True)
        for name in _HEAD:
            table.add_column(name, ratio=4 if name == "why" else None)
        for row in rows(found, source):
            table.add_row(*row)
        made.append(table)
    return made


def markdown(found: CarbonReport, setting: str) -> str:
    """All tables as Markdown.

    Args:
        found: what stands beside the claims.
        setting: one line on what was run.
    """
    lines = ["# Claims about carbon", "", setting, "", HOW]
    for source, title in SOURCES.items():
        lines += ["", f"## {title}", "", _line(_HEAD), _line(["---"] * len(_HEAD))]
        lines += [_line(row) for row in rows(found, source)]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def write_tables(text: str, path: Path) -> None:
    """Write the tables; the file is whole or not there.

    Args:
        text: Markdown.
        path: of the file; folders are made.

    Raises:
        OSError: when the folder cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text)
