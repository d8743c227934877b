"""GPU power from NVML: one instrument for each GPU for the whole run, and recovery of lost GPUs.

A GPU's own power tells whether its energy counter counts that GPU. The counter of Grace Hopper and
Grace Blackwell counts the whole module, and one in other units would be wrong by a thousand.
Instantaneous power alone cannot tell: on bursts in step with its own refresh it is wrong by up to
95 % while the counter is right. The average over the last second is not (measured on an H100), so
what the counter says has to lie between what the two say.
"""

from __future__ import annotations

import logging
import math
import os
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from ecorl.drivers.instruments import FIELD_POWER_INSTANT, INSTRUMENTS, Instrument, NvmlDevice
from ecorl.drivers.nvml import NvmlDriver, visible_devices
from ecorl.errors import DeviceLost, DriverError, DriverNotLoaded
from ecorl.records import FOREIGN_COUNTER, DeviceKind, PowerSample, Provenance
from ecorl.telemetry.sources.specs import DeviceInfo

LEAST_S, LONGEST_S = 2.0, 30.0
"""Shortest and longest stretch of time over which a counter is judged, s; then a new one begins."""

TOLERANCE = 1.25
"""A counter may differ by this factor from all that the power readings say. Invented: on steady
loads the two agree to some per cent."""

UNITS_FACTOR = 100.0
"""Where there is no average only this much is told: a counter in other units. Bursts in step with
the polling explain less: which of the two is wrong is not known then."""

TOLERANCE_W = 5.0
"""And by so much power, W: NVIDIA states power to 5 W."""

LAG_S = 1.0
"""Of a change of load an average over a second comes late by up to so much, s; and for so long a
counter has to contradict the readings."""

SELDOM_S = 1.5
"""Across a longer time without a reading nothing is judged, s: what was drawn there is not seen."""

STILL_S = 2.0
"""Across a counter that was seen to stand still for longer than this nothing is judged, s."""


@dataclass
class _Stretch:
    """What power readings said since the counter moved to ``begin_j`` at ``begin_s``.

    Attributes:
        longest_s: longest time between two readings, s.
        power_j: by the power readings, each held until the next one, J.
        average_j: by the averages, J; None where one was missing.
        low_w, high_w: bounds of all these readings, W.
    """

    begin_s: float
    begin_j: float
    longest_s: float = 0.0
    power_j: float = 0.0
    average_j: float | None = 0.0
    low_w: float = math.inf
    high_w: float = 0.0

    def see(self, power_w: float, average_w: float | None) -> None:
        """Take the figures of a reading into the bounds."""
        figures_w = (power_w, power_w if average_w is None else average_w)
        self.low_w, self.high_w = min(self.low_w, *figures_w), max(self.high_w, *figures_w)

    def hold(self, power_w: float, average_w: float | None, length_s: float) -> None:
        """Let a reading stand for a time."""
        self.longest_s = max(self.longest_s, length_s)
        self.power_j += power_w * length_s
        if self.average_j is None or average_w is None:
            self.average_j = None
        else:
            self.average_j += average_w * length_s
        self.see(power_w, average_w)

    def explains(self, rise_j: float, length_s: float) -> bool:
        """Whether the readings explain a rise of the counter."""
        figures_j = [self.power_j] if self.average_j is None else [self.power_j, self.average_j]
        factor = UNITS_FACTOR if self.average_j is None else TOLERANCE
        # Of a change of load a reading tells late by its own lag and by the wait for it.
        late_s = LAG_S + self.longest_s
        slack_j = late_s * (self.high_w - self.low_w) + TOLERANCE_W * length_s
        return min(figures_j) / factor - slack_j <= rise_j <= max(figures_j) * factor + slack_j


class OwnCounter:
    """Follows the readings of one GPU; once its counter is found foreign that stands.

    Time is cut where the counter moves, so that a slow refresh of it does not matter.
    """

    def __init__(self) -> None:
        self.is_foreign = False
        self.forget()

    def forget(self) -> None:
        """Conclude nothing across this time: readings are missing, or the GPU was lost."""
        self._stretch: _Stretch | None = None
        self._moved: tuple[float, float] | None = None
        self._newest: tuple[float, float, float | None] | None = None
        self._contradicts_since_s: float | None = None
        self._is_still = False

    def add(
        self, t_s: float, power_w: float | None, average_w: float | None, energy_j: float | None
    ) -> None:
        """Take a reading in.

        Args:
            t_s: its time, s.
            power_w: W; None where it is missing.
            average_w: average power over the last second, W, where it can be read.
            energy_j: the counter, J, where it was read.
        """
        if self._newest is not None and t_s - self._newest[0] > SELDOM_S:
            self.forget()
        if self._stretch is not None and self._newest is not None:
            since_s, held_w, held_average_w = self._newest
            self._stretch.hold(held_w, held_average_w, t_s - since_s)
            if power_w is not None:
                # The counter may have seen a load already that only this reading tells of.
                self._stretch.see(power_w, average_w)
        if energy_j is not None:
            self._count(t_s, energy_j)
        if power_w is None:
            self.forget()
        else:
            self._newest = (t_s, power_w, average_w)

    def _count(self, t_s: float, energy_j: float) -> None:
        moved, stretch = self._moved, self._stretch
        if moved is None or energy_j < moved[1]:
            # It may have moved at any time before: the next move begins.
            self._moved, self._stretch = (-math.inf, energy_j), None
            self._contradicts_since_s = None
            return
        if energy_j == moved[1]:
            self._is_still = True
            return
        stood_s = t_s - moved[0] if self._is_still else 0.0
        self._moved, self._is_still = (t_s, energy_j), False
        length_s = 0.0 if stretch is None else t_s - stretch.begin_s
        if stretch is None or stood_s > STILL_S or length_s > LONGEST_S:
            self._stretch, self._contradicts_since_s = _Stretch(t_s, energy_j), None
        elif length_s >= LEAST_S:
            if stretch.explains(energy_j - stretch.begin_j, length_s):
                self._contradicts_since_s = None
            elif self._contradicts_since_s is None:
                self._contradicts_since_s = t_s
            elif t_s - self._contradicts_since_s >= LAG_S:
                self.is_foreign = True


logger = logging.getLogger(__name__)

FIRST_RETRY_S = 1.0
LONGEST_RETRY_S = 60.0
"""Back-off of recovery, s: invented; long enough not to trouble a driver that is being reset."""

SLOW_COUNTER_S = 0.0005
"""A counter is slow whose reading usually takes longer than this, s: ten such readings a second
would be half a per cent of a processor core. That of an H100 takes 2.4 to 3.7 ms."""

_TIMED_READINGS = 5
"""Newest readings of a counter by whose median time it is judged: one that waited for a busy
processor does not count."""

EDGE_APART_S = 0.02
"""A stage's edge is not read this soon after the last reading of the counter, s: the end of a stage
is often the beginning of the next one."""

POWER_APART_S = 0.05
"""A stage's edge has the last reading of power where that is no older than this, s: NVML polled
faster is known to answer zeros."""


@dataclass
class _Gpu:
    device: NvmlDevice
    instrument: Instrument | None = None
    lost: bool = False
    trouble: str = ""
    newest: PowerSample | None = None
    counter_read_s: float = -math.inf
    counter_calls_s: deque[float] = field(default_factory=lambda: deque(maxlen=_TIMED_READINGS))
    average_w: float | None = None
    counter: OwnCounter = field(default_factory=OwnCounter)

    @property
    def device_id(self) -> str:
        return f"gpu{self.device.index}"

    @property
    def is_dead(self) -> bool:
        """Whether NVML cannot ask it at all, so that nothing can run on it."""
        is_lost = self.newest is not None and self.newest.error == DeviceLost.__name__
        return is_lost or not self.device.answers

    @property
    def has_slow_counter(self) -> bool:
        """Whether the newest readings of its energy counter took long."""
        calls_s = self.counter_calls_s
        return len(calls_s) == _TIMED_READINGS and statistics.median(calls_s) > SLOW_COUNTER_S


class NvmlSource:
    """NVIDIA GPUs as ``gpu0``, ``gpu1``, ... by NVML's index.

    The first instrument that answers for a GPU is kept for the whole run: if it fails later the
    reading is missing, because another instrument (a module's power instead of the GPU's, an
    average instead of the present value) would change what the figure means. A GPU in MIG mode
    appears once, with the power of the whole GPU, other tenants' instances included.

    A GPU that is lost or does not answer when the source is opened is read as missing where it was
    named, or where fewer answer than are in use; else it is left out. `unread` says which and why.
    One that answers and tells no power is read as missing: what runs may run on it.

    Readings of a GPU whose counter is not its own (`OwnCounter`) say so (``ForeignCounter``).

    Args:
        devices: the GPUs to read, by any name that `NvmlDriver.find` knows (index, UUID with or
            without ``GPU-``, MIG UUID, PCI address); None takes ``CUDA_VISIBLE_DEVICES``, else
            all GPUs.
        interval_s: polling interval, s; below 0.05 s NVML is known to answer zeros.
        n_gpus: how many GPUs are in use, where `devices` does not name them.
        counter_interval_s: time between two readings of an energy counter that is slow to read
            (`SLOW_COUNTER_S`), s. `read_edge` reads it as well. With 0, and where power is an
            average over a second, it is read with each power.
    """

    name = "nvml"
    provenance = Provenance.MEASURED

    def __init__(
        self,
        devices: Sequence[str] | None = None,
        interval_s: float = 0.1,
        counter_interval_s: float = 1.0,
        n_gpus: int = 1,
    ) -> None:
        self.interval_s = interval_s
        self._n_gpus = n_gpus
        self._counter_interval_s = counter_interval_s
        self._wanted = tuple(devices) if devices is not None else None
        self._driver = NvmlDriver()
        self._gpus: list[_Gpu] = []
        self._left_out: list[_Gpu] = []
        self._clock: Callable[[], float] = time.monotonic
        self._retry_at_s = 0.0
        self._retry_step_s = FIRST_RETRY_S
        self._down = DriverError.__name__
        self._told: tuple[tuple[str, str], ...] = ()

    def open(self) -> None:
        """Initialise NVML, find the GPUs, and settle on an instrument for each.

        Raises:
            DriverError: NVML cannot be used, no GPU is selected or visible, none has a name that
                was asked for, or none answers.
        """
        self._driver.open()
        try:
            wanted = self._wanted if self._wanted is not None else visible_devices(os.environ)
            devices = self._driver.select(wanted, as_cuda=self._wanted is None)
            if not devices:
                raise DriverError(self._none_found(wanted))
            if not any(device.answers for device in devices):
                told = (f"gpu{d.index} does not answer ({_reason(d.fault)})" for d in devices)
                raise DriverError("; ".join(told))
        except DriverError:
            self._driver.close()
            raise
        self._gpus = [_Gpu(device) for device in devices]
        self.read()
        alive = [gpu for gpu in self._gpus if not gpu.is_dead]
        dead = [gpu for gpu in self._gpus if gpu.is_dead]
        if self._wanted is None and len(alive) >= self._n_gpus:
            self._gpus, self._left_out = alive, dead
        self._told = tuple(self._at_the_start())

    def describe(self) -> tuple[DeviceInfo, ...]:
        """The selected GPUs with instrument, name and number of MIG instances."""
        return tuple(
            DeviceInfo(
                gpu.device_id, DeviceKind.GPU, self.provenance, _source(gpu), gpu.device.label
            )
            for gpu in self._gpus
        )

    def unread(self) -> tuple[tuple[str, str], ...]:
        """GPUs that told no power when the source was opened, each with the reason in words."""
        return self._told

    def read(self) -> tuple[PowerSample, ...]:
        """One sample a GPU; lost GPUs are looked for again, with a growing pause."""
        if any(gpu.lost for gpu in self._gpus):
            self._recover()
        return tuple(self._read_gpu(gpu, self._is_counter_due(gpu)) for gpu in self._gpus)

    def read_edge(self) -> tuple[PowerSample, ...]:
        """One sample of each GPU whose counter was not read just before, its counter included."""
        now_s, found = self._clock(), []
        for gpu in self._gpus:
            if gpu.lost or now_s - gpu.counter_read_s < EDGE_APART_S:
                continue
            newest = gpu.newest
            if newest is None or newest.power_w is None or now_s - newest.t_s >= POWER_APART_S:
                found.append(self._read_gpu(gpu, True))
            else:
                energy_j, t_s = self._read_counter(gpu)
                found.append(_judged(gpu, replace(newest, t_s=t_s, energy_j=energy_j)))
        return tuple(found)

    def close(self) -> None:
        """Release NVML; safe to call twice."""
        self._driver.close()

    def _at_the_start(self) -> Iterator[tuple[str, str]]:
        for gpu in self._left_out:
            why = "devices.n_gpus counts no more GPUs than answer"
            yield gpu.device_id, f"does not answer ({gpu.trouble}) and is left out: {why}"
        for gpu in self._gpus:
            device = gpu.device
            if not device.answers:
                named = f", taken for {device.uuid}" if device.uuid != str(device.index) else ""
                yield (
                    gpu.device_id,
                    f"does not answer ({gpu.trouble}{named}): its energy is missing",
                )
            elif gpu.newest is not None and gpu.newest.power_w is None:
                yield gpu.device_id, f"tells no power at the start ({gpu.trouble})"

    def _none_found(self, wanted: Sequence[str] | None) -> str:
        if wanted is None:
            return "NVML sees no GPU"
        return "CUDA_VISIBLE_DEVICES hides all GPUs" if self._wanted is None else "no GPU is named"

    def _is_counter_due(self, gpu: _Gpu) -> bool:
        # The rise of a counter that is read seldom is spread by power; that of an average comes
        # too late to tell one stage from the next.
        is_instant = gpu.instrument is not None and gpu.instrument.field == FIELD_POWER_INSTANT
        if not (gpu.has_slow_counter and is_instant):
            return True
        return self._clock() - gpu.counter_read_s >= self._counter_interval_s

    def _read_gpu(self, gpu: _Gpu, with_counter: bool) -> PowerSample:
        power_w = energy_j = utilisation = None
        error: str | None = None
        try:
            order = INSTRUMENTS if gpu.instrument is None else (gpu.instrument,)
            reading = self._driver.power(gpu.device, order)
            power_w, gpu.instrument = reading.power_w, reading.instrument
            gpu.average_w = reading.average_w
        except DriverError as fault:
            error = type(fault).__name__ if self._driver.is_open else self._down
            gpu.trouble = _reason(fault)
            # A driver that was reloaded answers with errors of no particular kind.
            is_loss = isinstance(fault, DeviceLost | DriverNotLoaded) or type(fault) is DriverError
            gpu.lost = is_loss or not gpu.device.answers
            if gpu.lost:
                gpu.counter_read_s = -math.inf
        t_s = self._clock()
        if with_counter and not gpu.lost:
            energy_j, t_s = self._read_counter(gpu)
        if not gpu.lost:
            utilisation = self._optional(lambda: self._driver.utilisation(gpu.device))
        sample = PowerSample(
            gpu.device_id, t_s, power_w, energy_j, utilisation, self.provenance, _source(gpu), error
        )
        gpu.newest = _judged(gpu, sample)
        return gpu.newest

    def _read_counter(self, gpu: _Gpu) -> tuple[float | None, float]:
        """The energy counter, J, and the time in the middle of its call, s.

        A sample that has a counter bears this time: energy is billed by it, and the hold of a power
        reading minds less.
        """
        before_s = self._clock()
        energy_j = self._optional(lambda: self._driver.energy_j(gpu.device))
        call_s = self._clock() - before_s
        t_s = before_s + 0.5 * call_s
        if energy_j is not None:
            gpu.counter_read_s = t_s
            gpu.counter_calls_s.append(call_s)
        return energy_j, t_s

    def _optional(self, read: Callable[[], float]) -> float | None:
        """A figure that not every GPU has; its absence is no fault."""
        try:
            return read()
        except DriverError:
            return None

    def _recover(self) -> None:
        """Try to get lost GPUs back: by UUID while others answer, else by a fresh start of NVML."""
        if self._clock() < self._retry_at_s:
            return
        self._retry_at_s = self._clock() + self._retry_step_s
        self._retry_step_s = min(2 * self._retry_step_s, LONGEST_RETRY_S)
        if all(gpu.lost for gpu in self._gpus):
            self._driver.close()
            try:
                self._driver.open()
            except DriverError as error:
                self._down = type(error).__name__
                logger.debug("NVML does not start again: %s", error)
                return
        for gpu in self._gpus:
            if gpu.lost:
                try:
                    found = self._driver.reacquire(gpu.device)
                    if any(o.device.uuid == found.uuid for o in self._gpus if o is not gpu):
                        raise DriverError("NVML numbers GPUs otherwise now")
                    gpu.device = found
                    self._driver.power(gpu.device, INSTRUMENTS)
                except DriverError as error:
                    logger.debug("%s is still lost: %s", gpu.device_id, error)
                    continue
                gpu.lost = False
        if not any(gpu.lost for gpu in self._gpus):
            self._retry_step_s, self._retry_at_s = FIRST_RETRY_S, 0.0


def _judged(gpu: _Gpu, sample: PowerSample) -> PowerSample:
    """A reading, with a word where the GPU's counter is not its own."""
    gpu.counter.add(sample.t_s, sample.power_w, gpu.average_w, sample.energy_j)
    if gpu.counter.is_foreign and sample.error is None:
        return replace(sample, error=FOREIGN_COUNTER)
    return sample


def _reason(fault: DriverError | None) -> str:
    return f"{type(fault).__name__}: {fault}"


def _source(gpu: _Gpu) -> str:
    return "nvml" if gpu.instrument is None else str(gpu.instrument)
