"""Checks a bitstream against its manifest, the installed kernels and the host before it is loaded.

``make bitstream`` writes what XRT loads, ``<name>.xclbin``, and beside it ``<name>.json``, the
manifest. A host calls `check_bitstream` before it loads anything; a mismatch is an error in one
line that names the file, what was found and what is allowed.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Collection
from pathlib import Path

from ecorl.engines.fpga.bitstream.manifest import (
    EMULATED,
    SYNTHESISED,
    BitstreamTarget,
    Manifest,
    manifest_path,
    read_manifest,
)
from ecorl.engines.fpga.bitstream.xclbin import CSIM_SUFFIX, Container, Mode, parse_container
from ecorl.engines.fpga.csim.build import kernels_digest
from ecorl.engines.fpga.kernels.interfaces import kernel_interfaces
from ecorl.engines.fpga.kernels.limits import shape_limits
from ecorl.engines.models.decoder_config import DecoderConfig
from ecorl.errors import BitstreamError

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
