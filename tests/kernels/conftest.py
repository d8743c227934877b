"""A library of the forward with AddressSanitizer and UBSan in it."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from ecorl.engines.fpga.csim.build import kernel_root, kernel_sources, read_flags


@pytest.fixture(scope="session")
def sanitized_library(tmp_path_factory):
    """What to preload, and the path of the library."""
    compiler = shutil.which("g++")
    root = kernel_root()
    flags = read_flags(root / "common.mk")
    path = tmp_path_factory.mktemp("sanitized") / "lib.so"
    names = ("CSIM_CXXFLAGS", "CSIM_FLAGS_gcc", "CSIM_FLAGS_fast", "CSIM_SANITIZE", "CSIM_LDFLAGS")
    chosen = [flag for name in names for flag in flags[name]]
    includes = [f"-I{root / 'include'}", f"-I{root / 'sim'}"]
    sources = [str(source) for source in kernel_sources(root)]
    subprocess.run([compiler, *chosen, *includes, *sources, "-o", str(path)], check=True)
    found = [
        subprocess.run(
            [compiler, f"-print-file-name={name}"], check=True, capture_output=True, text=True
        ).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    return " ".join(found), path
