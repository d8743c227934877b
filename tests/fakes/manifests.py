"""Makes manifests for files that a test wrote, in the form of the build."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ecorl.engines.fpga.bitstream.manifest import BitstreamTarget, Manifest, file_digest
from ecorl.engines.fpga.csim.build import kernels_digest
from ecorl.engines.fpga.kernels.banks import PLATFORM
from ecorl.engines.fpga.kernels.interfaces import shape_limits


def manifest_of(
    path: Path, target: BitstreamTarget = BitstreamTarget.CSIM, **changes: object
) -> Manifest:
    """The manifest of a valid file at `path`, with `changes`."""
    made = Manifest(
        file=path.name,
        target=target,
        platform=PLATFORM,
        part="xcu55c-fsvh2892-2L-e",
        tool="v++ 2024.1",
        kernels_digest=kernels_digest(),
        limits=shape_limits(),
        sha256=file_digest(path),
        target_clock_mhz=245.0,
        clock_mhz=None,
        timing_met=None,
        utilisation=None,
        synthesis=None,
        built=True,
        provenance="emulated",
    )
    return replace(made, **changes)
