"""Power modelled from CPU time, for machines that cannot be measured.

power = idle + (active - idle) x utilisation: a straight line between two figures of a device
profile. Real power is not linear in utilisation; the figure is tagged ``modelled`` for that.

On a processor the CPU time is that of the processes with all that descend from them. A modelled GPU
is taken to be busy while the processes that feed it are, and their children feed none.

The power of a reading is the mean since the reading before; held until the next one, as readings
of an instrument are, it would count one interval late. So the energy is summed here as well,
interval by interval, and stands in the samples as a counter does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from ecorl.errors import ConfigError, DeviceLost, LibraryNotFound
from ecorl.records import MAX_POWER_W, DeviceKind, PowerSample, Provenance
from ecorl.telemetry.sources.process_tree import ProcessTree, read_stat, tick_s
from ecorl.telemetry.sources.specs import DeviceInfo, MeteredDevice

CPU_TIME = "modelled:cpu_time"
"""Source of figures from the CPU time of the model's processes alone."""

TREE_CPU_TIME = f"{CPU_TIME}:tree"
"""Source of figures from their CPU time with that of all that descend from them."""

CGROUP_CPU_TIME = f"{CPU_TIME}:tree+cgroup"
"""The same, and a control group that holds nothing else tells what the processes' lines do not."""

MIN_STEP_S = 0.03
"""Shortest time over which utilisation is measured, s: three ticks of the kernel's CPU clock."""

ROUNDING_TICKS = 2
"""Ticks of CPU time of a process that may be counted in the step after the one in which they were
counted: user and system time are rounded to a tick each. Without it full use would come out too
low."""

MAX_SHARE = 0.005
"""Largest share of a core that reading CPU time may take: with many processes it is read more
seldom, and the next reading has the energy in between."""

LONGEST_STEP_S = 1.0
"""CPU time is read this often, s, whatever it takes."""


class ModelledSource:
    """Power of the device on which processes compute, from their CPU time.

    Utilisation is the CPU time (user and system, all threads) that the processes gained since the
    last reading, over the time that passed times `n_threads`, clipped to 0..1. ``energy_j`` is the
    running integral since `open` of ``idle x dt + (active - idle) x dCPU / n_threads``: modelled,
    like the power, and not an instrument's counter.

    Args:
        device: the modelled device, with the figures of its model; on a processor what descends
            from the model's processes counts as they do, see `ProcessTree`.
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
        self.interval_s = self._polled_s = interval_s
        self._device_id, self._kind = device.device_id, device.kind
        self._idle_w, self._active_w = idle_w, active_w
        self._pids, self._n_threads = model.pids, model.n_threads
        self._tree = ProcessTree(model.pids) if device.kind is DeviceKind.CPU else None
        self._source = CPU_TIME if self._tree is None else TREE_CPU_TIME
        self._shortest_s = MIN_STEP_S
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
        if self._tree is not None:
            self._tree.open()
            self._source = TREE_CPU_TIME if self._tree.cgroup is None else CGROUP_CPU_TIME
        self._last = (self._clock(), self._cpu_time_s())

    def describe(self) -> tuple[DeviceInfo, ...]:
        """The one modelled device, with the parameters of its line."""
        what = f"{self._idle_w:g} W idle, {self._active_w:g} W active, {self._n_threads} threads"
        return (DeviceInfo(self._device_id, self._kind, self.provenance, self._source, what),)

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
        if self._tree is not None:
            return self._tree.cpu_time_s()
        return sum(process_cpu_time_s(pid) for pid in self._pids)

    def _step(self, now_s: float) -> bool:
        """Bring utilisation and energy up to now; False when the last step is too recent."""
        if self._last is not None and now_s - self._last[0] < self._shortest_s:
            for pid in self._pids:
                process_cpu_time_s(pid)  # one that has gone is told at once
            return False
        begin_s = time.thread_time()
        cpu_s = self._cpu_time_s()
        least_s = (time.thread_time() - begin_s) / MAX_SHARE
        self.interval_s = max(self._polled_s, min(least_s, LONGEST_STEP_S))
        # Polls jitter by half: one between two steps would tell a power without an energy.
        self._shortest_s = max(MIN_STEP_S, 0.5 * min(least_s, LONGEST_STEP_S))
        if self._last is not None:
            step_s = now_s - self._last[0]
            gained_s = max(0.0, cpu_s - self._last[1]) + self._carried_s
            busy_s = min(gained_s, step_s * self._n_threads)
            n = len(self._pids) if self._tree is None else self._tree.n_processes
            self._carried_s = min(gained_s - busy_s, ROUNDING_TICKS * tick_s() * n)
            self._utilisation = busy_s / (step_s * self._n_threads)
            range_w = self._active_w - self._idle_w
            self._energy_j += self._idle_w * step_s + range_w * busy_s / self._n_threads
        self._last = (now_s, cpu_s)
        return True

    def _sample(self, now_s: float, energy_j: float | None, error: str | None) -> PowerSample:
        power_w = None
        if self._utilisation is not None:
            power_w = self._idle_w + (self._active_w - self._idle_w) * self._utilisation
        figures = (power_w, energy_j, self._utilisation)
        return PowerSample(self._device_id, now_s, *figures, self.provenance, self._source, error)


def process_cpu_time_s(pid: int) -> float:
    """User and system CPU time of a process with all its threads, s.

    Raises:
        DeviceLost: the process does not exist.
    """
    stat = read_stat(pid)
    if stat is None:
        raise DeviceLost(f"process {pid} has gone")
    return stat.own * tick_s()
