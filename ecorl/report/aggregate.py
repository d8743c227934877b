"""From a ledger to a `Report`: pure functions, no output."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ecorl.config import Config, load_config
from ecorl.errors import ConfigError
from ecorl.ledger import EventRow, ExecutionRow, LedgerReader, RunRow
from ecorl.report import devices as device_parts
from ecorl.report.card import balance, card_timeline
from ecorl.report.energy import (
    CAUSE_OF_STAGE,
    DeviceReadings,
    Evidence,
    device_readings,
    spending,
)
from ecorl.report.model import (
    Accounting,
    DeviceTelemetry,
    Head,
    PowerTrace,
    Report,
)
from ecorl.report.notes import notes
from ecorl.report.spans import Span, attempt_spans, length
from ecorl.report.stage_table import comparisons, decision_groups, expectation, stage_rows
from ecorl.report.training import barrier_summary, metric_series, paired_gains, rank_flips
from ecorl.report.verdict import offloading, verdict

logger = logging.getLogger(__name__)

CONFIG_FILE = "config.toml"


def read_config(run_dir: Path) -> tuple[Config | None, str | None]:
    """The config saved with a run, or None and one sentence that says why there is none."""
    path = run_dir / CONFIG_FILE
    if not path.is_file():
        return None, f"{CONFIG_FILE} is not in the run folder: no plan, no carbon figure"
    try:
        return load_config(str(path)), None
    except ConfigError as error:
        return None, f"{CONFIG_FILE} cannot be read ({error}): no plan, no carbon figure"


def build_report(reader: LedgerReader, config: Config | None, gap: str | None = None) -> Report:
    """All figures of one run.

    Args:
        reader: the run's ledger.
        config: the run's config, for the plan and the factors of the carbon figure.
        gap: why there is no config.

    Raises:
        LedgerError: when the ledger is damaged.
    """
    executions, barriers = reader.executions(), reader.barriers()
    placements, evaluations = reader.placements(), reader.evaluations()
    metrics = metric_series(reader.metrics())
    spans = attempt_spans(reader.attempts(), reader.last_times())
    readings, telemetry, traces = _device_figures(reader, spans, executions)
    spent = spending(
        Evidence(executions, barriers, reader.devices(), readings, spans), _accounting(config)
    )
    rows = stage_rows(executions)
    compared, expected = comparisons(rows), expectation(placements)
    head = _head(reader, config, spans, executions)
    balanced = balance(compared, spent.parts, head.run_time_s)
    replayed = card_timeline(executions, barriers, reader.devices(), head.run_time_s)
    report = Report(
        head=head,
        verdict=(*verdict(head, spent), *offloading(spent, compared, balanced, replayed, expected)),
        missing=(),
        stages=rows,
        spending=spent,
        comparisons=compared,
        balance=balanced,
        card_timeline=replayed,
        expectation=expected,
        barriers=barrier_summary(barriers),
        metrics=metrics,
        gains=paired_gains(evaluations),
        flips=rank_flips(evaluations),
        decisions=decision_groups(placements),
        placements=tuple(placements),
        faults=tuple(reader.faults()),
        telemetry=tuple(telemetry),
        timeline=device_parts.timeline(executions, barriers),
        power=tuple(traces),
        notes=notes(executions, spent),
    )
    return _with_missing(report, reader.events(), gap)


def _with_missing(report: Report, events: Sequence[EventRow], gap: str | None) -> Report:
    missing = [gap] if gap else []
    absent = {
        "no stage execution was recorded": not report.stages,
        "no power reading was recorded": not any(t.n_readings for t in report.telemetry),
        "no metric of the trainer was recorded": not report.metrics,
        "no evaluation was recorded": not report.gains and not report.flips,
        "no placement decision was recorded": not report.placements,
        "the end of the run was not recorded": report.head.state == "no end recorded",
    }
    missing += [sentence for sentence, holds in absent.items() if holds]
    missing += [e.detail for e in events if e.kind == "ledger_rows_dropped"]
    missing += report.spending.gaps
    return replace(report, missing=tuple(missing))


def _accounting(config: Config | None) -> Accounting | None:
    if config is None:
        return None
    a = config.accounting
    return Accounting(a.pue, a.intensity_g_per_kwh, a.source)


def _device_figures(
    reader: LedgerReader, spans: dict[int, Span], executions: Sequence[ExecutionRow]
) -> tuple[dict[str, DeviceReadings], list[DeviceTelemetry], list[PowerTrace]]:
    """Device by device, for a day of readings of many devices does not fit in memory at once."""
    rows = {d.device_id: d for d in reader.devices()}
    errors = reader.sample_errors()
    readings: dict[str, DeviceReadings] = {}
    telemetry: list[DeviceTelemetry] = []
    traces: list[PowerTrace] = []
    for device_id in sorted({*rows, *reader.read_device_ids()}):
        raw = reader.raw_samples(device_id)
        seconds = device_parts.with_tail(list(reader.power_seconds(device_id)), raw)
        readings |= device_readings(seconds, spans)
        row = rows.get(device_id)
        telemetry.append(
            device_parts.device_telemetry(device_id, row, seconds, raw, errors, executions)
        )
        traces += device_parts.power_traces(seconds, spans)
    return readings, telemetry, traces


def _head(
    reader: LedgerReader,
    config: Config | None,
    spans: dict[int, Span],
    executions: Sequence[ExecutionRow],
) -> Head:
    run, attempts = reader.run(), reader.attempts()
    done = {
        e.result.iteration
        for e in executions
        if not e.superseded and CAUSE_OF_STAGE[e.result.stage] == "training"
    }
    done |= {m.iteration for m in reader.metrics() if not m.superseded}
    saved = [c.iteration for c in reader.checkpoints() if not c.superseded]
    used = {f"{e.result.device_id}: {e.result.device}" for e in executions}
    known = {f"{d.device_id}: {d.profile}" for d in reader.devices()}
    return Head(
        run_id=run.run_id,
        state=_state(reader.events()),
        algorithm=config.algorithm if config else run.meta.get("algorithm"),
        adapter=config.adapter if config else run.meta.get("adapter"),
        policy=config.placement.policy.type if config else None,
        seed=config.seed if config else None,
        models=_models(config, run),
        devices=tuple(sorted(known or used)),
        commit=run.meta.get("commit"),
        n_attempts=len(attempts),
        n_steps_planned=config.trainer.steps if config else None,
        n_steps_done=len(done),
        checkpoint_step=max(saved, default=None),
        started_unix_s=attempts[0].unix_anchor_s if attempts else run.created_unix_s,
        run_time_s=length(spans.values()),
        meta=run.meta,
    )


def _models(config: Config | None, run: RunRow) -> dict[str, str]:
    found = {k: v for k, v in run.meta.items() if k in ("policy_model", "reward_model")}
    if config is None:
        return found
    task = config.task
    if task.type == "files":
        return {"policy": str(task.policy), "reward": str(task.reward), **found}
    return {"task": task.type, **found}


def _state(events: Sequence[EventRow]) -> str:
    """The last start, resume, stop or finish decides."""
    words = {"finish": "finished", "stop": "stopped", "start": "", "resume": ""}
    for event in reversed(events):
        for word, state in words.items():
            if word in event.kind:
                return state or "no end recorded"
    return "no end recorded"
