"""Part ``facts`` of ``make gpu``: driver, limits and clocks, and what each NVML call costs.

Everything is asked and nothing is set, nor tried: whether clocks may be set is what NVML and the
kernel say of this process. What NVML refuses is a missing figure with the error's name.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path

from benchmarks.gpu.figures import MEASURED
from benchmarks.gpu.run.setting import Measured, Setting
from benchmarks.gpu.sensing.limiters import LIMITERS, ask, field, fields
from benchmarks.gpu.sensing.meter import first_gpu
from benchmarks.gpu.sensing.sensor_figures import slug
from benchmarks.gpu.sensing.tracer import CANDIDATES, readable
from benchmarks.gpu.sensing.traces import quantile
from benchmarks.harness.figures import Figure, missing
from ecorl.bench.stats import median
from ecorl.drivers.instruments import NvmlDevice
from ecorl.drivers.nvml import NvmlDriver
from ecorl.errors import DriverError, NotSupported
from ecorl.units import hertz_from_megahertz, joules_from_millijoules, watts_from_milliwatts

BENCHMARK = "gpu_facts"

CALLS_S, TOY_CALLS_S = 0.35, 0.04
"""Time for which each NVML call is repeated, s."""

MOST_CALLS = 50_000

GRAPHICS, SM, MEMORY = 0, 1, 2
"""NVML's numbers of clock domains."""

ENERGY_FIELD = 191
"""NVML's field of the cumulative energy, mJ: the same as its energy counter tells."""

POWER_LIMIT_FIELDS = {"min": 187, "max": 188, "default": 189, "enforced": 190, "requested": 192}
"""NVML's fields of power limits, mW."""

POWER_LIMIT_CALLS: Mapping[str, tuple[str] | tuple[str, int]] = {
    "min": ("nvmlDeviceGetPowerManagementLimitConstraints", 0),
    "max": ("nvmlDeviceGetPowerManagementLimitConstraints", 1),
    "default": ("nvmlDeviceGetPowerManagementDefaultLimit",),
    "enforced": ("nvmlDeviceGetEnforcedPowerLimit",),
    "requested": ("nvmlDeviceGetPowerManagementLimit",),
}
"""NVML's calls for the same, and the place in an answer of several."""

CLOCK_CALLS = {
    "now": ("nvmlDeviceGetClockInfo", "clock of an idle GPU"),
    "max": ("nvmlDeviceGetMaxClockInfo", "highest clock"),
    "default_application": ("nvmlDeviceGetDefaultApplicationsClock", "default under load"),
}

CAP_SYS_ADMIN = 21
"""Linux' number of the capability with which a process may set clocks and limits."""


def measure(setting: Setting) -> Measured:
    """Ask NVML about the first GPU.

    Args:
        setting: where and how long.

    Raises:
        MissingToolError: when there is no GPU.
    """
    driver = NvmlDriver()
    device = first_gpu(driver)
    try:
        figures = [*device_figures(device), *limit_figures(device), *clock_figures(device)]
        figures += [*power_figures(driver, device), *limiter_figures(device)]
        length_s = TOY_CALLS_S if setting.is_rehearsal else CALLS_S
        for name, call in nvml_calls(driver, device).items():
            figures += call_figures(setting, name, call, length_s)
        figures += supported_figures(device)
        config: dict[str, object] = {
            "gpu": device.name,
            "mig_instances": len(device.mig_uuids),
            "nvml": _told(lambda: str(ask("nvmlSystemGetNVMLVersion"))),
            "cuda_driver": _told(lambda: _cuda_version(ask("nvmlSystemGetCudaDriverVersion_v2"))),
            "rights": rights(),
            "calls_s": length_s,
        }
    finally:
        driver.close()
    return config, figures


def answered(name: str, unit: str, note: str, question: Callable[[], float]) -> Figure:
    """Make a figure of one answer of NVML; missing, with the error's name, where it refuses.

    Args:
        name: of the figure, after the benchmark's.
        unit: of the answer.
        note: what was asked.
        question: asks.
    """
    id = f"{BENCHMARK}.{name}"
    try:
        return Figure(id, float(question()), unit, MEASURED, note=note)
    except DriverError as error:
        return missing(id, unit, f"{note}: it answers {type(error).__name__} ({error})")


def device_figures(device: NvmlDevice) -> list[Figure]:
    """Memory and modes.

    Args:
        device: the GPU.
    """
    handle = device.handle
    questions: list[tuple[str, str, str, Callable[[], float]]] = [
        ("memory_bytes", "B", "memory of the GPU",
         lambda: ask("nvmlDeviceGetMemoryInfo", handle).total),
        ("mig_mode", "1", "1: divided into instances, 0: not",
         lambda: ask("nvmlDeviceGetMigMode", handle)[0]),
        ("persistence_mode", "1", "1: the driver stays loaded when nothing uses the GPU",
         lambda: ask("nvmlDeviceGetPersistenceMode", handle)),
        ("restricted.application_clocks", "1", "1: setting them needs root, 0: it does not; asked",
         lambda: ask("nvmlDeviceGetAPIRestriction", handle, 0)),
        ("restricted.auto_boost", "1", "1: setting it needs root, 0: it does not; asked",
         lambda: ask("nvmlDeviceGetAPIRestriction", handle, 1)),
    ]  # fmt: skip
    return [answered(*one) for one in questions]


def limit_figures(device: NvmlDevice) -> Iterator[Figure]:
    """Power limits, by NVML's fields and by its older calls.

    Args:
        device: the GPU.
    """
    for name, id in POWER_LIMIT_FIELDS.items():
        note = f"{name} power limit, field {id}"
        yield answered(f"power_limit.{name}_w", "W", note, partial(_field_w, device, id))
    for name, (call, *at) in POWER_LIMIT_CALLS.items():
        note = f"{name} power limit, {call}"
        question = partial(_called_w, device, call, *at)
        yield answered(f"power_limit.{name}_call_w", "W", note, question)


def _field_w(device: NvmlDevice, id: int) -> float:
    return watts_from_milliwatts(field(device, id))


def _called_w(device: NvmlDevice, call: str, at: int | None = None) -> float:
    found = ask(call, device.handle)
    return watts_from_milliwatts(found if at is None else found[at])


def clock_figures(device: NvmlDevice) -> Iterator[Figure]:
    """Clocks now, at most, and by default.

    Args:
        device: the GPU.
    """
    for kind, (call, note) in CLOCK_CALLS.items():
        for domain, number in (("graphics", GRAPHICS), ("sm", SM), ("memory", MEMORY)):
            question = partial(_clock_hz, device, call, number)
            yield answered(f"clock.{domain}_{kind}_hz", "Hz", f"{note}, {call}", question)


def _clock_hz(device: NvmlDevice, call: str, domain: int) -> float:
    return hertz_from_megahertz(ask(call, device.handle, domain))


def power_figures(driver: NvmlDriver, device: NvmlDevice) -> Iterator[Figure]:
    """What each instrument of power tells of an idle GPU, and the energy counter by both ways.

    Args:
        driver: that is open.
        device: the GPU.
    """
    for instrument, answer in readable(driver, device).items():
        id, note = f"{BENCHMARK}.power.{slug(instrument)}_w", "one reading of an idle GPU"
        if isinstance(answer, str):
            yield missing(id, "W", f"it answers {answer}")
        else:
            yield Figure(id, answer, "W", MEASURED, note=note)
    note = "cumulative energy since the driver was loaded"
    yield answered("energy.counter_j", "J", note, partial(driver.energy_j, device))
    yield answered("energy.field191_j", "J", f"{note}, field 191", partial(_field_j, device))


def _field_j(device: NvmlDevice) -> float:
    return joules_from_millijoules(field(device, ENERGY_FIELD))


def limiter_figures(device: NvmlDevice) -> Iterator[Figure]:
    """How long each limiter has held the clock down so far.

    Args:
        device: the GPU.
    """
    for name, id in LIMITERS.items():
        note = f"limited since the driver was loaded, field {id}"
        yield answered(f"limiter.{name}_s", "s", note, partial(_field_s, device, id))


def _field_s(device: NvmlDevice, id: int) -> float:
    return 1e-9 * field(device, id)


def supported_figures(device: NvmlDevice) -> list[Figure]:
    """Clocks that may be asked for: memory clocks, and the graphics clocks of the highest of them.

    Args:
        device: the GPU.
    """
    handle, memory, graphics = device.handle, "supported.memory", "supported.graphics"
    memory_mhz = partial(_several, "nvmlDeviceGetSupportedMemoryClocks", handle)

    def graphics_mhz() -> list[float]:
        call = "nvmlDeviceGetSupportedGraphicsClocks"
        return _several(call, handle, int(max(memory_mhz())))

    def step_mhz() -> float:
        ordered = sorted(graphics_mhz())
        if len(ordered) < 2:
            raise NotSupported("there is one clock alone")
        return median([b - a for a, b in pairwise(ordered)])

    of = "graphics clocks at the highest memory clock"
    wanted: list[tuple[str, str, str, Callable[[], float]]] = [
        (f"{memory}_count", "1", "memory clocks that there are", lambda: len(memory_mhz())),
        (f"{memory}_max_hz", "Hz", "highest memory clock", lambda: 1e6 * max(memory_mhz())),
        (f"{graphics}_count", "1", of, lambda: len(graphics_mhz())),
        (f"{graphics}_min_hz", "Hz", f"lowest of the {of}", lambda: 1e6 * min(graphics_mhz())),
        (f"{graphics}_max_hz", "Hz", f"highest of the {of}", lambda: 1e6 * max(graphics_mhz())),
        (f"{graphics}_step_hz", "Hz", f"median step between {of}", lambda: 1e6 * step_mhz()),
    ]
    return [answered(name, unit, note, question) for name, unit, note, question in wanted]


def _several(call: str, *args: object) -> list[float]:
    """A list of NVML that is not empty."""
    found = [float(one) for one in ask(call, *args)]
    if not found:
        raise NotSupported(f"{call} tells of none")
    return found


def nvml_calls(driver: NvmlDriver, device: NvmlDevice) -> dict[str, Callable[[], object]]:
    """Name the calls of NVML whose time is of interest.

    Args:
        driver: that is open.
        device: the GPU.
    """
    handle = device.handle
    power_fields = [
        (i.field, i.scope) for i in CANDIDATES if i.field is not None and i.scope is not None
    ]
    found: dict[str, Callable[[], object]] = {
        "energy_counter": partial(ask, "nvmlDeviceGetTotalEnergyConsumption", handle),
        "field191_energy": partial(field, device, ENERGY_FIELD),
        "power_usage": partial(ask, "nvmlDeviceGetPowerUsage", handle),
    }
    for one in CANDIDATES:
        if one.field is not None and one.scope is not None:
            found[slug(one)] = partial(field, device, one.field, one.scope)
    found |= {
        "all_power_fields": partial(fields, device, power_fields),
        "limiter_power_cap": partial(field, device, LIMITERS["power_cap"]),
        "all_limiters": partial(fields, device, [(id, 0) for id in LIMITERS.values()]),
        "sm_clock": partial(ask, "nvmlDeviceGetClockInfo", handle, SM),
        "clock_event_reasons": partial(ask, "nvmlDeviceGetCurrentClocksThrottleReasons", handle),
        "temperature": partial(ask, "nvmlDeviceGetTemperature", handle, 0),
        "utilisation": partial(ask, "nvmlDeviceGetUtilizationRates", handle),
        "ecorl_power": partial(driver.power, device, CANDIDATES[:1]),
    }
    return found


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
    shares = {"median_s": 0.5, "p90_s": 0.9, "p99_s": 0.99, "max_s": 1.0}
    ids = {f"{BENCHMARK}.call.{name}.{kind}": share for kind, share in shares.items()}
    if not setting.has_room(length_s):
        return [missing(id, "s", "no time left") for id in ids]
    try:
        times_s = _times_s(call, length_s)
    except DriverError as error:
        return [missing(id, "s", f"it answers {type(error).__name__} ({error})") for id in ids]
    spread, note = {"n": len(times_s), "min": min(times_s)}, "one call, nothing runs on the GPU"
    return [
        Figure(id, quantile(times_s, share), "s", MEASURED, spread, note=note)
        for id, share in ids.items()
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
