"""Bitstreams: what a file's manifest says of it, and whether a host may load it.

``make bitstream`` writes two files: what XRT loads, ``<name>.xclbin``, and beside it
``<name>.json``, the manifest. A host asks `check_bitstream` before it loads anything; whatever does
not fit is refused in one line that names the file, what was found and what is allowed.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from ecorl.engines.decoder_config import DecoderConfig
from ecorl.engines.fpga.build import kernels_digest
from ecorl.engines.fpga.limits import ShapeLimits
from ecorl.engines.fpga.xclbin import CSIM_SUFFIX, Mode, read_container
from ecorl.errors import BitstreamError
from ecorl.files import write_whole

FORMAT = 1
"""Version of the manifest's fields."""

EMULATED, SYNTHESISED = "emulated", "synthesised"


class Target(StrEnum):
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
        return self is not Target.HW


_MODES = {
    Target.CSIM: {Mode.SW_EMU},
    Target.SW_EMU: {Mode.SW_EMU},
    Target.HW_EMU: {Mode.HW_EMU, Mode.HW_EMU_PARTIAL},
    Target.HW: {Mode.FLAT, Mode.PARTIAL, Mode.TANDEM_STAGE2, Mode.TANDEM_STAGE2_PARTIAL},
}


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
    target: Target
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


def check_bitstream(
    path: Path,
    *,
    platform: str | None,
    model: DecoderConfig | None,
    emulated: bool,
) -> Manifest:
    """Whether a host may load a file; gives its manifest if so.

    Args:
        path: the xclbin.
        platform: name that the card gives itself, or a development platform's; None where there is
            none to compare, as for a noop device.
        model: that will be loaded; None leaves the limits unchecked.
        emulated: whether the host runs in emulation, without a card.

    Raises:
        BitstreamError: in one line: the manifest is missing or malformed, the file is missing or
            its hash differs, it is not built, is for emulation or is not, or platform, kernel
            sources or limits do not fit.
        MissingToolError: the kernel sources are not installed.
    """
    manifest = read_manifest(manifest_path(path))
    _check_file(path, manifest)
    _check_target(path, manifest, emulated)
    if platform is not None and not same_platform(manifest.platform, platform):
        raise BitstreamError(f"{path} is for {manifest.platform}, and the card is a {platform}")
    if manifest.kernels_digest != kernels_digest():
        raise BitstreamError(
            f"{path} was built from other kernel sources than the installed ones "
            f"({manifest.kernels_digest[:19]}, not {kernels_digest()[:19]}): build it again"
        )
    refusal = None if model is None else manifest.limits.refusal(model)
    if refusal is not None:
        raise BitstreamError(f"{path}: {refusal}")
    return manifest


def same_platform(built_for: str, card: str) -> bool:
    """Whether a development platform and the name that a card gives itself are of one shell.

    A U55C with the platform ``xilinx_u55c_gen3x16_xdma_3_202210_1`` calls itself
    ``xilinx_u55c_gen3x16_xdma_base_3``: without the release, and with a word for the partition.
    """

    def plain(name: str) -> str:
        return re.sub(r"_\d{6}_\d+$", "", name).replace("_base_", "_")

    return plain(built_for) == plain(card)


def _check_file(path: Path, manifest: Manifest) -> None:
    if not manifest.built:
        raise BitstreamError(f"{manifest_path(path)}: built = false: the file was never made")
    if manifest.file != path.name:
        raise BitstreamError(f"{manifest_path(path)} is the manifest of {manifest.file}")
    try:
        digest = file_digest(path)
    except OSError as error:
        raise BitstreamError(f"{path} cannot be read: {error.strerror}") from error
    if digest != manifest.sha256:
        raise BitstreamError(
            f"{path} is not the file that its manifest is of: SHA-256 {digest[:12]}..., "
            f"the manifest says {manifest.sha256[:12]}..."
        )


def _check_target(path: Path, manifest: Manifest, emulated: bool) -> None:
    """What manifest, name and header say the file is for, against what the host runs on."""
    container = read_container(path)
    mode = "unknown" if container.mode is None else container.mode.name
    named = path.name.endswith(CSIM_SUFFIX)
    if container.mode not in _MODES[manifest.target] or named is not (
        manifest.target is Target.CSIM
    ):
        raise BitstreamError(
            f"{path}: the manifest says target = {manifest.target}, and name and header do not "
            f"(mode {mode})"
        )
    if manifest.target.is_emulated and not emulated:
        raise BitstreamError(
            f"{path} is for emulation (target = {manifest.target}): a card takes target = hw only"
        )
    if emulated and not manifest.target.is_emulated:
        raise BitstreamError(f"{path} is for a card (target = hw), and this host is in emulation")


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
        target_clock_mhz=take.number("target_clock_mhz"),
        clock_mhz=None if data["clock_mhz"] is None else take.number("clock_mhz"),
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

    def number(self, name: str) -> float:
        value = self.data[name]
        if not _is_number(value) or not 0 < value < 1e6:
            raise self.wrong(name, "a number above 0")
        return float(value)

    def tables(self, name: str) -> dict[str, dict[str, float | None]] | None:
        value = self.data[name]
        if value is None:
            return None
        if not isinstance(value, dict) or not all(
            isinstance(row, dict) and all(v is None or _is_number(v) for v in row.values())
            for row in value.values()
        ):
            raise self.wrong(name, "null, or numbers by kind of site")
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


def _is_number(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def _target(path: Path, value: object) -> Target:
    if not isinstance(value, str) or value not in set(Target):
        allowed = ", ".join(Target)
        raise BitstreamError(f"{path}: target = {value!r}: allowed is one of {allowed}")
    return Target(str(value))


def _provenance(path: Path, value: object) -> str | None:
    if value is not None and value not in (EMULATED, SYNTHESISED):
        allowed = f"{EMULATED}, {SYNTHESISED} or null"
        raise BitstreamError(f"{path}: provenance = {value!r}: allowed is {allowed}")
    return None if value is None else str(value)


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
