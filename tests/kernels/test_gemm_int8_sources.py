"""gemm_int8 as source: its declarations, its test bench, its life outside the library."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ecorl.engines.fpga.csim import library as gemm_module
from ecorl.engines.fpga.csim.build import ap_headers, kernel_root


def test_constants_agree_with_the_header():
    text = (kernel_root() / "gemm_int8" / "gemm_int8.hpp").read_text()
    for name in ("TILE_M", "TILE_N", "TILE_K", "MAX_K", "BURST_TILES", "SETTLE_TRIPS"):
        value = re.search(rf"constexpr int {name} = (\d+);", text)
        assert value is not None
        assert int(value[1]) == getattr(gemm_module, name)


def test_qor_declares_what_the_source_holds():
    folder = kernel_root() / "gemm_int8"
    qor = json.loads((folder / "qor.json").read_text())
    source = (folder / "gemm_int8.cpp").read_text()
    found = {
        label: int(interval)
        for label, interval in re.findall(
            r"(\w+):\n\s+for \([^\n]*\n#pragma HLS PIPELINE II = (\d+)", source
        )
    }
    assert found == {loop["label"]: loop["ii"] for loop in qor["loops"]}
    tile = qor["tile"]
    assert (tile["m"], tile["n"], tile["k"], tile["max_k"]) == (
        gemm_module.TILE_M,
        gemm_module.TILE_N,
        gemm_module.TILE_K,
        gemm_module.MAX_K,
    )
    assert qor["dsp"]["count"] == tile["m"] // 2 * tile["n"] * tile["k"]
    assert qor["dsp"]["macs_per_cycle"] == 2 * qor["dsp"]["count"]
    assert f"void {qor['top']}(" in source


def test_a_queue_of_results_holds_two_bursts():
    """One leaves while the next is made: with less the array would wait for the memory."""
    bram = json.loads((kernel_root() / "gemm_int8" / "qor.json").read_text())["bram_18k"]
    source = (kernel_root() / "gemm_int8" / "gemm_int8.cpp").read_text()
    queues = re.findall(r"hls::stream<word_t, QUEUE_WORDS> rows\d+", source)
    assert len(queues) == bram["queues"]
    assert bram["queue"] == 2 * 16 * gemm_module.BURST_TILES
    assert bram["queues"] == gemm_module.TILE_M // 16


@pytest.mark.deep  # test_decoder_bits runs all kernels under sanitisers, too
@pytest.mark.parametrize("build", ["strict", "fast"])
def test_bench_under_sanitisers(require_tool, tmp_path, build):
    require_tool("gxx")
    require_tool("hls_headers")
    require_tool("make")
    command = ["make", "-s", "-C", str(kernel_root() / "gemm_int8"), "tb", f"BUILD={build}"]
    finished = subprocess.run(
        [*command, "SANITIZE=1", f"PYTHON={sys.executable}", f"BUILD_DIR={tmp_path}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert re.search(r"PASS gemm_int8: 48 .*\b0 wrong", finished.stdout)


def test_kernel_stands_alone_as_under_vitis(require_tool, tmp_path):
    """Without the macros of the C-simulation library: ap_int, all lanes, no counters."""
    require_tool("gxx")
    require_tool("hls_headers")
    root, bench = kernel_root(), tmp_path / "tb"
    shim = tmp_path / "shim"
    shim.mkdir()
    shutil.copy(root / "sim" / "hls_stream.h", shim)
    sources = [str(p) for p in sorted((root / "gemm_int8").glob("*.cpp"))]
    flags = ["-O2", "-std=c++17", "-Wno-unknown-pragmas", f"-I{root / 'include'}", f"-I{shim}"]
    subprocess.run(
        ["g++", *flags, "-isystem", str(ap_headers()), *sources, "-o", str(bench)], check=True
    )
    finished = subprocess.run([str(bench)], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout
    assert finished.stdout.startswith("PASS")


def test_stream_throws_on_underflow(require_tool, tmp_path):
    require_tool("gxx")
    source = tmp_path / "underflow.cpp"
    source.write_text(
        "#include <hls_stream.h>\n"
        "int main() { hls::stream<int> s; s.write(1); s.write(2);\n"
        "if (s.read() != 1 || s.read() != 2 || !s.empty()) return 1;\n"
        "try { s.read(); } catch (const std::underflow_error&) { return 0; } return 2; }\n"
    )
    program = tmp_path / "underflow"
    include = f"-I{kernel_root() / 'sim'}"
    subprocess.run(["g++", "-std=c++17", include, str(source), "-o", str(program)], check=True)
    assert subprocess.run([str(program)], check=False).returncode == 0


def test_sources_are_formatted(require_tool):
    require_tool("clang_format")
    clang_format = Path(sys.executable).with_name("clang-format")
    root = kernel_root()
    files = [
        *sorted((root / "gemm_int8").glob("*.[ch]pp")),
        *sorted((root / "sim").glob("gemm_int8*")),
        root / "sim" / "hls_stream.h",
        root / "include" / "ecorl_types.hpp",
        root / "include" / "packed_mac.hpp",
    ]
    finished = subprocess.run(
        [str(clang_format), "--dry-run", "-Werror", *map(str, files)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
