"""What the tests of the kernels and cards share: a small kernel tree, stand-ins, models."""

from __future__ import annotations

import contextlib
import os

import pytest

from ecorl.engines.fpga.bitstream.build import BuildRequest
from ecorl.engines.fpga.bitstream.manifest import BitstreamTarget
from ecorl.engines.fpga.csim import build as build_module
from ecorl.engines.fpga.csim.build import kernel_root
from ecorl.engines.fpga.kernels.banks import PLATFORM
from tests.conftest import demand
from tests.fakes import cards
from tests.fakes.vitis import FakeVitis

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


@pytest.fixture(scope="session")
def card_root(tmp_path_factory):
    """Where the small models of `tests.fakes.cards` are saved."""
    for tool in ("gxx", "torch"):
        demand(tool)
    return tmp_path_factory.mktemp("card_models")


@pytest.fixture
def make_cards(card_root):
    """Makes cards in pure Python, which are closed at the end; see `tests.fakes.cards.Cards`."""
    with contextlib.ExitStack() as stack:

        def make(*faults, **options):
            container = cards.container_in(card_root)
            return stack.enter_context(cards.Cards(container, *faults, **options))

        yield make


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Stand-ins for Vitis 2024.1 and the U55C's platform, and nothing else of AMD."""
    made = FakeVitis(tmp_path / "vitis", PLATFORM)
    monkeypatch.setenv("PATH", f"{made.bin}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PLATFORM_REPO_PATHS", str(made.platforms))
    monkeypatch.delenv("XILINX_VITIS", raising=False)
    return made


@pytest.fixture
def make_request(tmp_path):
    """Makes build requests with the folders of this test."""

    def make(target: str, **changes: object) -> BuildRequest:
        return BuildRequest(
            BitstreamTarget(target), out=tmp_path / "bitstreams", work=tmp_path / "work", **changes
        )

    return make
