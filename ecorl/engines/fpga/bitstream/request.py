"""The request for a build of a bitstream, and its check before anything is written."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ecorl.engines.fpga.bitstream.manifest import BitstreamTarget
from ecorl.engines.fpga.bitstream.vitis import platform_name
from ecorl.engines.fpga.csim.build import kernel_root
from ecorl.engines.fpga.kernels.banks import CARD, PLATFORM
from ecorl.errors import ConfigError

CHECKS = ("csim", "cosim")
"""Simulations of each kernel's test bench under Vitis, in the request in which they run."""

_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,63}")  # an xclbin has 64 bytes for it, the last one is 0
_SPLITS = re.compile(r"[\s'\"\\]")


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """What bitstream to build, from which options.

    Attributes:
        target: the platform that it is to run on.
        platform: name of a development platform, or its .xpfm file.
        out: folder of the products.
        work: folder in which ``build_dir.<target>`` is made.
        checks: of `CHECKS`; run before and after a kernel's synthesis. Not for csim and sw_emu.
    """

    target: BitstreamTarget
    platform: str = PLATFORM
    out: Path = Path("bitstreams")
    work: Path = Path()
    checks: tuple[str, ...] = ()

    @property
    def product(self) -> Path:
        """The xclbin."""
        return self.out / f"ecorl.{self.target}.xclbin"

    @property
    def folder(self) -> Path:
        """Work folder of Vitis, as an absolute path."""
        return (self.work / f"build_dir.{self.target}").resolve()


def check_request(request: BuildRequest) -> None:
    """Raise for a request that cannot be built, before anything is written.

    Raises:
        ConfigError: naming the option, its value and what is allowed.
        MissingToolError: the kernel sources are not installed.
    """
    if request.checks and request.target not in (BitstreamTarget.HW_EMU, BitstreamTarget.HW):
        raise ConfigError("--check", request.checks[0], f"none with target {request.target}")
    _check_platform(request)
    if request.target is not BitstreamTarget.CSIM:
        _check_paths(request)


def _check_platform(request: BuildRequest) -> None:
    """Check the platform: the map of channels and dies is for one card, so no other is accepted."""
    name = platform_name(request.platform)
    if not _NAME.fullmatch(name) or not _is_text(request.platform):
        allowed = "a name of at most 63 letters, digits and _ . : -, or an .xpfm file of such a one"
        raise ConfigError("--platform", request.platform, allowed)
    if request.target is BitstreamTarget.CSIM and name != PLATFORM:
        allowed = f"{PLATFORM} with target csim: its memory is that card's"
        raise ConfigError("--platform", request.platform, allowed)
    if CARD not in name.split("_"):
        allowed = f"one for a {CARD}, such as {PLATFORM}: channels and dies are mapped for that"
        raise ConfigError("--platform", request.platform, allowed)


def _check_paths(request: BuildRequest) -> None:
    """Check that no path has spaces, at which Vitis splits the line of flags that it gets."""
    paths = {"kernel sources": kernel_root(), "--work": request.folder.parent, "--out": request.out}
    for key, path in paths.items():
        whole = str(path.resolve())
        if _SPLITS.search(whole) or not _is_text(whole):
            allowed = "a path without spaces, quotes and backslashes: Vitis splits flags at them"
            raise ConfigError(key, whole, allowed)


def _is_text(value: str) -> bool:
    """Whether it can be written to config files and logs: bytes other than UTF-8 are surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
