"""What the benchmark of the kernels builds and runs: their test benches, and their pipelines' RTL.

Each test bench runs its kernel's top function on many shapes in the C-simulation, with processes
side by side and FIFOs of the declared depth. One whose processes cannot go on ends with a report;
so does, in the strict build, one with a loop that depends on itself as no DEPENDENCE pragma states.

The benches of the RTL are those of `hls_kernels/rtl`: Verilator runs each pipeline with random
operands, and compares each result with the function of the C-simulation that it stands for.
Building them takes a quarter of a minute on two cores.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
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


# ---------------------------------------------------------------- RTL

FAMILIES = ("arithmetic", "lanes", "scalars", "moves", "group")
"""Benches; each plays the pipelines of one family."""

TOOLS = ("verilator", "g++", "make")
VECTORS = 300_000
"""Operands of each pipeline."""


@dataclass(frozen=True, slots=True)
class PipelineCheck:
    """What a bench says of one pipeline.

    Attributes:
        name: of the pipeline, as in ``rtl/qor.json``; parts of the lane group have names of their
            own.
        latency: measured cycles from operand to result; 0 where no number of cycles fits.
        vectors: results that were compared.
        mismatches: of them, those that differed.
    """

    name: str
    latency: int
    vectors: int
    mismatches: int


def build_benches(
    folder: Path, root: Path | None = None, families: Sequence[str] = FAMILIES
) -> None:
    """Build benches.

    Args:
        folder: where to.
        root: of the RTL; that of the kernels by default.
        families: whose benches.

    Raises:
        BuildError: when a compiler refuses.
    """
    root = root or kernel_root() / "rtl"
    command = ["make", "-s", "-j2", "-C", str(root), "pipelines"]
    command += [f"BUILD_DIR={folder}", f"FAMILIES={' '.join(families)}"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        raise BuildError(f"the benches of the RTL: {finished.stdout}{finished.stderr}")


def run_family(folder: Path, family: str, vectors: int, seed: int) -> list[PipelineCheck]:
    """Run the built bench of one family.

    Args:
        folder: where `build_benches` built it.
        family: one of `FAMILIES`.
        vectors: operands of each pipeline.
        seed: of the operands and of the registers' first values.

    Raises:
        BuildError: when the bench does not run to its end.
    """
    command = [str(folder / "pipelines" / f"{family}_tb"), str(vectors), str(seed)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode not in (0, 1) or not finished.stdout:
        raise BuildError(f"{command[0]} ended with {finished.returncode}: {finished.stderr}")
    return [PipelineCheck(**json.loads(line)) for line in finished.stdout.splitlines()]


def rtl_mismatches(vectors: int = VECTORS, seed: int = 1) -> tuple[int, int] | None:
    """Build and run the benches of all pipelines.

    Args:
        vectors: operands of each pipeline.
        seed: of the operands.

    Returns:
        Results that were compared and those that differed, of all pipelines together; None on a
        machine without Verilator.

    Raises:
        BuildError: when a bench cannot be built or run.
    """
    if any(shutil.which(tool) is None for tool in TOOLS):
        return None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build_benches(folder)
        checks = [c for family in FAMILIES for c in run_family(folder, family, vectors, seed)]
    return sum(c.vectors for c in checks), sum(c.mismatches for c in checks)
