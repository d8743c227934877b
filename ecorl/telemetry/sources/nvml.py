"""GPU power from NVML: one instrument for each GPU for the whole run, and recovery of lost GPUs."""

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
from ecorl.telemetry.sources.own_counter import OwnCounter
from ecorl.telemetry.sources.specs import DeviceInfo

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
