"""XRT without a card: what must be there, the module's cache, and the device behind it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ecorl.drivers.xrt.card import OpenCard, RunState
from ecorl.engines.fpga.bitstream.xclbin import write_container
from ecorl.engines.fpga.card import opening
from ecorl.engines.fpga.card.opening import can_emulate, emulated_pyxrt, installed_xrt
from ecorl.engines.fpga.kernels.banks import card_memory
from ecorl.engines.fpga.kernels.interfaces import kernel_interfaces
from ecorl.errors import BuildError, ConfigError, DriverError, MissingToolError
from tests.conftest import demand

KERNELS = kernel_interfaces()
TOPS = {k.kernel: k.top for k in KERNELS}


@pytest.fixture
def own_environment(monkeypatch):
    """What an opened device leaves in the environment goes with the test."""
    for name in (opening.MODE, opening.ROOT):
        monkeypatch.setenv(name, os.environ.get(name, ""))
        monkeypatch.delenv(name)


# ---- what must be there ------------------------------------------------------------------------


def one_line(error, *words):
    text = str(error.value)
    assert "\n" not in text
    for word in words:
        assert word in text


def test_without_xrt(monkeypatch):
    monkeypatch.setattr(opening, "installed_xrt", lambda: None)
    with pytest.raises(MissingToolError) as caught:
        emulated_pyxrt()
    one_line(caught, "noop driver is not on this machine", "apt install")
    assert not can_emulate()


def test_without_pybind11(monkeypatch):
    here = opening.InstalledXrt(Path("/nowhere"), Path("/nowhere"))
    monkeypatch.setattr(opening, "installed_xrt", lambda: here)
    monkeypatch.setitem(sys.modules, "pybind11", None)
    monkeypatch.delenv(opening.MODE, raising=False)
    with pytest.raises(MissingToolError) as caught:
        emulated_pyxrt()
    one_line(caught, "needs pybind11", "pip install")
    assert not can_emulate()


def test_another_emulation_mode_is_the_user_s(monkeypatch):
    here = opening.InstalledXrt(Path("/nowhere"), Path("/nowhere"))
    monkeypatch.setattr(opening, "installed_xrt", lambda: here)
    monkeypatch.setenv(opening.MODE, "hw_emu")
    with pytest.raises(ConfigError) as caught:
        emulated_pyxrt()
    one_line(caught, opening.MODE, "hw_emu", "noop, or not set")


def test_xrt_needs_headers_and_the_noop_driver(tmp_path, monkeypatch):
    before = installed_xrt()
    home = tmp_path / "xrt"
    (home / "include" / "xrt").mkdir(parents=True)
    (home / "include" / "xrt" / "xrt_kernel.h").write_text("")
    monkeypatch.setenv(opening.ROOT, str(home))
    assert installed_xrt() == before
    (home / "lib").mkdir()
    (home / "lib" / opening.DRIVER).write_text("")
    assert installed_xrt() == opening.InstalledXrt(home / "include", home / "lib")


def test_sources_that_do_not_compile_are_one_line(tmp_path, monkeypatch, own_environment):
    for tool in ("gxx", "xrt"):
        demand(tool)
    monkeypatch.setenv("ECORL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "sim" / "xrt").mkdir(parents=True)
    (tmp_path / "sim" / "xrt" / "module.cpp").write_text("#error no module today\n")
    monkeypatch.setattr(opening, "kernel_root", lambda: tmp_path)
    with pytest.raises(BuildError) as caught:
        emulated_pyxrt()
    one_line(caught, "the XRT emulation: ", "no module today")
    assert not list((tmp_path / "cache").glob("csim/xrt-*/*.so"))
    assert opening.ROOT not in os.environ


# ---- the cache ---------------------------------------------------------------------------------


@pytest.fixture
def module(own_environment):
    for tool in ("gxx", "xrt"):
        demand(tool)
    return emulated_pyxrt()


def test_the_module_is_compiled_once(module, monkeypatch):
    told = []
    assert emulated_pyxrt(told.append) is module
    assert told == []
    assert os.environ[opening.MODE] == "noop"
    # The environment that it leaves behind, which children inherit, leads to the same XRT.
    inherited = installed_xrt()
    monkeypatch.delenv(opening.ROOT)
    assert installed_xrt() == inherited


OPEN_ONE = """
import os, sys
from pathlib import Path
from ecorl.engines.fpga.card.opening import MODULE, emulated_pyxrt, installed_xrt
lines = []
first, xrt = emulated_pyxrt(lines.append), installed_xrt()
del sys.modules[MODULE]
emulated_pyxrt(lines.append)
assert installed_xrt() == xrt
first.device(0)
print(len(lines), Path(first.__file__).parent.name)
"""


# It stands in for the compiler, which takes 20 s: the module that `module` compiled is its answer.
ANSWERS_SLOWLY = """#!/bin/sh
case "$*" in *--version*) exec g++ "$@";; esac
echo compiled >> "{log}"
sleep 0.7
while [ "$1" != -o ]; do shift; done
exec cp "{compiled}" "$2"
"""


def test_two_processes_at_once_compile_it_once(module, tmp_path):
    log, compiler = tmp_path / "log", tmp_path / "slow-cxx"
    compiler.write_text(ANSWERS_SLOWLY.format(log=log, compiled=module.__file__))
    compiler.chmod(0o755)
    environment = {**os.environ, "ECORL_CACHE": str(tmp_path), "CXX": str(compiler)}
    for name in (opening.MODE, opening.ROOT):
        environment.pop(name, None)
    children = [
        subprocess.Popen(
            [sys.executable, "-c", OPEN_ONE], env=environment, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    said = [child.communicate(timeout=250)[0].split() for child in children]
    assert all(child.returncode == 0 for child in children)
    assert sorted(count for count, _ in said) == ["0", "1"]
    assert log.read_text().split() == ["compiled"]
    assert len({folder for _, folder in said}) == 1
    assert len(list(tmp_path.glob("csim/xrt-*/"))) == 1


# ---- the device --------------------------------------------------------------------------------

SOURCE = """
#include <stdexcept>
extern "C" {
void gemm_int8_krnl(const int* a, const int*, const int*, int* c, int m, int n, int k) {
    if (m < 0) throw std::runtime_error("a stream is read empty");
    c[0] = ANSWER + a[0] + m + n + k;
}
void vector_ops_krnl() {}
void kv_cache_router_krnl() {}
void mha_int8_krnl() {}
void score_aggregator_krnl() {}
}
"""


@pytest.fixture(scope="module")
def containers(tmp_path_factory):
    """Two containers whose libraries answer differently."""
    demand("gxx")
    folder, made = tmp_path_factory.mktemp("containers"), []
    source = folder / "tops.cpp"
    source.write_text(SOURCE)
    for answer in (1000, 2000):
        library = folder / f"{answer}.so"
        command = ["g++", "-shared", "-fPIC", f"-DANSWER={answer}", str(source), "-o", str(library)]
        subprocess.run(command, check=True)
        path = folder / f"{answer}.csim.xclbin"
        write_container(path, KERNELS, library.read_bytes(), card_memory())
        made.append(path)
    return made


class Gemm:
    """One kernel of an emulated card with its buffers."""

    def __init__(self, module, container, index=0):
        top = TOPS["gemm_int8"]
        self.card = OpenCard(module, index, container, TOPS.values())
        self.run = self.card.run_of(top)
        self.a, self.low, self.high, self.c = (self.card.allocate(64, (top, i)) for i in range(4))
        for i, buffer in enumerate((self.a, self.low, self.high, self.c)):
            self.run.set(i, buffer)

    def start(self, a, m):
        self.a.host.view(np.int32)[0] = a
        self.a.upload()
        for i, value in enumerate((m, 20, 3), start=4):
            self.run.set(i, value)
        self.run.start()
        self.run.wait(time.monotonic() + 240)
        return int(self.c.download().view(np.int32)[0])


def test_each_container_computes_by_its_own_library(module, containers):
    first, second = (Gemm(module, container) for container in containers)
    assert first.start(5, 100) == 1128
    assert second.start(6, 100) == 2129
    assert first.start(7, 100) == 1130
    del first, second
    assert Gemm(module, containers[1], index=1).start(0, 0) == 2023


def test_a_run_keeps_its_arguments_and_takes_new_ones(module, containers):
    one = Gemm(module, containers[0])
    assert [one.start(a, m) for a, m in ((1, 0), (2, 0), (2, 1))] == [1024, 1025, 1026]
    other = one.card.allocate(64, (TOPS["gemm_int8"], 0))
    other.host.view(np.int32)[0] = 500
    other.upload()
    one.run.set(0, other)
    del other  # its memory stays until the run has another
    assert one.start(9, 0) == 1523


def test_a_kernel_that_throws_ends_as_an_error_and_the_next_one_runs(module, containers):
    one = Gemm(module, containers[0])
    with pytest.raises(DriverError, match=r"gemm_int8_krnl .*ERROR"):
        one.start(1, -1)
    assert one.run.state() is RunState.FAILED
    assert one.start(1, 1) == 1025


def test_memory_of_the_card_is_apart_and_holds_anything_at_first(module, containers):
    one = Gemm(module, containers[0])
    assert (one.a.download() == 0xA5).all()
    one.c.host[:] = 0
    assert one.start(1, 1) == 1025


def test_xrt_checks_names_banks_and_bounds(module, containers, tmp_path):
    one = Gemm(module, containers[0])
    with pytest.raises(DriverError, match="kernel no_krnl"):
        OpenCard(module, 0, containers[0], ["no_krnl"])
    with pytest.raises(DriverError, match="group_id"):
        one.card.allocate(64, (TOPS["gemm_int8"], 4))
    with pytest.raises(DriverError, match="argument 3"):
        one.run.set(3, one.a)
    (tmp_path / "no.csim.xclbin").write_bytes(b"no container")
    with pytest.raises(DriverError, match=r"no\.csim\.xclbin .*card 0"):
        OpenCard(module, 0, tmp_path / "no.csim.xclbin", TOPS.values())
    path = tmp_path / "x.csim.xclbin"
    write_container(path, KERNELS, b"no library", card_memory())
    with pytest.raises(DriverError, match="library"):
        OpenCard(module, 0, path, TOPS.values())
