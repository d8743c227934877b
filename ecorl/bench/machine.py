"""The machine that a benchmark ran on: device, commit, load."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import ecorl
from ecorl.devices.host import read_host_cpu
from ecorl.drivers.nvml import NvmlDriver
from ecorl.errors import DriverError

_GIT_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Machine:
    """The device that a figure belongs to.

    Attributes:
        slug: folder name for results, e.g. ``amd-epyc-2core``.
        cpu: the CPU's name as the kernel prints it.
        gpu: name of the first GPU that tells one, or None.
    """

    slug: str
    cpu: str
    n_cores: int
    memory_bytes: int
    gpu: str | None


def describe_machine() -> Machine:
    """Describe this machine, named by its GPU where there is one, else by its CPU and cores."""
    cpu = read_host_cpu()
    gpu = _first_gpu()
    slug = _slug(gpu) if gpu else f"{_slug(cpu.model)}-{cpu.n_cores}core"
    return Machine(slug, cpu.model, cpu.n_cores, cpu.memory_bytes, gpu)


def repository() -> Path:
    """The folder that holds the package and, in a checkout, ``benchmarks/``."""
    return Path(ecorl.__file__).resolve().parent.parent


def commit() -> str | None:
    """Commit of the checkout, ``-dirty`` added when tracked files differ; None without git.

    Results of earlier benchmarks do not count as a difference.
    """
    head = _git("rev-parse", "HEAD")
    if not head:
        return None
    changed = _git(
        "status", "--porcelain", "--untracked-files=no", "--", ".", ":!benchmarks/results"
    )
    return head if changed == "" else f"{head}-dirty"


def load_1min() -> float | None:
    """Load average of the last minute; None where the system does not tell it."""
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:
        return None


def _git(*arguments: str) -> str | None:
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        finished = subprocess.run(
            ["git", *arguments],
            cwd=repository(),
            env=environment,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_GIT_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return finished.stdout.strip()


def _first_gpu() -> str | None:
    driver = NvmlDriver()
    try:
        driver.open()
        return next((device.name for device in driver.devices() if device.name), None)
    except DriverError:
        return None
    finally:
        driver.close()


def _slug(name: str) -> str:
    """Lower case, digits and hyphens; trademark signs and the clock are dropped."""
    plain = re.sub(r"\((?:r|tm)\)|@.*$|\bcpu\b|\bprocessor\b", " ", name.lower())
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-") or "unknown"
