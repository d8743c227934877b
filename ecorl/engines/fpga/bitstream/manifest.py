"""Manifests: the facts of a bitstream, in a JSON file beside it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
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
    wanted = {f.name for f in fields(Manifest)} | {"format"}
    if set(data) != wanted:
        odd = sorted(wanted ^ set(data))
        raise BitstreamError(f"{path} is no manifest: {odd[0]} is missing or not known")
    read = _Fields(path, data)
    return Manifest(
        file=read.text("file"),
        target=_target(path, data["target"]),
        platform=read.text("platform"),
        part=read.text("part"),
        tool=read.text("tool"),
        kernels_digest=read.text("kernels_digest"),
        limits=_limits(path, data["limits"]),
        sha256=read.text("sha256"),
        target_clock_mhz=read.clock("target_clock_mhz"),
        clock_mhz=None if data["clock_mhz"] is None else read.clock("clock_mhz"),
        timing_met=None if data["timing_met"] is None else read.truth("timing_met"),
        utilisation=read.tables("utilisation"),
        synthesis=read.lists("synthesis"),
        built=read.truth("built"),
        provenance=_provenance(path, data["provenance"]),
    )


@dataclass(frozen=True, slots=True)
class _Fields:
    """The fields of a manifest file; each method reads one and raises when it has another type."""

    path: Path
    data: Mapping[str, Any]

    def wrong(self, name: str, allowed: str) -> BitstreamError:
        return BitstreamError(f"{self.path}: {name} = {self.data[name]!r}: allowed is {allowed}")

    def text(self, name: str) -> str:
        value = self.data[name]
        if not isinstance(value, str) or not value:
            raise self.wrong(name, "a text")
        return value

    def truth(self, name: str) -> bool:
        value = self.data[name]
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def clock(self, name: str) -> float:
        value = self.data[name]
        if not _is_number(value) or not 1 <= value <= _MOST_MHZ:
            raise self.wrong(name, f"a number from 1 to {_MOST_MHZ:,}, in MHz")
        return float(value)

    def tables(self, name: str) -> dict[str, dict[str, float | None]] | None:
        value = self.data[name]
        if value is None:
            return None
        if not isinstance(value, dict) or not all(_is_use(row) for row in value.values()):
            raise self.wrong(name, "null, or used, available and percent by kind, none below 0")
        return value

    def lists(self, name: str) -> dict[str, tuple[str, ...]] | None:
        value = self.data[name]
        if value is None:
            return None
        if not isinstance(value, dict) or not all(
            isinstance(row, list) and all(isinstance(v, str) for v in row) for row in value.values()
        ):
            raise self.wrong(name, "null, or lists of texts by kernel")
        return {kernel: tuple(row) for kernel, row in value.items()}


def _is_use(row: object) -> bool:
    """Whether it holds the use of one kind of sites."""
    return (
        isinstance(row, dict)
        and set(row) <= {"used", "available", "percent"}
        and all(v is None or (_is_number(v) and 0 <= v <= _MOST_SITES) for v in row.values())
    )


def _is_number(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def _target(path: Path, value: object) -> BitstreamTarget:
    if not isinstance(value, str) or value not in set(BitstreamTarget):
        raise BitstreamError(
            f"{path}: target = {value!r}: allowed is one of {', '.join(BitstreamTarget)}"
        )
    return BitstreamTarget(str(value))


def _provenance(path: Path, value: object) -> str | None:
    if value is not None and value not in (EMULATED, SYNTHESISED):
        allowed = f"{EMULATED}, {SYNTHESISED} or null"
        raise BitstreamError(f"{path}: provenance = {value!r}: allowed is {allowed}")
    return value


def _limits(path: Path, value: object) -> ShapeLimits:
    names = {f.name for f in fields(ShapeLimits)}
    if (
        not isinstance(value, dict)
        or set(value) != names
        or not all(type(v) is int and v > 0 for v in value.values())
    ):
        allowed = f"whole numbers above 0 for {', '.join(sorted(names))}"
        raise BitstreamError(f"{path}: limits = {value!r}: allowed is {allowed}")
    return ShapeLimits(**value)
