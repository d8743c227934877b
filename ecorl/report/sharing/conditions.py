"""`Conditions`: what a run was asked to do, and by which instruments its figures were taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ecorl.config import Config, FilesTask
from ecorl.ledger import DeviceRow, LedgerReader
from ecorl.records import DeviceKind, Provenance
from ecorl.report.energy.totals import simulated_cards
from ecorl.report.model import Head
from ecorl.report.run_config import RunConfig

COMPLETION_LENGTH, GENERATIONS, BETA = "max_completion_length", "num_generations", "beta"
"""Settings of a trainer that change how much work a step is."""


@dataclass(frozen=True, slots=True)
class DeviceInstrument:
    """Where the power of one device was read.

    Attributes:
        profile: of the device.
        kind: of the device.
        source: the instrument.
        provenance: of its readings.
    """

    profile: str
    kind: DeviceKind
    source: str
    provenance: Provenance


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
    instruments: Mapping[str, DeviceInstrument] = field(default_factory=dict)
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
        instruments={d.device_id: _instrument(d) for d in devices},
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


def _instrument(row: DeviceRow) -> DeviceInstrument:
    return DeviceInstrument(row.profile, row.kind, row.source, row.provenance)
