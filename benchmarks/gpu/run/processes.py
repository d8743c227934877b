"""Other processes on the GPU: what they draw is in every joule that is measured."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

import psutil

from benchmarks.harness.figures import Figure
from ecorl.drivers.nvml import NvmlDriver, visible_devices
from ecorl.errors import DriverError


def neighbours(*, computes: bool) -> list[dict[str, object]] | None:
    """The processes other than this one and its own that compute on the first visible GPU.

    Args:
        computes: whether this process computes on the GPU by now. NVML tells the host's process
            ids: in a container it is then one of those that have no name here.

    Returns:
        Process id, name and bytes of GPU memory of each, the last two None where they are not
        told; None where NVML does not tell of processes.
    """
    driver = NvmlDriver()
    try:
        driver.open()
        devices = [d for d in driver.select(visible_devices(os.environ), as_cuda=True) if d.answers]
        found = driver.processes(devices[0]) if devices else []
    except DriverError:
        return None
    finally:
        driver.close()
    own = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    others: list[dict[str, object]] = [
        {"pid": pid, "name": _name(pid), "memory_bytes": used}
        for pid, used in found
        if pid not in own
    ]
    nameless = [other for other in others if other["name"] is None]
    if computes and nameless and len(others) == len(found):
        others.remove(nameless[0])
    return others


def labelled(
    figures: Sequence[Figure],
    before: Sequence[dict[str, object]] | None,
    after: Sequence[dict[str, object]] | None,
) -> list[Figure]:
    """Say in the note of each figure that the GPU was not this process's alone, if it was not.

    Args:
        figures: of a part.
        before: the neighbours when it began; None where NVML does not tell.
        after: those when it ended.
    """
    n_others = max(len(before or ()), len(after or ()))
    if not n_others:
        return list(figures)
    label = f"beside {n_others} other process{'es' if n_others > 1 else ''} on the GPU"
    return [replace(f, note=f"{f.note}; {label}" if f.note else label) for f in figures]


def _name(pid: int) -> str | None:
    try:
        return str(psutil.Process(pid).name())
    except psutil.Error:
        return None
