"""What happened in the run as tables: training, waits, decisions, faults, telemetry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ecorl.ledger import FaultRow, PlacementRow
from ecorl.records import Action, EvaluationPhase, Provenance, weakest
from ecorl.report.energy.stages import present
from ecorl.report.model import (
    DeviceTelemetry,
    LogprobShift,
    NodeFacts,
    PairedGain,
    RankFlips,
    Report,
)
from ecorl.report.render.lines import Section, Table, table
from ecorl.report.render.numbers import MISSING, count, duration, figure, interval_95
from ecorl.scheduler.words import action_name

MAX_LISTED = 2000
"""Decisions listed in full; of a longer run the newest."""


def training_section(report: Report) -> Section:
    """Make the tables of evaluations before and after, rank flips and metrics."""
    tables = []
    if report.gains:
        tables.append(_gain_table(report.gains))
    if report.flips:
        tables.append(_flip_table(report.flips))
    if report.shifts:
        tables.append(_shift_table(report.shifts))
    if report.metrics:
        tables.append(_metric_table(report))
    lead = "" if tables else "No metric or evaluation was recorded, or none was kept."
    if report.own_evaluations is not None:
        lead = f"{report.own_evaluations[0].upper()}{report.own_evaluations[1:]}."
    along = tuple(f"{told[0].upper()}{told[1:]}." for told in report.evaluated_along)
    return Section("training", "What the run learned", lead, "curves", tuple(tables), along)


def _gain_table(gains: Sequence[PairedGain]) -> Table:
    heads = ("evaluation", "before", "after", "gain", "standard error", "items", "remark")
    rows = [
        (
            g.name if (g.before, g.after) == tuple(EvaluationPhase) else f"{g.name}: {g.after}",
            figure(g.mean_before),
            figure(g.mean_after),
            figure(g.gain),
            figure(g.standard_error, 2),
            count(g.n_pairs),
            g.note or "",
        )
        for g in gains
    ]
    made = table(heads, rows, 1, "Held-out items before and after, paired item by item")
    return replace(made, numeric=(False, *[True] * 5, False))


def _flip_table(flips: Sequence[RankFlips]) -> Table:
    heads = (
        "phase", "pairs", "flips", "share", "95 % interval", "scores", "mean shift",
        "mean |shift|", "p99 |shift|",
    )  # fmt: skip
    rows = [
        (
            f.phase,
            count(f.n_pairs),
            count(f.n_flips),
            f"{figure(100 * f.share, 2)} %",
            interval_95(f.interval).removeprefix("95 % interval "),
            count(f.n_scores),
            figure(f.shift_mean),
            figure(f.shift_abs_mean),
            figure(f.shift_abs_p99),
        )
        for f in flips
    ]
    caption = "Rank flips of INT8 against float; shift = INT8 minus float score"
    return table(heads, rows, 1, caption)


def _shift_table(shifts: Sequence[LogprobShift]) -> Table:
    heads = ("phase", "rows", "mean |shift|, nats", "largest row, nats")
    rows = [(s.phase, count(s.n_rows), figure(s.mean_nats), figure(s.max_nats)) for s in shifts]
    return table(heads, rows, 1, "Log-probs of the INT8 reference against the float model's")


def _metric_table(report: Report) -> Table:
    rows = []
    for name, series in report.metrics.items():
        values = present(r.value for r in series)
        ends = (values[0], values[-1]) if values else (None, None)
        tenth = values[-max(1, len(values) // 10) :]
        mean = sum(tenth) / len(tenth) if tenth else None
        n = f"{count(len(values))} of {count(len(series))}"
        rows.append((name, *(figure(v) for v in (*ends, mean)), n))
    heads = ("metric", "first", "last", "mean of the last tenth", "values")
    return table(heads, rows, 1, "Metrics of the trainer (measured)")


def waits_section(report: Report) -> Section:
    """Make the table of the waits: number, total and percentiles."""
    b = report.barriers
    title = "Waits at the completion barrier"
    if not b.n_waits:
        return Section("waits", title, "No wait was recorded.")
    heads = ["waits", "total", "p50", "p95", "longest", "rows", "rows missing", "rows late"]
    row = [
        count(b.n_waits),
        *(duration(v) for v in (b.total_s, b.p50_s, b.p95_s, b.max_s)),
        *(count(v) for v in (b.n_rows, b.n_missing, b.n_late)),
    ]
    if b.n_duplicates or b.n_unknown:
        heads += ["rows delivered twice", "rows nobody asked for"]
        row += [count(b.n_duplicates), count(b.n_unknown)]
    lead = "Time in which the training thread stood still for an answer (measured)."
    return Section("waits", title, lead, "waits", (table(heads, [row], 0),))


# ---------------------------------------------------------------- decisions, faults, devices


def decisions_section(report: Report) -> Section:
    """Make the tables of decisions: groups with their counts, and all of them on demand."""
    title = "Decisions"
    if not report.placements:
        return Section("decisions", title, "No placement decision was recorded.")
    path = report.head.path
    rows = [
        (
            g.role,
            g.policy,
            action_name(g.proposed, path, g.stage),
            action_name(g.action, path, g.stage),
            g.told,
            count(g.n),
        )
        for g in report.decisions
    ]
    groups = table(("stage", "policy", "proposed", "action", "reason", "decisions"), rows, 5)
    lists = [
        _decision_list(
            [p for p in report.placements if _costs_provenance(p) is provenance], name, path
        )
        for provenance, name in (
            *((p, f"expected costs {p}") for p in Provenance),
            (None, "no costs"),
        )
        if any(_costs_provenance(p) is provenance for p in report.placements)
    ]
    lead = "Superseded decisions are not counted."
    return Section("decisions", title, lead, "", (groups, *lists))


def _costs_provenance(row: PlacementRow) -> Provenance | None:
    found = [c.provenance for c in row.placement.costs]
    return weakest(*found) if found else None


def _decision_list(placements: Sequence[PlacementRow], name: str, path: str) -> Table:
    listed = placements[-MAX_LISTED:]
    which = "All" if len(listed) == len(placements) else f"The newest {MAX_LISTED:,} of"
    caption = f"{which} {count(len(placements))} decisions, {name}"
    rows = []
    for row in listed:
        p = row.placement
        costs = {c.action: c for c in p.costs}
        expected = [costs.get(a) for a in Action]
        rows.append(
            (
                f"{p.iteration}" + (" (superseded)" if row.superseded else ""),
                p.role,
                action_name(p.proposed, path, p.stage),
                action_name(p.action, path, p.stage),
                p.reason,
                *(MISSING if c is None else figure(c.energy_j) for c in expected),
                *(MISSING if c is None else figure(c.time_s) for c in expected),
            )
        )
    heads = ["iteration", "stage", "proposed", "action", "reason"]
    heads += [f"{action_name(a, path)}, {unit}" for unit in ("J", "s") for a in Action]
    return replace(table(heads, rows, 5, caption), folded=True)


def faults_section(report: Report) -> Section:
    """Make the table of all faults, oldest first."""
    n_fallback = sum(r.n_rows_fallback for r in report.stages)
    rescued = f" {rows_fallback(n_fallback)}"
    if not report.faults:
        lead = "No fault was recorded." + (rescued if n_fallback else "")
        return Section("faults", "Faults", lead)
    heads = ("attempt", "iteration", "kind", "where", "detail", "rows")
    rows = [
        (
            str(f.attempt),
            MISSING if f.iteration is None else str(f.iteration),
            f.kind,
            fault_place(f, report.nodes),
            f.detail,
            count(f.n_rows),
        )
        for f in report.faults[-MAX_LISTED:]
    ]
    lead = f"{count(len(report.faults))} recorded.{rescued}"
    return Section("faults", "Faults", lead, "", (table(heads, rows, 5),))


def rows_fallback(n: int) -> str:
    """Say that rows got the framework's own numbers instead of an engine's.

    Args:
        n: the rows.
    """
    return f"{count(n)} rows were computed by the trainer itself instead."


def fault_place(fault: FaultRow, nodes: Sequence[NodeFacts]) -> str:
    """Where a fault befell, with the machine that recorded it where there are several.

    Args:
        fault: the fault.
        nodes: the machines of the run; empty where there is only one.
    """
    return f"{fault.where} on {fault.node}" if nodes and fault.node else fault.where


def nodes_section(nodes: Sequence[NodeFacts]) -> Section:
    """Make the table of the machines: how far their clocks are apart, devices, and records.

    Args:
        nodes: the machines of each attempt.
    """
    lead = (
        "The clock of a machine less that of the one on which the run was started, to within half "
        "the round trip in which it was measured. Without a measurement the wall clocks stand in."
    )
    heads = ("machine", "attempt", "clock", "devices", "record")
    return Section("machines", "Machines", lead, "", (table(heads, node_cells(nodes), 5),))


def node_cells(nodes: Sequence[NodeFacts]) -> list[tuple[str, ...]]:
    """Rows of the table of machines: name, attempt, clock, devices, record."""
    return [
        (
            n.name,
            str(n.attempt),
            "the run's" if n.is_head else _offset(n),
            ", ".join(n.devices) or MISSING,
            "there" if n.lost is None else f"not whole: {n.lost}" if n.devices else n.lost,
        )
        for n in nodes
    ]


def _offset(n: NodeFacts) -> str:
    if n.offset_s is None:
        return "not measured"
    error = "" if n.offset_error_s is None else f" ± {duration(n.offset_error_s)}"
    return f"{n.offset_s:+,.3f} s{error}"


def telemetry_section(devices: Sequence[DeviceTelemetry]) -> Section:
    """Make the table of telemetry: source, readings, refresh, and counter against integral."""
    title = "How power was read"
    if not devices:
        return Section("telemetry", title, "No device was recorded.")
    heads = (
        "device", "profile", "provenance", "source", "readings", "missing",
        "polled every", "refreshed every", "integral against counter", "idle W (profile)",
    )  # fmt: skip
    rows = [
        (
            d.device_id,
            d.profile,
            str(d.provenance),
            d.source or MISSING,
            count(d.n_readings),
            count(d.n_missing) + _errors(d),
            _seconds(d.reading_interval_s),
            _seconds(d.refresh_s),
            _counter(d),
            figure(d.idle_w),
        )
        for d in devices
    ]
    tables = [table(heads, rows, 4)]
    # One device read by several sources says the same of itself for each.
    figures = dict.fromkeys(
        (d.device_id, str(key), _plain(value)) for d in devices for key, value in d.figures.items()
    )
    if figures:
        made = table(
            ("device", "figure", "value"), list(figures), 3, "What the devices say of themselves"
        )
        tables.append(replace(made, folded=True))
    lead = (
        "A refresh slower than the polling means repeated readings. Neither counter nor integral "
        "is the truth: a gap between them tells that one of them is wrong."
    )
    return Section("telemetry", title, lead, "power", tuple(tables))


def _errors(d: DeviceTelemetry) -> str:
    if not d.errors:
        return ""
    return " (" + ", ".join(f"{name} x {n}" for name, n in d.errors.items()) + ")"


def _counter(d: DeviceTelemetry) -> str:
    gap = MISSING if d.counter_gap is None else f"{100 * d.counter_gap:+.1f} %"
    return f"{gap} ({d.counter_remark})" if d.counter_remark else gap


def _seconds(value: float | None) -> str:
    return MISSING if value is None else f"{figure(value)} s"


def _plain(value: object) -> str:
    if isinstance(value, dict):
        unit = f" {value['unit']}" if value.get("unit") else ""
        source = f" ({value['provenance']})" if value.get("provenance") else ""
        if "value" in value:
            return f"{_plain(value['value'])}{unit}{source}"
        return ", ".join(f"{k} {_plain(v)}" for k, v in value.items())
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return MISSING if value is None else str(value)
    return figure(float(value), 4)
