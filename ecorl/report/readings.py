"""Energy of a device over the whole run by its readings.

From the 1 s roll-ups, whose times and energies add up (see `ecorl.ledger.rollup`): the rise of the
device's counter where there is one, the zero-order hold of its power readings where the counter
tells nothing. Nothing is extrapolated; what is not covered is missing, and the coverage tells.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from ecorl.ledger import EnergySums, PowerSecond
from ecorl.records import Provenance, weakest
from ecorl.report.spans import Span, length
from ecorl.telemetry.check import Verdict, judge_counter, stopped_seconds

_FIGURES = tuple(field.name for field in fields(EnergySums))


@dataclass(frozen=True, slots=True)
class DeviceReadings:
    """Energy of one device over the run by its readings.

    Attributes:
        energy_j: J over the covered part; None when counter and power readings contradict each
            other.
        coverage: share of the run time that the energy covers.
        remark: what was wrong with the device's counter, or None.
    """

    device_id: str
    provenance: Provenance
    energy_j: float | None
    coverage: float
    remark: str | None = None


@dataclass(slots=True)
class _Second(EnergySums):
    """One second with its parts added up."""

    second: int = 0


@dataclass(frozen=True, slots=True)
class _SeriesEnergy:
    energy_j: float | None
    covered_s: float
    n_breaks: int
    stopped_s: float
    disputed: tuple[float, float] | None


def device_readings(
    seconds: Iterable[PowerSecond], spans: dict[int, Span]
) -> dict[str, DeviceReadings]:
    """Energy of each device over the run from its 1 s roll-ups.

    Of several series of one device in one attempt the one with most readings counts, so that
    nothing is counted twice.
    """
    series: dict[tuple[int, str, Provenance, str], list[PowerSecond]] = defaultdict(list)
    for row in seconds:
        series[row.attempt, row.device_id, row.provenance, row.source].append(row)
    best: dict[tuple[int, str], list[PowerSecond]] = {}
    for (attempt, device_id, _, _), rows in series.items():
        key = (attempt, device_id)
        if key not in best or sum(r.n for r in rows) > sum(r.n for r in best[key]):
            best[key] = rows
    found: dict[str, DeviceReadings] = {}
    for device_id in sorted({d for _, d in best}):
        own = [rows for (a, d), rows in best.items() if d == device_id and a in spans]
        sums = [(_series_energy(rows), rows[0].provenance) for rows in own]
        known = [(energy, p) for energy, p in sums if energy.covered_s > 0]
        if known:
            found[device_id] = _together(device_id, known, length(spans.values()))
    return found


def _together(
    device_id: str, known: Sequence[tuple[_SeriesEnergy, Provenance]], run_time_s: float
) -> DeviceReadings:
    """One device over its attempts."""
    parts = [energy for energy, _ in known]
    joules = [e.energy_j for e in parts if e.energy_j is not None]
    covered_s = math.fsum(e.covered_s for e in parts)
    return DeviceReadings(
        device_id=device_id,
        provenance=weakest(*(p for _, p in known)),
        energy_j=math.fsum(joules) if len(joules) == len(parts) else None,
        coverage=min(1.0, covered_s / run_time_s) if run_time_s else 0.0,
        remark=_remark(device_id, parts),
    )


def _remark(device_id: str, parts: Sequence[_SeriesEnergy]) -> str | None:
    disputed = [e.disputed for e in parts if e.disputed is not None]
    if disputed:
        counted_j, held_j = (math.fsum(column) for column in zip(*disputed, strict=True))
        return (
            f"{device_id}: its energy counter says {counted_j:.4g} J, its power readings say "
            f"{held_j:.4g} J for the same time; neither is believed"
        )
    n_breaks, stopped_s = sum(e.n_breaks for e in parts), math.fsum(e.stopped_s for e in parts)
    found = []
    if n_breaks:
        found.append(f"was reset or lost {'once' if n_breaks == 1 else f'{n_breaks} times'}")
    if stopped_s:
        found.append(f"stood still for {stopped_s:.4g} s while the device drew power")
    if not found:
        return None
    why = f"{device_id}: its energy counter {' and '.join(found)}"
    return why + "; there its power readings count, as far as they go"


def _series_energy(rows: Sequence[PowerSecond]) -> _SeriesEnergy:
    """Energy of one series within one attempt."""
    seconds = _added_up(rows)
    # The counter of a model is the model integrated: its two figures cannot check each other.
    judged = rows[0].provenance is not Provenance.MODELLED
    stopped = _stopped(seconds) if judged else set()
    by_hold = [s for s in seconds if s.second in stopped]
    by_counter = [s for s in seconds if s.second not in stopped]
    disputed = _disputed(by_counter) if judged else None
    joules = [s.held_j for s in by_hold] + [s.counted_j + s.alone_j for s in by_counter]
    covered = [s.held_s for s in by_hold] + [s.counted_s + s.alone_s for s in by_counter]
    return _SeriesEnergy(
        energy_j=None if disputed else math.fsum(joules),
        covered_s=math.fsum(covered),
        n_breaks=sum(r.n_breaks for r in rows),
        stopped_s=math.fsum(s.counted_s for s in by_hold),
        disputed=disputed,
    )


def _added_up(rows: Sequence[PowerSecond]) -> list[_Second]:
    found: dict[int, _Second] = {}
    for row in rows:
        into = found.setdefault(row.second, _Second(second=row.second))
        for name in _FIGURES:
            setattr(into, name, getattr(into, name) + getattr(row, name))
    return [found[second] for second in sorted(found)]


def _stopped(seconds: Sequence[_Second]) -> set[int]:
    """The seconds in which the counter stood still while the device drew power.

    A counter that refreshes very slowly stands still as well, but catches up: where the rise after
    a stretch makes up for more than half of it, the counter holds its joules already.
    """
    still = stopped_seconds(seconds)
    found: set[int] = set()
    stretch: list[_Second] = []
    for s in seconds:
        if s.second in still:
            stretch.append(s)
        elif s.counted_s > 0:
            missed_j = math.fsum(x.held_j for x in stretch)
            if s.counted_j - s.held_j <= missed_j / 2:
                found.update(x.second for x in stretch)
            stretch = []
    return found.union(x.second for x in stretch)


def _disputed(seconds: Sequence[_Second]) -> tuple[float, float] | None:
    """Rise of the counter and energy held over the same time, J, if neither can be believed."""
    counted_s = math.fsum(s.counted_s for s in seconds)
    if counted_s <= 0:
        return None
    counted_j = math.fsum(s.counted_j for s in seconds)
    held_j = math.fsum(s.held_j - s.alone_j for s in seconds)
    held_s = math.fsum(s.held_s - s.alone_s for s in seconds)
    verdict = judge_counter(counted_j, held_j, held_s / counted_s, counted_s)
    return (counted_j, held_j) if verdict is Verdict.DISPUTED else None
