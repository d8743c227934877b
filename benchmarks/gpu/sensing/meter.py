"""The energy of repetitions of a load on one GPU, by the sampler that a run uses.

A load is repeated for some seconds, the GPU always has work, and the window ends when it has done
all of it. What was drawn is the counter's, cross-checked as in a run; nothing is subtracted for a
GPU that stands idle.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil

from benchmarks.gpu.run.parts import NO_GPU
from benchmarks.gpu.sensing.traces import TracePoint
from benchmarks.harness.figures import Figure, known
from benchmarks.harness.table import FigureTable
from ecorl.config import NvmlSourceConfig
from ecorl.drivers.instruments import BoardState, NvmlDevice
from ecorl.drivers.nvml import NvmlDriver, visible_devices
from ecorl.errors import DriverError, MissingToolError
from ecorl.records import StageEnergy
from ecorl.telemetry.check import ReadingCheck, check_readings
from ecorl.telemetry.sampling.sampler import Sampler
from ecorl.telemetry.sources.specs import MeteredDevice, SourceSpec

BETWEEN_WAITS_S = 0.1
"""Work that is launched before it is waited for, s: short calls would else leave gaps between."""

WARM_UP_S = 0.7
"""Time for which a load is called before its first window, s."""

_SETTLE_S = 5.0
"""Longest wait for the reading that ends a window, s."""


@dataclass(frozen=True, slots=True)
class Window:
    """One repetition of a load.

    Attributes:
        time_s: from the first launch to the end of the last kernel, s.
        n_calls: calls of the load.
        energy: of the GPU over it.
        state: clocks and temperature, read while it ran; None where nothing was read.
    """

    time_s: float
    n_calls: int
    energy: StageEnergy
    state: BoardState | None

    @property
    def energy_j(self) -> float | None:
        """What the GPU drew, J."""
        return self.energy.energy_j

    @property
    def power_w(self) -> float | None:
        """Mean power, W."""
        return self.energy.mean_power_w

    @property
    def gap_share(self) -> float | None:
        """Integral over counter minus 1, or None without both."""
        counter_j, integral_j = self.energy.counter_energy_j, self.energy.integral_energy_j
        if counter_j is None or integral_j is None or counter_j <= 0:
            return None
        return integral_j / counter_j - 1.0


def window_facts(windows: Sequence[Window]) -> dict[str, object]:
    """Describe how windows were measured, for the settings of a result.

    Args:
        windows: repetitions of one load.
    """
    states = [w.state for w in windows if w.state is not None]
    return {
        "windows_s": [round(w.time_s, 4) for w in windows],
        "spans_s": [[w.energy.t_start_s, w.energy.t_end_s] for w in windows],
        "calls": [w.n_calls for w in windows],
        "energy_j": [w.energy_j for w in windows],
        "method": sorted({str(w.energy.method) for w in windows}),
        "integral_over_counter": [w.gap_share for w in windows],
        "sm_clock_hz": known([s.sm_clock_hz for s in states]),
        "temperature_c": known([s.temperature_c for s in states]),
        "clock_event_reasons": [s.clock_event_reasons for s in states],
    }


def power_figure(figures: FigureTable, key: str, window: Window) -> Figure:
    """Mean power over one window.

    Args:
        figures: the table.
        key: name of its row.
        window: e.g. of an idle GPU.
    """
    if window.power_w is None:
        return figures.figure(key, None)
    spread = {"window_s": window.time_s, "integral_over_counter": window.gap_share}
    return figures.figure(key, window.power_w, spread)


class CpuShare:
    """CPU time of a process over wall-clock, from its making on.

    Args:
        pid: of the process; None where there is none.
    """

    def __init__(self, pid: int | None) -> None:
        self._process = None if pid is None else psutil.Process(pid)
        self._start_s, self._cpu_s = time.monotonic(), self._now_s()

    def share(self) -> float | None:
        """Share of one core so far; None where the process was not there all the time."""
        now_s = self._now_s()
        if now_s is None or self._cpu_s is None:
            return None
        return (now_s - self._cpu_s) / (time.monotonic() - self._start_s)

    def _now_s(self) -> float | None:
        if self._process is None:
            return None
        try:
            times = self._process.cpu_times()
        except psutil.Error:
            return None
        return float(times.user + times.system)


def answering_gpus(driver: NvmlDriver) -> list[NvmlDevice]:
    """Open NVML and return the GPUs that CUDA may use and that answer.

    Args:
        driver: not yet open.

    Raises:
        DriverError: when NVML does not tell of them.
    """
    driver.open()
    return [d for d in driver.select(visible_devices(os.environ), as_cuda=True) if d.answers]


def first_gpu(driver: NvmlDriver) -> NvmlDevice:
    """Open NVML and return the first GPU that CUDA may use and that answers.

    Args:
        driver: not yet open.

    Raises:
        MissingToolError: when there is none.
    """
    try:
        devices = answering_gpus(driver)
    except DriverError as error:
        raise MissingToolError(f"{NO_GPU} ({type(error).__name__})") from error
    if not devices:
        raise MissingToolError(NO_GPU)
    return devices[0]


class EnergyMeter:
    """Measures windows of time on the first GPU; open while its ``with`` block lasts.

    Args:
        synchronize: waits until the GPU has done what was launched.
        counter_interval_s: of a counter that is slow to read, s.

    Raises:
        MissingToolError: when there is no GPU.
    """

    def __init__(self, synchronize: Callable[[], None], counter_interval_s: float = 1.0) -> None:
        self.synchronize, self.driver = synchronize, NvmlDriver()
        self.device = first_gpu(self.driver)
        metered = MeteredDevice(gpus=(self.device.uuid,))
        source = NvmlSourceConfig(interval_s=0.1, counter_interval_s=counter_interval_s)
        self._id = f"gpu{self.device.index}"
        self.sampler = Sampler([SourceSpec((source,), metered)])

    def __enter__(self) -> EnergyMeter:
        self.sampler.start()
        # A window that began before the first reading would have no counter at its start.
        self._settle(self.edge_s())
        return self

    def __exit__(self, *exc: object) -> None:
        self.sampler.stop()
        self.driver.close()

    def edge_s(self) -> float:
        """The time now, s, at which the sampler reads as well, as at the edge of a stage."""
        self.sampler.mark_edge()
        return time.monotonic()

    def energy(self, t_start_s: float, t_end_s: float) -> StageEnergy:
        """Energy of a window that is over, once the readings behind its end have come.

        Args:
            t_start_s: its start, monotonic s.
            t_end_s: its end, monotonic s.
        """
        self._settle(t_end_s)
        return self.sampler.history.energy(self._id, t_start_s, t_end_s)

    def check(self, t_start_s: float, t_end_s: float) -> ReadingCheck:
        """Counter and integral of a window that is over, as a run checks them.

        Args:
            t_start_s: its start, monotonic s.
            t_end_s: its end, monotonic s.
        """
        self._settle(t_end_s)
        return check_readings(self.sampler.history, self._id, t_start_s, t_end_s)

    def power_points(self, t_start_s: float, t_end_s: float) -> list[TracePoint]:
        """Power readings of the sampler within a window.

        Args:
            t_start_s: its start, monotonic s.
            t_end_s: its end, monotonic s.
        """
        readings = self.sampler.history.readings(self._id, t_start_s, t_end_s)
        return [TracePoint(r.t_s, r.power_w) for r in readings if r.power_w is not None]

    def idle(self, duration_s: float) -> Window:
        """Measure while nothing runs.

        Args:
            duration_s: how long, s.
        """
        return self._window(lambda: time.sleep(duration_s), 0)

    def once(self, call: Callable[[], object]) -> Window:
        """Measure one call of a load.

        Args:
            call: launches the load.
        """
        return self._window(call, 1)

    def _window(self, call: Callable[[], object], n_calls: int) -> Window:
        self.synchronize()
        start_s = self.edge_s()
        call()
        self.synchronize()
        end_s = self.edge_s()
        state = self.driver.board_state(self.device)
        return Window(end_s - start_s, n_calls, self.energy(start_s, end_s), state)

    def repeat(self, call: Callable[[], object], length_s: float, call_s: float) -> Window:
        """Repeat a load for some time, and measure it.

        Args:
            call: launches the load once.
            length_s: shortest length of the window, s.
            call_s: time that a call takes, s, from `warm_up`.
        """
        n_between = max(1, round(BETWEEN_WAITS_S / call_s)) if call_s > 0 else 1
        state: BoardState | None = None
        n_calls = 0
        self.synchronize()
        start_s = self.edge_s()
        while time.monotonic() - start_s < length_s:
            for _ in range(n_between):
                call()
            n_calls += n_between
            if state is None and time.monotonic() - start_s > 0.5 * length_s:
                state = self.driver.board_state(self.device)
            self.synchronize()
        end_s = self.edge_s()
        return Window(end_s - start_s, n_calls, self.energy(start_s, end_s), state)

    def warm_up(self, call: Callable[[], object], length_s: float) -> float:
        """Call a load until it is warm; returns the time of its last call, s.

        Args:
            call: launches the load once.
            length_s: for how long, s; it is called twice at least.
        """
        start_s, call_s, n_calls = time.monotonic(), 0.0, 0
        while n_calls < 2 or time.monotonic() - start_s < length_s:
            before_s = time.monotonic()
            call()
            self.synchronize()
            call_s, n_calls = time.monotonic() - before_s, n_calls + 1
        return call_s

    def measure(
        self, call: Callable[[], object], *, n_repetitions: int, length_s: float
    ) -> list[Window]:
        """Warm a load up and measure it several times.

        Args:
            call: launches the load once.
            n_repetitions: windows.
            length_s: shortest length of each, s.
        """
        call_s = self.warm_up(call, WARM_UP_S)
        return [self.repeat(call, length_s, call_s) for _ in range(n_repetitions)]

    def _settle(self, t_end_s: float) -> None:
        until_s = time.monotonic() + _SETTLE_S
        while time.monotonic() < until_s:
            newest_s = self.sampler.watermark_s(self._id)
            if newest_s is not None and newest_s > t_end_s:
                return
            time.sleep(0.01)
