"""Part ``facts`` of ``make gpu``: driver, limits and clocks, and what each NVML call costs.

Everything is asked and nothing is set, nor tried: whether clocks may be set is what NVML and the
kernel say of this process. What NVML refuses is a missing figure with the error's name.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from itertools import pairwise
from pathlib import Path

from benchmarks.gpu.run.setting import Measured, Setting
from benchmarks.gpu.sensing.limiters import LIMITERS, ask, field, fields
from benchmarks.gpu.sensing.meter import first_gpu
from benchmarks.gpu.sensing.tracer import CANDIDATES, readable
from benchmarks.gpu.sensing.traces import quantile
from benchmarks.harness.figures import Figure
from benchmarks.harness.table import FigureTable
from ecorl.bench.stats import median
from ecorl.drivers.instruments import Instrument, NvmlDevice
from ecorl.drivers.nvml import NvmlDriver
from ecorl.errors import DriverError, NotSupported
from ecorl.units import hertz_from_megahertz, joules_from_millijoules, watts_from_milliwatts

FIGURES = FigureTable("gpu_facts")

CALLS_S, TOY_CALLS_S = 0.35, 0.04
"""Time for which each NVML call is repeated, s."""

MOST_CALLS = 50_000

DOMAINS = {"graphics": 0, "sm": 1, "memory": 2}
"""NVML's numbers of clock domains."""

ENERGY_FIELD = 191
"""NVML's field of the cumulative energy, mJ: the same as its energy counter tells."""

POWER_LIMITS: dict[str, tuple[int, str, int | None]] = {
    "min": (187, "nvmlDeviceGetPowerManagementLimitConstraints", 0),
    "max": (188, "nvmlDeviceGetPowerManagementLimitConstraints", 1),
    "default": (189, "nvmlDeviceGetPowerManagementDefaultLimit", None),
    "enforced": (190, "nvmlDeviceGetEnforcedPowerLimit", None),
    "requested": (192, "nvmlDeviceGetPowerManagementLimit", None),
}
"""NVML's fields of power limits, mW; its calls for the same, and the place in an answer of
several."""

CLOCK_CALLS = {
    "now": ("nvmlDeviceGetClockInfo", "clock of an idle GPU"),
    "max": ("nvmlDeviceGetMaxClockInfo", "highest clock"),
    "default_application": ("nvmlDeviceGetDefaultApplicationsClock", "default under load"),
}

_ROOT = "needs root, 0: it does not; asked"
MODES: dict[str, tuple[str, int | None, str, tuple[int, ...]]] = {
    "mig_mode": ("1: divided into instances, 0: not", 0, "nvmlDeviceGetMigMode", ()),
    "persistence_mode": ("1: the driver stays loaded when nothing uses the GPU", None,
                         "nvmlDeviceGetPersistenceMode", ()),
    "restricted.application_clocks": (f"1: setting them {_ROOT}", None,
                                      "nvmlDeviceGetAPIRestriction", (0,)),
    "restricted.auto_boost": (f"1: setting it {_ROOT}", None, "nvmlDeviceGetAPIRestriction", (1,)),
}  # fmt: skip
"""What each says, the place in an answer of several, the call and its further arguments."""

CAP_SYS_ADMIN = 21
"""Linux' number of the capability with which a process may set clocks and limits."""

Question = tuple[str, str, str, Callable[[], float]]
"""Name of a figure after the benchmark's, unit, what is asked, and what asks."""


def measure(setting: Setting) -> Measured:
    """Ask NVML about the first GPU.

    Args:
        setting: where and how long.

    Raises:
        MissingToolError: when there is no GPU.
    """
    with closing(NvmlDriver()) as driver:
        device = first_gpu(driver)
        figures = [answered(*question) for question in _limits_and_clocks(device)]
        answers = readable(driver, device)
        figures += answer_figures(FIGURES, "gpu_facts.power.{instrument}_w", answers)
        figures += [answered(*question) for question in _counters(driver, device)]
        length_s = TOY_CALLS_S if setting.is_rehearsal else CALLS_S
        for name, call in nvml_calls(driver, device).items():
            figures += call_figures(setting, name, call, length_s)
        figures += [answered(*question) for question in _supported(device)]
        config: dict[str, object] = {
            "gpu": device.name,
            "mig_instances": len(device.mig_uuids),
            "nvml": _told(lambda: str(ask("nvmlSystemGetNVMLVersion"))),
            "cuda_driver": _told(lambda: _cuda_version(ask("nvmlSystemGetCudaDriverVersion_v2"))),
            "rights": rights(),
            "calls_s": length_s,
        }
    return config, figures


def answered(name: str, unit: str, note: str, question: Callable[[], float]) -> Figure:
    """Make a figure of one answer of NVML; missing, with the error's name, where it refuses.

    Args:
        name: of the figure, after the benchmark's.
        unit: of the answer.
        note: what was asked.
        question: asks.
    """
    value, told = None, ""
    try:
        value = float(question())
    except DriverError as error:
        told = _named(error)
    words = {"name": name, "unit": unit, "note": note, "error": told}
    return FIGURES.figure("gpu_facts.{name}", value, words=words)


def _named(error: DriverError) -> str:
    return f"{type(error).__name__} ({error})"


def slug(name: object) -> str:
    """An instrument's name as a part of an id, e.g. ``field186_gpu``.

    Args:
        name: e.g. ``nvml:field186:gpu``.
    """
    return re.sub(r"[^a-z0-9]+", "_", str(name).lower()).strip("_").removeprefix("nvml_")


def answer_figures(
    figures: FigureTable, key: str, answers: Mapping[Instrument, float | str]
) -> list[Figure]:
    """Which instruments of power answer at all.

    Args:
        figures: the table.
        key: name of its row.
        answers: power, W, or the name of the error, by instrument.
    """
    return [
        figures.figure(
            key, None if isinstance(answer, str) else answer, instrument=slug(one), answer=answer
        )
        for one, answer in answers.items()
    ]


def _call(
    device: NvmlDevice,
    convert: Callable[[float], float],
    call: str,
    *args: int,
    at: int | None = None,
) -> Callable[[], float]:
    """What asks by a call of NVML, for one place in an answer of several."""

    def question() -> float:
        found = ask(call, device.handle, *args)
        return convert(found if at is None else found[at])

    return question


def _field(device: NvmlDevice, convert: Callable[[float], float], id: int) -> Callable[[], float]:
    """What asks by a field of NVML."""
    return lambda: convert(field(device, id))


def _limits_and_clocks(device: NvmlDevice) -> Iterator[Question]:
    """Memory, modes, power limits by fields and by calls, clocks."""
    memory = partial(ask, "nvmlDeviceGetMemoryInfo", device.handle)
    yield "memory_bytes", "B", "memory of the GPU", lambda: memory().total
    for name, (note, at, call, args) in MODES.items():
        yield name, "1", note, _call(device, float, call, *args, at=at)
    watts = watts_from_milliwatts
    for name, (id, *_) in POWER_LIMITS.items():
        note = f"{name} power limit, field {id}"
        yield f"power_limit.{name}_w", "W", note, _field(device, watts, id)
    for name, (_, call, at) in POWER_LIMITS.items():
        note = f"{name} power limit, {call}"
        yield f"power_limit.{name}_call_w", "W", note, _call(device, watts, call, at=at)
    for kind, (call, what) in CLOCK_CALLS.items():
        for domain, number in DOMAINS.items():
            question = _call(device, hertz_from_megahertz, call, number)
            yield f"clock.{domain}_{kind}_hz", "Hz", f"{what}, {call}", question


def _counters(driver: NvmlDriver, device: NvmlDevice) -> Iterator[Question]:
    """The energy counter by both ways, and how long each limiter has held the clock down so far."""
    note = "cumulative energy since the driver was loaded"
    yield "energy.counter_j", "J", note, partial(driver.energy_j, device)
    question = _field(device, joules_from_millijoules, ENERGY_FIELD)
    yield "energy.field191_j", "J", f"{note}, field 191", question
    for name, id in LIMITERS.items():
        note = f"limited since the driver was loaded, field {id}"
        yield f"limiter.{name}_s", "s", note, _field(device, lambda ns: 1e-9 * ns, id)


def _supported(device: NvmlDevice) -> list[Question]:
    """Clocks that may be asked for: of the memory, and of graphics at the highest of those."""
    memory, graphics = "supported.memory", "supported.graphics"

    def several(call: str, *args: object) -> list[float]:
        found = [float(one) for one in ask(call, device.handle, *args)]
        if not found:
            raise NotSupported(f"{call} tells of none")
        return found

    def memory_mhz() -> list[float]:
        return several("nvmlDeviceGetSupportedMemoryClocks")

    def graphics_mhz() -> list[float]:
        return several("nvmlDeviceGetSupportedGraphicsClocks", int(max(memory_mhz())))

    def step_mhz() -> float:
        ordered = sorted(graphics_mhz())
        if len(ordered) < 2:
            raise NotSupported("there is one clock alone")
        return median([b - a for a, b in pairwise(ordered)])

    of = "graphics clocks at the highest memory clock"
    return [
        (f"{memory}_count", "1", "memory clocks that there are", lambda: len(memory_mhz())),
        (f"{memory}_max_hz", "Hz", "highest memory clock", lambda: 1e6 * max(memory_mhz())),
        (f"{graphics}_count", "1", of, lambda: len(graphics_mhz())),
        (f"{graphics}_min_hz", "Hz", f"lowest of the {of}", lambda: 1e6 * min(graphics_mhz())),
        (f"{graphics}_max_hz", "Hz", f"highest of the {of}", lambda: 1e6 * max(graphics_mhz())),
        (f"{graphics}_step_hz", "Hz", f"median step between {of}", lambda: 1e6 * step_mhz()),
    ]


def nvml_calls(driver: NvmlDriver, device: NvmlDevice) -> dict[str, Callable[[], object]]:
    """Name the calls of NVML whose time is of interest.

    Args:
        driver: that is open.
        device: the GPU.
    """
    handle = device.handle
    power_fields = {
        slug(i): (i.field, i.scope)
        for i in CANDIDATES
        if i.field is not None and i.scope is not None
    }
    return {
        "energy_counter": partial(ask, "nvmlDeviceGetTotalEnergyConsumption", handle),
        "field191_energy": partial(field, device, ENERGY_FIELD),
        "power_usage": partial(ask, "nvmlDeviceGetPowerUsage", handle),
        **{name: partial(field, device, *one) for name, one in power_fields.items()},
        "all_power_fields": partial(fields, device, list(power_fields.values())),
        "limiter_power_cap": partial(field, device, LIMITERS["power_cap"]),
        "all_limiters": partial(fields, device, [(id, 0) for id in LIMITERS.values()]),
        "sm_clock": partial(ask, "nvmlDeviceGetClockInfo", handle, DOMAINS["sm"]),
        "clock_event_reasons": partial(ask, "nvmlDeviceGetCurrentClocksThrottleReasons", handle),
        "temperature": partial(ask, "nvmlDeviceGetTemperature", handle, 0),
        "utilisation": partial(ask, "nvmlDeviceGetUtilizationRates", handle),
        "ecorl_power": partial(driver.power, device, CANDIDATES[:1]),
    }


def call_figures(
    setting: Setting, name: str, call: Callable[[], object], length_s: float
) -> list[Figure]:
    """Time a call of NVML on an idle GPU, as often as fits.

    Args:
        setting: tells the time that is left.
        name: of the call.
        call: makes it.
        length_s: for how long it is repeated, s.
    """
    rows = FIGURES.rows("gpu_facts.call.")
    if not setting.has_room(length_s):
        return FIGURES.all_missing(rows, "no time left", call=name)
    try:
        times_s = _times_s(call, length_s)
    except DriverError as error:
        return FIGURES.all_missing(rows, f"it answers {_named(error)}", call=name)
    spread = {"n": len(times_s), "min": min(times_s)}
    return [
        FIGURES.figure(row, quantile(times_s, share), spread, call=name)
        for row, share in zip(rows, (0.5, 0.9, 0.99, 1.0), strict=True)
    ]


def _times_s(call: Callable[[], object], length_s: float) -> list[float]:
    call()  # what is looked up once belongs to no time
    times_s: list[float] = []
    end_s = time.monotonic() + length_s
    while len(times_s) < MOST_CALLS and (not times_s or time.monotonic() < end_s):
        before_s = time.perf_counter()
        call()
        times_s.append(time.perf_counter() - before_s)
    return times_s


def rights() -> dict[str, object]:
    """What this process is: its effective user, and whether it has CAP_SYS_ADMIN; None: unknown."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    masks = [int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")]
    return {
        "effective_uid": os.geteuid(),
        "cap_sys_admin": bool(masks[0] >> CAP_SYS_ADMIN & 1) if masks else None,
    }


def _told(question: Callable[[], str]) -> str:
    """An answer in words, or the error's name."""
    try:
        return question()
    except DriverError as error:
        return f"{type(error).__name__}: {error}"


def _cuda_version(number: int) -> str:
    """CUDA's version as it is written, e.g. 13.0 for 13000."""
    return f"{number // 1000}.{number % 1000 // 10}"
