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
from contextlib import closing
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import psutil

from benchmarks.gpu.run.parts import NO_CUDA, NO_CUDA_CODE, PARTS
from benchmarks.gpu.run.setting import Setting, reason
from benchmarks.gpu.run.wheels import is_installed
from benchmarks.gpu.sensing.meter import answering_gpus
from benchmarks.harness.figures import Figure, Result, write_result
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

    with closing(NvmlDriver()) as driver:
        try:
            driver.open()
            opened = driver.version()
        except DriverError as error:
            opened = f"{type(error).__name__}: {error}"
    cudnn: Callable[[], int | None] = torch.backends.cudnn.version
    versions = {
        "python": sys.version.split()[0],
        "cuda": torch.version.cuda,
        "cudnn": str(cudnn()),
        **{name: version(name) if is_installed(name) else None for name in _PACKAGES},
    }
    return {"driver": opened, "versions": versions, "n_cpus": os.cpu_count()}


def neighbours(*, computes: bool) -> list[dict[str, object]] | None:
    """The processes other than this one and its own that compute on the first visible GPU.

    Args:
        computes: whether this process computes on the GPU by now. NVML tells the host's process
            ids: in a container it is then one of those that have no name here.

    Returns:
        Process id, name and bytes of GPU memory of each, the last two None where they are not
        told; None where NVML does not tell of processes.
    """
    with closing(NvmlDriver()) as driver:
        try:
            devices = answering_gpus(driver)
            found = driver.processes(devices[0]) if devices else []
        except DriverError:
            return None
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
