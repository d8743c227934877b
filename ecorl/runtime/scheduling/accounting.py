"""Writes stage executions, barrier waits, faults and devices into the run's record."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ecorl.devices import DeviceProfile, check_execution
from ecorl.engines.lanes.threaded import AsyncEngine
from ecorl.engines.protocol import EngineReport, ScoreBatch
from ecorl.engines.registry import memory_conflict
from ecorl.errors import PhysicalBoundError
from ecorl.ledger import DeviceRecord, Ledger
from ecorl.records import (
    Action,
    BarrierWait,
    DeviceKind,
    FaultEvent,
    FaultKind,
    Provenance,
    Role,
    StageResult,
    StageWork,
)
from ecorl.runtime.energy.stage_energy import card_energy
from ecorl.runtime.handles import PlacedStage, Span, held_s
from ecorl.runtime.monitor import Monitor
from ecorl.runtime.scheduling.offload import (
    HOST_PROCESS_ID,
    BatchOutcome,
    OffloadLane,
    PendingBatch,
)

logger = logging.getLogger(__name__)

ELSEWHERE_ID = "elsewhere"
"""Devices that are not the trainer's and that nobody has named: nothing meters their energy."""

_SOURCES = {
    "csim": "cycle model; computed by C-simulation on this machine",
    "xrt (noop)": "cycle model; computed by C-simulation behind XRT's noop driver on this machine",
}
"""Source of a modelled card's figures, by the host that runs its kernels."""


class Recorder:
    """Writes waits, faults and devices to the record, and executions to their machines' accounts.

    Args:
        record: the head's part of the run's record.
        monitors: of each machine, by its name.
        card: profile of the card, or of the device in its place.
    """

    def __init__(
        self, record: Ledger, monitors: Mapping[str, Monitor], card: DeviceProfile
    ) -> None:
        self._record, self._monitors, self._card = record, monitors, card

    def record_cards(self, lanes: Iterable[OffloadLane]) -> None:
        """Record the cards that engines simulate, on the machines where they do.

        Args:
            lanes: of all engines of the run.
        """
        hosts: dict[tuple[str, str], set[str]] = defaultdict(set)
        for lane in lanes:
            if self._is_modelled(lane):
                for device_id in lane.place.device_ids:
                    hosts[lane.place.node, device_id].add(str(lane.engine.host))
        for (node, device_id), found in sorted(hosts.items()):
            self._monitors[node].device(
                DeviceRecord(
                    device_id,
                    self._card.name,
                    Provenance.MODELLED,
                    "; ".join(_SOURCES.get(host, _SOURCES["csim"]) for host in sorted(found)),
                    self._card.get("idle_w"),
                    kind=self._card.kind,
                )
            )

    def beyond_memory(self, lanes: Mapping[Role, OffloadLane]) -> dict[Role, str]:
        """Find the models that do not fit into the memory of a card beside those before them.

        Args:
            lanes: of all engines of the run.

        Returns:
            Why not, as clauses, by role.
        """
        cards: dict[tuple[str, tuple[str, ...]], dict[Role, AsyncEngine]] = defaultdict(dict)
        found = {}
        for role, lane in lanes.items():
            if not self._on_card(lane.engine):
                continue
            held = cards[lane.place.node, lane.place.device_ids]
            why = self._conflict([*held.values(), lane.engine])
            if why is None:
                held[role] = lane.engine
                continue
            others = " and ".join(held)
            beside = f" beside that of {others}: together they need" if held else ": it needs"
            found[role] = f"it does not fit into the card's memory{beside} {why}"
        return found

    def _conflict(self, engines: Sequence[AsyncEngine]) -> str | None:
        why = memory_conflict(engines)
        if why:
            return why
        needed = sum(engine.card_bytes or 0 for engine in engines)
        there = self._card.get("memory_bytes")
        if there is None or needed <= there:
            return None
        return f"{needed / 1e9:.2f} GB, and {self._card.name} has {there / 1e9:.2f} GB"

    def record_gpu_path(
        self,
        stage: PlacedStage,
        node: str,
        spans: Sequence[Span],
        device: str,
        *,
        is_timed: bool = True,
    ) -> None:
        """Record a stage that ran on the GPU path; its energy follows when the readings are in.

        Args:
            stage: the stage execution, with its work as it turned out.
            node: the machine on which it ran.
            spans: which devices it held when.
            device: profile name of the devices.
            is_timed: whether its end is known; else it has neither a time nor an energy.
        """
        monitor, work = self._monitors[node], stage.work
        t_start_s = min(span.t_start_s for span in spans)
        t_end_s = max(span.t_end_s for span in spans)
        unnamed = any(span.device_ids is None for span in spans)
        own = {i for span in spans for i in span.device_ids or ()}
        own |= set(monitor.gpu_path_ids() if unnamed else ())
        monitor.add(
            stage.serial,
            StageResult(
                iteration=stage.iteration.number,
                stage=work.stage,
                action=Action.GPU,
                device_ids=tuple(sorted(own)) or ("gpu" if unnamed else ELSEWHERE_ID,),
                device=device,
                t_start_s=t_start_s,
                t_end_s=t_end_s,
                # Without the times at which its clock stood: other stages had these.
                time_s=held_s(spans) if is_timed else None,
                time_provenance=Provenance.MEASURED,
                host_time_s=t_end_s - t_start_s if is_timed else math.nan,
                wait_s=0.0,
                n_sequences=work.n_sequences,
                n_tokens=work.n_tokens,
                n_output_tokens=work.n_output_tokens,
                energy=None,
                role_name=work.role_name,
                node=node,
                gear=work.gear,
                width=work.width,
            ),
            spans if is_timed else (),
        )

    def record_outcome(
        self, stage: PlacedStage, pending: PendingBatch, outcome: BatchOutcome, lane: OffloadLane
    ) -> None:
        """Record what a join at the barrier brought: the wait, a fault, the engine's execution.

        Args:
            stage: the stage execution.
            pending: the batch that was sent.
            outcome: what the join brought.
            lane: the engine that was asked, and where it computes.
        """
        fault = outcome.fault
        self._wait(stage, outcome)
        if fault is not None:
            n_bad = len(outcome.bad_rows)
            self._record.fault(
                FaultEvent(stage.iteration.number, fault, stage.work.role, outcome.detail, n_bad)
            )
            logger.warning(
                "%s: %s (%s); %d rows are computed by the trainer itself",
                stage.work.role, fault, outcome.detail, n_bad,
            )  # fmt: skip
        on_card, is_real = self._on_card(lane.engine), lane.place.is_metered
        silent = Provenance.MODELLED if self._is_modelled(lane) else Provenance.MEASURED
        report = outcome.report or EngineReport(None, None, silent, 0.0)
        if on_card:
            # Time and energy may be those of the rows that could be run.
            done = rows_of(pending.batch, sorted(outcome.values), stage.work)
            beyond = self._beyond_physics(done, report)
            if beyond:
                fault = FaultKind.PHYSICAL_BOUND_ERROR
                report = replace(report, device_time_s=None, device_energy_j=None)
                self._record.fault(
                    FaultEvent(stage.iteration.number, fault, stage.work.role, beyond)
                )
        # In the clock of the machine on which the engine computes, which may be another one.
        ahead_s = self._monitors[lane.place.node].ahead_s
        span = report.span_s or (pending.t_submit_s + ahead_s, outcome.t_done_s + ahead_s)
        device_ids = lane.place.device_ids if on_card else (HOST_PROCESS_ID,)
        told = (report.device_time_s, report.device_energy_j, report.provenance)
        energy = card_energy(device_ids, span[0], *told)
        self._monitors[lane.place.node].add(
            stage.serial,
            StageResult(
                iteration=stage.iteration.number,
                stage=stage.work.stage,
                action=stage.placement.action,
                device_ids=device_ids,
                device=lane.engine.device,
                t_start_s=span[0],
                t_end_s=span[1],
                time_s=report.device_time_s,
                time_provenance=report.provenance,
                host_time_s=report.host_time_s if outcome.report else span[1] - span[0],
                wait_s=outcome.wait_s,
                n_sequences=stage.work.n_sequences,
                n_tokens=stage.work.n_tokens,
                n_output_tokens=stage.work.n_output_tokens,
                energy=None if is_real else energy,
                n_rows_fallback=len(outcome.bad_rows),
                fault=fault,
                role_name=stage.work.role_name,
                node=lane.place.node,
            ),
            # The energy of a real card follows from its readings, once they are in.
            [Span(*span, device_ids)] if is_real else [],
        )

    def _wait(self, stage: PlacedStage, outcome: BatchOutcome) -> None:
        self._record.barrier(
            BarrierWait(
                iteration=stage.iteration.number,
                stage=stage.work.stage,
                wait_s=outcome.wait_s,
                n_rows=stage.work.n_sequences,
                n_missing=outcome.n_missing,
                n_late=outcome.n_late,
                n_duplicates=outcome.n_duplicates,
                n_unknown=outcome.n_unknown,
                role_name=stage.work.role_name,
            )
        )

    def _on_card(self, engine: AsyncEngine) -> bool:
        return engine.device == self._card.name

    def _is_modelled(self, lane: OffloadLane) -> bool:
        """Whether a lane's engine only stands for its device: a card whose kernels are simulated.

        Whatever computes on a GPU or on a processor is there, and its time is measured.
        """
        is_card = self._on_card(lane.engine) and self._card.kind is DeviceKind.FPGA
        return is_card and not lane.place.is_metered

    def _beyond_physics(self, work: StageWork, report: EngineReport) -> str | None:
        """Check a card's figures against the device's bounds; the contradiction, or None."""
        if report.device_time_s is None:
            return None
        try:
            check_execution(
                self._card, work, report.device_time_s, report.device_energy_j, report.provenance
            )
        except PhysicalBoundError as error:
            return str(error)
        return None


def rows_of(batch: ScoreBatch, rows: Sequence[int], work: StageWork) -> StageWork:
    """Count the work of some rows of a batch, row by row.

    Args:
        batch: the batch.
        rows: indices of the rows.
        work: the work of the whole batch.
    """
    lengths = [len(batch.token_ids[i]) for i in rows]
    return replace(
        work,
        n_sequences=len(rows),
        n_tokens=sum(lengths),
        n_output_tokens=sum(batch.n_completion[i] for i in rows),
        max_length=max(lengths, default=0),
    )
