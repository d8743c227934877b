"""Reads every instrument of one GPU in a process of its own, as fast as it is told to.

The sampler of a run reads each 0.1 s; here the instruments themselves are looked at, so that the
readings have to be closer than their refresh.
"""

from __future__ import annotations

import multiprocessing
import time
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection

from benchmarks.gpu.sensing.traces import TracePoint
from ecorl.drivers.instruments import (
    FIELD_POWER_AVERAGE,
    FIELD_POWER_INSTANT,
    INSTRUMENTS,
    SCOPE_MEMORY,
    Instrument,
    NvmlDevice,
)
from ecorl.drivers.nvml import NvmlDriver
from ecorl.errors import DriverError
from ecorl.telemetry.sources.nvml import NvmlSource

COUNTER = "nvml:energy_counter"
"""Name of the cumulative energy counter among the instruments."""

BOARD = "nvml:board_state"
"""Name of the call for clocks and temperature; its values are SM clocks, Hz."""

WHOLE = "ecorl:read"
"""Name of a whole reading as the sampler takes it: power, counter, utilisation; its values, W."""

CANDIDATES = (
    *INSTRUMENTS,
    Instrument(FIELD_POWER_INSTANT, SCOPE_MEMORY),
    Instrument(FIELD_POWER_AVERAGE, SCOPE_MEMORY),
)
"""All instruments of power that NVML may have."""

_PATIENCE_S = 60.0


@dataclass
class LoadTrace:
    """What a tracer has read.

    Attributes:
        points: values by the instrument's name.
        call_s: time that each call took, s, by the instrument's name.
        errors: how often each error came in place of a value, by the instrument's name.
    """

    points: dict[str, list[TracePoint]] = field(default_factory=dict)
    call_s: dict[str, array[float]] = field(default_factory=dict)
    errors: dict[str, dict[str, int]] = field(default_factory=dict)


def readable(driver: NvmlDriver, device: NvmlDevice) -> dict[Instrument, float | str]:
    """Ask each candidate once: its power, W, or the name of the error.

    Args:
        driver: that is open.
        device: the GPU.
    """
    found: dict[Instrument, float | str] = {}
    for instrument in CANDIDATES:
        try:
            found[instrument] = _power_w(driver, device, instrument)
        except DriverError as error:
            found[instrument] = type(error).__name__
    return found


def _power_w(driver: NvmlDriver, device: NvmlDevice, instrument: Instrument) -> float:
    return driver.power(device, (instrument,)).power_w


def _whole_w(source: NvmlSource) -> float:
    (sample,) = source.read()
    if sample.power_w is None:
        raise DriverError(sample.error or "no reading")
    return sample.power_w


def _clock_hz(driver: NvmlDriver, device: NvmlDevice) -> float:
    return driver.board_state(device).sm_clock_hz or 0.0


def record(
    named: Mapping[str, Callable[[], float]], interval_s: float, is_over: Callable[[], bool]
) -> LoadTrace:
    """Make each call in turn until told to stop.

    Args:
        named: the calls.
        interval_s: time from one round of all calls to the next, s; 0 for no pause.
        is_over: whether to stop.
    """
    trace = LoadTrace(
        {n: [] for n in named}, {n: array("d") for n in named}, {n: {} for n in named}
    )
    due_s = time.monotonic()
    while not is_over():
        for name, call in named.items():
            before_s = time.monotonic()
            try:
                value = call()
            except DriverError as error:
                kinds, kind = trace.errors[name], type(error).__name__
                kinds[kind] = kinds.get(kind, 0) + 1
                continue
            after_s = time.monotonic()
            trace.points[name].append(TracePoint(0.5 * (before_s + after_s), value))
            trace.call_s[name].append(after_s - before_s)
        due_s = max(due_s + interval_s, time.monotonic())
        time.sleep(max(0.0, due_s - time.monotonic()))
    return trace


def _trace_in_child(
    link: Connection,
    uuid: str,
    instruments: tuple[Instrument, ...],
    interval_s: float,
    is_costly: bool,
) -> None:
    """Body of the process: read from the start until the first message."""
    driver, source = NvmlDriver(), NvmlSource((uuid,))
    driver.open()
    try:
        device = driver.find(uuid)
        named = {COUNTER: partial(driver.energy_j, device)}
        named |= {str(one): partial(_power_w, driver, device, one) for one in instruments}
        if is_costly:
            source.open()
            named |= {WHOLE: partial(_whole_w, source), BOARD: partial(_clock_hz, driver, device)}
        link.send("ready")
        # A parent that ended without a word ends this too: poll tells of a closed pipe.
        link.send(record(named, interval_s, link.poll))
    finally:
        source.close()
        driver.close()


class Tracer:
    """Reads while its ``with`` block lasts; afterwards `trace` holds what it has read.

    Args:
        uuid: of the GPU.
        instruments: of power, beside the counter.
        interval_s: time from one round of all calls to the next, s; 0 for no pause.
        is_costly: whether whole readings and the board's state are taken too.

    Raises:
        DriverError: when the process cannot read.
    """

    def __init__(
        self,
        uuid: str,
        instruments: tuple[Instrument, ...] = (),
        interval_s: float = 0.0,
        *,
        is_costly: bool = False,
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._link, self._theirs = context.Pipe()
        what = (self._theirs, uuid, instruments, interval_s, is_costly)
        self._process = context.Process(target=_trace_in_child, args=what, daemon=True)
        self.trace = LoadTrace()

    def __enter__(self) -> Tracer:
        self._process.start()
        self._theirs.close()
        if self._receive() != "ready":
            raise DriverError("the process that reads the instruments did not start")
        return self

    def __exit__(self, *exc: object) -> None:
        self._link.send("stop")
        found = self._receive()
        if isinstance(found, LoadTrace):
            self.trace = found
        self._process.join(_PATIENCE_S)
        if self._process.is_alive():
            self._process.kill()
        self._link.close()

    def _receive(self) -> object:
        try:
            return self._link.recv() if self._link.poll(_PATIENCE_S) else None
        except (EOFError, OSError):
            return None
