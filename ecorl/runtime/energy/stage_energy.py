"""Computes the energy of stage executions as soon as the power readings for it are in.

A stage of milliseconds ends long before the sampler's next reading, so its energy is computed
when the reading after its end has arrived (the watermark). The sampler's thread does that as
readings come in, off the training thread's path, so that after a kill the ledger lacks only the
executions of the last fraction of a second; of the last second where a counter is slow to read.

An execution is charged the devices that it held, for the time that it held them. Where several
executions hold one device at once, its energy of that time is split evenly among them, so that the
parts add up to what the device drew:

    E(execution) = sum over devices d, times t in its windows of  E_d(t) / n_d(t)

with n_d(t) the number of executions that hold d at t.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ecorl.records import EnergyMethod, Provenance, StageEnergy, StageResult, weakest
from ecorl.runtime.energy.held_devices import DeviceWindow, HeldDevices, union

_KEPT_S = 10.0
"""How long a window is remembered after all that could overlap it has been settled, s. Invented:
longer than a message about an earlier start takes from another machine."""

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

    def watermark_s(self, device_id: str) -> float | None:
        """Time up to which the energy of a device is final, s."""


class ResultSink(Protocol):
    """Where settled executions go: a ledger."""

    def result(self, r: StageResult) -> None:
        """Record one finished stage execution."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """An execution that waits for its energy, and the windows whose readings give it."""

    result: StageResult
    windows: tuple[DeviceWindow, ...]


class StageAccounts:
    """Turns finished executions of one machine into rows of its ledger; thread-safe.

    Args:
        ledger: where results go.
        history: power readings of the machine's devices.
        on_settled: called with each result once it has its energy, by the thread that settles.
        clock: monotonic time, s.
    """

    def __init__(
        self,
        ledger: ResultSink,
        history: PowerHistoryLike,
        on_settled: Callable[[StageResult], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger, self._history = ledger, history
        self._on_settled, self._clock = on_settled, clock
        self._pending: deque[_Waiting] = deque()
        self._held = HeldDevices()
        self._lock = threading.Lock()

    def hold(self, serial: int, windows: Sequence[DeviceWindow]) -> None:
        """Note which devices an execution that is under way has held so far, and holds now.

        Args:
            serial: of the execution.
            windows: all of them; those that are under way end at infinity.
        """
        with self._lock:
            self._held.hold(serial, windows, ended=False)

    def drop(self, serial: int) -> None:
        """Note that an execution will never be recorded: an exception has cut it short.

        Args:
            serial: of the execution.
        """
        with self._lock:
            self._held.drop(serial)

    def add(self, result: StageResult, windows: Sequence[DeviceWindow], serial: int) -> None:
        """Record a finished execution, at once when its energy is known, else with its readings.

        Args:
            result: the execution; without an energy it waits for its readings.
            windows: the devices that it held, and when; none where nothing meters it.
            serial: of the execution, as for `hold`.
        """
        with self._lock:
            self._held.hold(serial, windows, ended=True)
            if result.energy is None:
                self._pending.append(_Waiting(result, tuple(windows)))
                return
        self._record(result)

    def take_free(self, device_id: str, until_s: float) -> list[tuple[float, float]]:
        """Take the times since the last call in which no execution held a device.

        Args:
            device_id: the device.
            until_s: end of the last of them, monotonic s; all that held the device before it must
                have been noted.

        Returns:
            Begin and end of each, in order; none at the first call, which begins the count.
        """
        with self._lock:
            return self._held.take_free(device_id, until_s)

    def settle(self) -> None:
        """Record every execution whose readings are in, and those that waited for too long."""
        with self._lock:
            settled = self._take_final()
        for waiting in settled:
            self._record(waiting)

    def _take_final(self) -> list[StageResult]:
        """Remove what is final, with its energy; the caller holds the lock."""
        if not self._pending:
            return []
        given_up_s = self._clock() - PATIENCE_S
        settled = []
        # Once round the queue, what is not final going to its end again: an execution on a card
        # whose readings are late must not hold up those of the GPU behind it.
        for _ in range(len(self._pending)):
            waiting = self._pending.popleft()
            if self._is_final(waiting, given_up_s):
                settled.append(self._with_energy(waiting))
            else:
                self._pending.append(waiting)
        if settled:
            starts = (w.t_start_s for p in self._pending for w in p.windows)
            oldest_s = min(*starts, self._held.oldest_s(), self._clock(), math.inf)
            self._held.trim(oldest_s - _KEPT_S)
        return settled

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
            rest = [self._with_energy(waiting) for waiting in self._pending]
            self._pending.clear()
        for result in rest:
            self._record(result)

    def _is_final(self, waiting: _Waiting, given_up_s: float) -> bool:
        """Whether the readings after its end are in, or are no longer waited for."""
        end_s = max((w.t_end_s for w in waiting.windows), default=waiting.result.t_end_s)
        if not waiting.windows:
            return True  # nothing meters it
        marks = [self._history.watermark_s(w.device_id) for w in waiting.windows]
        known = [m for m in marks if m is not None]
        final_s = min(known) if len(known) == len(marks) else float("-inf")
        return end_s < max(final_s, given_up_s)

    def _with_energy(self, waiting: _Waiting) -> StageResult:
        """The execution with the energy of its windows, as far as there are readings."""
        by_device: dict[str, list[DeviceWindow]] = {}
        for window in waiting.windows:
            by_device.setdefault(window.device_id, []).append(window)
        parts = [self._device_energy(device_id, ws) for device_id, ws in by_device.items()]
        return replace(waiting.result, energy=total_energy(parts)) if parts else waiting.result

    def _device_energy(self, device_id: str, windows: Sequence[DeviceWindow]) -> StageEnergy:
        pieces = self._held.pieces(device_id, windows)
        if all(n == 1 for _, _, n in pieces):
            # Whole spans: a counter is judged better over a long time than over its parts.
            pieces = [(start_s, end_s, 1) for start_s, end_s in union(windows)]
        return split_energy(
            [(self._history.energy(device_id, start_s, end_s), n) for start_s, end_s, n in pieces]
        )

    def _record(self, result: StageResult) -> None:
        """Write an execution to the ledger and hand it on."""
        self._ledger.result(result)
        self._on_settled(result)


def split_energy(pieces: Sequence[tuple[StageEnergy, int]]) -> StageEnergy:
    """Add up an execution's part of one device's energy over pieces of time.

    Args:
        pieces: energy of the device over each piece, in the order of time, and the number of
            executions that share it.

    Returns:
        The execution's part; None where that of a piece is missing.
    """
    if len(pieces) == 1 and pieces[0][1] == 1:
        return pieces[0][0]
    energies = [e for e, _ in pieces]
    start_s, end_s = energies[0].t_start_s, energies[-1].t_end_s

    def part(figures: Sequence[float | None]) -> float | None:
        found = [f / n for f, (_, n) in zip(figures, pieces, strict=True) if f is not None]
        return math.fsum(found) if len(found) == len(pieces) else None

    energy_j = part([e.energy_j for e in energies])
    lengths_s = [e.t_end_s - e.t_start_s for e in energies]
    held_s = math.fsum(lengths_s)
    covered_s = math.fsum(e.coverage * s for e, s in zip(energies, lengths_s, strict=True))
    return StageEnergy(
        device_ids=energies[0].device_ids,
        t_start_s=start_s,
        t_end_s=end_s,
        energy_j=energy_j,
        mean_power_w=energy_j / held_s if energy_j is not None and held_s > 0 else None,
        counter_energy_j=part([e.counter_energy_j for e in energies]),
        integral_energy_j=part([e.integral_energy_j for e in energies]),
        n_samples=sum(e.n_samples for e in energies),
        coverage=covered_s / held_s if held_s > 0 else 0.0,
        method=_common_method([e.method for e in energies]),
        provenance=weakest(*(e.provenance for e in energies)),
    )


def _common_method(found: Sequence[EnergyMethod]) -> EnergyMethod:
    """The method of a sum: that of its parts where they agree."""
    methods = set(found)
    # A counter that is not believed must stay visible in a sum.
    doubtful = methods & {
        EnergyMethod.DISPUTED,
        EnergyMethod.INTEGRAL_COUNTER_FOREIGN,
        EnergyMethod.INTEGRAL_COUNTER_STOPPED,
    }
    alike = methods.pop() if len(methods) == 1 else EnergyMethod.MIXED
    return min(doubtful, default=alike)


def total_energy(parts: Sequence[StageEnergy]) -> StageEnergy:
    """Add up the energy of several devices; None when that of one of them is missing."""
    if len(parts) == 1:
        return parts[0]

    def total(values: Sequence[float | None]) -> float | None:
        known = [v for v in values if v is not None]
        return sum(known) if len(known) == len(values) else None

    return StageEnergy(
        device_ids=tuple(device for p in parts for device in p.device_ids),
        t_start_s=min(p.t_start_s for p in parts),
        t_end_s=max(p.t_end_s for p in parts),
        energy_j=total([p.energy_j for p in parts]),
        mean_power_w=total([p.mean_power_w for p in parts]),
        counter_energy_j=total([p.counter_energy_j for p in parts]),
        integral_energy_j=total([p.integral_energy_j for p in parts]),
        n_samples=min(p.n_samples for p in parts),
        coverage=min(p.coverage for p in parts),
        method=_common_method([p.method for p in parts]),
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
