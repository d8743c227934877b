"""Manifests: the facts of a bitstream, in a JSON file beside it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from ecorl.engines.fpga.kernels.limits import ShapeLimits
from ecorl.errors import BitstreamError
from ecorl.files import write_whole

FORMAT = 1
"""Version of the manifest's fields."""

_MOST_MHZ = 1000  # assumed: AMD's fabrics stay below it
_MOST_SITES = 10**9  # assumed: a large device of today has some 10^7

EMULATED, SYNTHESISED = "emulated", "synthesised"


class BitstreamTarget(StrEnum):
    """The platform that a file runs on.

    csim: the C-simulation on the host, which XRT sees as a card. sw_emu, hw_emu: emulations of
    Vitis. hw: a card.
    """

    CSIM = "csim"
    SW_EMU = "sw_emu"
    HW_EMU = "hw_emu"
    HW = "hw"

    @property
    def is_emulated(self) -> bool:
        """Whether it runs without a card."""
        return self is not BitstreamTarget.HW


@dataclass(frozen=True, slots=True)
class Manifest:
    """The facts of a bitstream; None for an unknown one.

    Attributes:
        file: name of the xclbin, which lies in the same folder.
        target: the platform that it runs on.
        platform: AMD's development platform that it was linked for.
        part: device that the kernels were compiled for.
        tool: that built it, with the release.
        kernels_digest: of the kernel sources, as ``sha256:...``.
        limits: shapes that the kernels read.
        sha256: of the file, hexadecimal.
        target_clock_mhz: the requested clock, MHz.
        clock_mhz: the clock that the file sets on the card, MHz: Vitis lowers it when timing fails.
        timing_met: verdict of the routed design's timing report.
        utilisation: sites used by the routed design, by kind: ``used``, ``available``, ``percent``.
        synthesis: by kernel, the points in which its csynth.xml falls short of qor.json; kernels
            without a report are left out.
        built: whether the build was completed.
        provenance: ``emulated`` for a file that no card runs; ``synthesised`` only when there was a
            csynth.xml of every kernel.
    """

    file: str
    target: BitstreamTarget
    platform: str
    part: str
    tool: str
    kernels_digest: str
    limits: ShapeLimits
    sha256: str
    target_clock_mhz: float
    clock_mhz: float | None
    timing_met: bool | None
    utilisation: Mapping[str, Mapping[str, float | None]] | None
    synthesis: Mapping[str, tuple[str, ...]] | None
    built: bool
    provenance: str | None


def manifest_path(path: Path) -> Path:
    """Where the manifest of a bitstream lies: the same name with ``.json``."""
    return path.with_suffix(".json")


def file_digest(path: Path) -> str:
    """SHA-256 of a file, hexadecimal.

    Raises:
        OSError: when it cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(manifest: Manifest, path: Path) -> None:
    """Write a manifest as JSON; the file is complete or absent.

    Args:
        manifest: what to write.
        path: where.

    Raises:
        OSError: when it cannot be written.
    """
    data = {"format": FORMAT, **asdict(manifest)}
    write_whole(path, json.dumps(data, indent=1, allow_nan=False) + "\n")


def read_manifest(path: Path) -> Manifest:
    """Read a manifest.

    Raises:
        BitstreamError: in one line, when it is missing or not what `write_manifest` writes.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BitstreamError(
            f"{path} is missing: a bitstream is loaded with the manifest that make bitstream wrote"
        ) from error
    except OSError as error:
        raise BitstreamError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise BitstreamError(f"{path} is no manifest: not JSON ({error})") from error
    return _manifest(path, data)


# ---- from JSON ----------------------------------------------------------------------------------


def _manifest(path: Path, data: Any) -> Manifest:
    if not isinstance(data, dict):
        raise BitstreamError(f"{path} is no manifest: no JSON object")
    if data.get("format") != FORMAT:
        raise BitstreamError(f"{path}: format = {data.get('format')!r}: allowed is {FORMAT}")
    if set(data) != {"format", *_FIELDS}:
        odd = sorted({"format", *_FIELDS} ^ set(data))
        raise BitstreamError(f"{path} is no manifest: {odd[0]} is missing or not known")
    values = {name: data[name] for name in _FIELDS}
    for name, value in values.items():
        is_allowed, allowed = _FIELDS[name]
        if not (is_allowed(value) or (value is None and name in _NULLABLE)):
            raise BitstreamError(f"{path}: {name} = {value!r}: allowed is {allowed}")
    values["target"] = BitstreamTarget(values["target"])
    values["limits"] = ShapeLimits(**values["limits"])
    for name in ("target_clock_mhz", "clock_mhz"):
        values[name] = None if values[name] is None else float(values[name])
    if values["synthesis"] is not None:
        values["synthesis"] = {kernel: tuple(row) for kernel, row in values["synthesis"].items()}
    return Manifest(**values)


def _is_number(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def _is_limits(value: object) -> bool:
    if not isinstance(value, dict) or set(value) != set(_LIMITS):
        return False
    return all(type(limit) is int and limit > 0 for limit in value.values())


def _is_use(row: object) -> bool:
    """Whether it holds the use of one kind of sites."""
    return (
        isinstance(row, dict)
        and set(row) <= {"used", "available", "percent"}
        and all(v is None or (_is_number(v) and 0 <= v <= _MOST_SITES) for v in row.values())
    )


def _is_texts(row: object) -> bool:
    return isinstance(row, list) and all(isinstance(text, str) for text in row)


def _each(is_allowed: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Whether a value is a table whose values are allowed."""
    return lambda value: isinstance(value, dict) and all(map(is_allowed, value.values()))


_LIMITS = sorted(f.name for f in fields(ShapeLimits))
_TEXT = (lambda value: isinstance(value, str) and value != "", "a text")
_TRUTH = (lambda value: isinstance(value, bool), "true or false")
_CLOCK = (
    lambda value: _is_number(value) and 1 <= value <= _MOST_MHZ,
    f"a number from 1 to {_MOST_MHZ:,}, in MHz",
)
_FIELDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "file": _TEXT,
    "target": (
        lambda value: isinstance(value, str) and value in set(BitstreamTarget),
        f"one of {', '.join(BitstreamTarget)}",
    ),
    "platform": _TEXT,
    "part": _TEXT,
    "tool": _TEXT,
    "kernels_digest": _TEXT,
    "limits": (_is_limits, f"whole numbers above 0 for {', '.join(_LIMITS)}"),
    "sha256": _TEXT,
    "target_clock_mhz": _CLOCK,
    "clock_mhz": _CLOCK,
    "timing_met": _TRUTH,
    "utilisation": (_each(_is_use), "null, or used, available and percent by kind, none below 0"),
    "synthesis": (_each(_is_texts), "null, or lists of texts by kernel"),
    "built": _TRUTH,
    "provenance": (
        lambda value: value in (EMULATED, SYNTHESISED),
        f"{EMULATED}, {SYNTHESISED} or null",
    ),
}
"""Of each field of a manifest: whether a value is allowed, and what is, in words."""

_NULLABLE = ("clock_mhz", "timing_met", "utilisation", "synthesis", "provenance")
