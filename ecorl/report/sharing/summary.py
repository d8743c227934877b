"""`RunSummary`: the figures of a run that are handed on, each with where it comes from."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ecorl.config import Config, FilesTask
from ecorl.ledger import DeviceRow, EvaluationRow, LedgerReader
from ecorl.records import EvaluationPhase, Provenance, Stage
from ecorl.report.beside import read_beside
from ecorl.report.energy.carbon_model import FeedFacts, PueFacts
from ecorl.report.energy.causes import cause_of, simulated_cards
from ecorl.report.energy.emissions import IntensityKind
from ecorl.report.energy.model import Cause
from ecorl.report.energy.stages import present
from ecorl.report.model import Head, Report
from ecorl.report.run_config import RunConfig
from ecorl.report.training_stage.model import TrainingStageFacts
from ecorl.runtime.memory import DEVICE_METRIC, HOST_METRIC
from ecorl.telemetry.beside.codecarbon import Beside

ACCUMULATION, EFFECTIVE_BATCH = "gradient_accumulation_steps", "effective_batch_size"
"""Facts of a run's head that say how its batches were made."""


@dataclass(frozen=True, slots=True)
class EnergyFigure:
    """Energy of the machines over the whole run, idle draw included.

    Attributes:
        energy_j: J.
        mean_power_w: over the run time, W.
        provenance: the weakest of its parts.
        at_least: whether something is missing from it.
    """

    energy_j: float
    mean_power_w: float | None
    provenance: Provenance
    at_least: bool


@dataclass(frozen=True, slots=True)
class EmissionFigure:
    """Emissions of that energy by one kind of intensity, with the PUE.

    Attributes:
        kind: average or marginal.
        carbon_g: g of ``gas``; None where nothing is known.
        provenance: the weakest of energy and intensities.
        at_least: whether something is missing from it; ``unknown_j`` is the energy, J, for which no
            intensity or no PUE is known.
        mean_g_per_kwh: over the time for which an intensity is known.
        feeds: the feeds that counted, the longest first.
    """

    kind: IntensityKind
    gas: str
    carbon_g: float | None
    provenance: Provenance
    at_least: bool
    unknown_j: float
    mean_g_per_kwh: float | None
    feeds: tuple[FeedFacts, ...]


@dataclass(frozen=True, slots=True)
class WaitingFigure:
    """How the run waited for a clean window.

    Attributes:
        wait_s: time in which it stood still, s.
        n_pauses: how often.
        first_g_per_kwh: intensity when it began; None: unknown.
        training_g_per_kwh: mean over the time in which it did not stand still; None: unknown.
    """

    wait_s: float
    n_pauses: int
    first_g_per_kwh: float | None
    training_g_per_kwh: float | None


@dataclass(frozen=True, slots=True)
class EvaluationScores:
    """The last evaluation of one name.

    Attributes:
        phase: when it was made.
        values: one an item, in the order of items; None for one without a value.
        mean: over the items that have one; None without any.
        standard_error: of that mean; None below two items.
    """

    name: str
    phase: str
    values: tuple[float | None, ...]
    mean: float | None
    standard_error: float | None


@dataclass(frozen=True, slots=True)
class WorkDone:
    """What a run did, as far as its record tells.

    Attributes:
        n_steps: steps that were kept.
        n_samples: sequences that were generated, or else trained on, and kept; None where nobody
            counted them.
        n_tokens: tokens likewise.
        models: what was trained, by name.
        effective_batch_size, accumulation_steps: None where the record does not tell.
        gears: share of the trained tokens by numeric format of the training stage, 0 to 1; empty
            where the record names no format.
        widths: numbers of workers with which steps were made, rising; empty where nobody counted.
    """

    n_steps: int
    n_samples: int | None
    n_tokens: int | None
    models: Mapping[str, str]
    effective_batch_size: int | None
    accumulation_steps: int | None
    gears: Mapping[str, float] = field(default_factory=dict)
    widths: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The figures of one run that are handed on.

    Attributes:
        energy: None where no energy is known.
        emissions: by kind of intensity; empty where none is known.
        pue: over the run time.
        waiting: None where nothing was ever decided about waiting.
        peak_memory_device_bytes, peak_memory_host_bytes: the most that a step had in use; None
            where it was not measured.
        scores: the last evaluation of each name.
        final_loss: of the last step that was kept; None without one.
        beside: what CodeCarbon found of the same time; None where it did not run.
        missing: what is missing from the figures, one sentence each.
        conditions: what it was asked to do, and by which instruments its figures were taken.
    """

    run_id: str
    state: str
    started_unix_s: float
    run_time_s: float
    devices: tuple[str, ...]
    commit: str | None
    work: WorkDone
    energy: EnergyFigure | None
    emissions: tuple[EmissionFigure, ...]
    pue: PueFacts
    waiting: WaitingFigure | None
    peak_memory_device_bytes: int | None
    peak_memory_host_bytes: int | None
    scores: tuple[EvaluationScores, ...]
    final_loss: float | None
    beside: Beside | None
    missing: tuple[str, ...]
    conditions: Conditions

    def emission(self, kind: IntensityKind = IntensityKind.AVERAGE) -> EmissionFigure | None:
        """Emissions by one kind of intensity, or None without a figure."""
        return next((e for e in self.emissions if e.kind is kind), None)


def summarise(report: Report, reader: LedgerReader, known: RunConfig) -> RunSummary:
    """Take the figures that are handed on out of a report.

    Args:
        report: of the run.
        reader: of the same run.
        known: its config.
    """
    head = report.head
    return RunSummary(
        run_id=head.run_id,
        state=str(head.state),
        started_unix_s=head.started_unix_s,
        run_time_s=head.run_time_s,
        devices=head.devices,
        commit=head.commit,
        work=_work(report, reader, known),
        energy=_energy(report),
        emissions=tuple(_emissions(report)),
        pue=report.footprint.pue,
        waiting=_waiting(report),
        peak_memory_device_bytes=_peak(report, DEVICE_METRIC),
        peak_memory_host_bytes=_peak(report, HOST_METRIC),
        scores=_scores(reader.evaluations()),
        final_loss=_final(report, "loss"),
        beside=read_beside(reader),
        missing=report.missing,
        conditions=read_conditions(head, reader, known),
    )


def _work(report: Report, reader: LedgerReader, known: RunConfig) -> WorkDone:
    meta = report.head.meta
    kept = [e.result for e in reader.executions() if not e.superseded]
    generated = [r for r in kept if cause_of(r) is Cause.GENERATION]
    trained = [r for r in kept if r.stage is Stage.ACTOR_TRAIN]
    done = generated or trained
    n_rows = [r.n_sequences for r in done]
    tokens = sum(r.n_output_tokens if generated else r.n_tokens for r in done)
    steps = _whole(meta.get(ACCUMULATION))
    batch = _whole(meta.get(EFFECTIVE_BATCH))
    if known.config is not None and not report.head.attached:
        steps, batch = steps or 1, batch or known.config.trainer.per_device_batch_size
    rows = _whole(meta.get("per_device_train_batch_size"))
    if batch is None and rows is not None:
        batch = rows * (steps or 1) * (_whole(meta.get("n_processes")) or 1)
    return WorkDone(
        n_steps=report.head.n_steps_done,
        # A step that was trained on nothing is one of which nobody counted.
        n_samples=sum(n_rows) or None if all(n_rows) else None,
        n_tokens=tokens or None,
        models=report.head.models,
        effective_batch_size=batch,
        accumulation_steps=steps,
        gears=_gears(report.training_stage),
        widths=tuple(sorted({r.width for r in trained if r.width})),
    )


def _gears(geared: TrainingStageFacts | None) -> dict[str, float]:
    named = geared is not None and any(row.gear is not None for row in geared.rows)
    return geared.token_shares() if geared is not None and named else {}


def _whole(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def _energy(report: Report) -> EnergyFigure | None:
    if not report.spending.columns:
        return None
    column, run_time_s = report.spending.columns[-1], report.head.run_time_s
    power_w = column.energy_j / run_time_s if run_time_s > 0 else None
    return EnergyFigure(column.energy_j, power_w, column.provenance, column.at_least)


def _emissions(report: Report) -> list[EmissionFigure]:
    found = []
    for facts in report.footprint.intensities:
        column = report.footprint.total(facts.kind)
        if column is not None:
            found.append(
                EmissionFigure(
                    kind=facts.kind,
                    gas=facts.gas,
                    carbon_g=column.emitted.carbon_g,
                    provenance=column.provenance,
                    at_least=column.at_least,
                    unknown_j=column.emitted.unknown_j if column.is_incomplete else 0.0,
                    mean_g_per_kwh=facts.mean_g_per_kwh,
                    feeds=facts.feeds,
                )
            )
    return found


def _waiting(report: Report) -> WaitingFigure | None:
    pauses = report.pauses
    if pauses is None:
        return None
    outcome = next((o for o in pauses.outcomes if o.kind is IntensityKind.AVERAGE), None)
    first = outcome.start_g_per_kwh if outcome is not None else None
    trained = outcome.trained_g_per_kwh if outcome is not None else None
    if outcome is None:
        facts = report.footprint.facts(IntensityKind.AVERAGE)
        trained = None if facts is None else facts.mean_g_per_kwh
        told = [row.choice.g_per_kwh for row in pauses.choices if row.choice.g_per_kwh is not None]
        first = told[0] if told else None
    return WaitingFigure(pauses.total_s, pauses.n, first, trained)


def _peak(report: Report, name: str) -> int | None:
    values = present(row.value for row in report.metrics.get(name, ()))
    return int(max(values)) if values else None


def _final(report: Report, name: str) -> float | None:
    rows = report.metrics.get(name, ())
    return rows[-1].value if rows else None


def _scores(rows: Sequence[EvaluationRow]) -> tuple[EvaluationScores, ...]:
    """The last evaluation of each name; those of before training say nothing of the run."""
    last = {row.name: row for row in rows if row.phase != EvaluationPhase.BEFORE}
    found = []
    for name, row in last.items():
        values = present(row.values)
        error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
        mean = statistics.fmean(values) if values else None
        found.append(EvaluationScores(name, row.phase, row.values, mean, error))
    return tuple(found)


COMPLETION_LENGTH, GENERATIONS, BETA = "max_completion_length", "num_generations", "beta"
"""Settings of a trainer that change how much work a step is."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a run was asked to do, and how its figures were taken; None where nobody recorded it.

    Attributes:
        settings: the trainer's that change how much work a step is, by name; missing ones are not
            known.
        prompts: the file of prompts, or the name of the task that makes them.
        instruments: by device, as its last attempt had them.
        interval_s: at which power was read, s, where the config says so.
        placement: type of the placement policy.
        n_card_calls: calls that a simulated card answered and that the run kept.
    """

    algorithm: str | None = None
    seed: int | None = None
    settings: Mapping[str, float] = field(default_factory=dict)
    prompts: str | None = None
    host: str | None = None
    instruments: Mapping[str, DeviceRow] = field(default_factory=dict)
    interval_s: float | None = None
    placement: str | None = None
    n_card_calls: int = 0


def read_conditions(head: Head, reader: LedgerReader, known: RunConfig) -> Conditions:
    """Read the conditions of a run.

    Args:
        head: of its report.
        reader: its ledger.
        known: its config.
    """
    config, devices, executions = known.config, reader.devices(), reader.executions()
    cards = simulated_cards(executions, devices)
    return Conditions(
        algorithm=head.algorithm,
        seed=head.seed,
        settings=_settings(head, config),
        prompts=None if config is None or head.attached else _prompts(config),
        host=head.meta.get("host"),
        instruments={d.device_id: d for d in devices},
        interval_s=None if config is None else getattr(config.telemetry.gpu, "interval_s", None),
        placement=head.policy,
        n_card_calls=sum(
            not e.superseded and not cards.isdisjoint(e.result.device_ids) for e in executions
        ),
    )


def _settings(head: Head, config: Config | None) -> dict[str, float]:
    names = (COMPLETION_LENGTH, GENERATIONS, BETA)
    if config is not None and not head.attached:
        return {name: float(getattr(config.trainer, name)) for name in names}
    found = {}
    for name in names:
        try:
            found[name] = float(head.trainer[name])
        except (KeyError, ValueError):
            continue
    return found


def _prompts(config: Config) -> str:
    task = config.task
    return str(task.prompts) if isinstance(task, FilesTask) else f"the task {task.type}"
