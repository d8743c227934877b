"""The parts of ``make gpu``, what of them is asked for, and how many GPUs there are.

Standard library only: where a package is missing the runner still says which part it keeps out.
"""

from __future__ import annotations

import argparse
import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

BASE = ("torch", "numpy", "pydantic", "psutil", "pynvml", "tomlkit", "filelock", "jinja2", "rich",
        "matplotlib", "onnxruntime", "typer", "huggingface_hub", "tokenizers")  # fmt: skip
"""Modules that every part imports, by way of ecorl."""

NO_GPU = "this machine has no NVIDIA GPU that NVML answers for: nothing to measure"
NO_CUDA = "PyTorch does not reach a GPU on this machine: nothing to measure"
NO_CUDA_CODE = 3
"""Exit code of a part where PyTorch reaches no GPU."""

_TRAINING = ("transformers", "safetensors", "trl", "datasets", "accelerate")


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the pass.

    Attributes:
        name: on the command line, and of its module in `benchmarks.gpu`.
        benchmark: with which its figures' ids begin; its file is ``<benchmark>.json``.
        seconds: that it may take from the start of its process to its end, s.
        question: what it measures, in a line.
        imports: modules that it needs, all that ecorl needs included.
    """

    name: str
    benchmark: str
    seconds: float
    question: str
    imports: tuple[str, ...] = BASE


PARTS = (
    Part("facts", "gpu_facts", 20.0, "driver, limits, clocks, and what each NVML call costs"),
    Part("training", "gpu_training", 180.0, "TRL's GRPO, plain and with ecorl attached",
         (*BASE, *_TRAINING)),
    Part("clocks", "gpu_clocks", 120.0, "what limits each stage; decoding on a part of the GPU"),
    Part("training_gears", "gpu_training_gears", 100.0, "the same training in BF16 and in FP8",
         (*BASE, *_TRAINING, "torchao")),
    Part("stage_table", "gpu_stages", 80.0, "joules a token by stage and batch, for `ecorl plan`"),
    Part("sampling", "gpu_sampling", 30.0, "what ecorl's sampler costs, and how true it is"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Order:
    """A pass that is asked for.

    Attributes:
        minutes: that it may take.
        parts: that are to be measured, in order.
        out: folder of the results; None: that of this device in the checkout.
        wheels: folder of wheels for what is missing; None: there is none.
        commit: of the code; None: as git tells.
        is_rehearsal: whether toy models on the processor stand in for a GPU.
    """

    minutes: float
    parts: tuple[Part, ...]
    out: Path | None
    wheels: Path | None
    commit: str | None
    is_rehearsal: bool


def read_order(argv: Sequence[str] | None, parts: Sequence[Part]) -> Order:
    """Read and check the command line.

    Args:
        argv: arguments; those of the process when None.
        parts: that there are.

    Raises:
        ValueError: for a value that is not allowed; it names key, value and what is allowed.
    """
    parser = argparse.ArgumentParser(prog="python3 -m benchmarks.gpu")
    parser.add_argument("--minutes", default="9", help="time of all parts together")
    parser.add_argument("--out", default="", help="folder of the results")
    parser.add_argument("--wheels", default="", help="folder of wheels for what is missing here")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these parts")
    parser.add_argument("--commit", default="", help="of the code, where git does not tell")
    parser.add_argument("--rehearse", action="store_true", help="toy models on the processor")
    given = parser.parse_args(argv)
    wheels = Path(given.wheels).expanduser().resolve() if given.wheels else None
    if wheels is not None and not wheels.is_dir():
        raise ValueError(_refusal("WHEELS", given.wheels, "a folder that is there"))
    names = [part.name for part in parts]
    for name in given.only or ():
        if name not in names:
            raise ValueError(_refusal("--only", name, ", ".join(names)))
    if given.rehearse and not given.out:
        raise ValueError(_refusal("OUT", "", "a folder of its own for a rehearsal"))
    return Order(
        minutes=_minutes(given.minutes),
        parts=tuple(part for part in parts if not given.only or part.name in given.only),
        out=Path(given.out).expanduser().resolve() if given.out else None,
        wheels=wheels,
        commit=given.commit or None,
        is_rehearsal=given.rehearse,
    )


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = math.nan
    if not (math.isfinite(minutes) and minutes > 0):
        raise ValueError(_refusal("MINUTES", text, "a number above 0"))
    return minutes


def _refusal(key: str, value: str, allowed: str) -> str:
    return f"{key} = {value!r}: allowed is {allowed}"


def count_gpus() -> int:
    """Number of GPUs that NVML answers for; 0 without NVML."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return 0
    if nvml.nvmlInitWithFlags(0) != 0:
        return 0
    found = ctypes.c_uint(0)
    status = nvml.nvmlDeviceGetCount_v2(ctypes.byref(found))
    nvml.nvmlShutdown()
    return int(found.value) if status == 0 else 0
