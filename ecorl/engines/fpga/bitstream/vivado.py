"""Reports of Vivado after place and route: timing summary and utilisation, in their text form.

The figures are the tool's for the routed design.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ecorl.errors import SynthesisReportError

_TIMING_TITLE = "Design Timing Summary"
_SLACKS = ("WNS(ns)", "TNS(ns)", "WHS(ns)", "THS(ns)")
_VERDICTS = {
    "All user specified timing constraints are met.": True,
    "Timing constraints are not met.": False,
}
_SITES = {
    "lut": "CLB LUTs",
    "register": "CLB Registers",
    "bram_tile": "Block RAM Tile",
    "uram": "URAM",
    "dsp": "DSPs",
}


@dataclass(frozen=True, slots=True)
class TimingSummary:
    """Slacks of a design; negative means that a path is too slow (setup) or too fast (hold).

    Attributes:
        wns_ns: worst setup slack, ns; None where no path is constrained.
        tns_ns: sum of the negative setup slacks, ns.
        whs_ns: worst hold slack, ns.
        ths_ns: sum of the negative hold slacks, ns.
        is_met: the tool's verdict; None where it gives none, as without constraints.
    """

    wns_ns: float | None
    tns_ns: float | None
    whs_ns: float | None
    ths_ns: float | None
    is_met: bool | None


@dataclass(frozen=True, slots=True)
class SiteUse:
    """One kind of site: used (a block RAM tile may be half used), on the part, and share in %."""

    used: float | None
    available: float | None
    percent: float | None


@dataclass(frozen=True, slots=True)
class Utilisation:
    """Sites used by a design; None for a kind that the report leaves out."""

    lut: SiteUse | None
    register: SiteUse | None
    bram_tile: SiteUse | None
    uram: SiteUse | None
    dsp: SiteUse | None


def read_timing(path: Path) -> TimingSummary:
    """Read the text of ``report_timing_summary``.

    Raises:
        SynthesisReportError: the file cannot be read, has no summary, or it is cut off or damaged.
    """
    lines = _lines(path)
    titles = [i for i, line in enumerate(lines) if line.strip("| ") == _TIMING_TITLE]
    if not titles:
        raise SynthesisReportError(f"{path}: no table {_TIMING_TITLE!r}")
    filled = [line.strip() for line in lines[titles[0] + 1 :] if line.strip("-| \t")]
    if len(filled) < 2 or not filled[0].startswith("WNS(ns)"):
        raise SynthesisReportError(f"{path}: the table {_TIMING_TITLE!r} is cut off")
    names, values = re.split(r"\s{2,}", filled[0]), filled[1].split()
    if len(values) != len(names):
        raise SynthesisReportError(
            f"{path}: the table {_TIMING_TITLE!r} has {len(names)} columns and {len(values)} values"
        )
    row = dict(zip(names, values, strict=True))
    wns_ns, tns_ns, whs_ns, ths_ns = (_number(path, name, row.get(name, "")) for name in _SLACKS)
    is_met = next((_VERDICTS[line] for line in filled[2:] if line in _VERDICTS), None)
    return TimingSummary(wns_ns, tns_ns, whs_ns, ths_ns, is_met)


def read_utilisation(path: Path) -> Utilisation:
    """Read the text of ``report_utilization`` (the flat one, with a column "Site Type").

    Raises:
        SynthesisReportError: the file cannot be read, has no such table, or a row is damaged.
    """
    rows: dict[str, SiteUse] = {}
    names: list[str] | None = None
    n_tables, line = 0, ""
    for number, line in enumerate(_lines(path), start=1):
        if not line.startswith("|"):
            names = names if line.startswith("+") else None  # anything else ends a table
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if cells[0] == "Site Type":
            names, n_tables = cells, n_tables + 1
        elif names is not None:
            if len(cells) != len(names) or not line.rstrip().endswith("|"):
                raise SynthesisReportError(f"{path}:{number}: a row of {len(names)} cells is cut")
            row = dict(zip(names, cells, strict=True))
            rows.setdefault(cells[0].rstrip("*"), _site_use(path, row))
    if names is not None and line.startswith("|"):
        raise SynthesisReportError(f"{path}: cut off inside a table")
    if n_tables == 0:
        raise SynthesisReportError(f"{path}: no table with a column 'Site Type'")
    return Utilisation(**{field: rows.get(site) for field, site in _SITES.items()})


def _site_use(path: Path, row: dict[str, str]) -> SiteUse:
    """Numbers of one row; a share printed as ``<0.01`` is worked out."""
    where = row["Site Type"]
    used = _number(path, where, row.get("Used", ""))
    available = _number(path, where, row.get("Available", ""))
    printed = row.get("Util%", "")
    if printed.startswith("<"):
        percent = 100 * used / available if used is not None and available else None
    else:
        percent = _number(path, where, printed)
    return SiteUse(used, available, percent)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise SynthesisReportError(f"{path} cannot be read: {error.strerror}") from error


def _number(path: Path, where: str, text: str) -> float | None:
    """A number, or None for an empty cell or NA."""
    if text in {"", "NA", "N/A", "-"}:
        return None
    if not re.fullmatch(r"-?\d+(\.\d+)?", text):
        raise SynthesisReportError(f"{path}: {where} = {text!r}: allowed is a number")
    return float(text)
