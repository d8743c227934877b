"""Computes the energy of stage executions as soon as the power readings for it are in.

A stage of milliseconds ends long before the sampler's next reading, so its energy is computed
when the reading after its end has arrived (the watermark). The sampler's thread does that as
readings come in, off the training thread's path, so that after a kill the ledger lacks only the
executions of the last fraction of a second.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ecorl.edi import EdiMatrix, edi_reading
from ecorl.ledger import Ledger
from ecorl.records import (
    EnergyMethod,
    PathCost,
    Provenance,
    Stage,
    StageEnergy,
    StageResult,
    weakest,
)

logger = logging.getLogger(__name__)

PATIENCE_S = 30.0
"""Longest wait of an execution for its readings, s: longer than any sampler needs (its slowest
interval is 10 s), short enough that a run without readings keeps its record all the same."""


class PowerHistoryLike(Protocol):
    """The part of a sampler's history that `StageAccounts` needs."""

    def energy(self, device_id: str, t_start_s: float, t_end_s: float) -> StageEnergy:
        """Energy of one device over a window.

        Args:
            device_id: the device.
            t_start_s: begin of the window, monotonic s.
            t_end_s: its end, monotonic s.
        """
        ...

    def watermark_s(self, device_id: str) -> float | None:
        """Time of a device's newest sample, s."""
        ...


@dataclass(frozen=True, slots=True)
class _Waiting:
    """An execution that waits for its energy, and the devices whose readings give it."""

    result: StageResult
    meters: tuple[str, ...] | None


class StageAccounts:
    """Turns finished executions into ledger rows and EDI readings; thread-safe.

    Args:
        ledger: where results go.
        edi: the matrix to keep.
        history: power readings of the GPU path.
        gpu_device_ids: gives the devices of the GPU path; called anew each time, since the sampler
            may learn of them late.
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
        self._pending: deque[_Waiting] = deque()
        self._lock = threading.Lock()

    def add(self, result: StageResult, meters: tuple[str, ...] | None = None) -> None:
        """Record a finished execution, at once when its energy is known, else with its readings.

        Args:
            result: the execution; without an energy it waits for its readings.
            meters: devices whose readings tell its energy; None: those of the GPU path.
        """
        with self._lock:
            if result.energy is None:
                self._pending.append(_Waiting(result, meters))
            else:
                self._record(result)

    def settle(self) -> None:
        """Record every execution whose readings are in, and those that waited for too long."""
        with self._lock:
            self._settle()

    def edi_json(self) -> str:
        """The EDI matrix as it is now."""
        with self._lock:
            return self.edi.to_json()

    def path_costs(self, device: str) -> tuple[PathCost, ...]:
        """Mean cost of each stage on a device so far, from the EDI matrix and its times."""
        found = []
        with self._lock:
            for stage in Stage:
                cell = self.edi.best(stage, device)
                if cell is not None and cell.mean_time_s_per_token is not None:
                    time_s, energy_j = cell.mean_time_s_per_token, cell.mean_j_per_token
                    found.append(PathCost(stage, time_s, energy_j, cell.count, cell.provenance))
        return tuple(found)

    def _settle(self) -> None:
        """Record what is final; the caller holds the lock."""
        if not self._pending:
            return
        given_up_s = self._clock() - PATIENCE_S
        # Once round the queue, what is not final going to its end again: an execution on a card
        # whose readings are late must not hold up those of the GPU behind it.
        for _ in range(len(self._pending)):
            waiting = self._pending.popleft()
            if self._is_final(waiting, given_up_s):
                self._record(self._with_energy(waiting))
            else:
                self._pending.append(waiting)

    def close(self, patience_s: float) -> None:
        """Wait a little for the last readings, then record the rest with what there is.

        Args:
            patience_s: longest wait, s.
        """
        limit_s = time.monotonic() + patience_s
        self.settle()
        # Without the lock: the sampler's thread has to come in with the readings.
        while self._pending and time.monotonic() < limit_s:
            time.sleep(0.02)
            self.settle()
        # What still waits is recorded with what was read; the coverage says how much that is.
        with self._lock:
            while self._pending:
                self._record(self._with_energy(self._pending.popleft()))

    def _meters_of(self, waiting: _Waiting) -> Sequence[str]:
        return self._gpu_device_ids() if waiting.meters is None else waiting.meters

    def _is_final(self, waiting: _Waiting, given_up_s: float) -> bool:
        """Whether the readings after its end are in, or are no longer waited for."""
        marks = [self._history.watermark_s(d) for d in self._meters_of(waiting)]
        known = [m for m in marks if m is not None]
        final_s = min(known) if known and len(known) == len(marks) else float("-inf")
        return waiting.result.t_end_s < max(final_s, given_up_s)

    def _with_energy(self, waiting: _Waiting) -> StageResult:
        """The execution with the energy of its window, as far as there are readings."""
        result, meters = waiting.result, self._meters_of(waiting)
        parts = [self._history.energy(d, result.t_start_s, result.t_end_s) for d in meters]
        return replace(result, energy=total_energy(parts)) if parts else result

    def _record(self, result: StageResult) -> None:
        """Write an execution to the ledger and update the EDI matrix; the caller holds the lock."""
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
    """Add up the energy of several devices over one window; None when one of them is missing."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]

    def total(values: Sequence[float | None]) -> float | None:
        known = [v for v in values if v is not None]
        return sum(known) if len(known) == len(values) else None

    methods = {p.method for p in parts}
    # A counter that is not believed must stay visible in a sum.
    doubtful = methods & {EnergyMethod.DISPUTED, EnergyMethod.INTEGRAL_COUNTER_STOPPED}
    alike = methods.pop() if len(methods) == 1 else EnergyMethod.MIXED
    return StageEnergy(
        device_ids=tuple(device for p in parts for device in p.device_ids),
        t_start_s=first.t_start_s,
        t_end_s=first.t_end_s,
        energy_j=total([p.energy_j for p in parts]),
        mean_power_w=total([p.mean_power_w for p in parts]),
        counter_energy_j=total([p.counter_energy_j for p in parts]),
        integral_energy_j=total([p.integral_energy_j for p in parts]),
        n_samples=min(p.n_samples for p in parts),
        coverage=min(p.coverage for p in parts),
        method=min(doubtful, default=alike),
        provenance=weakest(*(p.provenance for p in parts)),
    )


def card_energy(
    device_ids: tuple[str, ...],
    t_start_s: float,
    time_s: float | None,
    energy_j: float | None,
    provenance: Provenance,
) -> StageEnergy:
    """Energy of an execution as an engine reports it.

    Args:
        device_ids: the devices on which it ran.
        t_start_s: when it began, monotonic s.
        time_s: time on the device, s, or None.
        energy_j: J, or None; then there is no method either.
        provenance: of the energy.
    """
    return StageEnergy(
        device_ids=device_ids,
        t_start_s=t_start_s,
        t_end_s=t_start_s + (time_s or 0.0),
        energy_j=energy_j,
        mean_power_w=energy_j / time_s if energy_j is not None and time_s else None,
        counter_energy_j=None,
        integral_energy_j=None,
        n_samples=0,
        coverage=1.0 if energy_j is not None else 0.0,
        method=EnergyMethod.CYCLE_MODEL if energy_j is not None else EnergyMethod.NONE,
        provenance=provenance,
    )
