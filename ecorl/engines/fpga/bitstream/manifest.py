"""Manifests: the facts of a bitstream, in a JSON file beside it.

``make bitstream`` writes what XRT loads, ``<name>.xclbin``, and beside it ``<name>.json``, the
manifest. A host calls `check_bitstream` before it loads anything: a mismatch of file, manifest,
installed kernels or host is an error in one line that says what was found and what is allowed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from ecorl.engines.fpga.bitstream.xclbin import CSIM_SUFFIX, Container, Mode, parse_container
from ecorl.engines.fpga.csim.build import kernels_digest
from ecorl.engines.fpga.kernels.interfaces import ShapeLimits, kernel_interfaces, shape_limits
from ecorl.engines.models.decoder_config import DecoderConfig
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


logger = logging.getLogger(__name__)

_MODES = {
    BitstreamTarget.CSIM: {Mode.SW_EMU},
    BitstreamTarget.SW_EMU: {Mode.SW_EMU},
    BitstreamTarget.HW_EMU: {Mode.HW_EMU, Mode.HW_EMU_PARTIAL},
    BitstreamTarget.HW: {Mode.FLAT, Mode.PARTIAL, Mode.TANDEM_STAGE2, Mode.TANDEM_STAGE2_PARTIAL},
}


def missing_part(path: Path) -> str | None:
    """Tell which of a bitstream's two files is not there, in words; None where both are.

    Args:
        path: the xclbin.
    """
    # Not by pathlib, which raises for an impossible path.
    if not os.path.exists(path):  # noqa: PTH110
        return "there is no such file"
    manifest = manifest_path(path)
    if not os.path.isdir(path) and not os.path.exists(manifest):  # noqa: PTH110, PTH112
        return f"its manifest {manifest.name}, which make bitstream writes beside it, is not there"
    return None


def check_bitstream(
    path: Path, *, platform: str | None, model: DecoderConfig | None, emulated: bool
) -> Manifest:
    """Check that a host may load a file.

    Args:
        path: the xclbin.
        platform: name that the card reports, or a development platform's; None where there is none
            to compare, as for a noop device.
        model: that will be loaded; None skips the check of its shape.
        emulated: whether the host runs in emulation, without a card.

    Returns:
        The manifest.

    Raises:
        BitstreamError: in one line: the manifest is missing or malformed, the file is missing or
            its hash differs, it is not built, misses its timing, is for emulation or for a card
            against the host; manifest and file contradict each other; or platform, kernel sources
            or limits do not match.
        BuildError: the constants of the installed kernel sources cannot be read.
        MissingToolError: the kernel sources are not installed.
    """
    if os.path.isdir(path):  # noqa: PTH112 - False for an impossible path, where pathlib raises
        raise BitstreamError(f"{path} is a folder: a bitstream is a file, such as ecorl.hw.xclbin")
    missing = missing_part(path)
    if missing is not None:
        raise BitstreamError(f"{path}: {missing}")
    manifest = read_manifest(manifest_path(path))
    container = _check_file(path, manifest)
    _check_target(path, manifest, container, emulated)
    _check_claims(path, manifest, container)
    if platform is not None and not same_platform(manifest.platform, platform):
        raise BitstreamError(f"{path} is for {manifest.platform}, and the card is a {platform}")
    if manifest.kernels_digest != kernels_digest():
        raise BitstreamError(
            f"{path} was built from other kernel sources than the installed ones "
            f"({manifest.kernels_digest[:19]}, not {kernels_digest()[:19]}): build it again"
        )
    if manifest.limits != shape_limits():
        raise BitstreamError(f"{manifest_path(path)}: limits are not those of its kernel sources")
    _check_timing(path, manifest)
    refusal = None if model is None else manifest.limits.refusal(model)
    if refusal is not None:
        raise BitstreamError(f"{path}: {refusal}")
    return manifest


def provenance_of(target: BitstreamTarget, reported: Collection[str] | None) -> str | None:
    """The provenance that a file's manifest may state.

    Args:
        target: what the file is for.
        reported: kernels with a csynth.xml.
    """
    if target.is_emulated:
        return EMULATED
    is_whole = {kernel.kernel for kernel in kernel_interfaces()} == set(reported or ())
    return SYNTHESISED if is_whole else None


def same_platform(built_for: str, card: str) -> bool:
    """Whether a development platform and the name that a card reports are of one shell.

    A U55C with the platform ``xilinx_u55c_gen3x16_xdma_3_202210_1`` reports
    ``xilinx_u55c_gen3x16_xdma_base_3``: without the release, and with a word for the partition.

    Args:
        built_for: the development platform.
        card: the name that the card reports.
    """

    def plain(name: str) -> str:
        return re.sub(r"_\d{6}_\d+$", "", name).replace("_base_", "_")

    return plain(built_for) == plain(card)


def _check_file(path: Path, manifest: Manifest) -> Container:
    if not manifest.built:
        raise BitstreamError(f"{manifest_path(path)}: built = false: the file was never made")
    if manifest.file != path.name:
        raise BitstreamError(f"{manifest_path(path)} is the manifest of {manifest.file}")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BitstreamError(f"{path} cannot be read: {error.strerror}") from error
    digest = hashlib.sha256(data).hexdigest()
    if digest != manifest.sha256:
        raise BitstreamError(
            f"{path} is not the file that its manifest is of: SHA-256 {digest[:12]}..., "
            f"the manifest says {manifest.sha256[:12]}..."
        )
    return parse_container(path, data)


def _check_target(path: Path, manifest: Manifest, container: Container, emulated: bool) -> None:
    """Check the target in manifest, name and header against the host."""
    mode = "unknown" if container.mode is None else container.mode.name
    named = path.name.endswith(CSIM_SUFFIX)
    if container.mode not in _MODES[manifest.target] or named is not (
        manifest.target is BitstreamTarget.CSIM
    ):
        raise BitstreamError(
            f"{path}: the manifest says target = {manifest.target}, and name and header do not "
            f"(mode {mode})"
        )
    if manifest.target in (BitstreamTarget.SW_EMU, BitstreamTarget.HW_EMU):
        raise BitstreamError(
            f"{path} is for emulation (target = {manifest.target}) with AMD's tools alone: a host "
            "takes target = csim in emulation and target = hw on a card"
        )
    if manifest.target.is_emulated and not emulated:
        raise BitstreamError(
            f"{path} is for emulation (target = {manifest.target}): a card takes target = hw only"
        )
    if emulated and not manifest.target.is_emulated:
        raise BitstreamError(f"{path} is for a card (target = hw), and this host is in emulation")


def _check_claims(path: Path, manifest: Manifest, container: Container) -> None:
    """Check the manifest's statements against the file, so that an edited manifest is refused."""
    beside = manifest_path(path)
    if not same_platform(manifest.platform, container.platform):
        raise BitstreamError(
            f"{beside}: platform = {manifest.platform!r}: the file is for {container.platform!r}"
        )
    if manifest.clock_mhz != container.clock_mhz:
        found = container.clock_mhz
        raise BitstreamError(f"{beside}: clock_mhz = {manifest.clock_mhz}: the file has {found}")
    allowed = provenance_of(manifest.target, manifest.synthesis)
    if manifest.provenance != allowed:
        raise BitstreamError(
            f"{beside}: provenance = {manifest.provenance!r}: with target = {manifest.target} and "
            f"its synthesis it is {allowed!r}"
        )


def _check_timing(path: Path, manifest: Manifest) -> None:
    """Refuse a design that misses its timing, which may compute wrong bits at times."""
    if manifest.timing_met is False:
        raise BitstreamError(
            f"{path}: timing_met = false: a design that misses its timing can compute wrong bits; "
            "build it again with a lower clock"
        )
    if manifest.target is BitstreamTarget.HW and manifest.timing_met is None:
        logger.warning("%s: no report says whether it meets its timing (timing_met = null)", path)
