"""Compiling the C-simulation: what a change makes new, what fails and in which words."""

from __future__ import annotations

import ctypes
import json
import logging
import sys

import pytest

from ecorl.engines.fpga.csim import build as build_module
from ecorl.engines.fpga.csim.build import (
    AP_HEADERS,
    ap_headers,
    csim_library,
    kernel_root,
    kernel_sources,
    read_flags,
)
from ecorl.engines.fpga.csim.cache import cache_folder
from ecorl.errors import BuildError, MissingToolError


def answer(path) -> int:
    return ctypes.CDLL(str(path)).answer()


@pytest.mark.parametrize("name", ["thing/thing.cpp", "include/helper.hpp", "common.mk"])
def test_a_change_gives_a_new_library(tree, name):
    first = csim_library("fast")
    path = tree / name
    if name == "common.mk":
        path.write_text(path.read_text().replace("-O3", "-O2"))
    else:
        path.write_text(path.read_text().replace("HELPER 42", "HELPER 43") + "// changed\n")
    second = csim_library("fast")
    assert second != first
    assert first.is_file()
    assert answer(second) == (43 if name == "include/helper.hpp" else 42)


def test_a_new_compiler_version_gives_a_new_library(tree, tmp_path, monkeypatch):
    first = csim_library("fast")
    wrapper = tmp_path / "mycxx"
    wrapper.write_text('#!/bin/sh\n[ "$1" = --version ] && echo other 1.0 || exec g++ "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("CXX", str(wrapper))
    second = csim_library("fast")
    assert second.parent != first.parent
    facts = json.loads((second.parent / "build.json").read_text())
    assert facts["compiler"] == "other 1.0"
    assert facts["sources"] == ["thing/thing.cpp"]
    assert "-fno-strict-aliasing" in facts["compile_flags"]


def test_broken_source_is_a_build_error(tree):
    (tree / "thing" / "thing.cpp").write_text("int f() {\n  return nonsense;\n}\n")
    with pytest.raises(BuildError, match=r"thing/thing\.cpp .*thing\.cpp:2:.*error.*nonsense"):
        csim_library("fast")
    assert not list(cache_folder().glob("fast-*/")), "a failed build must leave no library"
    assert not list(cache_folder().glob(".building-*")), "nor its temporary folder"


def test_missing_symbol_at_link_time_is_a_build_error(tree):
    flags = (tree / "common.mk").read_text().replace("-shared", "-shared -Wl,--no-undefined")
    (tree / "common.mk").write_text(flags)
    (tree / "thing" / "thing.cpp").write_text('int g(); extern "C" int f() { return g(); }\n')
    with pytest.raises(BuildError, match=r"linking.*g\(\)"):
        csim_library("fast")


def test_broken_compiler_is_a_build_error(tree, tmp_path, monkeypatch):
    broken = tmp_path / "broken-cxx"
    broken.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo v1 && exit 0\necho oops >&2; exit 3\n'
    )
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(BuildError, match="oops"):
        csim_library("fast")
    broken.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(BuildError, match="--version failed"):
        csim_library("fast")


def test_missing_compiler_is_said(tree, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(MissingToolError, match="no-such-compiler"):
        csim_library("fast")


def test_unknown_build_is_refused():
    with pytest.raises(ValueError, match="fast"):
        csim_library("quick")  # type: ignore[arg-type]


def test_progress_goes_to_the_log_by_default(tree, caplog):
    with caplog.at_level(logging.INFO, logger=build_module.__name__):
        csim_library("fast")
    assert any("compiling" in record.message for record in caplog.records)


# ---- strict


def test_strict_sees_ap_int(tree, require_tool):
    require_tool("hls_headers")
    (tree / "thing" / "thing.cpp").write_text(
        "#include <ap_int.h>\n"
        'extern "C" int answer() { ap_int<4> x = 7; x += 1; return ECORL_STRICT * int(x); }\n'
    )
    assert answer(csim_library("strict")) == -8
    with pytest.raises(BuildError, match=r"ap_int\.h"):
        csim_library("fast")  # no ap_int headers on its path


def test_header_folder_holds_the_named_headers_only(tmp_path, monkeypatch, require_tool):
    require_tool("hls_headers")
    monkeypatch.setenv("ECORL_CACHE", str(tmp_path))
    imported = "hls4ml" in sys.modules
    folder = ap_headers()
    assert ("hls4ml" in sys.modules) == imported
    found = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    assert found == set(AP_HEADERS)
    for name in AP_HEADERS:
        head = (folder / name).read_text(errors="replace")[:2500]
        assert "Apache License" in head
        assert "proprietary" not in head.lower()
    assert ap_headers() == folder


def test_strict_without_hls4ml_says_what_to_install(tree, monkeypatch):
    monkeypatch.setattr(build_module.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(MissingToolError, match=r"ecorl\[strict\]"):
        csim_library("strict")
    assert answer(csim_library("fast")) == 42


def test_strict_with_incomplete_headers(tree, tmp_path, monkeypatch):
    monkeypatch.setattr(build_module, "_hls4ml_headers", lambda: tmp_path / "nowhere")
    with pytest.raises(MissingToolError, match="incomplete"):
        csim_library("strict")


# ---- sources and flags


def test_sources_travel_with_the_package():
    names = [p.relative_to(kernel_root()).as_posix() for p in kernel_sources(kernel_root())]
    assert "gemm_int8/gemm_int8.cpp" in names
    assert "sim/gemm_int8_host.cpp" in names
    assert not any(name.endswith("_tb.cpp") for name in names)
    assert len(names) == len(set(names))


def test_missing_sources_are_said(tmp_path, monkeypatch):
    monkeypatch.setattr(build_module.resources, "files", lambda _name: tmp_path / "ecorl")
    with pytest.raises(MissingToolError, match="reinstall"):
        kernel_root()


def test_flags_of_the_shared_file():
    flags = read_flags(kernel_root() / "common.mk")
    assert {"-O3", "-std=c++17", "-fno-strict-aliasing"} <= set(flags["CSIM_CXXFLAGS"])
    assert not any(flag.startswith("-march") for flag in flags["CSIM_CXXFLAGS"])
    assert "-DECORL_STRICT=1" in flags["CSIM_FLAGS_strict"]


def test_unreadable_flags_are_a_build_error(tmp_path):
    with pytest.raises(BuildError, match="flags"):
        read_flags(tmp_path / "common.mk")
