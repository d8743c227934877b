"""Synthesis reports of Vitis HLS (csynth.xml), and their check against a kernel's qor.json.

`synthesis_of` alone decides whether a kernel was synthesised: it was if its folder holds a readable
csynth.xml. Its figures are the tool's estimates before place and route. After that come the reports
of Vivado, as text: `read_timing` and `read_utilisation`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from ecorl.errors import SynthesisReportError

REPORT_NAME = "csynth.xml"
RESOURCES = ("bram_18k", "dsp", "ff", "lut", "uram")
"""Resources of a report, in the tool's units; a block RAM of 36 Kbit is two of ``bram_18k``."""

_UNKNOWN = frozenset(("", "?", "-", "undef", "n/a", "na"))


@dataclass(frozen=True, slots=True)
class Loop:
    """One loop of the report.

    Attributes:
        name: its label, or the tool's name for it; merged loops have their names joined by ``_``.
        pipeline_ii: achieved initiation interval, cycles; None for a loop without pipeline.
    """

    name: str
    pipeline_ii: int | None


@dataclass(frozen=True, slots=True)
class HlsReport:
    """Content of a csynth.xml: estimates of Vitis HLS.

    Attributes:
        path: the file.
        tool_version: release of Vitis HLS.
        top: name of the top function.
        part: device that it was made for.
        estimated_clock_ns: clock period that the tool expects to reach, ns.
        loops: of all functions, in the file's order.
        resources: units used, by the names of `RESOURCES`.
    """

    path: Path
    tool_version: str | None
    top: str
    part: str | None
    estimated_clock_ns: float | None
    loops: tuple[Loop, ...]
    resources: Mapping[str, int | None]


@dataclass(frozen=True, slots=True)
class Deviation:
    """One point in which a report falls short of qor.json.

    Attributes:
        kind: what is compared.
        name: the loop's label or the resource.
        expected: initiation interval in cycles, or the most units, or the longest period in ns.
        found: what the report has; None where it has no such figure.
    """

    kind: Literal["loop", "resource", "clock"]
    name: str
    expected: float
    found: float | None

    def __str__(self) -> str:
        found = "not in the report" if self.found is None else _plain(self.found)
        unit, bound = {
            "loop": ("initiation interval", "expected"),
            "resource": ("used", "expected at most"),
            "clock": ("estimated period in ns", "expected at most"),
        }[self.kind]
        return f"{self.name}: {unit} {found}, {bound} {_plain(self.expected)}"


def synthesis_of(folder: Path) -> HlsReport | None:
    """Read the synthesis report in a kernel's build folder; None for a kernel without synthesis.

    Args:
        folder: the work folder of one kernel, of any release's layout.

    Raises:
        SynthesisReportError: the report is damaged, or there are several.
    """
    found = sorted(path for path in folder.rglob(REPORT_NAME) if path.is_file())
    if not found:
        return None
    if len(found) > 1:
        raise SynthesisReportError(
            f"{folder} holds {len(found)} files {REPORT_NAME} ({found[0]}, {found[1]}, ...): "
            "name the folder of one kernel"
        )
    return read_csynth(found[0])


def standing(folder: Path) -> str:
    """Say in words whether the kernel in `folder` is synthesised, and by which release.

    Raises:
        SynthesisReportError: as `synthesis_of`.
    """
    report = synthesis_of(folder)
    if report is None:
        return f"not synthesised: no {REPORT_NAME} in {folder}"
    release = f" {report.tool_version}" if report.tool_version else ""
    part = f" for {report.part}" if report.part else ""
    return f"synthesised by Vitis HLS{release}{part}; its figures are estimates before placement"


def read_csynth(path: Path) -> HlsReport:
    """Read a csynth.xml.

    Raises:
        SynthesisReportError: the file cannot be read, is no whole XML, lacks a part that every
            report has, or holds a number that is none.
    """
    root = _root(path)
    top = _text(root, "UserAssignments/TopModelName")
    if top is None:
        raise SynthesisReportError(f"{path}: no <TopModelName>: not a csynth.xml, or cut off")
    for needed in ("PerformanceEstimates", "AreaEstimates/Resources"):
        if root.find(needed) is None:
            raise SynthesisReportError(f"{path}: no <{needed}>: not a csynth.xml, or cut off")
    try:
        return HlsReport(
            path=path,
            tool_version=_text(root, "ReportVersion/Version"),
            top=top,
            part=_text(root, "UserAssignments/Part"),
            estimated_clock_ns=_decimal(
                root, "PerformanceEstimates/SummaryOfTimingAnalysis/EstimatedClockPeriod"
            ),
            loops=tuple(_all_loops(root, top)),
            resources={
                name: _count(root, f"AreaEstimates/Resources/{name.upper()}") for name in RESOURCES
            },
        )
    except ValueError as error:
        raise SynthesisReportError(f"{path}: {error}") from error


def check_qor(report: HlsReport, qor: Mapping[str, Any]) -> tuple[Deviation, ...]:
    """Compare a report with a kernel's qor.json.

    A label stands for every loop of that name, also one that the tool merged with the loops around
    it; of several, the slowest counts. Resources may be below what is expected, not above.

    Args:
        report: of the kernel.
        qor: content of its qor.json: ``top``, ``loops`` (``label``, ``ii``), and where they are
            declared ``clock_mhz`` and ``count`` in ``dsp``, ``bram_18k`` and ``uram``.

    Returns:
        Points in which the report falls short; empty if none.

    Raises:
        SynthesisReportError: the report is of another kernel, or qor.json lacks a field.
    """
    try:
        top = qor["top"]
        loops = {str(loop["label"]): int(loop["ii"]) for loop in qor["loops"]}
        most = {name: int(qor[name]["count"]) for name in RESOURCES if name in qor}
        clock_ns = 1e3 / float(qor["clock_mhz"]) if "clock_mhz" in qor else None
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise SynthesisReportError(
            f"qor.json of {report.top}: a field is missing or wrong ({error!r})"
        ) from error
    if top != report.top:
        raise SynthesisReportError(
            f"{report.path}: top = {report.top!r}: allowed is {top!r}, as qor.json says"
        )
    found = [
        Deviation("loop", label, ii, achieved)
        for label, ii in loops.items()
        if (achieved := _achieved_ii(report, label)) != ii
    ]
    for name, count in most.items():
        used = report.resources[name]
        if used is None or used > count:
            found.append(Deviation("resource", name, count, used))
    period = report.estimated_clock_ns
    if clock_ns is not None and (period is None or period > clock_ns):
        found.append(Deviation("clock", "clock", clock_ns, period))
    return tuple(found)


def _plain(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:.3f}"


def _achieved_ii(report: HlsReport, label: str) -> int | None:
    """The largest interval of the loops that `label` names; None if one of them has no pipeline."""
    plain = [(re.sub(r"\.\d+$", "", loop.name), loop.pipeline_ii) for loop in report.loops]
    intervals = [ii for name, ii in plain if name == label]
    intervals = intervals or [ii for name, ii in plain if name.endswith(f"_{label}")]
    known = [ii for ii in intervals if ii is not None]
    return max(known) if known and len(known) == len(intervals) else None


def _root(path: Path) -> Element:
    try:
        return ElementTree.parse(path).getroot()
    except OSError as error:
        raise SynthesisReportError(f"{path} cannot be read: {error.strerror}") from error
    except (ElementTree.ParseError, UnicodeError, ValueError) as error:
        raise SynthesisReportError(f"{path}: no whole XML ({error})") from error


def _all_loops(root: Element, top: str) -> Iterator[Loop]:
    """The loops of every function; those of the top function are in two places of the file."""
    summary = "PerformanceEstimates/SummaryOfLoopLatency"
    modules = {top: root.find(summary)}
    for module in root.findall("ModuleInformation/Module"):
        name, loops = _text(module, "Name"), module.find(summary)
        if name is not None and loops is not None:
            modules[name] = loops
    for loops in modules.values():
        if loops is not None:
            yield from _loops(loops)


def _loops(parent: Element) -> Iterator[Loop]:
    """The loops right under an element, each followed by those inside it."""
    for child in parent:
        if child.find("TripCount") is None and child.find("Latency") is None:
            continue  # a figure of the loop around it
        name = _text(child, "Name") or child.tag
        yield Loop(name, _count(child, "PipelineII"))
        yield from _loops(child)


def _text(element: Element, path: str) -> str | None:
    """Text under a path; None where it is absent or a word for unknown."""
    text = (element.findtext(path) or "").strip()
    return None if text.lower() in _UNKNOWN else text


def _count(element: Element, path: str) -> int | None:
    text = _text(element, path)
    if text is not None and not re.fullmatch(r"\d+", text):
        raise ValueError(f"<{path}> = {text!r}: allowed is a whole number")
    return None if text is None else int(text)


def _decimal(element: Element, path: str) -> float | None:
    text = _text(element, path)
    if text is not None and not re.fullmatch(r"-?\d+(\.\d*)?", text):
        raise ValueError(f"<{path}> = {text!r}: allowed is a number")
    return None if text is None else float(text)


_TIMING_TITLE = "Design Timing Summary"
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


SiteUse = dict[str, float | None]
"""``used`` (a block RAM tile may be half used), ``available`` on the part, and ``percent``."""


def read_timing(path: Path) -> bool | None:
    """Read from the text of ``report_timing_summary`` whether a design meets its timing.

    Returns:
        The tool's verdict; None where it gives none, as without constraints.

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
    for name, value in zip(names, values, strict=True):
        _number(path, name, value)
    return next((_VERDICTS[line] for line in filled[2:] if line in _VERDICTS), None)


def read_utilisation(path: Path) -> dict[str, SiteUse]:
    """Read the text of ``report_utilization`` (the flat one, with a column "Site Type").

    Returns:
        The use of each kind of site that the report has.

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
    return {kind: rows[site] for kind, site in _SITES.items() if site in rows}


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
    return {"used": used, "available": available, "percent": percent}


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
