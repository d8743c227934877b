"""What holds a GPU's clock down: NVML's counters of limited time, watched beside a load.

Here stand the calls of NVML that `ecorl.drivers` has no need of. All of them read.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pynvml

from benchmarks.gpu.sensing.meter import Window
from benchmarks.gpu.sensing.traces import TracePoint, quantile, value_at
from benchmarks.harness.figures import known, over
from ecorl.drivers.instruments import (
    FIELD_POWER_AVERAGE,
    FIELD_POWER_INSTANT,
    SCOPE_MEMORY,
    NvmlDevice,
    error_from_code,
    translated,
)
from ecorl.drivers.nvml import NvmlDriver, field_number
from ecorl.errors import DriverError, FunctionNotFound, NotSupported
from ecorl.units import watts_from_milliwatts

LIMITERS = {
    "power_cap": 74,
    "sync_boost": 76,
    "sw_thermal": 269,
    "hw_thermal": 270,
    "power_brake": 271,
}
"""NVML's fields that count the time, ns, for which something held the clock down: the power limit
in software, a group of GPUs that boost together, temperature in software and in hardware, and the
brake of the power supply."""

REASONS = {
    0x1: "idle",
    0x2: "application_clocks",
    0x4: "power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "power_brake",
    0x100: "display",
}
"""NVML's bits of why the clock is not higher."""

MEMORY_POWER = ((FIELD_POWER_INSTANT, SCOPE_MEMORY), (FIELD_POWER_AVERAGE, SCOPE_MEMORY))
"""Fields with their scope that may tell the memory's power, the better one first."""

INTERVAL_S = 0.02
"""Time from one reading of a watch to the next, s."""

_ONE_READING_S = 1.0
"""Longest wait for a reading behind a window's end, s."""


def ask(function: str, *args: Any) -> Any:
    """Make one call of NVML, which is open.

    Args:
        function: as ``pynvml`` names it.
        args: of the call.

    Raises:
        DriverError: what NVML refuses; `FunctionNotFound` where ``pynvml`` lacks the call.
    """
    call = getattr(pynvml, function, None)
    if call is None:
        raise FunctionNotFound(f"{function} is not in this nvidia-ml-py")
    with translated(pynvml, function):
        return call(*args)


def fields(device: NvmlDevice, wanted: Sequence[tuple[int, int]]) -> list[float | DriverError]:
    """Read fields in one call: the number of each in NVML's own unit, or why there is none.

    Args:
        device: the GPU.
        wanted: field and scope of each.

    Raises:
        DriverError: when the call itself fails.
    """

    def number(one: Any) -> float | DriverError:
        if one.nvmlReturn != 0:
            return error_from_code(one.nvmlReturn, f"field {one.fieldId}")
        try:
            return field_number(one)
        except NotSupported as error:
            return error

    return [number(one) for one in ask("nvmlDeviceGetFieldValues", device.handle, list(wanted))]


def field(device: NvmlDevice, id: int, scope: int = 0) -> float:
    """Read one field in NVML's own unit.

    Args:
        device: the GPU.
        id: of the field.
        scope: of the field.

    Raises:
        DriverError: when it is not told.
    """
    (found,) = fields(device, [(id, scope)])
    if isinstance(found, DriverError):
        raise found
    return found


class Reading(NamedTuple):
    """What a watch saw at one time; None for what is not told.

    Attributes:
        t_s: monotonic time in the middle of the call for the limiters, s.
        sm_clock_hz: clock of the processors, Hz.
        reasons: bits of `REASONS`.
        memory_power_w: power of the memory, W.
        limited_s: time limited since the driver was loaded, s, in the order of `LIMITERS`.
    """

    t_s: float
    sm_clock_hz: float | None
    reasons: int | None
    memory_power_w: float | None
    limited_s: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """What a watch saw within a window.

    Attributes:
        clocks_hz: clock of the processors at each reading, Hz.
        memory_power_w: mean power of the memory, W, or None.
        limited: share of the window in which each limiter held the clock down, or None.
        reasons: share of the readings with each reason.
    """

    clocks_hz: tuple[float, ...]
    memory_power_w: float | None
    limited: dict[str, float | None]
    reasons: dict[str, float]

    def facts(self) -> dict[str, object]:
        """Plain data for the settings of a result."""
        shares = (0.0, 0.1, 0.5, 0.9, 1.0)
        clocks = [quantile(self.clocks_hz, share) for share in shares] if self.clocks_hz else []
        return {
            "n_readings": len(self.clocks_hz),
            "clock_hz_min_p10_median_p90_max": clocks,
            "memory_power_w": self.memory_power_w,
            "limited_share": self.limited,
            "reasons_share_of_readings": self.reasons,
        }


def summarised(readings: Sequence[Reading], t_start_s: float, t_end_s: float) -> Seen:
    """Summarise the readings of a window.

    Args:
        readings: in the order of time, from before its start to behind its end.
        t_start_s: its start, monotonic s.
        t_end_s: its end, monotonic s.
    """
    inside = [r for r in readings if t_start_s <= r.t_s <= t_end_s]
    memory = known([r.memory_power_w for r in inside])
    told = [r.reasons for r in inside if r.reasons is not None]
    counts = {name: sum(bool(bits & bit) for bits in told) for bit, name in REASONS.items()}
    return Seen(
        tuple(known([r.sm_clock_hz for r in inside])),
        math.fsum(memory) / len(memory) if memory else None,
        {
            name: _limited_share(readings, number, t_start_s, t_end_s)
            for number, name in enumerate(LIMITERS)
        },
        {name: count / len(told) for name, count in counts.items() if count},
    )


def _limited_share(
    readings: Sequence[Reading], number: int, t_start_s: float, t_end_s: float
) -> float | None:
    values = [(r.t_s, r.limited_s[number]) for r in readings]
    points = [TracePoint(t_s, value) for t_s, value in values if value is not None]
    start, end = value_at(points, t_start_s), value_at(points, t_end_s)
    if start is None or end is None or end < start:
        return None
    return (end - start) / (t_end_s - t_start_s)


def window_values(window: Window, n_tokens: int, seen: Seen) -> dict[str, float | None]:
    """The values of a window's figures; None for what is not known.

    The rest's power is the GPU's less the memory's.

    Args:
        window: its energy.
        n_tokens: tokens of a call.
        seen: what a watch saw in it.
    """
    power_w, memory_w, n_all = window.power_w, seen.memory_power_w, window.n_calls * n_tokens
    return {
        "power_w": power_w,
        "memory_power_w": memory_w,
        "rest_power_w": None if power_w is None or memory_w is None else power_w - memory_w,
        "sm_clock_hz": statistics.median(seen.clocks_hz) if seen.clocks_hz else None,
        "tokens_per_s": n_all / window.time_s,
        "j_per_token": over(window.energy_j, n_all),
        **{f"limited_share.{name}": share for name, share in seen.limited.items()},
    }


class Watch:
    """Reads clock, limiters and the memory's power in a thread, while its ``with`` block lasts.

    Args:
        driver: that is open.
        device: the GPU.
        interval_s: time from one reading to the next, s.

    Attributes:
        fault: why the last reading failed; None while readings come.
        readings: so far.
    """

    def __init__(
        self, driver: NvmlDriver, device: NvmlDevice, interval_s: float = INTERVAL_S
    ) -> None:
        self._driver, self._device, self._interval_s = driver, device, interval_s
        self.readings: list[Reading] = []
        self.fault: DriverError | None = None
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="clock-watch", daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ends.set()
        self._thread.join()

    def seen(self, t_start_s: float, t_end_s: float) -> Seen:
        """Summarise a window that is over, once there is a reading behind it.

        Args:
            t_start_s: its start, monotonic s.
            t_end_s: its end, monotonic s.
        """
        until_s = time.monotonic() + _ONE_READING_S
        while not self.readings or self.readings[-1].t_s < t_end_s:
            if time.monotonic() > until_s or not self._thread.is_alive():
                break
            time.sleep(0.005)
        # The last one before the window and the first one behind it are of use too.
        first_s, last_s = t_start_s - _ONE_READING_S, t_end_s + _ONE_READING_S
        near = [r for r in self.readings if first_s <= r.t_s <= last_s]
        return summarised(near, t_start_s, t_end_s)

    def clocks_hz(self, t_start_s: float, t_end_s: float) -> list[float]:
        """Clocks that were read within a time, Hz.

        Args:
            t_start_s: its start, monotonic s.
            t_end_s: its end, monotonic s.
        """
        return known([r.sm_clock_hz for r in self.readings if t_start_s <= r.t_s <= t_end_s])

    def _run(self) -> None:
        due_s = time.monotonic()
        while not self._ends.wait(max(0.0, due_s - time.monotonic())):
            try:
                self.readings.append(self._read())
                self.fault = None
            except DriverError as error:
                self.fault = error
            due_s = max(due_s + self._interval_s, time.monotonic())

    def _read(self) -> Reading:
        limiters = [(id, 0) for id in LIMITERS.values()]
        before_s = time.monotonic()
        told = fields(self._device, [*limiters, *MEMORY_POWER])
        after_s = time.monotonic()
        state = self._driver.board_state(self._device)
        known = [None if isinstance(value, DriverError) else value for value in told]
        memory_mw = next((value for value in known[len(limiters) :] if value), None)
        return Reading(
            0.5 * (before_s + after_s),
            state.sm_clock_hz,
            state.clock_event_reasons,
            None if memory_mw is None else watts_from_milliwatts(memory_mw),
            tuple(None if ns is None else 1e-9 * ns for ns in known[: len(limiters)]),
        )
