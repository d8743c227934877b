"""Other processes on the GPU: what they draw is in every joule that is measured."""

from __future__ import annotations

import os

import psutil

from ecorl.drivers.nvml import NvmlDriver, visible_devices
from ecorl.errors import DriverError


def neighbours() -> list[dict[str, object]] | None:
    """The processes other than this one and its own that compute on the first visible GPU.

    Returns:
        Process id, name and bytes of GPU memory of each, the last two None where they are not
        told (a process of another container has no name here); None where NVML does not tell.
    """
    driver = NvmlDriver()
    try:
        driver.open()
        devices = driver.select(visible_devices(os.environ))
        found = driver.processes(devices[0]) if devices else []
    except DriverError:
        return None
    finally:
        driver.close()
    own = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    return [
        {"pid": pid, "name": _name(pid), "memory_bytes": used}
        for pid, used in found
        if pid not in own
    ]


def _name(pid: int) -> str | None:
    try:
        return str(psutil.Process(pid).name())
    except psutil.Error:
        return None
