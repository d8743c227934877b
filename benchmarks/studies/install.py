"""Times an installation from a clone to an environment that is ready."""

from __future__ import annotations

import os
import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.studies.demo_run import run_logged
from ecorl.bench.machine import repository
from ecorl.errors import RunError

TARGET = "install"
"""The Makefile's target that makes the environment and nothing else."""

_TIMEOUT_S = 1200.0


@dataclass(frozen=True, slots=True)
class Installation:
    """Wall-clock times of a fresh installation: clone and ``make install``, s."""

    clone_s: float
    install_s: float


def install_gap() -> str | None:
    """Tell why an installation cannot be measured from here; None when it can."""
    root = repository()
    if not (root / ".git").exists():
        return f"{root} is not a git checkout"
    makefile = root / "Makefile"
    text = makefile.read_text("utf-8", "replace") if makefile.is_file() else ""
    if not re.search(rf"^{TARGET}\s*:", text, re.M):
        return f"{makefile} has no target {TARGET}"
    tracked = subprocess.run(
        ["git", "ls-files", "--error-unmatch", "Makefile"],
        cwd=root,
        capture_output=True,
        check=False,
    )
    return None if tracked.returncode == 0 else "the Makefile is not committed, a clone lacks it"


def measure_install(folder: Path) -> Installation:
    """Clone the checkout's last commit and install it, with pip's download cache switched off.

    Args:
        folder: an empty folder for the clone and its environment.

    Raises:
        RunError: when a step fails.
    """
    gap = install_gap()
    if gap is not None:
        raise RunError(gap)
    clone = folder / "clone"
    start_s = time.perf_counter()
    source = f"file://{repository()}"
    run_logged(["git", "clone", "--quiet", source, str(clone)], folder / "clone.log", timeout_s=120)
    cloned_s = time.perf_counter()
    run_logged(
        ["make", TARGET],
        folder / "install.log",
        timeout_s=_TIMEOUT_S,
        environment=_bare_environment(),
        cwd=clone,
    )
    return Installation(cloned_s - start_s, time.perf_counter() - cloned_s)


def _bare_environment() -> dict[str, str]:
    """The environment without what would point the clone at this environment or at a cache."""
    dropped = {"VIRTUAL_ENV", "VENV", "PYTHONPATH", "PYTHONHOME"}
    dropped |= {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}
    kept = {key: value for key, value in os.environ.items() if key not in dropped}
    return {**kept, "PIP_NO_CACHE_DIR": "1"}
