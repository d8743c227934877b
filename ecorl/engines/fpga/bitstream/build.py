"""Build a bitstream: the C-simulation's container anywhere, the others with AMD's Vitis.

No incomplete file ever lies among the products: a file gets its name when it is complete, its
manifest after it. Until then the hash in the manifest does not match the file.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from ecorl import __version__
from ecorl.engines.fpga.bitstream import csynth, vitis
from ecorl.engines.fpga.bitstream.manifest import (
    BitstreamTarget,
    Manifest,
    manifest_path,
    provenance_of,
    write_manifest,
)
from ecorl.engines.fpga.bitstream.vitis import platform_name
from ecorl.engines.fpga.bitstream.xclbin import container_bytes, parse_container, read_container
from ecorl.engines.fpga.csim.build import compiler_of, csim_library, kernel_root, kernels_digest
from ecorl.engines.fpga.csim.cache import locked
from ecorl.engines.fpga.kernels.banks import CARD, PLATFORM, card_memory, connectivity_config
from ecorl.engines.fpga.kernels.interfaces import (
    KernelInterface,
    kernel_interfaces,
    read_qor,
    shape_limits,
)
from ecorl.errors import BitstreamError, BuildError, ConfigError, SynthesisReportError
from ecorl.files import write_whole

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


T = TypeVar("T")
Tell = Callable[[str], None]

EMCONFIG = "emconfig.json"
LOCK = ".lock"
"""File in the folder of the products that a build locks while it writes there."""

_TIMING = ("*timing_summary_postroute_physopted.rpt", "*timing_summary_routed.rpt")
_UTILISATION = ("*full_util_routed.rpt", "*utilization_routed.rpt", "*utilization_placed.rpt")


def build_bitstream(request: BuildRequest, tell: Tell) -> Manifest:
    """Build a bitstream and its manifest.

    Args:
        request: what to build.
        tell: called with one line for each step.

    Returns:
        The manifest.

    Raises:
        MissingToolError: Vitis, the platform or a compiler is absent; nothing was written then.
        ConfigError: the request is inconsistent, or a folder cannot be written.
        BuildError: a step failed.
    """
    check_request(request)
    build = _build_csim if request.target is BitstreamTarget.CSIM else _build_with_vitis
    try:
        return build(request, tell)
    except OSError as error:
        where = error.filename or request.out
        allowed = f"a place that can be written ({error.strerror})"
        raise ConfigError("bitstream", str(where), allowed) from error


def _build_csim(request: BuildRequest, tell: Tell) -> Manifest:
    digest = kernels_digest()
    library = csim_library("fast", progress=tell)
    tool = f"ecorl {__version__}, {compiler_of(library) or 'unknown compiler'}"
    data = container_bytes(kernel_interfaces(), library.read_bytes(), card_memory())
    return _store(request, data, digest, tool, _Reports(None, None, None))


@dataclass(frozen=True, slots=True)
class _Reports:
    """Results from the tools' reports of a build; None where there is no report."""

    synthesis: dict[str, tuple[str, ...]] | None
    timing_met: bool | None
    utilisation: dict[str, dict[str, float | None]] | None


def _store(
    request: BuildRequest,
    data: bytes,
    digest: str,
    tool: str,
    reports: _Reports,
    settings: bytes | None = None,
) -> Manifest:
    """Write a product and its manifest into the folder of the products.

    Args:
        request: of the build.
        data: content of the xclbin.
        digest: of the kernel sources when the build began.
        tool: name and release of the tool that built it.
        reports: of the tools.
        settings: content of emconfig.json, for Vitis' emulations.
    """
    kernels, root = kernel_interfaces(), kernel_root()
    part, target_clock_mhz = _one_part(root, kernels)
    manifest = Manifest(
        file=request.product.name,
        target=request.target,
        platform=vitis.platform_name(request.platform),
        part=part,
        tool=tool,
        kernels_digest=digest,
        limits=shape_limits(root),
        # Of this build's bytes, not of the file: another build may have replaced it meanwhile.
        sha256=hashlib.sha256(data).hexdigest(),
        target_clock_mhz=target_clock_mhz,
        clock_mhz=parse_container(request.product, data).clock_mhz,
        timing_met=reports.timing_met,
        utilisation=reports.utilisation,
        synthesis=reports.synthesis,
        built=True,
        provenance=provenance_of(request.target, reports.synthesis),
    )
    if kernels_digest() != digest:
        raise BuildError("the kernel sources changed during the build: build again")
    request.out.mkdir(parents=True, exist_ok=True)
    # Builds of one target would mix their files, and all emulations share emconfig.json.
    with locked(request.out / LOCK):
        write_whole(request.product, data)
        if settings is not None:
            write_whole(request.out / EMCONFIG, settings)
        write_manifest(manifest, manifest_path(request.product))
    return manifest


def _one_part(root: Path, kernels: Sequence[KernelInterface]) -> tuple[str, float]:
    """Device and clock, which all kernels must share to be linked into one file."""
    found = {vitis.part_and_clock(root / k.kernel) for k in kernels}
    if len(found) != 1:
        told = ", ".join(sorted(f"{part} at {clock:g} MHz" for part, clock in found))
        raise BuildError(f"the kernels' qor.json disagree on part or clock: {told}")
    return found.pop()


# ---- with Vitis ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Job:
    """One build with Vitis.

    Attributes:
        request: what to build.
        tools: of the installation.
        platform: path of the platform's .xpfm file.
        root: folder of the kernels.
        tell: called with one line for each step.
    """

    request: BuildRequest
    tools: vitis.Vitis
    platform: str
    root: Path
    tell: Tell

    def run(self, step: str, program: str, *arguments: str) -> None:
        """Announce and run a tool."""
        self.tell(f"{step}: {program} (this can take hours; log {self.log(step)})")
        command = [self.tools.programs[program], *arguments]
        vitis.run_step(command, self.log(step), self.request.folder)

    def log(self, step: str) -> Path:
        """File with what a step printed."""
        return self.request.folder / "logs" / f"{step}.log"


def _build_with_vitis(request: BuildRequest, tell: Tell) -> Manifest:
    programs = ["v++"]
    programs += ["vitis-run"] * bool(request.checks)
    programs += ["emconfigutil"] * request.target.is_emulated
    tools = vitis.find_vitis(programs)
    job = _Job(request, tools, vitis.find_platform(request.platform), kernel_root(), tell)
    kernels = kernel_interfaces(job.root)
    connectivity = connectivity_config(kernels, card_memory())
    _one_part(job.root, kernels)
    if request.target is BitstreamTarget.SW_EMU and tools.release >= vitis.SW_EMU_GONE:
        tell("AMD deprecates sw_emu from Vitis 2024.2: TARGET=csim takes its place here")
    request.out.mkdir(parents=True, exist_ok=True)
    request.folder.mkdir(parents=True, exist_ok=True)
    # Two builds of one target would share their files, and one takes hours.
    with locked(request.folder / "lock", limit_s=None):
        return _vitis_steps(job, kernels, connectivity)


def _vitis_steps(job: _Job, kernels: Sequence[KernelInterface], connectivity: str) -> Manifest:
    """Compile, link, read the reports, store the product."""
    request = job.request
    compile_one = _compile_emulated if request.target is BitstreamTarget.SW_EMU else _compile_hls
    digest = kernels_digest()
    objects = [compile_one(job, kernel) for kernel in kernels]
    config = request.folder / "connectivity.cfg"
    config.write_text(connectivity, encoding="utf-8")
    linked = _link(job, kernels, objects, config)
    settings = _emulated_card(job) if request.target.is_emulated else None
    reports = _read_reports(job, kernels)
    return _store(request, linked.read_bytes(), digest, job.tools.name, reports, settings)


def _compile_hls(job: _Job, kernel: KernelInterface) -> Path:
    """Compile one kernel by high-level synthesis, with the requested simulations."""
    work = job.request.folder / kernel.kernel
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    xo, config = work / f"{kernel.top}.xo", work / "hls_config.cfg"
    config.write_text(vitis.hls_config(kernel, job.root, xo), encoding="utf-8")
    where = ("--config", str(config), "--work_dir", str(work))
    if "csim" in job.request.checks:
        job.run(f"{kernel.kernel}.csim", "vitis-run", "--mode", "hls", "--csim", *where)
    job.run(f"{kernel.kernel}.hls", "v++", "-c", "--mode", "hls", *where)
    if "cosim" in job.request.checks:
        job.run(f"{kernel.kernel}.cosim", "vitis-run", "--mode", "hls", "--cosim", *where)
    return _required(xo, job.log(f"{kernel.kernel}.hls"))


def _compile_emulated(job: _Job, kernel: KernelInterface) -> Path:
    """Compile one kernel for software emulation, which has no synthesis."""
    work = job.request.folder / kernel.kernel
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    xo, folder = work / f"{kernel.top}.xo", job.root / kernel.kernel
    sources = read_qor(folder).get("sources", [f"{kernel.kernel}.cpp"])
    job.run(
        f"{kernel.kernel}.sw_emu", "v++", "-c", "-t", "sw_emu", "--platform", job.platform,
        "-k", kernel.top, f"-I{job.root / 'include'}", "--temp_dir", str(work / "_x"),
        "-o", str(xo), *(str(folder / name) for name in sources),
    )  # fmt: skip
    return _required(xo, job.log(f"{kernel.kernel}.sw_emu"))


def _link(
    job: _Job, kernels: Sequence[KernelInterface], objects: Sequence[Path], config: Path
) -> Path:
    """Link into the build folder; `_store` copies the file to the products."""
    request, folder = job.request, job.request.folder
    _, clock_mhz = _one_part(job.root, kernels)
    linked = folder / f"linked.{request.target}.xclbin"
    linked.unlink(missing_ok=True)
    for name in ("_x", "reports"):
        shutil.rmtree(folder / name, ignore_errors=True)
    frequency = (
        [] if request.target is BitstreamTarget.SW_EMU else ["--kernel_frequency", f"{clock_mhz:g}"]
    )
    job.run(
        "link", "v++", "-l", "-t", str(request.target), "--platform", job.platform,
        "--config", str(config), *frequency,
        "--temp_dir", str(folder / "_x"), "--report_dir", str(folder / "reports"),
        "--report_level", "2",
        "-o", str(linked), *map(str, objects),
    )  # fmt: skip
    _required(linked, job.log("link"))
    try:
        read_container(linked)
    except BitstreamError as error:
        raise BuildError(f"v++ left no whole xclbin: {error}; log: {job.log('link')}") from error
    return linked


def _emulated_card(job: _Job) -> bytes:
    """Content of the file that tells Vitis' emulation which card it emulates."""
    folder = job.request.folder
    settings = folder / EMCONFIG
    settings.unlink(missing_ok=True)  # so that an earlier build's cannot pass for this one's
    job.run(
        "emconfig", "emconfigutil", "--platform", job.platform, "--nd", "1", "--od", str(folder)
    )
    return _required(settings, job.log("emconfig")).read_bytes()


def _required(path: Path, log: Path) -> Path:
    """Check that a step wrote a file that is not empty."""
    if not path.is_file() or path.stat().st_size == 0:
        raise BuildError(f"the step ended well but left no {path.name}; log: {log}")
    return path


# ---- reports ------------------------------------------------------------------------------------


def _read_reports(job: _Job, kernels: Sequence[KernelInterface]) -> _Reports:
    """Read the tools' reports; one that cannot be read is announced and counts as absent."""
    request = job.request
    if request.target is BitstreamTarget.SW_EMU:
        return _Reports(None, None, None)
    synthesis = {}
    for kernel in kernels:
        found = _read(job, partial(_shortfalls, job, kernel))
        if found is not None:
            synthesis[kernel.kernel] = found
    if request.target is not BitstreamTarget.HW:
        return _Reports(synthesis or None, None, None)
    timing, sites = _newest(request.folder, _TIMING), _newest(request.folder, _UTILISATION)
    is_met = None if timing is None else _read(job, partial(csynth.read_timing, timing))
    used = None if sites is None else _read(job, partial(csynth.read_utilisation, sites))
    return _Reports(synthesis or None, is_met, used or None)


def _read(job: _Job, reader: Callable[[], T]) -> T | None:
    """Read a report; None for one of another form, since a build of hours is worth keeping."""
    try:
        return reader()
    except SynthesisReportError as error:
        job.tell(f"left out of the manifest: {error}")
        return None


def _shortfalls(job: _Job, kernel: KernelInterface) -> tuple[str, ...] | None:
    """Points in which a kernel's csynth.xml falls short of its qor.json; None without a report."""
    work = job.request.folder / kernel.kernel
    report = csynth.synthesis_of(work / "hls" / "syn" / "report") or csynth.synthesis_of(work)
    if report is None:
        return None
    return tuple(map(str, csynth.check_qor(report, read_qor(job.root / kernel.kernel))))


def _newest(folder: Path, patterns: Sequence[str]) -> Path | None:
    """Find a report of the link: the newest of the first pattern that matches any."""
    for pattern in patterns:
        for place in ("reports", "_x"):
            found = sorted((folder / place).rglob(pattern), key=lambda p: p.stat().st_mtime)
            if found:
                return found[-1]
    return None
