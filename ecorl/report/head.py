"""What ran: the head of the report."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ecorl.config import Config, FilesTask
from ecorl.devices import load_profile, profile_names
from ecorl.ledger import (
    DeviceRow,
    EventRow,
    ExecutionRow,
    LedgerReader,
    RunEnding,
    RunRow,
    ending_of,
)
from ecorl.records import DeviceKind, EventKind, kind_in_name, place_name
from ecorl.report.energy.causes import cause_of
from ecorl.report.energy.model import Cause
from ecorl.report.energy.readings import Span, length
from ecorl.report.energy.stages import gpu_path_devices
from ecorl.report.model import Head
from ecorl.report.run_config import RunConfig, is_attached

_BEGINNINGS = (EventKind.START, EventKind.RESUME)
_PLAN = re.compile(r"training from step \d+ of (\d+)")


@dataclass(frozen=True, slots=True)
class RunStanding:
    """How a run stands, and how far it came.

    Attributes:
        ending: how it ended, or that it is running now.
        ended_by: what ended it; see `ecorl.ledger.ending_of`.
        n_steps_done: steps that were trained or logged and that no resume threw away; at least
            those that the newest checkpoint holds.
        n_steps_planned: None where the record does not tell.
        checkpoint_step: last step that the newest checkpoint holds; None without one.
    """

    ending: RunEnding
    ended_by: str | None
    n_steps_done: int
    n_steps_planned: int | None
    checkpoint_step: int | None


def state_of(
    reader: LedgerReader, config: Config | None, executions: Sequence[ExecutionRow]
) -> RunStanding:
    """Tell how a run stands of which a reader is open.

    Args:
        reader: the run's ledger.
        config: the run's own; None where it tells nothing of the steps that are planned.
        executions: of the whole run.
    """
    events = reader.events()
    saved = [c.iteration for c in reader.checkpoints() if not c.superseded]
    ending, ended_by = ending_of(reader, events)
    return RunStanding(
        ending,
        ended_by,
        # What was killed may have saved a step of which nothing else was written yet.
        n_steps_done=max(_done(reader, executions), *saved, 0),
        n_steps_planned=_planned(config, events),
        checkpoint_step=max(saved, default=None),
    )


def _done(reader: LedgerReader, executions: Sequence[ExecutionRow]) -> int:
    """Number of steps that were trained or logged and that no resume threw away."""
    done = {
        e.result.iteration
        for e in executions
        if not e.superseded and cause_of(e.result) is Cause.TRAINING
    }
    done |= {m.iteration for m in reader.metrics() if not m.superseded}
    return len({step for step in done if step > 0})  # an evaluation may come before the first


def _planned(config: Config | None, events: Sequence[EventRow]) -> int | None:
    """Steps by the config, or by what the trainer said when it began to train."""
    if config is not None:
        return config.trainer.steps
    for event in reversed(events):
        told = _PLAN.fullmatch(event.detail) if event.kind in _BEGINNINGS else None
        if told:
            return int(told[1])
    return None


_LOOPS = ("loop", "transformers")
"""Adapters of training loops whose config says nothing of an algorithm."""
_TRAINER_FACTS = (
    "trainer",
    "learning_rate",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "num_generations",
    "num_iterations",
    "max_completion_length",
    "beta",
    "temperature",
)
"""What the record of an attached run says of the trainer that its user made, beside flags of a
command line, whose keys begin with two dashes."""


def head(
    reader: LedgerReader,
    known: RunConfig,
    spans: dict[int, Span],
    executions: Sequence[ExecutionRow],
) -> Head:
    """Describe what ran, how far it came and how it ended.

    Args:
        reader: the run's ledger.
        known: its config, as far as it says something of this run.
        spans: time span of each attempt.
        executions: of the whole run.
    """
    run, attempts = reader.run(), reader.attempts()
    config, attached = known.config, is_attached(run)
    state = state_of(reader, None if attached else config, executions)
    used = {("+".join(e.result.device_ids), e.result.device) for e in executions}
    devices = reader.devices()
    named = {(d.device_id, d.profile) for d in devices}
    return Head(
        run_id=run.run_id,
        state=state.ending,
        ended_by=state.ended_by,
        algorithm=_algorithm(config, run),
        adapter=config.adapter if config else run.meta.get("adapter"),
        policy=config.placement.policy.type if config else None,
        seed=_seed(config, run),
        config_remark=known.remark,
        models=_models(None if attached else config, run),
        devices=tuple(sorted(f"{device_id}: {name}" for device_id, name in named or used)),
        commit=run.meta.get("commit"),
        n_attempts=len(attempts),
        n_steps_planned=state.n_steps_planned,
        n_steps_done=state.n_steps_done,
        checkpoint_step=state.checkpoint_step,
        started_unix_s=attempts[0].unix_anchor_s if attempts else run.created_unix_s,
        run_time_s=length(spans.values()),
        meta=run.meta,
        path=path_name(executions, devices),
        attached=attached,
        trainer=_trainer(run.meta) if attached else {},
    )


def _seed(config: Config | None, run: RunRow) -> int | None:
    """Seed of the run; that of an attached one is its trainer's, where the record holds it."""
    if is_attached(run):
        told = run.meta.get("seed", "")
        return int(told) if told.isdecimal() else None
    return config.seed if config else None


def _algorithm(config: Config | None, run: RunRow) -> str | None:
    """RL algorithm of the run; None for a training loop that is no reinforcement learning."""
    if config is None:
        return run.meta.get("algorithm")
    return None if config.adapter in _LOOPS else config.algorithm


def _trainer(meta: Mapping[str, str]) -> dict[str, str]:
    """Settings of the trainer of an attached run."""
    keys = [*_TRAINER_FACTS, *(k for k in meta if k.startswith("--"))]
    return {k: meta[k] for k in keys if k in meta}


def _models(config: Config | None, run: RunRow) -> dict[str, str]:
    found = {k: v for k, v in run.meta.items() if k in ("policy_model", "reward_model")}
    if config is None:
        return found
    task = config.task
    if isinstance(task, FilesTask):
        return {"policy": str(task.policy), "reward": str(task.reward), **found}
    return {"task": task.type, **found}


# ---------------------------------------------------------------- where the framework computes


def path_name(executions: Sequence[ExecutionRow], devices: Sequence[DeviceRow]) -> str:
    """Name where the framework itself computes, ``GPU`` or ``host``.

    Args:
        executions: of the whole run.
        devices: as the ledger names them; they decide for a run without executions.
    """
    on_path = gpu_path_devices(executions)
    used = {(one, e.result.device) for e in executions for one in e.result.device_ids}
    named = {(d.device_id, d.profile) for d in devices}
    recorded = {d.device_id: d.kind for d in devices}
    kinds = {
        _kind(profile, recorded.get(device_id) or kind_in_name(device_id))
        for device_id, profile in used or named
        if not used or device_id in on_path
    }
    is_host = DeviceKind.CPU in kinds and DeviceKind.GPU not in kinds
    return place_name(DeviceKind.CPU if is_host else DeviceKind.GPU)


def _kind(profile: str, otherwise: DeviceKind) -> DeviceKind:
    """Kind of a device: by its profile, or what the record says when that is a user's own."""
    return load_profile(profile).kind if profile in profile_names() else otherwise
