"""The CPU of this machine as the kernel describes it: cores, clock, vector width, memory.

The arithmetic peak is modelled from the instruction set (FLOPs per cycle and core) and the clock
that the kernel reports; power per core is an assumption from the template profile.

The cores that the process may use follow from affinity, hardware threads and cgroup quota. Two
hardware threads of a core share its vector units and its power, so cores are counted, not threads.
A container may see all cores and yet have the time of a few.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from ecorl.records import Provenance

SYS = Path("/sys")
PROC = Path("/proc")


def usable_cores() -> tuple[int, str]:
    """Cores that this process can keep busy, and where the number comes from, in words.

    A quota is rounded up to whole cores: the host then looks a little faster, not slower, than it
    is, and offloading a little worse.
    """
    cpus, where = _cpus()
    found = _physical_cores(cpus)
    if found is None:
        cores, source = len(cpus), f"logical CPUs {where} (the kernel tells no topology)"
    else:
        cores, source = found, f"physical cores {where}"
    quota = _quota_cpus()
    if quota is not None and math.ceil(quota) < cores:
        cores, source = math.ceil(quota), f"a cgroup's CPU quota of {quota:g} CPUs, rounded up"
    return cores, source


def _cpus() -> tuple[list[int], str]:
    try:
        return sorted(os.sched_getaffinity(0)), "within the process's CPU affinity"
    except (AttributeError, OSError):
        return list(range(os.cpu_count() or 1)), "of the machine"


def _physical_cores(cpus: list[int]) -> int | None:
    """Distinct cores behind logical CPUs, or None when the kernel does not tell of each."""
    cores = set()
    for cpu in cpus:
        folder = SYS / f"devices/system/cpu/cpu{cpu}/topology"
        try:
            package = int((folder / "physical_package_id").read_text())
            cores.add((package, int((folder / "core_id").read_text())))
        except (OSError, ValueError):
            return None
    return len(cores)


def _quota_cpus() -> float | None:
    """The tightest CPU quota of the process's cgroup and those above it, in CPUs, or None."""
    quotas = [quota for folder in cgroup_folders() if (quota := _quota_of(folder)) is not None]
    return min(quotas, default=None)


def cgroup_folders(pid: int | str = "self") -> Iterator[Path]:
    """The folders of a process's CPU cgroup and of all above it, in both versions.

    In a container the path may be one that only the machine outside knows; the mount's root is
    then the container's own group, so it is always among them.

    Args:
        pid: the process; this one when not given.
    """
    try:
        lines = (PROC / str(pid) / "cgroup").read_text("utf-8", "replace").splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        # The first version mounts "cpu,cpuacct" under that name, or under a link for each.
        for mount in {controllers, "cpu"} if controllers else {""}:
            root = SYS / "fs/cgroup" / mount
            group = root / path.strip("/")
            yield group
            yield from (parent for parent in group.parents if parent.is_relative_to(root))


def _quota_of(folder: Path) -> float | None:
    try:
        limit, _, period = (folder / "cpu.max").read_text().partition(" ")
    except OSError:
        try:
            limit = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
        except OSError:
            return None
    try:
        quota, length = float(limit), float(period)
    except ValueError:
        return None  # "max": no limit
    return quota / length if quota > 0 and length > 0 else None


@dataclass(frozen=True, slots=True)
class DeviceFigure:
    """One figure of a device.

    Attributes:
        value: in the unit.
        unit: of the value.
        provenance: of the value.
        source: where it comes from, in words.
        low, high: ends of the interval in which the figure is taken to lie; None where the value
            stands alone.
    """

    value: float
    unit: str
    provenance: Provenance
    source: str
    low: float | None = None
    high: float | None = None


_FALLBACK_CLOCK_HZ = 2.5e9
_CLOCK_CEILING_HZ = 6.0e9
_CLOCK_LIMIT = Path("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")


@dataclass(frozen=True, slots=True)
class HostCpu:
    """The CPU of this machine.

    Attributes:
        model: name as the kernel prints it.
        n_cores: physical cores that this process can keep busy.
        clock_hz: clock in Hz.
        clock_source: where the clock comes from.
        flags: instruction-set flags, lower case.
        memory_bytes: main memory in bytes.
        cores_source: where the number of cores comes from.
    """

    model: str
    n_cores: int
    clock_hz: float
    clock_source: str
    flags: frozenset[str]
    memory_bytes: int
    cores_source: str = "as given"

    @property
    def fp32_flops_per_cycle(self) -> int:
        """FP32 FLOPs per cycle and core: two FMA units of the widest vector that is present."""
        if "avx512f" in self.flags:
            return 64
        if "avx2" in self.flags and "fma" in self.flags:
            return 32
        return 16 if self.flags & {"avx", "asimd"} else 8

    @property
    def int8_ops_per_cycle(self) -> int:
        """INT8 operations per cycle and core: four times FP32 with VNNI, else twice.

        A core with AMX multiplies tiles of 16 x 64 and 64 x 16 codes in 16 cycles.
        """
        if "amx_int8" in self.flags:
            return 2 * 16 * 16 * 64 // 16
        vnni = self.flags & {"avx512_vnni", "avx_vnni", "asimddp"}
        return self.fp32_flops_per_cycle * (4 if vnni else 2)


def read_host_cpu(cpuinfo: Path = Path("/proc/cpuinfo")) -> HostCpu:
    """Read the CPU of this machine from the kernel; unreadable parts fall back, and say so."""
    try:
        text = cpuinfo.read_text("utf-8", "replace")
    except OSError:
        text = ""
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.M)
    model = re.search(r"^model name\s*:\s*(.*)$", text, re.M)
    clock_hz, clock_source = _clock(text)
    n_cores, cores_source = usable_cores()
    return HostCpu(
        model=model[1].strip() if model else "unknown CPU",
        n_cores=n_cores,
        clock_hz=clock_hz,
        clock_source=clock_source,
        flags=frozenset(flags[1].lower().split()) if flags else frozenset(),
        memory_bytes=int(psutil.virtual_memory().total),
        cores_source=cores_source,
    )


def _clock(cpuinfo: str) -> tuple[float, str]:
    try:
        return float(_CLOCK_LIMIT.read_text()) * 1e3, "cpufreq's maximum"
    except (OSError, ValueError):
        pass
    now = re.search(r"^cpu MHz\s*:\s*([0-9.]+)", cpuinfo, re.M)
    if now and float(now[1]) > 0:
        return float(now[1]) * 1e6, "/proc/cpuinfo at the time of reading"
    return _FALLBACK_CLOCK_HZ, "assumed: the kernel reports no clock"


def complete_host_figures(
    figures: Mapping[str, DeviceFigure],
    per_core: Mapping[str, DeviceFigure],
    host: HostCpu | None = None,
) -> dict[str, DeviceFigure]:
    """The figures of the host's profile: the template's, those per core scaled, and the host's own.

    Args:
        figures: figures of the template that hold for the whole host.
        per_core: figures of one core; multiplied by the number of cores.
        host: the CPU; read from this machine when None.
    """
    cpu = host or read_host_cpu()
    made = dict(figures)
    for key, one in per_core.items():
        source = f"{one.source}; times {cpu.n_cores} cores ({cpu.cores_source})"
        made[key] = DeviceFigure(one.value * cpu.n_cores, one.unit, one.provenance, source)

    def put(key: str, value: float, unit: str, source: str) -> None:
        made[key] = DeviceFigure(value, unit, Provenance.MODELLED, source)

    what = f"{cpu.n_cores} cores x {cpu.clock_hz / 1e9:.2f} GHz ({cpu.clock_source})"
    fp32, int8 = cpu.fp32_flops_per_cycle, cpu.int8_ops_per_cycle
    cycles_per_s = cpu.n_cores * cpu.clock_hz
    put("peak_fp32_flops", cycles_per_s * fp32, "FLOP/s", f"{what} x {fp32} FLOP a cycle")
    put("peak_int8_ops", cycles_per_s * int8, "OP/s", f"{what} x {int8} OP a cycle")
    put("clock_hz", cpu.clock_hz, "Hz", cpu.clock_source)
    ceiling = max(_CLOCK_CEILING_HZ, cpu.clock_hz)
    put("clock_max_hz", ceiling, "Hz", "assumed ceiling of boost clocks; for the bound alone")
    made["n_cores"] = DeviceFigure(cpu.n_cores, "1", Provenance.MEASURED, cpu.cores_source)
    memory = float(cpu.memory_bytes)
    made["memory_bytes"] = DeviceFigure(
        memory, "B", Provenance.MEASURED, "the kernel's total memory"
    )
    return made
