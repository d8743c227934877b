"""Builds with stand-ins for Vitis: exact commands, files, and what remains when a step fails."""

from __future__ import annotations

import fcntl
import hashlib
import json
import subprocess
from pathlib import Path

import pytest

from ecorl.engines.fpga.bitstream import build as bitstream_build
from ecorl.engines.fpga.bitstream.build import LOCK, BuildRequest, build_bitstream
from ecorl.engines.fpga.bitstream.csynth import Deviation
from ecorl.engines.fpga.bitstream.manifest import (
    BitstreamTarget,
    check_bitstream,
    manifest_path,
    read_manifest,
)
from ecorl.engines.fpga.bitstream.xclbin import Kind, read_container
from ecorl.engines.fpga.csim.build import csim_library, kernel_root
from ecorl.engines.fpga.kernels.banks import PLATFORM
from ecorl.engines.fpga.kernels.interfaces import kernel_interfaces, read_qor
from ecorl.errors import BitstreamError, BuildError, ConfigError, MissingToolError

KERNELS = [k.kernel for k in kernel_interfaces()]


def products(own: BuildRequest) -> list[str]:
    """Files of a build; the lock of their folder stays."""
    found = own.out.iterdir() if own.out.exists() else []
    return sorted(p.name for p in found if p.name != LOCK)


# ---- csim ---------------------------------------------------------------------------------------


def test_csim_needs_no_vitis_and_holds_the_library(make_request, require_tool):
    require_tool("gxx")
    own, told = make_request("csim"), []
    manifest = build_bitstream(own, told.append)
    assert products(own) == ["ecorl.csim.json", "ecorl.csim.xclbin"]
    assert read_container(own.product).section(Kind.BITSTREAM) == csim_library("fast").read_bytes()
    assert manifest == check_bitstream(own.product, platform=PLATFORM, model=None, emulated=True)
    assert (manifest.provenance, manifest.built, manifest.target_clock_mhz) == (
        "emulated",
        True,
        245.0,
    )
    unknown = (manifest.clock_mhz, manifest.timing_met, manifest.utilisation, manifest.synthesis)
    assert unknown == (None, None, None, None)
    assert not own.folder.exists()


def test_a_product_is_put_in_place_under_the_lock_of_its_folder(
    make_request, monkeypatch, require_tool
):
    require_tool("gxx")
    own, held = make_request("csim"), []
    write = bitstream_build.write_whole

    def and_another_builds_after(path: Path, data: bytes) -> None:
        with (own.out / LOCK).open("w") as handle, pytest.raises(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held.append(path)
        write(path, data + b"of another")

    monkeypatch.setattr(bitstream_build, "write_whole", and_another_builds_after)
    manifest = build_bitstream(own, lambda line: None)
    assert held == [own.product]
    # The hash is of what this build made, so that the mixture is refused.
    made = own.product.read_bytes().removesuffix(b"of another")
    assert manifest.sha256 == hashlib.sha256(made).hexdigest()
    with pytest.raises(BitstreamError, match="SHA-256"):
        check_bitstream(own.product, platform=None, model=None, emulated=True)


# ---- hw and hw_emu ------------------------------------------------------------------------------


def test_hw_calls_the_tools_as_their_guides_say(fake, make_request):
    own = make_request("hw")
    build_bitstream(own, lambda line: None)
    folder = own.folder
    compiled = [
        ["v++", "-c", "--mode", "hls", "--config", f"{folder}/{kernel}/hls_config.cfg",
         "--work_dir", f"{folder}/{kernel}"]
        for kernel in KERNELS
    ]  # fmt: skip
    objects = [f"{folder}/{k.kernel}/{k.top}.xo" for k in kernel_interfaces()]
    linked = ["v++", "-l", "-t", "hw", "--platform", str(fake.xpfm), "--config",
              f"{folder}/connectivity.cfg", "--kernel_frequency", "245", "--temp_dir",
              f"{folder}/_x", "--report_dir", f"{folder}/reports", "--report_level", "2", "-o",
              f"{folder}/linked.hw.xclbin", *objects]  # fmt: skip
    assert fake.calls == [*compiled, linked]


def test_the_config_of_a_kernel_says_what_its_qor_says(fake, make_request):
    own = make_request("hw")
    build_bitstream(own, lambda line: None)
    lines = (own.folder / "gemm_int8" / "hls_config.cfg").read_text().splitlines()
    root, qor = kernel_root(), read_qor(kernel_root() / "gemm_int8")
    assert lines == [
        f"part={qor['part']}",
        "",
        "[hls]",
        "flow_target=vitis",
        "clock=245MHz",
        f"syn.file={root}/gemm_int8/gemm_int8.cpp",
        "syn.top=gemm_int8_krnl",
        f"syn.cflags=-std=c++17 -I{root}/include",
        f"syn.csimflags=-std=c++17 -I{root}/include -I{root}/sim -DECORL_CSIM=1 -DECORL_STRICT=1",
        f"tb.file={root}/gemm_int8/gemm_int8_tb.cpp",
        f"tb.file={root}/sim/gemm_int8_amx.cpp",
        f"tb.file={root}/sim/gemm_int8_host.cpp",
        f"tb.file={root}/sim/gemm_int8_native.cpp",
        f"tb.file={root}/sim/dataflow.cpp",
        f"tb.file={root}/sim/dataflow_dependence.cpp",
        f"tb.file={root}/sim/dataflow_fibre.cpp",
        f"tb.cflags=-std=c++17 -I{root}/include -I{root}/sim -DECORL_CSIM=1 -DECORL_STRICT=1",
        "package.output.format=xo",
        f"package.output.file={own.folder}/gemm_int8/gemm_int8_krnl.xo",
        "package.output.syn=1",
    ]


def test_hw_keeps_the_file_and_what_the_reports_say(fake, make_request):
    own = make_request("hw")
    manifest = build_bitstream(own, lambda line: None)
    assert products(own) == ["ecorl.hw.json", "ecorl.hw.xclbin"]
    assert manifest == check_bitstream(own.product, platform=PLATFORM, model=None, emulated=False)
    assert (manifest.tool, manifest.part) == ("v++ 2024.1", "xcu55c-fsvh2892-2L-e")
    assert (manifest.clock_mhz, manifest.timing_met) == (245.0, True)
    assert manifest.provenance == "synthesised"
    assert manifest.synthesis == dict.fromkeys(KERNELS, ())
    assert manifest.utilisation["dsp"] == {"used": 2054.0, "available": 9024.0, "percent": 22.76}
    assert set(manifest.utilisation) == {"lut", "register", "bram_tile", "uram", "dsp"}


def test_hw_emu_is_emulated_and_has_no_timing(fake, make_request):
    own = make_request("hw_emu")
    manifest = build_bitstream(own, lambda line: None)
    assert products(own) == ["ecorl.hw_emu.json", "ecorl.hw_emu.xclbin", "emconfig.json"]
    assert (manifest.provenance, manifest.timing_met, manifest.utilisation) == (
        "emulated",
        None,
        None,
    )
    assert set(manifest.synthesis) == set(KERNELS)
    assert fake.calls[-1] == ["emconfigutil", "--platform", str(fake.xpfm), "--nd", "1", "--od",
                              str(own.folder)]  # fmt: skip
    assert fake.calls[-2][:4] == ["v++", "-l", "-t", "hw_emu"]
    assert read_manifest(manifest_path(own.product)).target is BitstreamTarget.HW_EMU


def test_simulations_run_before_and_after_synthesis(fake, make_request):
    own = make_request("hw_emu", checks=("csim", "cosim"))
    build_bitstream(own, lambda line: None)
    where = ["--config", f"{own.folder}/gemm_int8/hls_config.cfg", "--work_dir",
             f"{own.folder}/gemm_int8"]  # fmt: skip
    assert fake.calls[:3] == [
        ["vitis-run", "--mode", "hls", "--csim", *where],
        ["v++", "-c", "--mode", "hls", *where],
        ["vitis-run", "--mode", "hls", "--cosim", *where],
    ]
    assert len(fake.calls) == 3 * len(KERNELS) + 2


def test_sw_emu_builds_and_says_that_amd_gives_it_up(fake, make_request, snapshot):
    said, own = [], make_request("sw_emu")
    build_bitstream(own, said.append)
    assert not any("deprecates" in line for line in said)
    root, folder = kernel_root(), own.folder
    assert fake.calls[0] == [
        "v++", "-c", "-t", "sw_emu", "--platform", str(fake.xpfm), "-k", "gemm_int8_krnl",
        f"-I{root}/include", "--temp_dir", f"{folder}/gemm_int8/_x", "-o",
        f"{folder}/gemm_int8/gemm_int8_krnl.xo", f"{root}/gemm_int8/gemm_int8.cpp",
    ]  # fmt: skip
    assert "--kernel_frequency" not in fake.calls[-2]
    fake.behave(release="2024.2")
    build_bitstream(own, said.append)
    (line,) = (line for line in said if "deprecates" in line)
    snapshot(line)
    assert read_manifest(manifest_path(own.product)).provenance == "emulated"


def test_a_platform_may_be_named_by_its_file(fake, make_request, monkeypatch):
    monkeypatch.delenv("PLATFORM_REPO_PATHS")
    own = make_request("hw", platform=str(fake.xpfm))
    assert build_bitstream(own, lambda line: None).platform == PLATFORM


# ---- what is missing ----------------------------------------------------------------------------


def test_without_vitis_one_line_says_so_and_nothing_is_left(
    make_request, monkeypatch, tmp_path, snapshot
):
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    for target in ("sw_emu", "hw_emu", "hw"):
        with pytest.raises(MissingToolError) as caught:
            build_bitstream(make_request(target), lambda line: None)
        snapshot(str(caught.value), target)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("tool", "target", "checks"),
    [("emconfigutil", "hw_emu", ()), ("vitis-run", "hw", ("csim",)), ("v++", "hw", ())],
)
def test_each_missing_tool_is_named(fake, make_request, tool, target, checks):
    (fake.bin / tool).unlink()
    with pytest.raises(MissingToolError, match=f"^{tool.replace('+', '[+]')} "):
        build_bitstream(make_request(target, checks=checks), lambda line: None)
    assert fake.calls == []


def test_without_the_platform_one_line_says_so_and_nothing_is_left(fake, make_request):
    own = make_request("hw", platform="xilinx_u55c_gen3x16_xdma_2_202110_1")
    with pytest.raises(MissingToolError, match=own.platform):
        build_bitstream(own, lambda line: None)
    assert not own.out.exists()
    assert not own.work.exists()


@pytest.mark.parametrize("release", ["2023.2", "next"])
def test_an_old_or_odd_release_is_refused(fake, make_request, release, snapshot):
    fake.behave(release=release)
    with pytest.raises(MissingToolError) as caught:
        build_bitstream(make_request("hw"), lambda line: None)
    snapshot(str(caught.value))


# ---- what goes wrong ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "program"),
    [("gemm_int8.csim", "vitis-run"), ("vector_ops.hls", "v++"), ("mha_int8.cosim", "vitis-run"),
     ("link", "v++"), ("emconfig", "emconfigutil")],
)  # fmt: skip
def test_a_failing_step_gives_its_first_error_and_its_log(fake, make_request, step, program):
    fake.behave(fail=step)
    own = make_request("hw_emu", checks=("csim", "cosim"))
    with pytest.raises(BuildError) as caught:
        build_bitstream(own, lambda line: None)
    log = own.folder / "logs" / f"{step}.log"
    assert str(caught.value) == (
        f"{program} failed: ERROR: [HLS 200-1470] invented failure of {step}; log: {log}"
    )
    assert log.is_file()
    assert products(own) == []


@pytest.mark.parametrize("step", ["gemm_int8.hls", "link", "emconfig"])
def test_a_step_that_leaves_nothing_is_a_failure(fake, make_request, step, snapshot):
    fake.behave(nothing=step)
    own = make_request("hw_emu")
    with pytest.raises(BuildError) as caught:
        build_bitstream(own, lambda line: None)
    snapshot(str(caught.value))
    assert products(own) == []


def test_what_a_build_before_left_does_not_pass_for_this_ones(fake, make_request):
    own = make_request("hw_emu")
    before = build_bitstream(own, lambda line: None)
    fake.behave(nothing="emconfig")
    with pytest.raises(BuildError, match=r"emconfig\.json"):
        build_bitstream(own, lambda line: None)
    assert read_manifest(manifest_path(own.product)) == before


def test_half_an_xclbin_is_not_kept(fake, make_request, snapshot):
    fake.behave(cut=True)
    own = make_request("hw")
    with pytest.raises(BuildError) as caught:
        build_bitstream(own, lambda line: None)
    snapshot(str(caught.value))
    assert products(own) == []


def test_a_failure_leaves_the_product_before_it(fake, make_request):
    own = make_request("hw")
    before = build_bitstream(own, lambda line: None)
    fake.behave(fail="link")
    with pytest.raises(BuildError):
        build_bitstream(own, lambda line: None)
    assert check_bitstream(own.product, platform=None, model=None, emulated=False) == before


def test_a_missed_clock_is_kept_and_said(fake, make_request):
    fake.behave(timing="failed")
    own = make_request("hw")
    manifest = build_bitstream(own, lambda line: None)
    assert (manifest.timing_met, manifest.target_clock_mhz, manifest.clock_mhz) == (
        False,
        245.0,
        122.0,
    )
    assert products(own) == ["ecorl.hw.json", "ecorl.hw.xclbin"]


def test_reports_that_are_missing_or_damaged_leave_their_figures_unknown(
    fake, make_request, snapshot
):
    own, said = make_request("hw"), []
    fake.behave(timing="none", damaged="utilisation", no_csynth="mha_int8")
    manifest = build_bitstream(own, said.append)
    assert (manifest.timing_met, manifest.utilisation) == (None, None)
    assert set(manifest.synthesis) == set(KERNELS) - {"mha_int8"}
    assert manifest.provenance is None
    snapshot("\n".join(line for line in said if "left out" in line))
    fake.behave(damaged="csynth")
    manifest = build_bitstream(own, said.append)
    assert (manifest.synthesis, manifest.provenance) == (None, None)
    fake.behave(damaged="timing")
    manifest = build_bitstream(own, said.append)
    assert (manifest.timing_met, manifest.provenance) == (None, "synthesised")


def test_a_kernel_that_falls_short_of_its_qor_is_named(fake, make_request):
    fake.behave(slow_loop="gemm_int8")
    manifest = build_bitstream(make_request("hw"), lambda line: None)
    assert manifest.synthesis["gemm_int8"] == (str(Deviation("loop", "LOAD_A", 1, 2)),)
    assert manifest.synthesis["vector_ops"] == ()


def test_sources_that_change_during_a_build_end_it(fake, make_request, monkeypatch, snapshot):
    digests = iter(["sha256:a", "sha256:b"])
    monkeypatch.setattr(bitstream_build, "kernels_digest", lambda: next(digests))
    own = make_request("hw")
    with pytest.raises(BuildError) as caught:
        build_bitstream(own, lambda line: None)
    snapshot(str(caught.value))
    assert products(own) == []


def test_kernels_that_disagree_on_the_clock_are_refused(fake, make_request, monkeypatch):
    clocks = iter([("part", 245.0), ("part", 300.0)] * 3)
    monkeypatch.setattr(bitstream_build.vitis, "part_and_clock", lambda folder: next(clocks))
    with pytest.raises(BuildError, match=r"245 MHz.*300 MHz"):
        build_bitstream(make_request("hw"), lambda line: None)


def test_a_folder_that_cannot_be_written_is_one_line(fake, make_request, snapshot):
    own = make_request("hw")
    own.out.write_text("a file")
    with pytest.raises(ConfigError) as caught:
        build_bitstream(own, lambda line: None)
    snapshot(str(caught.value))


def test_the_record_of_the_fake_is_that_of_its_calls(fake):
    """The stand-in refuses what the tools do not know: the tests above lean on it."""
    done = subprocess.run(
        [fake.bin / "v++", "-l", "-t", "hw", "--invented"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "[v++ 60-602]" in done.stdout
    assert json.loads((fake.bin / "calls.jsonl").read_text()) == [
        "v++", "-l", "-t", "hw", "--invented"]  # fmt: skip


def test_the_fake_splits_flags_as_a_compiler_does(fake, make_request):
    own = make_request("hw")
    build_bitstream(own, lambda line: None)
    config = own.folder / "gemm_int8" / "hls_config.cfg"
    include = f"-I{kernel_root()}/include"
    for other, word in (("-I/nowhere", "include folder /nowhere does not exist"),
                        (f"{include} there", "no such file or directory: 'there'")):  # fmt: skip
        changed = own.folder / "changed.cfg"
        changed.write_text(config.read_text().replace(include, other))
        where = ["--config", str(changed), "--work_dir", str(own.folder / "gemm_int8")]
        done = subprocess.run(
            [fake.bin / "v++", "-c", "--mode", "hls", *where],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 1
        assert word in done.stdout
