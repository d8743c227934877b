"""Readings of a run's stages from its ledger, added up batch by batch.

The simulator's iteration is one batch of completions: what is recorded between one generation and
the next. A trainer may generate, score or train a batch in several executions; here they are added
up. A reading is left out whole when a part of it is superseded, has a fault, lacks its time or had
rows that the exact path answered, and when a stage ran on both sides for one batch: its tokens are
then not those of the batch.
"""

from __future__ import annotations

import bisect
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ecorl.errors import LedgerError, RunError
from ecorl.ledger import BarrierRow, DeviceRow, ExecutionRow, LedgerReader, MetricRow, PlacementRow
from ecorl.records import (
    EVALUATION_ROLE,
    INFERENCE_STAGES,
    Action,
    GuardRefusal,
    Provenance,
    Stage,
    StageResult,
    weakest,
)

Side = Literal["gpu", "card"]

LENGTH_METRIC = "completion_length"
"""Metric of an iteration: mean completion, tokens."""

LONGEST_METRIC = "longest_completion"
"""Metric of an iteration: longest completion, tokens."""

TASK_METRICS = tuple(f"task_share_{name}" for name in ("math", "code", "reasoning", "instruction"))
"""Metrics of an iteration: share of each task in the batch's prompts."""


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """One batch of completions.

    Attributes:
        iteration: in which it was generated.
        attempt: of the run; times of one attempt compare.
        n_rows, n_tokens, n_output_tokens: prompts and completions, and completions alone.
        longest: longest completion, tokens, or None.
        shares: tasks of its prompts, or None.
    """

    iteration: int
    attempt: int
    n_rows: int
    n_tokens: int
    n_output_tokens: int
    longest: float | None
    shares: tuple[float, ...] | None

    @property
    def length(self) -> float:
        """Mean completion, tokens."""
        return self.n_output_tokens / self.n_rows

    @property
    def prompt_length(self) -> float:
        """Mean prompt, tokens."""
        return (self.n_tokens - self.n_output_tokens) / self.n_rows


@dataclass(frozen=True, slots=True)
class StageReading:
    """Time and energy of one stage for one batch on one side.

    Attributes:
        rollout: place in `RunReadings.rollouts`.
        stage, action, side: what ran, and where.
        time_s: time on the device, s.
        host_s: time that the device's work took by this host's clock, s.
        energy_j: J, or None.
        start_s, end_s: first and last moment, on the attempt's clock, s.
        provenance: the weakest of its parts.
    """

    rollout: int
    stage: Stage
    action: Action
    side: Side
    time_s: float
    host_s: float
    energy_j: float | None
    start_s: float
    end_s: float
    provenance: Provenance


@dataclass(frozen=True, slots=True)
class RunReadings:
    """The part of a run's record that a calibration needs.

    Attributes:
        path: the ledger.
        run_id: name of the run.
        head: what its config and facts say, by plain names (`algorithm`, `beta`, ...).
        rollouts: batches, in order.
        readings: sound readings, in order.
        unsound: batches of which a reading was left out.
        barriers: waits of the training thread by attempt and iteration.
        refused: batch and stage of each offload that a full queue refused.
        gpu_ids, card_ids: devices of each side.
        devices: newest record of each device.
        profiles: name of each side's device profile.
        models: that ran, by name, as far as the record tells.
    """

    path: Path
    run_id: str
    head: Mapping[str, Any]
    rollouts: tuple[RolloutBatch, ...]
    readings: tuple[StageReading, ...]
    unsound: frozenset[int]
    barriers: Mapping[tuple[int, int], tuple[BarrierRow, ...]]
    refused: frozenset[tuple[int, Stage]]
    gpu_ids: tuple[str, ...]
    card_ids: tuple[str, ...]
    devices: Mapping[str, DeviceRow]
    profiles: Mapping[Side, str]
    models: Mapping[str, str] = field(default_factory=dict)

    def of(self, stage: Stage, side: Side, *actions: Action) -> list[StageReading]:
        """Readings of a stage on one side, in order.

        Args:
            stage: whose.
            side: ``gpu`` or ``card``.
            actions: under which it ran; none given: all.
        """
        return [
            r
            for r in self.readings
            if r.stage is stage and r.side == side and (not actions or r.action in actions)
        ]


def read_run(run_dir: Path) -> RunReadings:
    """Read a run's ledger.

    Args:
        run_dir: the run folder, or the ledger in it.

    Raises:
        RunError: when there is no ledger, it cannot be read, or it records no generation.
    """
    try:
        with LedgerReader(run_dir) as reader:
            run = reader.run()
            executions = [
                row
                for row in reader.executions()
                if not row.superseded and row.result.role != EVALUATION_ROLE
            ]
            placements = [row for row in reader.placements() if not row.superseded]
            barriers = [row for row in reader.barriers() if not row.superseded]
            metrics = [row for row in reader.metrics() if not row.superseded]
            devices = {row.device_id: row for row in reader.devices()}
            path = reader.path
    except LedgerError as error:
        raise RunError(str(error)) from error
    rollouts = _rollouts(executions, metrics)
    if not rollouts:
        raise RunError(f"{path}: cannot be calibrated: it records 0 executions of generation")
    starts = [r.iteration for r in rollouts]
    gpu_ids = _ids(e for e in executions if e.result.stage is Stage.GENERATION)
    cards = [e for e in executions if not _within(e.result, gpu_ids)]
    readings, unsound = _readings(executions, starts, gpu_ids)
    return RunReadings(
        path=path,
        run_id=run.run_id,
        head=_head(run.config_toml, run.meta),
        rollouts=rollouts,
        readings=readings,
        unsound=unsound,
        barriers=_by_iteration(barriers),
        refused=_refused(placements, starts),
        gpu_ids=gpu_ids,
        card_ids=_ids(e for e in cards if e.result.stage in INFERENCE_STAGES),
        devices=devices,
        profiles=_profiles(executions, gpu_ids),
        models={k: v for k, v in run.meta.items() if k in ("policy_model", "reward_model")},
    )


def _head(config_toml: str, meta: Mapping[str, str]) -> dict[str, Any]:
    """Plain names of what the config says; facts of a trainer stand in for what it leaves out."""
    try:
        config = tomllib.loads(config_toml)
    except tomllib.TOMLDecodeError:
        config = {}
    head: dict[str, Any] = {k: v for k, v in config.items() if not isinstance(v, dict)}
    for table in ("trainer", "placement"):
        found = config.get(table)
        head.update(found if isinstance(found, dict) else {})
    for name in ("beta", "max_completion_length"):
        if name not in head and name in meta:
            try:
                head[name] = float(meta[name])
            except ValueError:
                continue
    return head


def _rollouts(
    executions: Sequence[ExecutionRow], metrics: Sequence[MetricRow]
) -> tuple[RolloutBatch, ...]:
    facts: dict[int, dict[str, float]] = {}
    for row in metrics:
        if row.value is not None:
            facts.setdefault(row.iteration, {})[row.name] = row.value
    sums: dict[int, list[int]] = {}
    for e in executions:
        r = e.result
        if r.stage is Stage.GENERATION:
            batch = sums.setdefault(r.iteration, [e.attempt, 0, 0, 0])
            batch[1] += r.n_sequences
            batch[2] += r.n_tokens
            batch[3] += r.n_output_tokens
    found = []
    for iteration, (attempt, n_rows, n_tokens, n_output) in sorted(sums.items()):
        said = facts.get(iteration, {})
        shares = tuple(said[name] for name in TASK_METRICS if name in said)
        found.append(
            RolloutBatch(
                iteration=iteration,
                attempt=attempt,
                n_rows=n_rows,
                n_tokens=n_tokens,
                n_output_tokens=n_output,
                longest=said.get(LONGEST_METRIC),
                shares=shares if len(shares) == len(TASK_METRICS) else None,
            )
        )
    return tuple(r for r in found if r.n_rows > 0 and r.n_output_tokens > 0)


def _ids(executions: Any) -> tuple[str, ...]:
    """Devices by name, in order of first use."""
    parts = (part for e in executions for part in e.result.device_ids)
    return tuple(dict.fromkeys(parts))


def _within(result: StageResult, device_ids: Sequence[str]) -> bool:
    return set(result.device_ids) <= set(device_ids)


def _profiles(executions: Sequence[ExecutionRow], gpu_ids: Sequence[str]) -> dict[Side, str]:
    found: dict[Side, str] = {}
    for e in executions:
        found["gpu" if _within(e.result, gpu_ids) else "card"] = e.result.device
    return found


def _by_iteration(barriers: Sequence[BarrierRow]) -> dict[tuple[int, int], tuple[BarrierRow, ...]]:
    found: dict[tuple[int, int], tuple[BarrierRow, ...]] = {}
    for row in barriers:
        key = (row.attempt, row.iteration)
        found[key] = (*found.get(key, ()), row)
    return found


def _refused(
    placements: Sequence[PlacementRow], starts: Sequence[int]
) -> frozenset[tuple[int, Stage]]:
    found = set()
    for row in placements:
        p = row.placement
        if p.refusal is GuardRefusal.QUEUE_FULL:
            found.add((bisect.bisect_right(starts, p.iteration) - 1, p.stage))
    return frozenset(found)


@dataclass(slots=True)
class _Parts:
    """Executions of one stage for one batch."""

    side: set[Side] = field(default_factory=set)
    action: set[Action] = field(default_factory=set)
    results: list[StageResult] = field(default_factory=list)


def _readings(
    executions: Sequence[ExecutionRow], starts: Sequence[int], gpu_ids: Sequence[str]
) -> tuple[tuple[StageReading, ...], frozenset[int]]:
    """Sound readings, and the batches of which one was left out."""
    groups: dict[tuple[int, Stage], _Parts] = {}
    for e in executions:
        k = bisect.bisect_right(starts, e.result.iteration) - 1
        if k >= 0:
            parts = groups.setdefault((k, e.result.stage), _Parts())
            parts.side.add("gpu" if _within(e.result, gpu_ids) else "card")
            parts.action.add(e.result.action)
            parts.results.append(e.result)
    found, unsound = [], set()
    for (k, stage), parts in sorted(groups.items()):
        if len(parts.side) == len(parts.action) == 1 and all(map(_sound, parts.results)):
            found.append(_sum(k, stage, parts))
        else:
            unsound.add(k)
    return tuple(found), frozenset(unsound)


def _sound(result: StageResult) -> bool:
    return result.fault is None and result.n_rows_fallback == 0 and (result.time_s or 0.0) > 0


def _sum(k: int, stage: Stage, parts: _Parts) -> StageReading:
    results = parts.results
    energies = [r.energy.energy_j if r.energy is not None else None for r in results]
    # No stage takes nothing: an instrument that says so has not seen it.
    known = [j for j in energies if j is not None and j > 0]
    told = [r.energy.provenance for r in results if r.energy is not None]
    return StageReading(
        rollout=k,
        stage=stage,
        action=next(iter(parts.action)),
        side=next(iter(parts.side)),
        time_s=sum(r.time_s or 0.0 for r in results),
        host_s=sum(r.host_time_s for r in results),
        energy_j=sum(known) if len(known) == len(energies) else None,
        start_s=min(r.t_start_s for r in results),
        end_s=max(r.t_end_s for r in results),
        provenance=weakest(*(r.time_provenance for r in results), *told),
    )
