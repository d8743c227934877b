"""Manifests: what is known of a bitstream, in the JSON file that lies beside it."""

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
    """What a file is for.

    csim: the C-simulation on the host, from XRT's side a card. sw_emu, hw_emu: emulations of Vitis.
    hw: a card.
    """

    CSIM = "csim"
    SW_EMU = "sw_emu"
    HW_EMU = "hw_emu"
    HW = "hw"

    @property
    def is_emulated(self) -> bool:
        """Whether no card runs it."""
        return self is not BitstreamTarget.HW


@dataclass(frozen=True, slots=True)
class Manifest:
    """What is known of a bitstream; None is not known.

    Attributes:
        file: name of the xclbin, which lies in the same folder.
        target: what it is for.
        platform: AMD's development platform that it was linked for.
        part: device that the kernels were compiled for.
        tool: who made it, with the release.
        kernels_digest: of the kernel sources, as ``sha256:...``.
        limits: shapes that the kernels take.
        sha256: of the file, hexadecimal.
        target_clock_mhz: that was asked for, MHz.
        clock_mhz: that the file sets on the card, MHz: Vitis lowers it where timing fails.
        timing_met: verdict of the routed design's timing report.
        utilisation: sites used by the routed design, by kind: ``used``, ``available``, ``percent``.
        synthesis: by kernel, in what its csynth.xml falls short of qor.json; a kernel without a
            report is not in it.
        built: whether the file was made to its end.
        provenance: ``emulated`` for what no card runs; ``synthesised`` only when every kernel's
            csynth.xml was there.
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
    """Write as JSON; the file is whole or not there.

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
    take = _Fields(path, data)
    return Manifest(
        file=take.text("file"),
        target=_target(path, data["target"]),
        platform=take.text("platform"),
        part=take.text("part"),
        tool=take.text("tool"),
        kernels_digest=take.text("kernels_digest"),
        limits=_limits(path, data["limits"]),
        sha256=take.text("sha256"),
        target_clock_mhz=take.clock("target_clock_mhz"),
        clock_mhz=None if data["clock_mhz"] is None else take.clock("clock_mhz"),
        timing_met=None if data["timing_met"] is None else take.truth("timing_met"),
        utilisation=take.tables("utilisation"),
        synthesis=take.lists("synthesis"),
        built=take.truth("built"),
        provenance=_provenance(path, data["provenance"]),
    )


@dataclass(frozen=True, slots=True)
class _Fields:
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
    """Whether it tells of one kind of sites."""
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
