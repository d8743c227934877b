"""Readings of the devices, their power over the run, and the last iterations as they ran."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Sequence

from ecorl.ledger import (
    BarrierRow,
    DeviceRow,
    ExecutionRow,
    PowerSecond,
    RawSampleRow,
    SampleErrorRow,
)
from ecorl.records import (
    EVALUATION,
    EVALUATION_ROLE,
    FOREIGN_COUNTER,
    INFERENCE_STAGES,
    DeviceKind,
    Provenance,
)
from ecorl.report.energy.causes import cause_of
from ecorl.report.energy.readings import Span
from ecorl.report.energy.stages import gpu_path_devices
from ecorl.report.model import WAIT, Bar, DeviceTelemetry, PowerTrace, Timeline
from ecorl.report.render.numbers import duration, figure, joules
from ecorl.telemetry.check import CounterGap, achieved_refresh_s, counter_gap, poll_interval_s
from ecorl.telemetry.sources.modelled import CGROUP_CPU_TIME, CPU_TIME, TREE_CPU_TIME

_TIMELINE_ITERATIONS = 3
_TRACE_POINTS = 240
"""Points of a power trace: more cannot be told apart in the plot."""

_DOUBTFUL_FACTOR, _DOUBTFUL_S = 1.25, 1.0
"""Counter and power readings that differ by more than this factor are doubtful, over this time or
more; over a short one a quarter of a second of it is allowed besides, for readings come late."""

_OTHERS = (
    "what other programs do for the run (servers, containers, a Ray cluster that was there before "
    "it) is not in it, nor is the simulation of a card"
)
_LEFT_OUT = {
    CPU_TIME: "the training's processes alone: the work of their children is not in it",
    TREE_CPU_TIME: "the training's processes and of all that descend from them; "
    f"{_OTHERS}, nor the last moments of processes for which no parent waits",
    CGROUP_CPU_TIME: f"all that runs in the control group of the training's processes; {_OTHERS}",
}
"""Whose processor time a modelled processor's power has, and whose not, by its source."""

_Series = tuple[Provenance, str]
"""What sets the readings of one device apart: provenance and source."""


def device_telemetry(
    device_id: str,
    rows: Sequence[DeviceRow],
    seconds: Sequence[PowerSecond],
    raw: Sequence[RawSampleRow],
    errors: Sequence[SampleErrorRow],
    executions: Sequence[ExecutionRow],
) -> list[DeviceTelemetry]:
    """Describe how one device was read, by provenance and source.

    A source that an attempt announced and never read is described with no readings.

    Args:
        device_id: the device.
        rows: what its attempts announced of it.
        seconds: its one-second roll-ups.
        raw: its raw samples that are kept.
        errors: its failed readings.
        executions: stage executions of the run.
    """
    by_series: dict[_Series, list[PowerSecond]] = defaultdict(list)
    for s in seconds:
        by_series[s.provenance, s.source].append(s)
    read = {(s.attempt, s.provenance) for s in seconds}
    found = []
    for key, own in by_series.items():
        mine = executions
        # Several sources of one device: each is compared with the executions of its own seconds.
        if len(by_series) > 1:
            times = {(s.attempt, s.second) for s in own}
            mine = [e for e in executions if (e.attempt, _middle(e)) in times]
        found.append(
            _one_telemetry(
                device_id,
                _row_of(key, rows, {s.attempt for s in own}),
                key,
                own,
                [r for r in raw if (r.provenance, r.source) == key],
                [e for e in errors if e.source == key[1]],
                mine,
            )
        )
    silent = {(r.provenance, r.source): r for r in rows if (r.attempt, r.provenance) not in read}
    for key, row in silent.items():
        if not any(p is key[0] and _is_of(row, source) for p, source in by_series):
            mine = [] if by_series else executions
            lost = [] if by_series else errors
            found.append(_one_telemetry(device_id, row, key, [], [], lost, mine))
    return found


def work_left_out(rows: Sequence[DeviceRow]) -> list[str]:
    """Say of modelled processors whose work their figures have, and whose not; one line each kind.

    Args:
        rows: the devices that the attempts announced.
    """
    ids: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        source = row.source.partition(" ")[0]
        if row.kind is DeviceKind.CPU and source in _LEFT_OUT:
            ids[source].append(row.device_id)
    return [
        f"{', '.join(dict.fromkeys(found))}: power is modelled from the processor time of "
        f"{_LEFT_OUT[source]}"
        for source, found in ids.items()
    ]


def _middle(execution: ExecutionRow) -> int:
    """The whole second, monotonic, in which the middle of an execution lies."""
    return math.floor((execution.result.t_start_s + execution.result.t_end_s) / 2)


def _is_of(row: DeviceRow, source: str) -> bool:
    """Whether a device row names this source; it may have the device's name behind it."""
    return row.source == source or row.source.startswith(f"{source} (")


def _row_of(key: _Series, rows: Sequence[DeviceRow], attempts: set[int]) -> DeviceRow | None:
    """The newest row of a series: of its own source, else of its attempts, else of the device."""
    same = [r for r in rows if r.provenance is key[0]]
    own = [r for r in same if _is_of(r, key[1])] or [r for r in same if r.attempt in attempts]
    return next(reversed(own or rows), None)


def _one_telemetry(
    device_id: str,
    row: DeviceRow | None,
    key: _Series,
    seconds: Sequence[PowerSecond],
    raw: Sequence[RawSampleRow],
    errors: Sequence[SampleErrorRow],
    executions: Sequence[ExecutionRow],
) -> DeviceTelemetry:
    gap = counter_gap(device_id, (e.result.energy for e in executions))
    found_s = _found_s(seconds, errors)
    counts: dict[str, int] = defaultdict(int)
    for e in errors:
        counts[e.error] += e.n
    return DeviceTelemetry(
        device_id=device_id,
        profile=row.profile if row else "-",
        provenance=key[0],
        source=row.source if row and _is_of(row, key[1]) else key[1],
        idle_w=row.idle_w if row else None,
        n_readings=sum(s.n for s in seconds),
        n_missing=sum(s.n_missing for s in seconds),
        reading_interval_s=poll_interval_s(raw),
        refresh_s=achieved_refresh_s(raw),
        counter_gap=None if gap.share == math.inf else gap.share,
        n_counter_gap=gap.n,
        counter_remark=_counter_remark(gap, is_foreign=found_s is not None),
        counter_doubt=_counter_doubt(device_id, gap, found_s),
        errors=dict(counts),
        figures=_figures(row),
    )


def _counter_remark(gap: CounterGap, *, is_foreign: bool) -> str:
    """Say what a reader should know of the gap between counter and integral."""
    remarks = []
    if len(gap.device_ids) > 1 and gap.n:
        remarks.append(f"of {'+'.join(gap.device_ids)} together")
    if gap.share == math.inf:
        remarks.append("infinite: the counter says 0 J")
    if gap.n_stopped:
        remarks.append(f"the counter stood still in {gap.n_stopped} executions")
    if gap.n_foreign and is_foreign:
        remarks.append(
            f"the counter is not the device's and not used in {gap.n_foreign} executions"
        )
    if gap.n_disputed:
        remarks.append(f"too far apart to use either in {gap.n_disputed} executions")
    return "; ".join(remarks)


def _found_s(seconds: Sequence[PowerSecond], errors: Sequence[SampleErrorRow]) -> float | None:
    """How long into its attempt a counter was found not to be the device's, s; None: it was not.

    The longest of several attempts.
    """
    begins = {s.attempt: float(s.second) for s in sorted(seconds, key=lambda s: -s.second)}
    found = [e for e in errors if e.error == FOREIGN_COUNTER]
    return max(
        (max(0.0, e.first_t_s - begins.get(e.attempt, e.first_t_s)) for e in found), default=None
    )


def _counter_doubt(device_id: str, gap: CounterGap, found_s: float | None) -> str | None:
    """Say that counter and power readings contradict each other, and which of them counts."""
    told = f"{device_id}: its energy counter"
    if gap.counted_j > 0 and gap.integral_j > 0:
        ratio = gap.counted_j / gap.integral_j
        of = f"of {'+'.join(gap.device_ids)} together, " if len(gap.device_ids) > 1 else ""
        said = (
            f" says {joules(gap.counted_j)} where its power readings say "
            f"{joules(gap.integral_j)} ({of}{figure(ratio)} times)"
        )
        told += said
    if found_s is not None:
        return (
            f"{told}{' and' if gap.counted_j > 0 else ''} is not used: it counts more than the "
            "device, a part of it, or in other units; its power readings count. Until that was "
            f"found, after {duration(found_s)}, the log went by it, and prices of tokens and "
            "powers of gears that were learned until then still do in part"
        )
    if gap.n_disputed or not (gap.counted_j > 0 and gap.integral_j > 0):
        return None  # neither is used, which is said where the energy is missing
    if gap.n_foreign:
        return None  # of another device, which the executions ran on too
    allowed = _DOUBTFUL_FACTOR + 0.25 / max(gap.time_s, _DOUBTFUL_S)
    if gap.time_s < _DOUBTFUL_S or max(ratio, 1 / ratio) <= allowed:
        return None
    return f"{told}; the counter is used"


def _figures(row: DeviceRow | None) -> dict[str, object]:
    """The further figures that the ledger holds of a device; text that is no JSON is kept too."""
    try:
        figures = json.loads(row.figures_json) if row else {}
    except json.JSONDecodeError:
        return {"unreadable": row.figures_json if row else ""}
    return figures if isinstance(figures, dict) else {"figures": figures}


def power_traces(seconds: Sequence[PowerSecond], spans: dict[int, Span]) -> tuple[PowerTrace, ...]:
    """Compute power traces of each series over the run, one attempt after the other, thinned out.

    Args:
        seconds: one-second roll-ups of all devices.
        spans: start and end of each attempt, monotonic s, by attempt.
    """
    # The clock of each attempt starts anywhere: shifted so that each begins where the last ended.
    offsets, at = {}, 0.0
    for attempt, (start, end) in spans.items():
        offsets[attempt] = at - start
        at += end - start
    width_s = max(1.0, at / _TRACE_POINTS)
    bins: dict[tuple[str, Provenance, str], dict[int, list[PowerSecond]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for s in seconds:
        if s.mean_w is not None and s.n and s.attempt in offsets:
            place = math.floor((s.second + 0.5 + offsets[s.attempt]) / width_s)
            bins[s.device_id, s.provenance, s.source][place].append(s)
    return tuple(
        PowerTrace(
            *key,
            points=tuple(
                (
                    (place + 0.5) * width_s,
                    math.fsum((s.mean_w or 0.0) * s.n for s in rows) / sum(s.n for s in rows),
                    min(s.min_w for s in rows if s.min_w is not None),
                    max(s.max_w for s in rows if s.max_w is not None),
                )
                for place, rows in sorted(by_place.items())
            ),
        )
        for key, by_place in sorted(bins.items())
    )


def timeline(executions: Sequence[ExecutionRow], barriers: Sequence[BarrierRow]) -> Timeline:
    """Lay out iterations that follow one another, as they ran.

    They are the last ones if the card worked in one of them or in none of the run, else those
    around the newest in which it did.

    Args:
        executions: stage executions of the run.
        barriers: waits at the barrier.
    """
    if not executions:
        return Timeline((), 0, ())
    on_gpu = gpu_path_devices(executions)
    offloaded = {
        (e.attempt, e.result.iteration)
        for e in executions
        if on_gpu.isdisjoint(e.result.device_ids)
    }
    # Attempts have clocks of their own, so a timeline shows one of them only.
    attempt, newest = max(offloaded, default=(max(e.attempt for e in executions), None))
    own = [e.result for e in executions if e.attempt == attempt]
    known = sorted({r.iteration for r in own})
    # The one after it is shown as well, where there is one: the card may work into it.
    end = len(known) if newest is None else max(known.index(newest) + 2, _TIMELINE_ITERATIONS)
    if end + 1 >= len(known):
        end = len(known)
    iterations = known[max(0, end - _TIMELINE_ITERATIONS) : end]
    shown = [r for r in own if r.iteration in iterations]
    origin = min(r.t_start_s for r in shown)
    shown.sort(key=lambda r: (on_gpu.isdisjoint(r.device_ids), r.device_ids, r.t_start_s))
    bars = [
        Bar(
            lane=f"{r.device} {'+'.join(r.device_ids)}",
            label=EVALUATION if r.role == EVALUATION_ROLE else str(r.stage),
            kind=str(r.stage) if r.stage in INFERENCE_STAGES else cause_of(r),
            start_s=r.t_start_s - origin,
            end_s=r.t_end_s - origin,
            simulated=r.time_provenance is not Provenance.MEASURED,
        )
        for r in shown
    ]
    bars += [
        Bar(
            "barrier",
            f"wait for {b.stage}",
            WAIT,
            b.t_s - b.wait_s - origin,
            b.t_s - origin,
            False,
        )
        for b in barriers
        if b.attempt == attempt and b.iteration in iterations and b.wait_s
    ]
    return Timeline(
        tuple(iterations),
        attempt,
        tuple(bars),
        offloaded=tuple(i for i in iterations if (attempt, i) in offloaded),
        are_last=end == len(known) and attempt == max(e.attempt for e in executions),
    )
