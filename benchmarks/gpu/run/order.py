"""What ``make gpu`` is asked for, and what is asked of a machine before anything is imported.

Standard library only.
"""

from __future__ import annotations

import argparse
import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.run.parts import Part


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
