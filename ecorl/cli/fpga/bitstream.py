"""``ecorl fpga bitstream``: build what XRT loads; ``make bitstream`` calls it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ecorl.cli.output import say
from ecorl.errors import BuildError, ConfigError

if TYPE_CHECKING:
    from ecorl.engines.fpga.bitstream.build import BuildRequest
    from ecorl.engines.fpga.bitstream.manifest import Manifest


def bitstream(
    target: Annotated[
        str,
        typer.Option(help="csim, sw_emu, hw_emu or hw; all but csim need Vitis 2024.1 or later."),
    ] = "csim",
    platform: Annotated[
        str | None,
        typer.Option(
            help="AMD's development platform, or its .xpfm file.", show_default="the U55C's"
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the products.")] = Path("bitstreams"),
    work: Annotated[Path, typer.Option(help="Folder for build_dir.<target>.")] = Path(),
    check: Annotated[
        list[str] | None,
        typer.Option(help="csim or cosim: simulate each kernel's test bench; hw_emu and hw only."),
    ] = None,
) -> None:
    """Build a bitstream with its manifest.

    One for emulation can be built anywhere, one for a card takes AMD's Vitis. Exit code 2 when
    Vitis or the platform is absent, 1 when a step fails or the design misses its clock (what was
    built is kept then, and its manifest says so).
    """
    from ecorl.engines.fpga.bitstream.build import build_bitstream

    request = _build_request(target, platform, out, work, check or ())
    manifest = build_bitstream(request, say)
    for line in _lines(manifest):
        say(line)
    say(f"bitstream: {request.product}")
    if manifest.timing_met is False:
        raise BuildError(
            f"{request.product} misses its clock of {manifest.target_clock_mhz:g} MHz: it is kept, "
            "its manifest says timing_met = false, and no host loads it"
        )


def _build_request(
    target: str, platform: str | None, out: Path, work: Path, checks: Sequence[str]
) -> BuildRequest:
    """Turn the options into a request for the build.

    Raises:
        ConfigError: one of them is not what its option takes.
    """
    from ecorl.engines.fpga.bitstream.build import CHECKS, BuildRequest
    from ecorl.engines.fpga.bitstream.manifest import BitstreamTarget
    from ecorl.engines.fpga.kernels.banks import PLATFORM

    if target not in set(BitstreamTarget):
        raise ConfigError("--target", target, f"one of {', '.join(BitstreamTarget)}")
    for each in checks:
        if each not in CHECKS:
            raise ConfigError("--check", each, f"one of {', '.join(CHECKS)}")
    if platform is not None and not platform.strip():
        raise ConfigError("--platform", platform, "the name of a platform")
    out, work = _folder("--out", out), _folder("--work", work)
    return BuildRequest(BitstreamTarget(target), platform or PLATFORM, out, work, tuple(checks))


def _folder(key: str, path: Path) -> Path:
    """Check a folder that exists or can be made."""
    try:
        folder = path.expanduser()
        str(folder).encode()  # it is printed
        if not folder.exists() or folder.is_dir():
            return folder
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(key, str(path), f"a folder ({error})") from error
    raise ConfigError(key, str(path), "a folder")


def _lines(manifest: Manifest) -> list[str]:
    """The facts of the manifest as lines."""
    known = {True: "met", False: "not met", None: "not known"}
    clock = "not known" if manifest.clock_mhz is None else f"{manifest.clock_mhz:g} MHz"
    lines = [
        f"target {manifest.target} for {manifest.platform} ({manifest.part}), by {manifest.tool}",
        f"provenance: {manifest.provenance or 'not known: reports of the synthesis are missing'}",
    ]
    if manifest.target == "hw":
        lines.append(
            f"clock: {clock}, {manifest.target_clock_mhz:g} MHz asked for; timing "
            f"{known[manifest.timing_met]}"
        )
    for kernel, shortfalls in (manifest.synthesis or {}).items():
        lines += [f"{kernel} falls short of its qor.json: {what}" for what in shortfalls]
    for kind, use in (manifest.utilisation or {}).items():
        used, percent = use.get("used"), use.get("percent")
        if used is not None and percent is not None:
            lines.append(f"{kind}: {used:,.10g} used, {percent:.3g} %")
    return lines
