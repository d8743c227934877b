"""Computes a `Report` from a ledger, by pure functions without output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ecorl.carbon.building import FROM_ACCOUNTING
from ecorl.carbon.timeline import timelines
from ecorl.config import Config
from ecorl.ledger import NODE, ExecutionRow, LedgerReader, MetricRow, NodeRow, NodeSpan, RunEnding
from ecorl.records import EventKind
from ecorl.report import carbon_verdict
from ecorl.report import devices as device_parts
from ecorl.report.beside import beside_figures
from ecorl.report.decisions.run_course import run_course
from ecorl.report.decisions.savings import savings
from ecorl.report.energy.carbon_model import Footprint
from ecorl.report.energy.card import balance, card_timeline
from ecorl.report.energy.causes import spending
from ecorl.report.energy.evidence import Attribution, Evidence
from ecorl.report.energy.footprint import footprint
from ecorl.report.energy.model import Accounting, Spending
from ecorl.report.energy.pauses import pause_summary, recorded_evidence
from ecorl.report.energy.readings import DeviceReadings, Span, attempt_spans, device_readings
from ecorl.report.energy.stages import comparisons, decision_groups, expectation, stage_rows
from ecorl.report.head import head
from ecorl.report.model import DeviceTelemetry, NodeFacts, PowerTrace, Report
from ecorl.report.notes import carbon_notes, notes
from ecorl.report.run_config import RunConfig
from ecorl.report.training import (
    barrier_summary,
    evaluated_along,
    logprob_shifts,
    metric_series,
    own_evaluations,
    packing_remark,
    paired_gains,
    rank_flips,
)
from ecorl.report.training_stage.facts import training_stage
from ecorl.report.training_stage.words import gear_notes, gear_verdict
from ecorl.report.verdict import offloading, verdict

_ENDLESS = (RunEnding.KILLED, RunEnding.NO_END)
"""How a run stands whose end is missing from its record."""

_LEAST_INTENSITY = 5.0
"""g/kWh. Grids of water and wind alone come near 10 over a year; less is likely a slip of units."""


def build_report(reader: LedgerReader, known: RunConfig) -> Report:
    """Compute all figures of one run.

    Args:
        reader: the run's ledger.
        known: the run's config, for the plan and the factors of the carbon figure.

    Raises:
        LedgerError: when the ledger is damaged.
    """
    # Where all devices are of one machine its name before each of them would be noise.
    reader = reader.short_ids()
    executions, barriers = reader.executions(), reader.barriers()
    placements, evaluations = reader.placements(), reader.evaluations()
    recorded = reader.metrics()
    metrics = metric_series(recorded)
    spans = attempt_spans(reader.attempts(), reader.last_times())
    readings, telemetry, traces = _device_figures(reader, spans, executions)
    # Behind the readings, which are the last to show damage.
    accounting = None if known.config is None else known.config.accounting
    grid = Attribution(timelines(reader, accounting), reader.attempts(), spans)
    evidence = recorded_evidence(reader, spans, executions, readings, grid)
    nodes = node_facts(reader)
    spent = _spent(reader, known, evidence, "these machines" if nodes else "this machine")
    rows = stage_rows(executions, evidence.grid.of_executions)
    emitted = footprint(evidence, spent)
    pauses = pause_summary(reader.choices(), evidence, spent.parts, emitted)
    compared, expected = comparisons(rows), expectation(placements)
    ran = head(reader, known, spans, executions)
    gains = paired_gains(evaluations)
    replayed = card_timeline(evidence)
    balanced = balance(compared, spent.parts, evidence, replayed)
    geared = training_stage(reader, known, evidence, ran, emitted)
    report = Report(
        head=ran,
        verdict=(
            *verdict(ran, gains, spent),
            *carbon_verdict.emitted(emitted),
            *carbon_verdict.waited(pauses),
            *gear_verdict(geared),
            *offloading(ran.path, spent, compared, balanced, replayed, expected),
        ),
        missing=(),
        stages=rows,
        spending=spent,
        footprint=emitted,
        pauses=pauses,
        beside=beside_figures(reader, spent.parts, ran.run_time_s),
        comparisons=compared,
        balance=balanced,
        card_timeline=replayed,
        expectation=expected,
        barriers=barrier_summary(barriers),
        metrics=metrics,
        gains=gains,
        flips=rank_flips(evaluations),
        shifts=logprob_shifts(evaluations),
        own_evaluations=own_evaluations(metrics),
        evaluated_along=evaluated_along(evaluations),
        remarks=_remarks(reader, metrics),
        decisions=decision_groups(placements),
        placements=tuple(placements),
        faults=tuple(reader.faults()),
        telemetry=tuple(telemetry),
        timeline=device_parts.timeline(executions, barriers),
        power=tuple(traces),
        notes=notes(executions, spent, replayed, nodes)
        + carbon_notes(emitted, spent.accounting, pauses)
        + gear_notes(geared),
        nodes=nodes,
        training_stage=geared,
        course=run_course(reader, placements, evidence, emitted, geared, ran.path),
        savings=savings(
            balanced,
            geared,
            pauses,
            is_offloaded=any(c.card is not None for c in compared),
            path=ran.path,
        ),
    )
    return replace(report, missing=tuple(_missing(report, reader, known, executions, recorded)))


def _remarks(reader: LedgerReader, metrics: Mapping[str, Sequence[MetricRow]]) -> tuple[str, ...]:
    """What else there is to say of the stages."""
    # Each attempt notes it again.
    absent = dict.fromkeys(e.detail for e in reader.events() if e.kind is EventKind.NO_REFERENCE)
    packed = packing_remark(metrics)
    return (*absent, *([] if packed is None else [packed]))


def _missing(
    report: Report,
    reader: LedgerReader,
    known: RunConfig,
    executions: Sequence[ExecutionRow],
    metrics: Sequence[MetricRow],
) -> list[str]:
    """List what is missing from the figures, or doubtful."""
    events = reader.events()
    missing = [known.gap] if known.gap else []
    missing += _absent(report, executions, metrics)
    told = {
        kind: [
            f"{e.node}: {e.detail}" if report.nodes and e.node else e.detail
            for e in events
            if e.kind is kind
        ]
        for kind in (EventKind.LEDGER_ROWS_DROPPED, EventKind.POWER_UNREAD)
    }
    missing += told[EventKind.LEDGER_ROWS_DROPPED]
    # Each attempt notes it again.
    missing += dict.fromkeys(told[EventKind.POWER_UNREAD])
    missing += device_parts.work_left_out(reader.devices())
    missing += report.spending.gaps
    missing += [t.counter_doubt for t in report.telemetry if t.counter_doubt]
    missing += carbon_verdict.gaps(report.footprint)
    missing += _doubtful(report.footprint)
    return missing


def _spent(reader: LedgerReader, known: RunConfig, evidence: Evidence, owner: str) -> Spending:
    """Where the joules went, with the machines whose record is lost among the gaps."""
    spent = spending(evidence, _accounting(known.config))
    lost = lost_energy(evidence.lost, reader.node_spans(), len(evidence.spans))
    return replace(spent, gaps=(*lost, *spent.gaps), owner=owner)


def _absent(
    report: Report, executions: Sequence[ExecutionRow], metrics: Sequence[MetricRow]
) -> list[str]:
    """List what the run did not record, or did not keep."""
    by_resume = "were superseded by a resume"
    absent = {
        "no stage execution was recorded": not executions,
        f"all stage executions {by_resume}": len(executions) > 0 and not report.stages,
        "no power reading was recorded": not any(t.n_readings for t in report.telemetry),
        "no metric of the trainer was recorded": not metrics,
        f"all metrics of the trainer {by_resume}": len(metrics) > 0 and not report.metrics,
        "no evaluation was recorded": not (
            report.gains or report.flips or report.shifts or report.own_evaluations
        ),
        "no placement decision was recorded": not report.placements,
        "the end of the run was not recorded": report.head.state in _ENDLESS,
    }
    return [sentence for sentence, holds in absent.items() if holds]


def _doubtful(emitted: Footprint) -> list[str]:
    """Name a constant intensity that is allowed but that no grid has."""
    stated = {
        feed.lowest_g_per_kwh
        for facts in emitted.intensities
        for feed in facts.feeds
        if feed.feed == FROM_ACCOUNTING
    }
    return [
        f"accounting.intensity_g_per_kwh = {given:g} is less than any grid emits: if it was meant "
        f"in kg, all CO2e figures are a thousand times too small ({given:g} kg = "
        f"{1000 * given:g} g)"
        for given in sorted(stated)
        if 0 < given < _LEAST_INTENSITY
    ]


def _accounting(config: Config | None) -> Accounting | None:
    if config is None:
        return None
    a = config.accounting
    return Accounting(
        pue=a.pue,
        intensity_g_per_kwh=a.intensity_g_per_kwh,
        source=a.origin,
        embodied_kg=a.embodied_kg,
        lifetime_h=a.lifetime_h,
        embodied_source=a.embodied_source,
    )


def _device_figures(
    reader: LedgerReader, spans: dict[int, Span], executions: Sequence[ExecutionRow]
) -> tuple[list[DeviceReadings], list[DeviceTelemetry], list[PowerTrace]]:
    """Read the figures device by device: a day of readings of many does not fit in memory."""
    rows = reader.devices()
    errors = reader.sample_errors()
    readings: list[DeviceReadings] = []
    telemetry: list[DeviceTelemetry] = []
    traces: list[PowerTrace] = []
    for device_id in sorted({*(d.device_id for d in rows), *reader.read_device_ids()}):
        raw = reader.raw_samples(device_id)
        seconds = list(reader.power_seconds(device_id))
        readings += device_readings(seconds, spans)
        own = [d for d in rows if d.device_id == device_id]
        failed = [e for e in errors if e.device_id == device_id]
        telemetry += device_parts.device_telemetry(device_id, own, seconds, raw, failed, executions)
        traces += device_parts.power_traces(seconds, spans)
    return readings, telemetry, traces


def node_facts(reader: LedgerReader) -> tuple[NodeFacts, ...]:
    """Describe the machines of a run by attempt, the head first; nothing where there is only one.

    Args:
        reader: the run's ledger.
    """
    head = reader.run().meta.get(NODE)
    devices = {(s.attempt, s.node): s.device_ids for s in reader.node_spans()}
    lost = {(n.attempt, n.node): n.lost for n in reader.lost_nodes()}
    found = [
        NodeFacts(
            head, a.attempt, True, None, None, _bare(devices.get((a.attempt, head), ())), None
        )
        for a in reader.attempts()
    ]
    found += [
        NodeFacts(
            node=n.node,
            attempt=n.attempt,
            is_head=False,
            offset_s=n.offset_s,
            offset_error_s=n.offset_error_s,
            devices=_bare(devices.get((n.attempt, n.node), ())),
            lost=lost.get((n.attempt, n.node)),
        )
        for n in reader.nodes()
        if n.node != head
    ]
    if len({f.node for f in found}) < 2:
        return ()
    return tuple(sorted(found, key=lambda f: (f.attempt, not f.is_head, f.name)))


def _bare(device_ids: Sequence[str]) -> tuple[str, ...]:
    return tuple(device_id.rpartition("/")[2] for device_id in device_ids)


def lost_energy(
    lost: Sequence[NodeRow], spans: Sequence[NodeSpan], n_attempts: int
) -> tuple[str, ...]:
    """Name the machines whose energy is missing with their record, one sentence each.

    Args:
        lost: machines whose record is missing or not whole.
        spans: what could be read.
        n_attempts: attempts of the run; one of several is named.
    """
    there = {(s.attempt, s.node) for s in spans}
    sentences = []
    for n in lost:
        when = f" of attempt {n.attempt}" if n_attempts > 1 else ""
        what = f"the energy of its devices is in no figure ({n.lost})"
        if (n.attempt, n.node) in there:
            what = f"some energy of its devices may be in no figure ({n.lost})"
        whole = "not whole" if (n.attempt, n.node) in there else "missing"
        sentences.append(f"{n.node}: its record{when} is {whole}, and {what}")
    return tuple(sentences)
