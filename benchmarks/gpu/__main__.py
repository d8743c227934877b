"""``make gpu``: what only a GPU shows, in one pass over the parts of `benchmarks.gpu.run.parts`.

``python3 -m benchmarks.gpu [--minutes 9] [--out DIR] [--wheels DIR] [--only NAME ...]
[--commit ID] [--rehearse]``

It sets nothing on the GPU, needs no root and no network. A second start goes on with what is
missing. Exit code 0: all that fitted into the time was measured; 1: a part failed; 2: a value of
the command line, or this machine, does not do; 130: stopped by Ctrl-C.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from importlib.metadata import requires, version
from pathlib import Path

from benchmarks.gpu.run import wheels
from benchmarks.gpu.run.parts import NO_GPU, PARTS, Order, Part, count_gpus, read_order

STOPPED = 130
"""Exit code after Ctrl-C."""

PROGRAM = ("-m", "benchmarks.gpu.run.part")
"""How Python starts a part."""


def main(
    argv: Sequence[str] | None = None,
    parts: Sequence[Part] = PARTS,
    program: Sequence[str] = PROGRAM,
) -> int:
    """Measure the parts; returns the exit code.

    Args:
        argv: arguments; those of the process when None.
        parts: that there are.
        program: arguments with which Python starts a part.
    """
    start_s = time.monotonic()
    try:
        order = read_order(argv, parts)
    except ValueError as error:
        return _refused(str(error))
    if count_gpus() == 0:
        return _refused(NO_GPU)
    try:
        with tempfile.TemporaryDirectory(prefix="ecorl-gpu-") as scratch:
            return _measure(order, program, Path(scratch), start_s + 60.0 * order.minutes)
    except KeyboardInterrupt:
        print("make gpu: stopped from the keyboard", file=sys.stderr)
        return STOPPED
    except (OSError, zipfile.BadZipFile) as error:
        print(f"make gpu: {error}", file=sys.stderr)
        return 1


def _measure(order: Order, program: Sequence[str], scratch: Path, deadline_s: float) -> int:
    """Provide what the parts import, then measure those that can be."""
    lacking = _provide(order, scratch / "wheels")
    _name_versions(order.parts)
    if all(lacking[part.name] for part in order.parts):
        everything = dict.fromkeys(name for found in lacking.values() for name in found)
        return _refused(
            f"no part can run without {', '.join(everything)}: install them, or fetch them with "
            "`make gpu-wheels WHEELS=DIR` and name the folder here as WHEELS=DIR"
        )
    from benchmarks.gpu.run.runner import GpuPass  # what it imports is there only now

    return GpuPass(order, program, scratch, deadline_s, lacking).run()


def _provide(order: Order, folder: Path) -> dict[str, list[str]]:
    """Unpack what the parts import and is missing; returns what each part still lacks.

    The folder stands last on this process's path; the processes of the parts get it by name.
    """
    found: dict[str, wheels.Wheel] = {}
    if order.wheels is not None:
        found, skipped = wheels.read_wheels(order.wheels, wheels.here())
        for line in skipped:
            print(f"wheels: {line}")
    chosen: dict[str, wheels.Wheel] = {}
    lacking: dict[str, list[str]] = {}
    for part in order.parts:
        brought, lacking[part.name] = wheels.choose(part.imports, found)
        if not lacking[part.name]:
            chosen |= {wheel.name: wheel for wheel in brought}
    if chosen:
        folder.mkdir()
        wheels.unpack(chosen.values(), folder)
        print(f"from wheels: {', '.join(f'{w.name} {w.version}' for w in chosen.values())}")
        sys.path.append(str(folder))
        importlib.invalidate_caches()
    return lacking


def _name_versions(parts: Sequence[Part]) -> None:
    """Print which versions are not those that are tested together, and which a package refuses."""
    tested, others, outside = wheels.pins(), [], []
    for module in dict.fromkeys(name for part in parts for name in part.imports):
        name = "nvidia-ml-py" if module == "pynvml" else wheels.normalised(module)
        if not wheels.is_installed(name):
            continue
        if version(name).partition("+")[0] != tested.get(name):
            others.append(f"{name} {version(name)} ({tested.get(name)})")
        outside += _outside_bounds(name)
    if others:
        print(f"versions other than those of constraints.txt: {', '.join(others)}")
    for line in outside:
        print(line)


def _outside_bounds(name: str) -> list[str]:
    """What a distribution requires in another version than is installed, a line each."""
    if not wheels.is_found("packaging"):
        return []
    from packaging.requirements import Requirement

    found = []
    for one in map(Requirement, requires(name) or ()):
        applies = one.marker is None or one.marker.evaluate({"extra": ""})
        if not applies or not wheels.is_installed(one.name):
            continue
        if not one.specifier.contains(version(one.name), prereleases=True):
            found.append(f"{name} {version(name)} wants {one.name}{one.specifier}; there is "
                         f"{version(one.name)}")  # fmt: skip
    return found


def _refused(line: str) -> int:
    print(f"make gpu: {line}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
