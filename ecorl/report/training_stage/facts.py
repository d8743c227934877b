"""Puts together what a run's record tells of the gears and widths of its training stage."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence

from ecorl.config import Config
from ecorl.control import Command
from ecorl.controllers.planning.executions import (
    WholeExecution,
    is_forward,
    is_measurement,
    measured_inside,
    redone_iterations,
    whole_executions,
)
from ecorl.controllers.planning.tables import read_table
from ecorl.errors import ConfigError
from ecorl.ledger import EventRow, GearChoiceRow, LedgerReader
from ecorl.records import EventKind
from ecorl.report.energy.carbon_model import Footprint
from ecorl.report.energy.evidence import Evidence
from ecorl.report.energy.stages import present
from ecorl.report.model import Head
from ecorl.report.run_config import RunConfig
from ecorl.report.training import metric_series
from ecorl.report.training_stage.course import stage_course
from ecorl.report.training_stage.fixed import fixed_stage
from ecorl.report.training_stage.limits import (
    Metrics,
    gear_accuracy,
    gear_measurements,
    low_precision,
    old_log_probs,
    stopped_gears,
)
from ecorl.report.training_stage.model import (
    ChoiceCount,
    PriceTable,
    TokenBudget,
    TrainingStageFacts,
    WidthChanges,
)
from ecorl.report.training_stage.steps import (
    STAGES,
    TrainedStep,
    gear_rows,
    gear_shifts,
    n_width_changes,
    trained_steps,
)

WIDTH_EVENT = "width"
"""Kind of the event that notes a change of the number of workers."""
WIDTH_CHANGE_S = "width_change_s"
"""Metric: what such a change took, s."""


def training_stage(
    reader: LedgerReader, known: RunConfig, evidence: Evidence, head: Head, footprint: Footprint
) -> TrainingStageFacts | None:
    """Sum up gears and widths; None where the run has one gear and one worker, unnamed.

    Args:
        reader: the run's ledger.
        known: its config.
        evidence: what the ledger holds of its energy.
        head: what ran.
        footprint: what its energy emitted.
    """
    rows = [e for e in evidence.executions if e.result.stage in STAGES and not e.superseded]
    choices, config = reader.choices(), known.config
    ran = [(e.result.gear, e.result.width) for e in rows]
    if not _is_told(ran, choices):
        return None
    has_gears = any(gear is not None for gear, _ in ran)
    trained, measured, forwards = _sorted(whole_executions(rows), has_gears=has_gears)
    faults, recorded = reader.faults(), reader.metrics()
    metrics, inside = metric_series(recorded), measured_inside(recorded, measured)
    redone = redone_iterations(f for f in faults if not f.superseded)
    steps = trained_steps(trained, redone)
    own = _of_first_stage(steps)
    found = gear_rows(steps)
    accuracy = gear_accuracy(metrics, config)
    widths = _width_changes(own, metrics, reader.events())
    measurements = gear_measurements(measured, metrics, len(inside))
    return TrainingStageFacts(
        rows=found,
        shifts=gear_shifts(own),
        widths=widths,
        low=low_precision(found, accuracy, config),
        accuracy=accuracy,
        n_redone=len(redone),
        stopped=stopped_gears(faults),
        measurements=measurements,
        old_log_probs=old_log_probs(forwards),
        budget=_budget(reader, config, head, choices),
        table=_price_table(config),
        choices=_counted(choices),
        course=stage_course(own, evidence.pauses, choices, reader.attempts(), footprint),
        fixed=fixed_stage(own, measurements, widths),
    )


def _sorted(
    wholes: Sequence[WholeExecution], *, has_gears: bool
) -> tuple[list[WholeExecution], list[WholeExecution], list[WholeExecution]]:
    """Executions that trained, that measured the gears, and that passed forward alone.

    Without gears nothing was measured, and all of them count to the one row.
    """
    trained: list[WholeExecution] = []
    measured: list[WholeExecution] = []
    forwards: list[WholeExecution] = []
    for whole in wholes:
        result = whole.row.result
        if has_gears and is_measurement(result):
            measured.append(whole)
        elif has_gears and is_forward(result):
            forwards.append(whole)
        else:
            trained.append(whole)
    return trained, measured, forwards


def _is_told(
    executions: Sequence[tuple[str | None, int | None]], choices: Sequence[GearChoiceRow]
) -> bool:
    """Whether executions or choices name a gear, or a width beyond one worker."""
    told = [*executions, *((row.choice.gear, row.choice.width) for row in choices)]
    return any(gear is not None or (width or 0) > 1 for gear, width in told)


def _of_first_stage(steps: Sequence[TrainedStep]) -> list[TrainedStep]:
    """The actor's steps, or the critic's where only that one was trained."""
    stage = min((s.stage for s in steps), key=STAGES.index, default=None)
    return [s for s in steps if s.stage is stage]


def _width_changes(
    steps: Sequence[TrainedStep], metrics: Metrics, events: Sequence[EventRow]
) -> WidthChanges:
    times_s = present(row.value for row in metrics.get(WIDTH_CHANGE_S, ()))
    told = tuple(event.detail for event in events if str(event.kind) == WIDTH_EVENT)
    return WidthChanges(
        n=max(n_width_changes(steps), len(times_s)),
        n_timed=len(times_s),
        total_s=sum(times_s) if times_s else None,
        median_s=statistics.median(times_s) if times_s else None,
        most_s=max(times_s, default=None),
        told=told,
    )


def _counted(choices: Sequence[GearChoiceRow]) -> tuple[ChoiceCount, ...]:
    runs = [row.choice for row in choices if row.choice.command is Command.RUN]
    n = Counter((None if c.gear is None else str(c.gear), c.width) for c in runs)
    if not any(gear is not None or width is not None for gear, width in n):
        return ()
    return tuple(ChoiceCount(gear, width, count) for (gear, width), count in n.most_common())


def _price_table(config: Config | None) -> PriceTable | None:
    """The table of the config, as it is now: the record does not hold it."""
    if config is None or config.carbon.control.table is None or not config.gears.allowed:
        return None
    path = config.carbon.control.table
    try:
        table = read_table(path)
    except ConfigError as error:
        return PriceTable(str(path), None, None, str(error))
    return PriceTable(str(path), table.provenance, table.source, None)


# ---------------------------------------------------------------- in time


def _budget(
    reader: LedgerReader, config: Config | None, head: Head, choices: Sequence[GearChoiceRow]
) -> TokenBudget:
    deadline_s, ended_s = _deadline_s(config, choices), _ended_s(reader)
    done, planned = head.n_steps_done, head.n_steps_planned
    is_kept: bool | None = None
    if deadline_s is not None and ended_s is not None:
        is_kept = ended_s <= deadline_s and (planned is None or done >= planned)
    elif deadline_s is not None and _newest_s(reader) > deadline_s:
        is_kept = False  # it is over, and training was not
    return TokenBudget(done, planned, deadline_s, ended_s, is_kept)


def _deadline_s(config: Config | None, choices: Sequence[GearChoiceRow]) -> float | None:
    """The deadline that decisions went by last, s since 1970."""
    told = [row.memory.get("deadline_s") for row in choices]
    known = [float(one) for one in told if isinstance(one, int | float)]
    if known:
        return known[-1]
    control = None if config is None else config.carbon.control
    if control is None or control.controller is None or control.deadline is None:
        return None
    return control.deadline.timestamp()


def _ended_s(reader: LedgerReader) -> float | None:
    """When training was over, s since 1970: by the newest attempt alone."""
    attempts = reader.attempts()
    ends = [e for e in reader.events() if e.kind is EventKind.TRAINING_END]
    if not attempts or not ends or ends[-1].attempt != attempts[-1].attempt:
        return None
    anchor = attempts[-1]
    return anchor.unix_anchor_s + ends[-1].t_s - anchor.monotonic_anchor_s


def _newest_s(reader: LedgerReader) -> float:
    """The newest record, s since 1970; 0 without any."""
    times_s = reader.last_times()
    found = [
        a.unix_anchor_s + times_s[a.attempt] - a.monotonic_anchor_s
        for a in reader.attempts()
        if a.attempt in times_s
    ]
    return max(found, default=0.0)
