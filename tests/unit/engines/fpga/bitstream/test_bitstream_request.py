"""Orders that are refused before anything is written."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from ecorl.engines.fpga.bitstream import build as bitstream_order
from ecorl.engines.fpga.bitstream.build import build_bitstream
from ecorl.engines.fpga.csim.build import kernel_root
from ecorl.engines.fpga.kernels.banks import PLATFORM
from ecorl.errors import ConfigError
from tests.fakes.vitis import FakeVitis

VITIS = ("sw_emu", "hw_emu", "hw")


def refused(own: bitstream_order.BuildRequest) -> str:
    """The one line with which a request is refused; it leaves nothing."""
    with pytest.raises(ConfigError) as caught:
        build_bitstream(own, lambda line: None)
    assert "\n" not in str(caught.value)
    assert not own.out.exists()
    assert not own.work.exists()
    return str(caught.value)


def test_simulations_are_refused_where_there_is_no_synthesis(make_request, snapshot):
    snapshot(refused(make_request("sw_emu", checks=("csim",))))


# ---- platforms ---------------------------------------------------------------------------------


@pytest.mark.parametrize("other", ["xilinx_u55c_gen3x16_xdma_2_202110_1", "platform_a"])
def test_the_simulation_is_of_one_platform(make_request, other):
    line = refused(make_request("csim", platform=other))
    assert line.startswith(f"--platform = {other!r}: ")
    assert f" {PLATFORM} " in line


@pytest.mark.parametrize("target", VITIS)
@pytest.mark.parametrize("other", ["xilinx_u280_gen3x16_xdma_1_202211_1", "u55c2_xdma"])
def test_a_platform_of_another_card_is_refused(fake, make_request, tmp_path, target, other):
    """Though it is installed."""
    FakeVitis(tmp_path / "more", other).xpfm.parent.rename(fake.platforms / other)
    line = refused(make_request(target, platform=other))
    assert f"--platform = {other!r}: " in line
    assert PLATFORM in line
    assert fake.calls == []


def test_what_is_no_platforms_name_is_refused(make_request, snapshot):
    names = (
        "xilinx_u55c_" + "1" * 52, "xilinx_u55c_\udcff", "xilinx u55c", "xilinx_u55c_é",
        "a\nb_u55c", "/there/\udcff/xilinx_u55c_gen3x16_xdma_3_202210_1.xpfm",
    )  # fmt: skip
    lines = [refused(make_request("csim", platform=name)) for name in names]
    assert [refused(make_request("hw", platform=name)) for name in names] == lines
    snapshot("\n".join(lines))


# ---- paths -------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", VITIS)
@pytest.mark.parametrize("name", ["a b", "a\tb", "it's", "a\\b", "\udcff"])
@pytest.mark.parametrize("key", ["out", "work"])
def test_paths_that_vitis_would_split_are_refused(fake, make_request, tmp_path, target, name, key):
    own = make_request(target)
    own = replace(own, **{key: tmp_path / name / key})
    line = refused(own)
    path = str(tmp_path / name / key)
    assert line.startswith(f"--{key} = {path!r}: ")
    assert fake.calls == []


def test_a_link_to_such_a_path_is_refused(fake, make_request, tmp_path, snapshot):
    (tmp_path / "a b").mkdir()
    (tmp_path / "plain").symlink_to(tmp_path / "a b")
    own = make_request("hw")
    own = replace(own, **{"work": tmp_path / "plain" / "work"})
    snapshot(refused(own))


def test_kernel_sources_at_such_a_path_are_refused(fake, make_request, tmp_path, monkeypatch):
    root = tmp_path / "my kernels"
    shutil.copytree(kernel_root(), root, ignore=shutil.ignore_patterns("*.o", "__pycache__"))
    monkeypatch.setattr(bitstream_order, "kernel_root", lambda: root)
    assert repr(str(root)) in refused(make_request("hw"))


def test_the_simulation_takes_any_path(make_request, tmp_path, require_tool):
    require_tool("gxx")
    own = make_request("csim")
    own = replace(own, **{"out": tmp_path / "a b" / "é"})
    assert build_bitstream(own, lambda line: None).built
    assert own.product.is_file()
