"""The kernels' own test benches, for the benchmark of the kernels.

Each bench runs its kernel's top function on many shapes in the C-simulation, with processes side by
side and FIFOs of the declared depth. One whose processes cannot go on ends with a report; so does,
in the strict build, one with a loop that depends on itself as no DEPENDENCE pragma states.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ecorl.engines.fpga.csim.build import Build, kernel_root
from ecorl.engines.fpga.cycles.model import KERNELS
from ecorl.errors import BuildError

STANDSTILL = "no process can go on"
"""Words of the report of a dataflow region in which every process waits for another."""

TOO_CLOSE = "; stated: "
"""Words of the report of a dependence that is closer than its pragma states."""


@dataclass(frozen=True, slots=True)
class BenchRun:
    """What one bench has said.

    Attributes:
        kernel: whose bench it is.
        text: all that it printed.
        passed: whether each result was right.
    """

    kernel: str
    text: str
    passed: bool

    @property
    def is_deadlocked(self) -> bool:
        """Whether its processes waited for each other."""
        return STANDSTILL in self.text

    @property
    def is_too_close(self) -> bool:
        """Whether an iteration came closer to an earlier one than a pragma states."""
        return TOO_CLOSE in self.text


def run_benches(build: Build) -> list[BenchRun]:
    """Build and run the benches of all kernels.

    Args:
        build: the C-simulation's; only the strict one looks at dependences.

    Raises:
        BuildError: when one cannot be built, or gives wrong results without such a report.
    """
    with tempfile.TemporaryDirectory(prefix="ecorl-kernel-benches-") as name:
        return [_run(kernel, build, Path(name) / kernel) for kernel in KERNELS]


def _run(kernel: str, build: Build, folder: Path) -> BenchRun:
    command = ["make", "-s", "-C", str(kernel_root() / kernel), "tb", f"BUILD={build}"]
    options = [f"PYTHON={sys.executable}", f"BUILD_DIR={folder}"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    run = BenchRun(kernel, done.stdout + done.stderr, done.returncode == 0)
    if not (run.passed or run.is_deadlocked or run.is_too_close):
        raise BuildError(f"the bench of {kernel}: {run.text}")
    return run
