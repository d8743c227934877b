"""Puts the decisions of a run on one axis of time, beside the grid and the running energy."""

from __future__ import annotations

import bisect
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ecorl.control import SIMULATED, Command
from ecorl.ledger import AttemptRow, GearChoiceRow, LedgerReader, PlacementRow
from ecorl.records import Action, Provenance, Role, Stage
from ecorl.report.decisions.model import (
    DecisionKind,
    DecisionStretch,
    PlacementBand,
    RunCourse,
    RunningEnergy,
)
from ecorl.report.energy.carbon_model import Footprint
from ecorl.report.energy.emissions import IntensityKind
from ecorl.report.energy.evidence import Attribution, Evidence
from ecorl.report.energy.readings import DeviceReadings, Span
from ecorl.report.energy.stages import shown_roles
from ecorl.report.training_stage.model import StageBand, TrainingStageFacts
from ecorl.report.training_stage.words import OWN_GEAR
from ecorl.scheduler.words import action_name
from ecorl.stages.graph import may_leave_gpu

MOST = 8
"""Stretches of one kind and role that are told, about. Invented: a table that one still reads."""

_LONGEST_REASONS = 2
"""Values whose reasons are told where several took turns; the most frequent ones."""


@dataclass(frozen=True, slots=True)
class Decided:
    """One decision.

    Attributes:
        start_s, end_s: when it counted, s.
        value: what was decided, as it is shown.
        reason: None: none is known.
        n: how many decisions in a row, or steps that followed from it, this stands for.
    """

    start_s: float
    end_s: float
    value: str
    reason: str | None
    n: int = 1


def stretches(
    kind: DecisionKind, role: Role | None, decided: Sequence[Decided]
) -> list[DecisionStretch]:
    """Make stretches of decisions about one thing.

    A value that holds for a while is a stretch. Where values take turns sooner than that, all of
    them together are one; how long a while is depends on how many stretches there would be.

    Args:
        kind: what they are about.
        role: whose placement; None for other kinds.
        decided: in the order of time.
    """
    runs = [list(own) for _, own in itertools.groupby(decided, key=lambda d: d.value)]
    least, longest = 1, max((_n(run) for run in runs), default=0)
    groups = runs
    while len(groups) > MOST and least <= longest:
        least *= 2
        groups = _mixed(runs, least)
    found: list[DecisionStretch] = []
    for own in groups:
        before = tuple(value for value, _ in found[-1].after) if found else ()
        span = (own[0].start_s, own[-1].end_s)
        told = DecisionStretch(kind, role, *span, before, tuple(_counted(own)), _reasons(own))
        found.append(told)
    return found


def _mixed(runs: Sequence[list[Decided]], least: int) -> list[list[Decided]]:
    """Join runs that are shorter than so many decisions to what lies beside them."""
    groups: list[list[Decided]] = []
    was_short = False
    for run in runs:
        is_short = _n(run) < least
        if groups and is_short and was_short:
            groups[-1] = [*groups[-1], *run]
        else:
            groups.append(list(run))
        was_short = is_short
    return groups


def _n(own: Sequence[Decided]) -> int:
    return sum(d.n for d in own)


def _counted(own: Sequence[Decided]) -> list[tuple[str, int]]:
    """Values and how often each was decided, the most frequent first."""
    counts = Counter[str]()
    for one in own:
        counts[one.value] += one.n
    return counts.most_common()


def _reasons(own: Sequence[Decided]) -> str | None:
    """The newest reason of each of the most frequent values."""
    newest = {d.value: d.reason for d in own if d.reason}
    values = [value for value, _ in _counted(own)[:_LONGEST_REASONS]]
    told = dict.fromkeys(newest[value] for value in values if value in newest)
    return "; ".join(reason for reason in told if reason is not None) or None


RUNNING, PAUSED = "running", "paused"
"""What a pause leads from and to, as it is shown."""

_POINTS = 400
"""Points of a curve, at most. Invented: more are not seen."""

_NEARLY_ALL = 0.95
"""Share of a band's time from which on an action is that of the band. Invented."""

_EDGE_S = 0.05
"""A choice counts for a step that begins so much earlier, s: their times are taken in turn."""


class _Axis:
    """One axis for all attempts: wall clock since the run began, s."""

    def __init__(self, attempts: Sequence[AttemptRow], spans: Mapping[int, Span]) -> None:
        self.began_s = attempts[0].unix_anchor_s if attempts else 0.0
        self._ahead_s = {
            a.attempt: a.unix_anchor_s - a.monotonic_anchor_s - self.began_s for a in attempts
        }
        self.spans = {a: self.of(a, span) for a, span in spans.items() if a in self._ahead_s}

    def at(self, attempt: int, t_s: float) -> float:
        """A monotonic time of an attempt on the axis."""
        return t_s + self._ahead_s.get(attempt, 0.0)

    def of(self, attempt: int, span: Span) -> Span:
        """Likewise a time with a begin and an end."""
        return self.at(attempt, span[0]), self.at(attempt, span[1])


def run_course(
    reader: LedgerReader,
    placements: Sequence[PlacementRow],
    evidence: Evidence,
    footprint: Footprint,
    geared: TrainingStageFacts | None,
    path: str,
) -> RunCourse | None:
    """Put together what was decided when; None where fewer than two kinds changed anything.

    Args:
        reader: the run's ledger.
        placements: its decisions about places, in their order.
        evidence: what the ledger holds of the run's energy.
        footprint: what that emitted.
        geared: gears and widths; None where nobody told of any.
        path: what the report calls the framework's devices.
    """
    axis, choices = _Axis(reader.attempts(), evidence.spans), reader.choices()
    pauses = sorted(axis.of(a, span) for a, own in evidence.pauses.items() for span in own)
    bands = [b for b in (() if geared is None else geared.course.bands) if not b.is_pause]
    placed = _placed(placements, axis, pauses)
    kinds = _kinds(placed, bands, pauses)
    if len(kinds) < 2:
        return None
    gears, widths = _ran(bands, choices, axis)
    told = [
        *(
            one
            for role, own in placed.items()
            for one in stretches(DecisionKind.PLACEMENT, role, [d.told(path) for d in own])
        ),
        *stretches(DecisionKind.GEAR, None, gears),
        *stretches(DecisionKind.WIDTH, None, widths),
        *_pauses(pauses, choices, axis),
    ]
    facts = footprint.facts(IntensityKind.AVERAGE)
    paused = [StageBand(start_s, end_s, None, 0) for start_s, end_s in pauses]
    is_placed = DecisionKind.PLACEMENT in kinds
    return RunCourse(
        kinds=kinds,
        stretches=tuple(one for one in told if one.kind in kinds),
        placements=tuple(b for r, own in placed.items() if is_placed for b in _bands(r, own)),
        bands=tuple(sorted([*bands, *paused], key=lambda b: b.start_s)),
        attempts=tuple(axis.spans[a] for a in sorted(axis.spans)),
        intensities=_intensities(evidence.grid, axis),
        intensity_provenance=None if facts is None else facts.provenance,
        gas="CO2e" if facts is None else facts.gas,
        energy=_running_energy(evidence.readings, axis),
    )


def _kinds(
    placed: Mapping[Role, Sequence[_Placed]],
    bands: Sequence[StageBand],
    pauses: Sequence[Span],
) -> tuple[DecisionKind, ...]:
    """The kinds of which a decision changed anything."""
    changed = {
        DecisionKind.PLACEMENT: any(
            p.action is not Action.GPU for own in placed.values() for p in own
        ),
        DecisionKind.GEAR: len({b.gear for b in bands}) > 1,
        DecisionKind.WIDTH: len({b.width for b in bands}) > 1,
        DecisionKind.PAUSE: bool(pauses),
    }
    return tuple(kind for kind, is_changed in changed.items() if is_changed)


# ---------------------------------------------------------------- placement


@dataclass(frozen=True, slots=True)
class _Placed:
    """One decision about a call, until the next one of its role, or a pause."""

    start_s: float
    end_s: float
    stage: Stage
    action: Action
    reason: str

    def told(self, path: str) -> Decided:
        """The decision in words."""
        name = action_name(self.action, path, self.stage)
        return Decided(self.start_s, self.end_s, name, self.reason)


def _placed(
    rows: Sequence[PlacementRow], axis: _Axis, pauses: Sequence[Span]
) -> dict[Role, list[_Placed]]:
    """Decisions about the roles that may leave the framework's devices, in the order of time."""
    kept = [r for r in rows if not r.superseded and may_leave_gpu(r.placement.stage)]
    shown = shown_roles([row.placement for row in kept])
    starts_s = [start_s for start_s, _ in pauses]
    by_role: dict[tuple[Role, int], list[PlacementRow]] = defaultdict(list)
    for row in kept:
        by_role[shown[row.placement.role], row.attempt].append(row)
    found: dict[Role, list[_Placed]] = defaultdict(list)
    for (role, attempt), own in by_role.items():
        times_s = [axis.at(attempt, row.t_s) for row in own]
        times_s.append(max(times_s[-1], axis.spans.get(attempt, (0.0, 0.0))[1]))
        for row, start_s, end_s in zip(own, times_s, times_s[1:], strict=False):
            # It is about calls of this step: of a pause behind it it says nothing.
            pause = bisect.bisect_left(starts_s, start_s)
            end_s = min([end_s, *starts_s[pause : pause + 1]])
            p = row.placement
            found[role].append(_Placed(start_s, end_s, p.stage, p.action, p.reason))
    return {role: sorted(own, key=lambda p: p.start_s) for role, own in found.items()}


def _bands(role: Role, own: Sequence[_Placed]) -> list[PlacementBand]:
    """Decisions that came out the same without a gap are one band, and no more than are seen.

    Of more than are seen each band has the action that took nearly all of its time, if one did.
    """
    whole = [PlacementBand(role, p.start_s, p.end_s, p.action) for p in own]
    bands = _joined(whole)
    if len(bands) <= _POINTS:
        return bands
    least_s = (own[-1].end_s - own[0].start_s) / _POINTS
    groups: list[list[PlacementBand]] = []
    for band in bands:
        last = groups[-1] if groups else None
        is_next = last is not None and band.start_s - last[-1].end_s <= _EDGE_S
        if last is not None and is_next and band.end_s - last[0].start_s <= least_s:
            last.append(band)
        else:
            groups.append([band])
    return _joined([_most_of(role, group) for group in groups])


def _joined(bands: Sequence[PlacementBand]) -> list[PlacementBand]:
    """Bands with one action and without a gap between them as one."""
    found: list[PlacementBand] = []
    for band in bands:
        last = found[-1] if found else None
        if last and band.action is last.action and band.start_s - last.end_s <= _EDGE_S:
            found[-1] = replace(last, end_s=band.end_s)
        else:
            found.append(band)
    return found


def _most_of(role: Role, bands: Sequence[PlacementBand]) -> PlacementBand:
    times_s: dict[Action | None, float] = defaultdict(float)
    for band in bands:
        times_s[band.action] += band.end_s - band.start_s
    action = max(times_s, key=lambda one: times_s[one])
    is_most = times_s[action] >= _NEARLY_ALL * math.fsum(times_s.values())
    return PlacementBand(role, bands[0].start_s, bands[-1].end_s, action if is_most else None)


# ---------------------------------------------------------------- gears, widths, pauses


def _ran(
    bands: Sequence[StageBand], choices: Sequence[GearChoiceRow], axis: _Axis
) -> tuple[list[Decided], list[Decided]]:
    """Gears and widths in which steps were made, with the newest choice of each before them."""
    gears: list[Decided] = []
    widths: list[Decided] = []
    newest: GearChoiceRow | None = None
    at = 0
    for band in sorted(bands, key=lambda b: b.start_s):
        while at < len(choices) and _decided_s(choices[at], axis) <= band.start_s + _EDGE_S:
            if choices[at].choice.command is Command.RUN:
                newest = choices[at]
            at += 1
        span = (band.start_s, band.end_s)
        gear = None if band.gear is None else band.gear.removesuffix(SIMULATED)
        chosen = None if newest is None else newest.choice
        wanted = None if chosen is None or chosen.gear is None else str(chosen.gear)
        told = _why(newest, wanted, gear)
        gears.append(Decided(*span, band.gear or OWN_GEAR, told, band.n_steps))
        if band.width is not None:
            # A choice that names no width leaves it as it was.
            told = (
                None
                if chosen is None or chosen.width is None
                else _why(newest, str(chosen.width), str(band.width))
            )
            widths.append(Decided(*span, str(band.width), told, band.n_steps))
    return gears, widths


def _why(row: GearChoiceRow | None, wanted: str | None, was: str | None) -> str | None:
    """The reason of a choice; where something else came of it, that too."""
    if row is None:
        return None
    if wanted is None or wanted == was:
        return _reason(row)
    return f"chosen was {wanted}, {_reason(row)}"


def _pauses(
    pauses: Sequence[Span], choices: Sequence[GearChoiceRow], axis: _Axis
) -> list[DecisionStretch]:
    """A row for each pause; of many that lie near each other one for all of them."""
    groups = [[span] for span in pauses]
    apart_s = 1.0
    while len(groups) > MOST:
        joined: list[list[Span]] = []
        for own in groups:
            if joined and own[0][0] - joined[-1][-1][1] <= apart_s:
                joined[-1] = [*joined[-1], *own]
            else:
                joined.append(own)
        groups, apart_s = joined, 2.0 * apart_s
    asked = [row for row in choices if row.choice.command is Command.PAUSE]
    asked_s = [_decided_s(row, axis) for row in asked]
    found = []
    for own in groups:
        newest = bisect.bisect_right(asked_s, own[-1][1] + _EDGE_S) - 1
        reason = _reason(asked[newest]) if newest >= 0 else None
        start_s, end_s = own[0][0], own[-1][1]
        after = ((PAUSED, len(own)),)
        found.append(
            DecisionStretch(DecisionKind.PAUSE, None, start_s, end_s, (RUNNING,), after, reason)
        )
    return found


def _decided_s(row: GearChoiceRow, axis: _Axis) -> float:
    return row.choice.decided_s - axis.began_s


def _reason(row: GearChoiceRow) -> str:
    return f"{row.choice.why}: {row.choice.reason}"


# ---------------------------------------------------------------- grid and energy


def _intensities(grid: Attribution, axis: _Axis) -> tuple[tuple[float, float | None], ...]:
    if not axis.spans:
        return ()
    start_s = axis.began_s + min(start for start, _ in axis.spans.values())
    end_s = axis.began_s + max(end for _, end in axis.spans.values())
    found: list[tuple[float, float | None]] = []
    for t_s, value in grid.timelines.average.steps(start_s, end_s):
        g_per_kwh = None if value is None else value.g_per_kwh
        if not found or found[-1][1] != g_per_kwh:
            found.append((t_s - axis.began_s, g_per_kwh))
    return tuple(found)


def _running_energy(readings: Iterable[DeviceReadings], axis: _Axis) -> tuple[RunningEnergy, ...]:
    """The joules so far by the end of each second that was read, a curve for each provenance."""
    by_provenance: dict[Provenance, list[tuple[np.ndarray, np.ndarray]]] = defaultdict(list)
    lacking: set[Provenance] = set()
    for r in readings:
        span = axis.spans.get(r.attempt)
        if r.energy_j is None or (span and r.covered_s < _NEARLY_ALL * (span[1] - span[0])):
            lacking.add(r.provenance)
        if len(r.ends_s):
            ends_s = np.array([axis.at(r.attempt, t_s) for t_s in r.ends_s.tolist()])
            by_provenance[r.provenance].append((ends_s, r.energies_j))
    found = []
    for provenance, parts in by_provenance.items():
        times_s, joules = (np.concatenate(own) for own in zip(*parts, strict=True))
        order = np.argsort(times_s, kind="stable")
        times_s, so_far_j = times_s[order], np.cumsum(joules[order])
        every = max(1, len(times_s) // _POINTS)
        picked = np.unique(np.append(np.arange(0, len(times_s), every), len(times_s) - 1))
        points = zip(times_s[picked].tolist(), so_far_j[picked].tolist(), strict=True)
        found.append(RunningEnergy(provenance, ((0.0, 0.0), *points), provenance in lacking))
    return tuple(found)
