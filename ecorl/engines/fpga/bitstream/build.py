"""Build a bitstream: the C-simulation's container anywhere, the others with AMD's Vitis.

Nothing half-made ever stands among the products: a file gets its name when it is whole, the
manifest after it. While the two do not belong together, the hash in the manifest says so.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from ecorl import __version__
from ecorl.engines.fpga.bitstream import vitis
from ecorl.engines.fpga.bitstream.check import provenance_of
from ecorl.engines.fpga.bitstream.csynth import check_qor, synthesis_of
from ecorl.engines.fpga.bitstream.manifest import (
    BitstreamTarget,
    Manifest,
    manifest_path,
    write_manifest,
)
from ecorl.engines.fpga.bitstream.request import BuildRequest, check_request
from ecorl.engines.fpga.bitstream.vivado import read_timing, read_utilisation
from ecorl.engines.fpga.bitstream.xclbin import container_bytes, parse_container, read_container
from ecorl.engines.fpga.csim.build import compiler_of, csim_library, kernel_root, kernels_digest
from ecorl.engines.fpga.csim.cache import locked
from ecorl.engines.fpga.kernels.banks import card_memory, connectivity_config
from ecorl.engines.fpga.kernels.interfaces import KernelInterface, kernel_interfaces, read_qor
from ecorl.engines.fpga.kernels.limits import shape_limits
from ecorl.errors import BitstreamError, BuildError, ConfigError, SynthesisReportError
from ecorl.files import write_whole

T = TypeVar("T")
Tell = Callable[[str], None]

EMCONFIG = "emconfig.json"
LOCK = ".lock"
"""File in the folder of the products that a build holds while it puts its own there."""

_TIMING = ("*timing_summary_postroute_physopted.rpt", "*timing_summary_routed.rpt")
_UTILISATION = ("*full_util_routed.rpt", "*utilization_routed.rpt", "*utilization_placed.rpt")


def build_bitstream(request: BuildRequest, tell: Tell) -> Manifest:
    """Build what is ordered, with its manifest.

    Args:
        request: what.
        tell: receives one line a step.

    Raises:
        MissingToolError: Vitis, the platform or a compiler is absent; nothing was written then.
        ConfigError: the request does not make sense, or a folder cannot be written.
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
    return _keep(request, _Product(data, digest, tool, _Reports(None, None, None)))


@dataclass(frozen=True, slots=True)
class _Reports:
    """What the tools said of a build; None where they did not."""

    synthesis: dict[str, tuple[str, ...]] | None
    timing_met: bool | None
    utilisation: dict[str, dict[str, float | None]] | None


@dataclass(frozen=True, slots=True)
class _Product:
    """What a build has made: the file's content, and what its manifest says of it.

    Attributes:
        data: content of the xclbin.
        digest: of the kernel sources when the build began.
        tool: who made it.
        reports: of the tools.
        settings: content of emconfig.json, for Vitis' emulations.
    """

    data: bytes
    digest: str
    tool: str
    reports: _Reports
    settings: bytes | None = None


def _keep(request: BuildRequest, made: _Product) -> Manifest:
    """Put what was made among the products, with its manifest."""
    manifest = _manifest_of(request, made)
    if kernels_digest() != made.digest:
        raise BuildError("the kernel sources changed during the build: build again")
    request.out.mkdir(parents=True, exist_ok=True)
    # Builds of one target would mix their files, and all emulations share emconfig.json.
    with locked(request.out / LOCK):
        write_whole(request.product, made.data)
        if made.settings is not None:
            write_whole(request.out / EMCONFIG, made.settings)
        write_manifest(manifest, manifest_path(request.product))
    return manifest


def _manifest_of(request: BuildRequest, made: _Product) -> Manifest:
    kernels, root = kernel_interfaces(), kernel_root()
    part, target_clock_mhz = _one_part(root, kernels)
    return Manifest(
        file=request.product.name,
        target=request.target,
        platform=vitis.platform_name(request.platform),
        part=part,
        tool=made.tool,
        kernels_digest=made.digest,
        limits=shape_limits(root),
        # Of what this build made, not of what lies there: another build may have been there since.
        sha256=hashlib.sha256(made.data).hexdigest(),
        target_clock_mhz=target_clock_mhz,
        clock_mhz=parse_container(request.product, made.data).clock_mhz,
        timing_met=made.reports.timing_met,
        utilisation=made.reports.utilisation,
        synthesis=made.reports.synthesis,
        built=True,
        provenance=provenance_of(request.target, made.reports.synthesis),
    )


def _one_part(root: Path, kernels: Sequence[KernelInterface]) -> tuple[str, float]:
    """Device and clock of all kernels, which are linked into one file."""
    found = {vitis.part_and_clock(root / k.kernel) for k in kernels}
    if len(found) != 1:
        told = ", ".join(sorted(f"{part} at {clock:g} MHz" for part, clock in found))
        raise BuildError(f"the kernels' qor.json disagree on part or clock: {told}")
    return found.pop()


# ---- with Vitis ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Job:
    """One build with Vitis: the request, the tools, and what the platform's name stands for."""

    request: BuildRequest
    tools: vitis.Vitis
    platform: str
    root: Path
    tell: Tell

    def run(self, step: str, program: str, *arguments: str) -> None:
        """Run a tool and say so."""
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
    with locked(request.folder / "lock"):  # two builds of one target would share their files
        return _vitis_steps(job, kernels, connectivity)


def _vitis_steps(job: _Job, kernels: Sequence[KernelInterface], connectivity: str) -> Manifest:
    """Compile, link, read the reports, keep the product."""
    request = job.request
    compile_one = _compile_emulated if request.target is BitstreamTarget.SW_EMU else _compile_hls
    digest = kernels_digest()
    objects = [compile_one(job, kernel) for kernel in kernels]
    config = request.folder / "connectivity.cfg"
    config.write_text(connectivity, encoding="utf-8")
    linked = _link(job, kernels, objects, config)
    settings = _emulated_card(job) if request.target.is_emulated else None
    reports = _read_reports(job, kernels)
    return _keep(request, _Product(linked.read_bytes(), digest, job.tools.name, reports, settings))


def _compile_hls(job: _Job, kernel: KernelInterface) -> Path:
    """One kernel by high-level synthesis, with the simulations that are asked for."""
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
    return _made(xo, job.log(f"{kernel.kernel}.hls"))


def _compile_emulated(job: _Job, kernel: KernelInterface) -> Path:
    """One kernel for software emulation, which has no synthesis."""
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
    return _made(xo, job.log(f"{kernel.kernel}.sw_emu"))


def _link(
    job: _Job, kernels: Sequence[KernelInterface], objects: Sequence[Path], config: Path
) -> Path:
    """Link to a name in the build folder; it gets its place among the products when all is well."""
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
    _made(linked, job.log("link"))
    try:
        read_container(linked)
    except BitstreamError as error:
        raise BuildError(f"v++ left no whole xclbin: {error}; log: {job.log('link')}") from error
    return linked


def _emulated_card(job: _Job) -> bytes:
    """Content of the file that tells Vitis' emulation which card it stands for."""
    folder = job.request.folder
    settings = folder / EMCONFIG
    settings.unlink(missing_ok=True)  # that of a build before would pass for this one's
    job.run(
        "emconfig", "emconfigutil", "--platform", job.platform, "--nd", "1", "--od", str(folder)
    )
    return _made(settings, job.log("emconfig")).read_bytes()


def _made(path: Path, log: Path) -> Path:
    """What a step must have left."""
    if not path.is_file() or path.stat().st_size == 0:
        raise BuildError(f"the step ended well but left no {path.name}; log: {log}")
    return path


# ---- reports ------------------------------------------------------------------------------------


def _read_reports(job: _Job, kernels: Sequence[KernelInterface]) -> _Reports:
    """What the tools' reports say. One that cannot be read is told of and stays unknown."""
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
    summary = None if timing is None else _read(job, partial(read_timing, timing))
    use = None if sites is None else _read(job, partial(read_utilisation, sites))
    used = None if use is None else {k: v for k, v in asdict(use).items() if v is not None}
    return _Reports(synthesis or None, None if summary is None else summary.is_met, used or None)


def _read(job: _Job, reader: Callable[[], T]) -> T | None:
    """What a report says; a build of hours is not thrown away because a report has another form."""
    try:
        return reader()
    except SynthesisReportError as error:
        job.tell(f"left out of the manifest: {error}")
        return None


def _shortfalls(job: _Job, kernel: KernelInterface) -> tuple[str, ...] | None:
    """In what a kernel's csynth.xml falls short of its qor.json; None without a csynth.xml."""
    work = job.request.folder / kernel.kernel
    report = synthesis_of(work / "hls" / "syn" / "report") or synthesis_of(work)
    if report is None:
        return None
    return tuple(map(str, check_qor(report, read_qor(job.root / kernel.kernel))))


def _newest(folder: Path, patterns: Sequence[str]) -> Path | None:
    """A report of the link: the first pattern that finds one, the newest of those."""
    for pattern in patterns:
        for place in ("reports", "_x"):
            found = sorted((folder / place).rglob(pattern), key=lambda p: p.stat().st_mtime)
            if found:
                return found[-1]
    return None
