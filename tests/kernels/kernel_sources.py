"""What tests of every kernel folder do with its sources: benches, formatting, qor.json."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

from ecorl.engines.fpga.csim.build import ap_headers, kernel_root


def bench_output(kernel, build, folder):
    """Run a kernel's bench under AddressSanitizer and UBSan; what it prints."""
    command = ["make", "-s", "-C", str(kernel_root() / kernel), "tb", f"BUILD={build}"]
    finished = subprocess.run(
        [*command, "SANITIZE=1", f"PYTHON={sys.executable}", f"BUILD_DIR={folder}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


def output_alone(kernel, folder):
    """Run the bench as under Vitis: ap_int, all lanes, no counters, nothing of `sim`."""
    root, bench = kernel_root(), folder / "tb"
    shim = folder / "shim"
    shim.mkdir()
    shutil.copy(root / "sim" / "hls_stream.h", shim)
    sources = [str(path) for path in sorted((root / kernel).glob("*.cpp"))]
    flags = ["-O2", "-std=c++17", "-fwrapv", "-Wno-unknown-pragmas", f"-I{shim}"]
    includes = [f"-I{root / 'include'}", "-isystem", str(ap_headers())]
    subprocess.run(["g++", *flags, *includes, *sources, "-o", str(bench)], check=True)
    finished = subprocess.run([str(bench)], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout
    return finished.stdout


def badly_formatted(kernel, *more):
    """What clang-format says of a kernel's files and `more`, an empty string when nothing."""
    root = kernel_root()
    files = [*sorted((root / kernel).glob(f"{kernel}*.[ch]pp")), *root.glob(f"sim/{kernel}_*")]
    files += [root / name for name in more]
    clang_format = Path(sys.executable).with_name("clang-format")
    finished = subprocess.run(
        [str(clang_format), "--dry-run", "-Werror", *map(str, files)],
        capture_output=True,
        text=True,
        check=False,
    )
    return finished.stderr


def qor(kernel):
    return json.loads((kernel_root() / kernel / "qor.json").read_text())


def worth(resource, **values):
    """The number that a formula of qor.json gives."""
    known = {"ceil": math.ceil, **values, **resource}
    return eval(resource["formula"], {"__builtins__": {}}, known)
