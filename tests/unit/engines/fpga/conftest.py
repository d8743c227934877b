"""A kernel tree of one small source, for builds that take no time."""

from __future__ import annotations

import pytest

from ecorl.engines.fpga import build as build_module
from ecorl.engines.fpga.build import kernel_root

ANSWER = 'extern "C" int answer() { return HELPER; }\n'


@pytest.fixture
def tree(tmp_path, monkeypatch, require_tool):
    """A kernel tree of one small source, and a cache of its own."""
    require_tool("gxx")
    root = tmp_path / "hls_kernels"
    for folder in ("include", "sim", "thing"):
        (root / folder).mkdir(parents=True)
    (root / "common.mk").write_text((kernel_root() / "common.mk").read_text())
    (root / "include" / "helper.hpp").write_text("#define HELPER 42\n")
    (root / "thing" / "thing.cpp").write_text('#include "helper.hpp"\n' + ANSWER)
    (root / "thing" / "thing_tb.cpp").write_text("#error a test bench is no part of the library\n")
    monkeypatch.setattr(build_module, "kernel_root", lambda: root)
    monkeypatch.setenv("ECORL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CXX", raising=False)
    return root
