"""The cache of the C-simulation: built once, mended when damaged, of use without a compiler."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from ecorl.engines.fpga.csim import build as build_module
from ecorl.engines.fpga.csim import cache as cache_module
from ecorl.engines.fpga.csim import compiler as compiler_module
from ecorl.engines.fpga.csim.build import LIBRARY_NAME, ap_headers, csim_library
from ecorl.engines.fpga.csim.cache import cache_folder, fresh_folder, locked
from ecorl.engines.fpga.csim.library import CsimLibrary
from ecorl.errors import BuildError, MissingToolError


def answer(path) -> int:
    return ctypes.CDLL(str(path)).answer()


def replace(library, data):
    """Put another file in a library's place; cut off, one that is loaded would end the process."""
    library.unlink()
    library.write_bytes(data)


def test_second_call_compiles_nothing(tree, monkeypatch):
    lines: list[str] = []
    first = csim_library("fast", progress=lines.append)
    assert answer(first) == 42
    assert " 1 kernel " in lines[0]
    assert str(first) in lines[-1]
    assert first.is_relative_to(cache_folder())

    def no_compilation(*_args):
        raise AssertionError("compiled again")

    monkeypatch.setattr(build_module, "_build_into", no_compilation)
    assert csim_library("fast", progress=lines.append) == first
    assert len(lines) == 3


def test_unwritable_cache_is_a_build_error(tree, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ECORL_CACHE", str(tmp_path / "file"))
    with pytest.raises(BuildError, match="cannot write"):
        csim_library("fast")


def test_two_processes_build_once(tree, tmp_path):
    """Both ask at once; the slow compiler's log says how often it compiled."""
    log = tmp_path / "log"
    slow = tmp_path / "slow-cxx"
    slow.write_text(
        f'#!/bin/sh\ncase "$*" in *" -c "*) echo compiled >> {log}; sleep 0.7;; esac\n'
        'exec g++ "$@"\n'
    )
    slow.chmod(0o755)
    code = textwrap.dedent(
        f"""
        from pathlib import Path
        from ecorl.engines.fpga.csim import build
        build.kernel_root = lambda: Path({str(tree)!r})
        print(build.csim_library("fast"))
        """
    )
    environment = {**os.environ, "CXX": str(slow)}
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=240)[0] for process in both]
    assert outputs[0] == outputs[1] != ""
    assert log.read_text().split() == ["compiled"]


# ---- damage


@pytest.mark.parametrize("damage", ["empty", "half", "missing", "no facts", "broken facts"])
def test_a_damaged_library_is_built_again(tree, damage, caplog):
    library = csim_library("fast")
    facts = library.parent / "build.json"
    if damage in ("empty", "half"):
        replace(library, library.read_bytes()[: 0 if damage == "empty" else 4000])
    elif damage == "missing":
        library.unlink()
    elif damage == "no facts":
        facts.unlink()
    else:
        facts.write_text('{"build":')
    assert csim_library("fast") == library
    assert answer(library) == 42
    assert "built anew" in caplog.text
    assert csim_library("fast", progress=pytest.fail) == library


@pytest.fixture
def builds(monkeypatch):
    """Counts the compilations."""
    built = []
    real = build_module._build_into
    monkeypatch.setattr(build_module, "_build_into", lambda *a: (built.append(1), real(*a))[1])
    return built


def test_a_library_that_does_not_load_is_built_again(tree, builds, monkeypatch, caplog):
    """Its bytes are those that were linked, but for another system: what the loader says counts."""
    library = csim_library("fast")
    replace(library, b"of another system")
    facts = library.parent / "build.json"
    digest = build_module._digest_of(library)
    facts.write_text(json.dumps(json.loads(facts.read_text()) | {"library_digest": digest}))
    assert csim_library("fast") == library
    monkeypatch.setattr("ecorl.engines.fpga.csim.library.declare", lambda *_: None)
    assert CsimLibrary.load("fast").handle.answer() == 42
    assert len(builds) == 2
    assert str(library) in caplog.text


def test_but_only_once(tree, builds):
    """A library of these sources that lacks a function will lack it again."""
    with pytest.raises(BuildError, match="gemm_int8_packed_bytes"):
        CsimLibrary.load("fast")
    assert len(builds) == 2


def test_damaged_headers_are_copied_again(tmp_path, monkeypatch, require_tool):
    require_tool("hls_headers")
    monkeypatch.setenv("ECORL_CACHE", str(tmp_path))
    header = ap_headers() / "ap_int.h"
    text = header.read_bytes()
    header.write_bytes(b"")
    assert ap_headers() == header.parent
    assert header.read_bytes() == text


def test_everything_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    flushed, target = [], tmp_path / "cache" / "key"
    real = os.fsync

    def fsync(descriptor):
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        flushed.append((path.name, target.exists()))
        real(descriptor)

    monkeypatch.setattr(cache_module.os, "fsync", fsync)
    with fresh_folder(target) as temporary:
        (temporary / "sub").mkdir()
        (temporary / "sub" / "file").write_text("text")
        name = temporary.name
    assert {("sub", False), ("file", False), (name, False)} <= set(flushed)
    assert flushed[-1] == ("cache", True)


def test_folders_of_killed_processes_go_after_a_day(tree):
    cache_folder().mkdir(parents=True)
    old, young = cache_folder() / ".building-old", cache_folder() / ".building-young"
    for folder in (old, young):
        folder.mkdir()
        (folder / "part.o").write_text("")
    a_day_ago_s = time.time() - 24 * 3600 - 60
    os.utime(old, (a_day_ago_s, a_day_ago_s))
    csim_library("fast")
    assert not old.exists()
    assert young.exists()


# ---- without a compiler


def test_a_complete_cache_needs_no_compiler(tree, monkeypatch, caplog):
    library = csim_library("fast")
    maker = json.loads((library.parent / "build.json").read_text())["compiler"]
    monkeypatch.setenv("CXX", "no-such-compiler")
    with caplog.at_level(logging.INFO):
        assert csim_library("fast") == library
    assert maker in caplog.text
    assert answer(library) == 42
    with pytest.raises(MissingToolError, match="no-such-compiler"):
        csim_library("fast", anew=True)
    # of other sources, of another build, or damaged, it is of no use
    if build_module.importlib.util.find_spec("hls4ml"):
        with pytest.raises(MissingToolError, match="no-such-compiler"):
            csim_library("strict")
    source = tree / "thing" / "thing.cpp"
    text = source.read_text()
    source.write_text(text + "// changed\n")
    with pytest.raises(MissingToolError, match="no-such-compiler"):
        csim_library("fast")
    source.write_text(text)
    assert csim_library("fast") == library
    replace(library, b"")
    with pytest.raises(MissingToolError, match="no-such-compiler"):
        csim_library("fast")


def test_a_strict_library_needs_no_headers_once_it_is_built(tree, monkeypatch, require_tool):
    require_tool("hls_headers")
    library = csim_library("strict")
    monkeypatch.setattr(build_module.importlib.util, "find_spec", lambda _name: None)
    assert csim_library("strict") == library
    facts = library.parent / "build.json"
    monkeypatch.undo()
    monkeypatch.setenv("ECORL_CACHE", str(tree.parent / "cache"))
    monkeypatch.setattr(build_module, "kernel_root", lambda: tree)
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert csim_library("strict") == library
    facts.write_text(json.dumps(json.loads(facts.read_text()) | {"headers": "ap_headers-others"}))
    with pytest.raises(MissingToolError, match="no-such-compiler"):
        csim_library("strict")


# ---- the key


def test_the_cpus_vector_instructions_are_part_of_the_key(tree, tmp_path, monkeypatch):
    first = csim_library("fast")
    cpuinfo = tmp_path / "cpuinfo"
    monkeypatch.setattr(compiler_module, "_CPUINFO", cpuinfo)
    folders = {first.parent}
    for flags, features in (
        ("flags\t\t: fpu avx2 sse4_2 pni", ["avx2", "sse4_2"]),
        ("processor : 0\nFeatures\t: fp asimd asimddp", ["asimd", "asimddp"]),
        ("nothing of the kind", []),
    ):
        cpuinfo.write_text(flags + "\nbugs : spectre_v1\n")
        folder = csim_library("fast").parent
        assert json.loads((folder / "build.json").read_text())["cpu"] == features
        folders.add(folder)
    cpuinfo.unlink()
    assert csim_library("fast").parent in folders, "a system that does not tell has no features"
    assert len(folders) == 4
    assert answer(folder / LIBRARY_NAME) == 42


# ---- $CXX


def test_cxx_may_be_several_words(tree, tmp_path, monkeypatch):
    plain = csim_library("fast")
    wrapper = tmp_path / "wrap"
    wrapper.write_text(f'#!/bin/sh\necho "$1" >> {tmp_path}/log\nexec "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("CXX", f"{wrapper} g++")
    assert csim_library("fast") == plain, "the same compiler, whatever calls it"
    monkeypatch.setenv("CXX", f"{wrapper} g++ -DOWN_FLAG")
    (tree / "thing" / "thing.cpp").write_text(
        '#ifdef OWN_FLAG\nextern "C" int answer() { return 7; }\n#endif\n'
    )
    assert answer(csim_library("fast")) == 7
    assert set((tmp_path / "log").read_text().split()) == {"g++"}
    monkeypatch.setenv("CXX", "g++")
    assert not hasattr(ctypes.CDLL(str(csim_library("fast"))), "answer")


@pytest.mark.parametrize("value", ['g++ "', "ccache-that-is-not-there g++"])
def test_a_cxx_that_is_no_command_is_said(tree, monkeypatch, value):
    monkeypatch.setenv("CXX", value)
    with pytest.raises(MissingToolError, match=r"C\+\+17|no command"):
        csim_library("fast")


@pytest.mark.parametrize(("version", "unique"), [("clang version 22.1.8", False), ("g++ 12", True)])
def test_options_of_gxx_alone_are_kept_from_clang(tree, tmp_path, monkeypatch, version, unique):
    wrapper = tmp_path / "cxx"
    wrapper.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo "{version}" && exit 0\n'
        f'echo "$@" >> {tmp_path}/log\nexec g++ "$@"\n'
    )
    wrapper.chmod(0o755)
    monkeypatch.setenv("CXX", str(wrapper))
    assert answer(csim_library("fast")) == 42
    (compiled,) = (li for li in (tmp_path / "log").read_text().splitlines() if " -c " in li)
    assert ("-fno-gnu-unique" in compiled) is unique
    assert "-fno-strict-aliasing" in compiled


def test_a_lock_that_another_process_keeps_is_waited_for_within_a_limit(tmp_path):
    path = tmp_path / "folder" / "lock"
    with locked(path), pytest.raises(TimeoutError, match=rf"{path} for 0\.2 s"):
        locked(path, limit_s=0.2).__enter__()
    with locked(path, limit_s=0.2):
        assert path.is_file()
