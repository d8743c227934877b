"""Puts together what a run's record tells of the gears and widths of its training stage."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

from ecorl.config import Config
from ecorl.control import Command, Gear
from ecorl.controllers.planning.executions import (
    MEASUREMENT_S,
    WholeExecution,
    is_forward,
    is_measurement,
    measured_inside,
    redone_iterations,
    whole_executions,
)
from ecorl.controllers.planning.tables import read_table
from ecorl.errors import ConfigError
from ecorl.ledger import AttemptRow, EventRow, FaultRow, GearChoiceRow, LedgerReader, MetricRow
from ecorl.records import EventKind, FaultKind, weakest
from ecorl.report.energy.carbon_model import Footprint
from ecorl.report.energy.evidence import Evidence
from ecorl.report.energy.readings import Span
from ecorl.report.energy.stages import energy_j, present, total
from ecorl.report.model import Head
from ecorl.report.run_config import RunConfig
from ecorl.report.training import metric_series
from ecorl.report.training_stage.model import (
    ChoiceCount,
    GearAccuracy,
    GearMeasurements,
    GearRow,
    LowPrecision,
    OldLogProbs,
    PriceTable,
    ShareLimit,
    StageBand,
    StageCourse,
    TokenBudget,
    TrainingStageFacts,
    WidthChanges,
    is_low,
)
from ecorl.report.training_stage.steps import (
    STAGES,
    TrainedStep,
    fixed_stage,
    gear_rows,
    gear_shifts,
    n_width_changes,
    trained_steps,
)

NOISE, MISMATCH = "gradient_noise_ratio_", "probability_mismatch_"
"""Metrics of a gear, whose name follows."""

Metrics = Mapping[str, Sequence[MetricRow]]


def gear_accuracy(metrics: Metrics, config: Config | None) -> tuple[GearAccuracy, ...]:
    """Take the newest measurement of each gear.

    Args:
        metrics: of the run, by name, in the order of iterations.
        config: of the run; None without one.
    """
    limit = None if config is None else config.gears.mismatch_limit
    reference = None if config is None else config.gears.reference
    found = []
    for gear in map(str, Gear):
        noise, mismatch = _newest(metrics, NOISE + gear), _newest(metrics, MISMATCH + gear)
        if noise or mismatch:
            found.append(
                GearAccuracy(
                    gear=gear,
                    noise_ratio=noise.value if noise else None,
                    noise_iteration=noise.iteration if noise else None,
                    mismatch=mismatch.value if mismatch else None,
                    mismatch_iteration=mismatch.iteration if mismatch else None,
                    mismatch_limit=limit,
                    reference=None if reference is None else str(reference),
                )
            )
    return tuple(found)


def _newest(metrics: Metrics, name: str) -> MetricRow | None:
    known = [row for row in metrics.get(name, ()) if row.value is not None]
    return known[-1] if known else None


def low_precision(
    rows: Sequence[GearRow], accuracy: Sequence[GearAccuracy], config: Config | None
) -> LowPrecision | None:
    """Hold the share of tokens in low precision against its limit.

    The mean excess variance over all tokens is the share times the gear's own, so that the budget
    of the one bounds the other: ``share <= noise_budget / (ratio^2 - 1)``.

    Args:
        rows: by gear and width.
        accuracy: the newest measurements.
        config: of the run; None without one.

    Returns:
        None where no gear of low precision could be chosen and none was run.
    """
    allowed = () if config is None else config.gears.allowed
    if not any(is_low(row.gear) for row in rows) and not any(gear.is_low for gear in allowed):
        return None
    own = [row for row in rows if row.stage is rows[0].stage]
    counted = [row for row in own if row.token_share is not None]
    shares = [row.token_share or 0.0 for row in counted if is_low(row.gear)]
    ratios = present(one.noise_ratio for one in accuracy if is_low(one.gear))
    ratio = max(ratios, default=None)
    share = math.fsum(shares) if counted else None
    if config is None:
        return LowPrecision(share, None, None, None, None, ratio)
    cap, budget = config.carbon.control.low_share, config.gears.noise_budget
    limit, binds = cap, ShareLimit.SHARE if cap < 1.0 else None
    excess = 0.0 if ratio is None else ratio * ratio - 1.0
    if budget is not None and excess > 0.0 and budget / excess < cap:
        limit, binds = budget / excess, ShareLimit.NOISE
    return LowPrecision(share, limit, binds, cap, budget, ratio)


def stopped_gears(faults: Sequence[FaultRow]) -> tuple[str, ...]:
    """Why gears were retired or barred, in the order of time.

    Args:
        faults: of the run.
    """
    kinds = (FaultKind.GEAR_RETIRED, FaultKind.GEAR_BARRED)
    own = [f for f in faults if f.kind in kinds and not f.superseded]
    return tuple(
        f.detail if f.iteration is None else f"step {f.iteration}: {f.detail}" for f in own
    )


def gear_measurements(
    wholes: Sequence[WholeExecution], metrics: Metrics, n_inside: int
) -> GearMeasurements | None:
    """Add up what measuring the gears took; None where nothing was measured.

    Args:
        wholes: the executions that measured.
        metrics: of the run, by name.
        n_inside: how many measurements were within the time of a step that trained.
    """
    times_s = present(row.value for row in metrics.get(MEASUREMENT_S, ()))
    if not times_s and not wholes:
        return None
    results = [whole.row.result for whole in wholes]
    known = [r for r in results if energy_j(r) is not None]
    provenances = [r.energy.provenance for r in known if r.energy is not None]
    return GearMeasurements(
        n=max(len(times_s), len(wholes) + n_inside),
        time_s=total(times_s) if times_s else total(r.time_s for r in results),
        n_with_energy=len(known),
        energy_j=total(map(energy_j, known)),
        energy_provenance=weakest(*provenances) if provenances else None,
        n_inside=n_inside,
    )


def old_log_probs(wholes: Sequence[WholeExecution]) -> OldLogProbs | None:
    """Add up forward passes for old log-probabilities; None without any.

    Args:
        wholes: the executions that passed forward for them.
    """
    if not wholes:
        return None
    results = [whole.row.result for whole in wholes]
    energies = [r.energy for r in results if r.energy is not None and energy_j(r) is not None]
    return OldLogProbs(
        n=len(results),
        time_s=total(r.time_s for r in results),
        time_provenance=weakest(*(r.time_provenance for r in results)),
        n_with_energy=len(energies),
        energy_j=total(map(energy_j, results)),
        energy_provenance=weakest(*(e.provenance for e in energies)) if energies else None,
    )


def stage_course(
    steps: Sequence[TrainedStep],
    pauses: Mapping[int, Sequence[Span]],
    choices: Sequence[GearChoiceRow],
    attempts: Sequence[AttemptRow],
    footprint: Footprint,
) -> StageCourse:
    """Put bands and intensities on one clock: seconds of the wall clock since the run began.

    Args:
        steps: of one stage, in the order of time.
        pauses: when the run stood still by choice, by attempt, monotonic s.
        choices: decisions in their order.
        attempts: of the run.
        footprint: knows where the intensities come from.
    """
    began_s = attempts[0].unix_anchor_s if attempts else 0.0
    ahead_s = {a.attempt: a.unix_anchor_s - a.monotonic_anchor_s - began_s for a in attempts}
    own = [(s.attempt, StageBand(s.start_s, s.end_s, s.gear, s.width, 1)) for s in steps]
    own += [(a, StageBand(*span, None, 0)) for a, spans in pauses.items() for span in spans]
    bands: list[StageBand] = []
    last: int | None = None
    for attempt, band in sorted(own, key=lambda one: (one[0], one[1].start_s)):
        moved_s = ahead_s.get(attempt, 0.0)
        start_s, end_s = band.start_s + moved_s, band.end_s + moved_s
        before = bands[-1] if bands and last == attempt else None
        if before is not None and (before.gear, before.width) == (band.gear, band.width):
            n_steps = before.n_steps + band.n_steps
            bands[-1] = StageBand(before.start_s, end_s, band.gear, band.width, n_steps)
        else:
            bands.append(StageBand(start_s, end_s, band.gear, band.width, band.n_steps))
        last = attempt
    known = [f.provenance for f in footprint.intensities if f.provenance is not None]
    return StageCourse(
        intensities=tuple((c.choice.decided_s - began_s, c.choice.g_per_kwh) for c in choices),
        provenance=weakest(*known) if known else None,
        bands=tuple(bands),
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
