"""The CPU of this machine as the kernel describes it: cores, clock, vector width, memory.

The arithmetic peak is modelled from the instruction set (FLOPs per cycle and core) and the clock
that the kernel reports; power per core is an assumption from the template profile.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from ecorl.devices.cores import usable_cores
from ecorl.devices.figure import DeviceFigure
from ecorl.records import Provenance

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
