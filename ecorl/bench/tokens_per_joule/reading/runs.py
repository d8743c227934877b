"""Reads one run of the benchmark from its record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ecorl.bench.tokens_per_joule.arms import SUPERVISED
from ecorl.bench.tokens_per_joule.reading.model import PackedRun, RunFigures, StageUse
from ecorl.bench.tokens_per_joule.reading.quality import (
    WindowEnergy,
    busy_s,
    quality_points,
    window_energy,
)
from ecorl.config import parse_config
from ecorl.errors import EcorlError
from ecorl.ledger import ExecutionRow, LedgerReader
from ecorl.records import Action, EventKind, Stage
from ecorl.report.energy.causes import cause_of, simulated_cards
from ecorl.report.energy.model import Cause
from ecorl.report.energy.stages import stage_rows
from ecorl.report.energy.windows import Window, step_windows
from ecorl.runtime.adapters import ALL_TOKENS
from ecorl.runtime.packed_tokens import COMPUTED, DIFFERENCE, UNPACKED

_MAY_LEAVE = (Stage.REWARD, Stage.REFERENCE)


def read_run(folder: Path, arm: str, seed: int, warm_up: int) -> RunFigures:
    """Read the figures of a run of an arm; without figures where its record gives none.

    Args:
        folder: of the run.
        arm: its name.
        seed: of the run.
        warm_up: steps at the begin that do not count.
    """
    try:
        with LedgerReader(folder) as reader:
            return _read(reader.short_ids(), RunFigures(arm, seed), warm_up)
    except EcorlError as error:
        return RunFigures(arm, seed, missing=str(error))


def _read(reader: LedgerReader, empty: RunFigures, warm_up: int) -> RunFigures:
    config = parse_config(reader.run().config_toml, "the run's record")
    windows = step_windows(reader, warm_up)
    why = _unusable(reader, windows, warm_up)
    if why:
        return replace(empty, missing=why)
    drawn = window_energy(reader, windows, config.accounting)
    rows = drawn.evidence.executions
    generated = [r.result for r in rows if cause_of(r.result) is Cause.GENERATION]
    return replace(
        empty,
        n_steps=len({r.result.iteration for r in rows}),
        n_tokens=sum(r.n_output_tokens for r in generated),
        n_samples=sum(r.n_sequences for r in generated),
        time_s=drawn.time_s,
        busy_s=busy_s(drawn.evidence),
        machine=drawn.machine,
        card=drawn.card,
        stages=tuple(_stages(drawn)),
        quality=quality_points(reader, config.trainer.steps),
        offloaded=_offloaded(rows),
        n_faults=len(reader.faults()),
        gaps=drawn.spent.gaps,
        packing=_packing(reader, warm_up),
    )


def _packing(reader: LedgerReader, warm_up: int) -> PackedRun | None:
    """What packing rows by length made of the steps that count; None where none were packed."""
    found = {COMPUTED: 0.0, UNPACKED: 0.0}
    differences = []
    for row in reader.metrics():
        if row.value is None or row.superseded:
            continue
        if row.name.startswith(DIFFERENCE):
            differences.append(row.value)
        for begin in found:
            if row.name.startswith(begin) and row.iteration > warm_up:
                found[begin] += row.value
    if not found[UNPACKED]:
        return None
    return PackedRun(round(found[COMPUTED]), round(found[UNPACKED]), max(differences, default=None))


def _unusable(reader: LedgerReader, windows: Sequence[Window], warm_up: int) -> str:
    """Why a record is of no use here; empty where it is of use."""
    if len(reader.attempts()) > 1:
        return "the run was resumed: its warm-up was not the others'"
    if not any(event.kind is EventKind.FINISH for event in reader.events()):
        return "the run did not finish"
    return "" if windows else f"no step was recorded behind the warm-up of {warm_up}"


def _stages(drawn: WindowEnergy) -> list[StageUse]:
    cards = simulated_cards(drawn.evidence.executions, drawn.evidence.devices)
    return [
        StageUse(
            role=row.role,
            device=row.device,
            time_provenance=row.time_provenance,
            energy_provenance=row.energy_provenance,
            n_calls=row.n_calls,
            n_output_tokens=row.n_output_tokens,
            time_s=row.time_s,
            energy_j=row.energy_j,
            is_simulated=not cards.isdisjoint(row.device_ids),
        )
        for row in stage_rows(drawn.evidence.executions)
    ]


def _offloaded(rows: Sequence[ExecutionRow]) -> dict[str, float]:
    """Share of the executions of each stage that may leave that did leave."""
    found = {}
    for stage in _MAY_LEAVE:
        own = [r.result.action is not Action.GPU for r in rows if r.result.stage is stage]
        if own:
            found[str(stage)] = sum(own) / len(own)
    return found


def read_supervised(folder: Path, seed: int, warm_up: int) -> RunFigures:
    """Read the figures of a supervised training: its tokens are those that it trained on.

    Args:
        folder: of its record.
        seed: of the training.
        warm_up: steps at the begin that do not count.
    """
    try:
        with LedgerReader(folder) as reader:
            return _supervised(reader.short_ids(), RunFigures(SUPERVISED, seed), warm_up)
    except EcorlError as error:
        return RunFigures(SUPERVISED, seed, missing=str(error))


def _supervised(reader: LedgerReader, empty: RunFigures, warm_up: int) -> RunFigures:
    # What lies behind the last step is an evaluation, which such a record does not mark as one.
    end_s = max((r.result.t_end_s for r in reader.executions()), default=None)
    windows = step_windows(reader, warm_up, end_s)
    why = _unusable(reader, windows, warm_up)
    if why:
        return replace(empty, missing=why)
    config = parse_config(reader.run().config_toml, "the run's record")
    drawn = window_energy(reader, windows, config.accounting)
    trained = [r.result for r in drawn.evidence.executions]
    n_steps = len({r.iteration for r in trained})
    told = [m.value for m in reader.metrics(ALL_TOKENS) if m.iteration > warm_up]
    known = [value for value in told if value is not None]
    return replace(
        empty,
        n_steps=n_steps,
        n_tokens=sum(r.n_output_tokens for r in trained),
        n_samples=sum(r.n_sequences for r in trained),
        time_s=drawn.time_s,
        busy_s=busy_s(drawn.evidence),
        machine=drawn.machine,
        quality=quality_points(reader, max(r.iteration for r in trained), end_s),
        n_faults=len(reader.faults()),
        gaps=drawn.spent.gaps,
        n_all_tokens=round(sum(known)) if len(known) == n_steps else None,
    )
