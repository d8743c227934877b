"""A kernel's test bench, its qor.json, and the decoder run through the kernels."""

from __future__ import annotations

import contextlib
import json
import math
import re
import shutil
import subprocess
import sys

from ecorl.engines.fpga.csim.build import ap_headers, kernel_root

RAMB18 = ((36, 512), (18, 1024), (9, 2048), (4, 4096), (2, 8192), (1, 16384))
"""Width and depth of a RAMB18E2 with one port to write and one to read."""


def run_bench(kernel, build, folder):
    """What the bench prints under AddressSanitizer and UBSan."""
    command = ["make", "-s", "-C", str(kernel_root() / kernel), "tb", f"BUILD={build}"]
    options = ["SANITIZE=1", f"PYTHON={sys.executable}", f"BUILD_DIR={folder}"]
    return _checked([*command, *options])


def run_alone(kernel, folder):
    """What the bench prints as under Vitis: ap_int, and nothing of the C-simulation."""
    root, bench, shim = kernel_root(), folder / "tb", folder / "shim"
    shim.mkdir()
    shutil.copy(root / "sim" / "hls_stream.h", shim)
    sources = [str(path) for path in sorted((root / kernel).glob("*.cpp"))]
    flags = ["-O1", "-std=c++17", "-Wno-unknown-pragmas", f"-I{root / 'include'}", f"-I{shim}"]
    _checked(["g++", *flags, "-isystem", str(ap_headers()), *sources, "-o", str(bench)])
    return _checked([str(bench)])


def _checked(command):
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


@contextlib.contextmanager
def kernels_chosen(library):
    """Inside, decoders of this library run through the kernels' top functions."""
    assert library.handle.rows_set_width(1) == 0
    try:
        assert library.handle.rows_width() == 1
        yield
    finally:
        assert library.handle.rows_set_width(0) == 0


# ---------------------------------------------------------------- qor.json


def qor_of(kernel):
    return json.loads((kernel_root() / kernel / "qor.json").read_text())


def constants_of(kernel):
    """The integer constants of the shared headers and the kernel's own, which shadow them."""
    root = kernel_root()
    known = {}
    headers = [
        root / "include" / f"ecorl_{name}.hpp" for name in ("lanes", "rows", "words", "products")
    ]
    for path in (*headers, root / kernel / f"{kernel}.hpp"):
        for name, text in re.findall(r"constexpr int (\w+) = ([^;]+);", path.read_text()):
            known[name] = _evaluated(text, known)
    return known


def _evaluated(text, known):
    names = {name: known[name] for name in re.findall(r"[A-Z]\w+", str(text))}
    return eval(str(text).replace("/", "//"), {"__builtins__": {}}, names)


def uram_of(arrays, known):
    """URAMs of arrays: 72 bits by 4,096 each."""
    return sum(
        _evaluated(a["banks"], known)
        * math.ceil(a["bits"] / 72)
        * math.ceil(_evaluated(a["depth"], known) / 4096)
        for a in arrays
    )


def bram_18k_of(bram, known):
    """RAMB18s of arrays, each bank in the shape that takes fewest, and of the memory ports."""
    count = 0
    for a in bram["arrays"]:
        depth = _evaluated(a["depth"], known)
        bank = min(math.ceil(a["bits"] / w) * math.ceil(depth / d) for w, d in RAMB18)
        count += _evaluated(a["banks"], known) * bank
    for port in bram["ports"]:
        count += math.ceil(512 / 36) * math.ceil(port["burst"] * port["outstanding"] / 512)
    return count


def ports_of(kernel):
    """The memory ports that the top function declares; the task shares one of them."""
    text = (kernel_root() / kernel / f"{kernel}.cpp").read_text().replace("\\\n", " ")
    found = re.findall(
        r"m_axi port = (\w+) .*max_\w+_burst_length = +(\d+) num_\w+_outstanding = (\d+)", text
    )
    return [{"port": p, "burst": int(b), "outstanding": int(o)} for p, b, o in found]


def lanes_of(entry, source):
    """Values that a pipelined loop takes a cycle: 16 where it goes over its lanes, by itself or in
    the function that the entry names."""
    loop = re.search(rf"\n *{entry['loop']}:\n.*\n.*II = 1\n(?s:(.*?))\n}}\n", source)[1]
    function = entry.get("lanes_in")
    if function is not None:
        assert f"{function}(" in loop
        loop += re.search(rf"\ninline [^;{{}}]*\b{function}\((?s:(.*?))\n}}\n", source)[1]
    return 16 if re.search(r"\b(lane|j) < LANES", loop) else 1


def pipelines():
    """The pipelines of simulated RTL by name, with their DSPs."""
    return {each["name"]: each for each in qor_of("rtl")["pipelines"]}


def check_dsps(qor, source):
    """DSPs follow from the lanes of each loop and the RTL of what a lane does."""
    known, labels = pipelines(), {loop["label"] for loop in qor["loops"]}
    total = 0
    for entry in qor["dsp"]["loops_of"]:
        assert entry["loop"] in labels
        assert lanes_of(entry, source) == entry["lanes"], entry["loop"]
        per_lane = sum(known[name]["dsp"] for name in entry["pipelines"]) + entry.get("beside", 0)
        assert entry["per_lane"] == per_lane, entry["loop"]
        total += entry["lanes"] * per_lane
    assert qor["dsp"]["count"] == total


def check_resources(kernel):
    """Counts of qor.json follow from its lists, and the lists name what the sources hold."""
    qor, known = qor_of(kernel), constants_of(kernel)
    for name, value in qor["maxima"].items():
        assert known[name] == value
    assert qor["uram"]["count"] == uram_of(qor["uram"]["arrays"], known)
    assert qor["bram_18k"]["count"] == bram_18k_of(qor["bram_18k"], known)
    assert qor["bram_18k"]["ports"] == ports_of(kernel)
    source = "".join(
        path.read_text()
        for folder in (kernel, "include", "vector_ops")
        for path in (kernel_root() / folder).glob("*.[ch]pp")
    )
    check_dsps(qor, source)
    for array in qor["uram"]["arrays"] + qor["bram_18k"]["arrays"]:
        function, *_, variable = array["name"].removesuffix(", doubled").split(".")
        assert re.search(rf"\b{function}\b", source), array["name"]
        assert re.search(rf"\b{variable}\b[\[(]", source), array["name"]  # an array or a FIFO
