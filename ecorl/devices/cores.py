"""Counts the cores that the process may use: affinity, hardware threads, cgroup quota.

Two hardware threads of a core share its vector units and its power, so cores are counted, not
threads. A container may see all cores and yet have the time of a few.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

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
