"""Writes stage executions, barrier waits, faults and devices into the run's record."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ecorl.config import Config, FpgaEngineConfig
from ecorl.devices import DeviceProfile, check_execution
from ecorl.engines.cards import memory_conflict
from ecorl.engines.lanes.threaded import AsyncEngine
from ecorl.errors import ConfigError, PhysicalBoundError
from ecorl.ledger import DeviceRecord, Ledger
from ecorl.records import (
    Action,
    DeviceKind,
    FaultEvent,
    FaultKind,
    Placement,
    Provenance,
    StageEnergy,
    StageResult,
    StageWork,
)
from ecorl.runtime.offload import BatchOutcome, PendingBatch
from ecorl.runtime.stage_energy import StageAccounts, card_energy
from ecorl.telemetry.sources.specs import DeviceInfo, card_id

logger = logging.getLogger(__name__)

CARD_ID = card_id(0)
"""The simulated card; one array serves all offloaded stages."""

HOST_PROCESS_ID = "host_process"
"""An engine that computes on the host: its time is measured, nothing meters its energy."""


@dataclass(slots=True)
class StageRun:
    """One stage execution under way."""

    iteration: int
    work: StageWork
    placement: Placement
    t_start_s: float
    pending: PendingBatch | None = None


_SOURCES = {
    "csim": "cycle model; computed by C-simulation on this host",
    "xrt (noop)": "cycle model; computed by C-simulation behind XRT's noop driver on this host",
}
"""Source of a modelled card's figures, by the host that runs its kernels."""

REAL_HOST = "xrt"
"""An engine whose kernels run on real cards."""


class Recorder:
    """Writes waits, faults and devices to the ledger, and executions to their energy accounts.

    Args:
        config: the run's configuration.
        ledger: the run's record.
        accounts: where energies are settled.
        gpu: profile of the GPU path.
        card: profile of the card.
    """

    def __init__(
        self,
        config: Config,
        ledger: Ledger,
        accounts: StageAccounts,
        gpu: DeviceProfile,
        card: DeviceProfile,
    ) -> None:
        self._config, self._ledger, self._accounts = config, ledger, accounts
        self._gpu, self._card = gpu, card
        self._card_end_s = 0.0

    def record_devices(self, sampled: Iterable[DeviceInfo], engines: Iterable[AsyncEngine]) -> None:
        """Record the devices whose power is read, and the card when an engine simulates one.

        Args:
            sampled: the devices that telemetry reads.
            engines: the engines of the run.
        """
        for device in sampled:
            profile = self._card if device.kind is DeviceKind.FPGA else self._gpu
            source = f"{device.source} ({device.name})" if device.name else device.source
            self._ledger.device(
                DeviceRecord(
                    device.device_id,
                    profile.name,
                    device.provenance,
                    source,
                    profile.get("idle_w"),
                    kind=profile.kind,
                )
            )
        hosts = {engine.host for engine in engines if self._on_card(engine)}
        if hosts and REAL_HOST not in hosts:
            self._ledger.device(
                DeviceRecord(
                    CARD_ID,
                    self._card.name,
                    Provenance.MODELLED,
                    "; ".join(
                        _SOURCES.get(host, _SOURCES["csim"]) for host in sorted(map(str, hosts))
                    ),
                    self._card.get("idle_w"),
                    kind=self._card.kind,
                )
            )

    def check_card_memory(self, engines: Iterable[AsyncEngine]) -> None:
        """Check that all models on the card fit into its memory together.

        Raises:
            ConfigError: when they do not.
        """
        on_card = [engine for engine in engines if self._on_card(engine)]
        why = memory_conflict(on_card)
        if why:
            allowed = f"a card that holds its models together: they need {why}"
            raise ConfigError("devices.fpga", self._config.devices.fpga, allowed)
        needed = sum(engine.card_bytes or 0 for engine in on_card)
        there = self._card.get("memory_bytes")
        if there is not None and needed > there:
            allowed = (
                f"a card that holds its models together: {needed / 1e9:.2f} GB are needed, "
                f"{self._card.name} has {there / 1e9:.2f} GB"
            )
            raise ConfigError("devices.fpga", self._config.devices.fpga, allowed)

    def record_gpu_path(
        self, run: StageRun, work: StageWork, t_end_s: float, device_ids: tuple[str, ...]
    ) -> None:
        """Record a stage that ran on the GPU path; its energy follows when the readings are in.

        Args:
            run: the stage execution.
            work: what was done.
            t_end_s: when it ended, monotonic s.
            device_ids: the devices of the GPU path.
        """
        time_s = t_end_s - run.t_start_s
        self._accounts.add(
            StageResult(
                iteration=run.iteration,
                stage=work.stage,
                action=Action.GPU,
                device_ids=device_ids,
                device=self._gpu.name,
                t_start_s=run.t_start_s,
                t_end_s=t_end_s,
                time_s=time_s,
                time_provenance=Provenance.MEASURED,
                host_time_s=time_s,
                wait_s=0.0,
                n_sequences=work.n_sequences,
                n_tokens=work.n_tokens,
                n_output_tokens=work.n_output_tokens,
                energy=None,
            )
        )

    def record_outcome(
        self, run: StageRun, pending: PendingBatch, outcome: BatchOutcome, engine: AsyncEngine
    ) -> None:
        """Record what a join at the barrier brought: the wait, a fault, the card's execution.

        Args:
            run: the stage execution.
            pending: the batch that was sent.
            outcome: what the join brought.
            engine: the engine that was asked.
        """
        work, report, fault = run.work, outcome.report, outcome.fault
        self._wait(run, outcome)
        if fault is not None:
            n_bad = len(outcome.bad_rows)
            self._ledger.fault(
                FaultEvent(run.iteration, fault, str(work.stage), outcome.detail, n_bad)
            )
            logger.warning(
                "%s: %s (%s); %d rows go to the exact path",
                work.stage, fault, outcome.detail, n_bad,
            )  # fmt: skip
        time_s = report.device_time_s if report else None
        energy_j = report.device_energy_j if report else None
        on_card = self._on_card(engine)
        is_real = engine.host == REAL_HOST
        silent = Provenance.MODELLED if on_card and not is_real else Provenance.MEASURED
        provenance = report.provenance if report else silent
        if on_card and time_s is not None:
            # Time and energy may be those of the rows that could be run.
            run_work = rows_of(pending, sorted(outcome.values), work)
            beyond = self._beyond_physics(run_work, time_s, energy_j, provenance)
            if beyond:
                fault, time_s, energy_j = FaultKind.PHYSICAL_BOUND_ERROR, None, None
                self._ledger.fault(FaultEvent(run.iteration, fault, str(work.stage), beyond))
        device_ids: tuple[str, ...] = (CARD_ID if on_card else HOST_PROCESS_ID,)
        t_start_s = pending.t_submit_s
        energy: StageEnergy | None = card_energy(
            device_ids, t_start_s, time_s, energy_j, provenance
        )
        if is_real:
            # The energy follows from the cards' readings, once they are in.
            device_ids, energy = self._card_ids(), None
            t_start_s = self._own_since_s(t_start_s, outcome.t_done_s)
        self._accounts.add(
            StageResult(
                iteration=run.iteration,
                stage=work.stage,
                action=run.placement.action,
                device_ids=device_ids,
                device=engine.device,
                t_start_s=t_start_s,
                t_end_s=outcome.t_done_s,
                time_s=time_s,
                time_provenance=provenance,
                host_time_s=report.host_time_s if report else outcome.t_done_s - pending.t_submit_s,
                wait_s=outcome.wait_s,
                n_sequences=work.n_sequences,
                n_tokens=work.n_tokens,
                n_output_tokens=work.n_output_tokens,
                energy=energy,
                n_rows_fallback=len(outcome.bad_rows),
                fault=fault,
            ),
            meters=device_ids,
        )

    def _own_since_s(self, t_start_s: float, t_end_s: float) -> float:
        """Time from which a real card's draw counts for this execution, monotonic s.

        Two stages may be under way on a card at once: what it draws then is counted once, for the
        one that is joined first. The sum of both is right, and their prices blur into each other.
        """
        since_s = min(max(t_start_s, self._card_end_s), t_end_s)
        self._card_end_s = max(self._card_end_s, t_end_s)
        return since_s

    def _wait(self, run: StageRun, outcome: BatchOutcome) -> None:
        self._ledger.barrier(
            run.iteration,
            run.work.stage,
            outcome.wait_s,
            run.work.n_sequences,
            outcome.n_missing,
            outcome.n_late,
        )

    def _card_ids(self) -> tuple[str, ...]:
        """The real cards of the run, as telemetry names them."""
        offload = self._config.engine.offload
        cards = offload.cards if isinstance(offload, FpgaEngineConfig) else (0,)
        return tuple(map(card_id, cards))

    def _on_card(self, engine: AsyncEngine) -> bool:
        return engine.device == self._card.name

    def _beyond_physics(
        self, work: StageWork, time_s: float, energy_j: float | None, provenance: Provenance
    ) -> str | None:
        """Check a card's figures against the device's bounds; the contradiction, or None."""
        try:
            check_execution(self._card, work, time_s, energy_j, provenance)
        except PhysicalBoundError as error:
            return str(error)
        return None


def rows_of(pending: PendingBatch, rows: Sequence[int], work: StageWork) -> StageWork:
    """Count the work of some rows of a batch, row by row.

    Args:
        pending: the batch as it was sent.
        rows: indices of the rows.
        work: the work of the whole batch.
    """
    batch = pending.batch
    lengths = [len(batch.token_ids[i]) for i in rows]
    return replace(
        work,
        n_sequences=len(rows),
        n_tokens=sum(lengths),
        n_output_tokens=sum(batch.n_completion[i] for i in rows),
        max_length=max(lengths, default=0),
    )
