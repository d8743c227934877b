"""Energy of stage executions on the GPU path: settled as soon as the samples are in.

A stage of milliseconds ends long before the sampler's next reading, so its energy is computed
when the reading behind its end has arrived (the watermark). The sampler's thread settles as
readings come in, off the training thread's path, so that a kill finds every execution but those of
the last fraction of a second in the ledger.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from ecorl.edi import EdiMatrix, edi_reading
from ecorl.ledger import Ledger
from ecorl.records import PathCost, Provenance, Stage, StageEnergy, StageResult, weakest
from ecorl.telemetry.history import DISPUTED, INTEGRAL_STOPPED

logger = logging.getLogger(__name__)

CARD_PREFIX = "fpga"
"""Cards are ``fpga0``, ``fpga1``, ... by XRT's number, as telemetry names them."""

PATIENCE_S = 30.0
"""How long an execution waits for its readings, s: longer than any sampler needs (its slowest
interval is 10 s), short enough that a run without readings keeps its record all the same."""


class PowerHistoryLike(Protocol):
    """What the accounts need of a sampler's history."""

    def energy(self, device_id: str, t_start_s: float, t_end_s: float) -> StageEnergy:
        """Energy of one device over a window."""
        ...

    def watermark_s(self, device_id: str) -> float | None:
        """Time of a device's newest sample, s."""
        ...


class StageAccounts:
    """Turns finished executions into ledger rows and EDI readings; thread-safe.

    Args:
        ledger: where results go.
        edi: the matrix to keep.
        history: power readings of the GPU path.
        gpu_device_ids: its devices, at call time (the sampler may learn of them late). A card's
            execution names its own.
        clock: monotonic time, s.
    """

    def __init__(
        self,
        ledger: Ledger,
        edi: EdiMatrix,
        history: PowerHistoryLike,
        gpu_device_ids: Callable[[], Sequence[str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger, self.edi = ledger, edi
        self._history, self._gpu_device_ids = history, gpu_device_ids
        self._clock = clock
        self._pending: deque[StageResult] = deque()
        self._lock = threading.Lock()

    def add(self, result: StageResult) -> None:
        """Take a finished execution; without energy it waits for its samples."""
        with self._lock:
            if result.energy is None:
                self._pending.append(result)
            else:
                self._book(result)

    def settle(self) -> None:
        """Book every waiting execution whose samples are in, and those that waited in vain."""
        with self._lock:
            self._settle()

    def edi_json(self) -> str:
        """The EDI matrix as it is now."""
        with self._lock:
            return self.edi.to_json()

    def path_costs(self, device: str) -> tuple[PathCost, ...]:
        """What each stage has cost on a device so far, by the EDI matrix and its times."""
        found = []
        with self._lock:
            for stage in Stage:
                cell = self.edi.best(stage, device)
                if cell is not None and cell.mean_time_s_per_token is not None:
                    time_s, energy_j = cell.mean_time_s_per_token, cell.mean_j_per_token
                    found.append(PathCost(stage, time_s, energy_j, cell.count, cell.provenance))
        return tuple(found)

    def _settle(self) -> None:
        if not self._pending:
            return
        given_up_s = self._clock() - PATIENCE_S
        for _ in range(len(self._pending)):  # once round: what is not final goes to the end again
            result = self._pending.popleft()
            if self._is_final(result, given_up_s):
                self._book(self._with_energy(result))
            else:
                self._pending.append(result)

    def close(self, patience_s: float) -> None:
        """Wait a little for the last samples, then book the rest with what there is."""
        limit_s = time.monotonic() + patience_s
        self.settle()
        while self._pending and time.monotonic() < limit_s:
            time.sleep(0.02)
            self.settle()
        with self._lock:
            while self._pending:
                self._book(self._with_energy(self._pending.popleft()))

    def _devices_of(self, result: StageResult) -> Sequence[str]:
        if result.device_id.startswith(CARD_PREFIX):
            return result.device_id.split("+")
        return self._gpu_device_ids()

    def _is_final(self, result: StageResult, given_up_s: float) -> bool:
        """Whether the readings behind its end are in, or are no longer waited for."""
        marks = [self._history.watermark_s(d) for d in self._devices_of(result)]
        known = [m for m in marks if m is not None]
        final_s = min(known) if known and len(known) == len(marks) else float("-inf")
        return result.t_end_s < max(final_s, given_up_s)

    def _with_energy(self, result: StageResult) -> StageResult:
        devices = self._devices_of(result)
        parts = [self._history.energy(d, result.t_start_s, result.t_end_s) for d in devices]
        return replace(result, energy=total_energy(parts)) if parts else result

    def _book(self, result: StageResult) -> None:
        self._ledger.result(result)
        if result.energy is None or result.fault is not None:
            # The joules of a faulty execution count in the totals, not as the price of a token.
            return
        provenance = weakest(result.energy.provenance, result.time_provenance)
        self.edi.update(
            edi_reading(
                result.stage,
                result.device,
                result.energy.energy_j,
                result.n_output_tokens,
                provenance,
                result.time_s,
            )
        )


def total_energy(parts: Sequence[StageEnergy]) -> StageEnergy:
    """Energy of several devices over one window: a sum, or None when one of them is missing."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]

    def total(values: Sequence[float | None]) -> float | None:
        known = [v for v in values if v is not None]
        return sum(known) if len(known) == len(values) else None

    methods = {p.method for p in parts}
    doubtful = methods & {DISPUTED, INTEGRAL_STOPPED}  # must stay visible in a sum
    return StageEnergy(
        device_id="+".join(p.device_id for p in parts),
        t_start_s=first.t_start_s,
        t_end_s=first.t_end_s,
        energy_j=total([p.energy_j for p in parts]),
        mean_power_w=total([p.mean_power_w for p in parts]),
        counter_energy_j=total([p.counter_energy_j for p in parts]),
        integral_energy_j=total([p.integral_energy_j for p in parts]),
        n_samples=min(p.n_samples for p in parts),
        coverage=min(p.coverage for p in parts),
        method=min(doubtful) if doubtful else methods.pop() if len(methods) == 1 else "mixed",
        provenance=weakest(*(p.provenance for p in parts)),
    )


def card_energy(
    device_id: str, t_start_s: float, time_s: float | None, energy_j: float | None,
    provenance: Provenance,
) -> StageEnergy:  # fmt: skip
    """Energy of a card as its engine reports it."""
    return StageEnergy(
        device_id=device_id,
        t_start_s=t_start_s,
        t_end_s=t_start_s + (time_s or 0.0),
        energy_j=energy_j,
        mean_power_w=energy_j / time_s if energy_j is not None and time_s else None,
        counter_energy_j=None,
        integral_energy_j=None,
        n_samples=0,
        coverage=1.0 if energy_j is not None else 0.0,
        method="cycle_model" if energy_j is not None else "none",
        provenance=provenance,
    )
