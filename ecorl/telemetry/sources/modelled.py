"""Power modelled from CPU time, for machines that cannot be measured.

power = idle + (active - idle) x utilisation: a straight line between two figures of a device
profile. Real power is not linear in utilisation; the figure is tagged ``modelled`` for that.

The power of a reading is the mean since the reading before; held until the next one, as readings
of an instrument are, it would count one interval late. So the energy is summed here as well,
interval by interval, and stands in the samples as a counter does.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from ecorl.errors import ConfigError, DeviceLost, LibraryNotFound
from ecorl.records import MAX_POWER_W, PowerSample, Provenance
from ecorl.telemetry.sources.specs import DeviceInfo, MeteredDevice

MIN_STEP_S = 0.03
"""Shortest time over which utilisation is measured, s: three ticks of the kernel's CPU clock."""

ROUNDING_TICKS = 2
"""Ticks of CPU time that may be counted in the step after the one in which they were counted: user
and system time are rounded to a tick each. Without it full use would come out too low."""


class ModelledSource:
    """Power of the device on which a process computes, from the CPU time of that process.

    Utilisation is the CPU time (user and system, all threads) that the process gained since the
    last reading, over the time that passed times `n_threads`, clipped to 0..1. ``energy_j`` is the
    running integral since `open` of ``idle x dt + (active - idle) x dCPU / n_threads``: modelled,
    like the power, and not an instrument's counter.

    Args:
        device: the modelled device, with the figures of its model; finished children of the
            model's process are not counted.
        interval_s: polling interval, s.

    Raises:
        ConfigError: a figure of the model is missing or not acceptable.
    """

    name = "modelled"
    provenance = Provenance.MODELLED

    def __init__(self, device: MeteredDevice, interval_s: float = 0.1) -> None:
        model = device.model
        if model is None:
            raise ConfigError("telemetry option idle_w", None, "a number (it is required)")
        idle_w, active_w = model.idle_w, model.active_w
        if not 0 <= active_w <= MAX_POWER_W:
            raise ConfigError("telemetry option active_w", active_w, f"0 to {MAX_POWER_W:.0f} W")
        if not 0 <= idle_w <= active_w:
            raise ConfigError("telemetry option idle_w", idle_w, f"between 0 and {active_w} W")
        if model.n_threads < 1:
            raise ConfigError("telemetry option n_threads", model.n_threads, "at least 1")
        self.interval_s = interval_s
        self._device_id, self._kind = device.device_id, device.kind
        self._idle_w, self._active_w = idle_w, active_w
        self._pids, self._n_threads = model.pids, model.n_threads
        self._clock: Callable[[], float] = time.monotonic
        self._last: tuple[float, float] | None = None
        self._utilisation: float | None = None
        self._energy_j = self._carried_s = 0.0

    def open(self) -> None:
        """Take the first reading of CPU time, the baseline.

        Raises:
            LibraryNotFound: there is no ``/proc`` on this system.
            DeviceLost: the process does not exist.
        """
        if not Path("/proc/self/stat").exists():
            raise LibraryNotFound("this system has no /proc")
        self._last = (self._clock(), self._cpu_time_s())

    def device_ids(self) -> tuple[str, ...]:
        """The one modelled device."""
        return (self._device_id,)

    def describe(self) -> tuple[DeviceInfo, ...]:
        """The one modelled device, with the parameters of its line."""
        what = f"{self._idle_w:g} W idle, {self._active_w:g} W active, {self._n_threads} threads"
        return (
            DeviceInfo(self._device_id, self._kind, self.provenance, "modelled:cpu_time", what),
        )

    def read(self) -> tuple[PowerSample, ...]:
        """One sample; figures are None before the first step and after the process has gone."""
        now_s = self._clock()
        try:
            stepped = self._step(now_s)
        except DeviceLost as error:
            self._last = self._utilisation = None
            return (self._sample(now_s, None, type(error).__name__),)
        # Between two steps the energy is not known; the next step has it.
        return (self._sample(now_s, self._energy_j if stepped else None, None),)

    def close(self) -> None:
        """Forget the baseline."""
        self._last = None

    def _cpu_time_s(self) -> float:
        return sum(process_cpu_time_s(pid) for pid in self._pids)

    def _step(self, now_s: float) -> bool:
        """Bring utilisation and energy up to now; False when the last step is too recent."""
        cpu_s = self._cpu_time_s()
        if self._last is not None:
            step_s = now_s - self._last[0]
            if step_s < MIN_STEP_S:
                return False
            gained_s = max(0.0, cpu_s - self._last[1]) + self._carried_s
            busy_s = min(gained_s, step_s * self._n_threads)
            self._carried_s = min(gained_s - busy_s, ROUNDING_TICKS * _tick_s())
            self._utilisation = busy_s / (step_s * self._n_threads)
            range_w = self._active_w - self._idle_w
            self._energy_j += self._idle_w * step_s + range_w * busy_s / self._n_threads
        self._last = (now_s, cpu_s)
        return True

    def _sample(self, now_s: float, energy_j: float | None, error: str | None) -> PowerSample:
        power_w = None
        if self._utilisation is not None:
            power_w = self._idle_w + (self._active_w - self._idle_w) * self._utilisation
        return PowerSample(
            self._device_id,
            now_s,
            power_w,
            energy_j,
            self._utilisation,
            self.provenance,
            "modelled:cpu_time",
            error,
        )


def _tick_s() -> float:
    return 1.0 / os.sysconf("SC_CLK_TCK")


def process_cpu_time_s(pid: int) -> float:
    """User and system CPU time of a process with all its threads, s.

    Raises:
        DeviceLost: the process does not exist.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise DeviceLost(f"process {pid} has gone") from error
    # The name in parentheses may hold spaces and parentheses: fields count from the last one.
    fields = text.rpartition(")")[2].split()
    if len(fields) < 13:
        raise DeviceLost(f"/proc/{pid}/stat is empty")
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
