"""One part of ``make gpu``, in a process of its own.

``python3 -m benchmarks.gpu.run.part NAME --out FOLDER --seconds S [--begin T] [--commit ID]
[--rehearse]``
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.gpu.run.attempts import reason
from benchmarks.gpu.run.parts import NO_CUDA, NO_CUDA_CODE, PARTS
from benchmarks.gpu.run.processes import labelled, neighbours
from benchmarks.gpu.run.setting import Setting
from benchmarks.harness.figures import Result, write_result
from ecorl.bench.machine import commit, describe_machine
from ecorl.child_process import die_with_parent
from ecorl.drivers.nvml import NvmlDriver
from ecorl.errors import DriverError, EcorlError, UserError

RESERVE_S = 3.0
"""Time at the end in which a part closes what it opened and writes its file, s."""

_PACKAGES = ("torch", "transformers", "trl", "datasets", "accelerate", "torchao", "numpy",
             "nvidia-ml-py")  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Measure one part and write its file; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python3 -m benchmarks.gpu.run.part", description=__doc__)
    parser.add_argument("name", choices=[part.name for part in PARTS])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--begin", type=float, help="when this process was started, monotonic s")
    parser.add_argument("--commit", default="")
    parser.add_argument("--rehearse", action="store_true")
    chosen = parser.parse_args(argv)
    part = next(part for part in PARTS if part.name == chosen.name)
    start_s = time.monotonic() if chosen.begin is None else chosen.begin
    setting = Setting(chosen.out, start_s + max(0.0, chosen.seconds - RESERVE_S), chosen.rehearse)
    # Not above: a process that a part spawns imports this module, and needs no PyTorch.
    import torch

    if not chosen.rehearse and not torch.cuda.is_available():
        print(NO_CUDA, file=sys.stderr)
        return NO_CUDA_CODE
    try:
        before = neighbours(computes=False)
        measure = importlib.import_module(f"benchmarks.gpu.{part.name}").measure
        config, found = measure(setting)
        computes = not chosen.rehearse and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        after = neighbours(computes=computes)
        figures = labelled(found, before, after)
        settings = {
            **config,
            **software(),
            "rehearsal": chosen.rehearse,
            "neighbours": {"before": before, "after": after},
            "seconds": {"given": chosen.seconds, "taken": round(time.monotonic() - start_s, 1)},
        }
        result = Result(part.benchmark, chosen.commit or commit(), describe_machine(), figures,
                        settings)  # fmt: skip
        for figure in figures:
            print(figure.line())
        write_result(result, chosen.out / f"{part.benchmark}.json")
    except (EcorlError, OSError, torch.OutOfMemoryError) as error:
        print(f"{part.name}: {reason(error)}", file=sys.stderr)
        return 2 if isinstance(error, UserError) else 1
    return 0


def software() -> dict[str, object]:
    """Driver and versions, for the settings of a result."""
    import torch

    driver, opened = NvmlDriver(), None
    try:
        driver.open()
        opened = driver.version()
    except DriverError as error:
        opened = f"{type(error).__name__}: {error}"
    finally:
        driver.close()
    cudnn: Callable[[], int | None] = torch.backends.cudnn.version
    versions: dict[str, str | None] = {
        "python": sys.version.split()[0],
        "cuda": torch.version.cuda,
        "cudnn": str(cudnn()),
    }
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None
    return {"driver": opened, "versions": versions, "n_cpus": os.cpu_count()}


if __name__ == "__main__":
    # A runner that is killed takes its part along; a part that is ended tells where it was.
    die_with_parent(os.getppid())
    faulthandler.register(signal.SIGTERM, chain=True)
    try:
        code = main()
    except Exception:  # noqa: BLE001  # told, and then the process has to end at once
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    # Behind an error of the device CUDA may hang or abort at the end; the file is whole by now.
    os._exit(code)
