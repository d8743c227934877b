"""`ecorl fpga bitstream`, run as a user would, in this process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ecorl import cli
from ecorl.engines.fpga.kernels.banks import PLATFORM
from tests.fakes.vitis import FakeVitis

ROOT = Path(__file__).parents[3]


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """Run the command in a folder of its own: exit code and both streams."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")

    def call(*args):
        monkeypatch.setattr(sys, "argv", ["ecorl", "fpga", "bitstream", *map(str, args)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        streams = capsys.readouterr()
        return caught.value.code, streams.out, streams.err

    return call


@pytest.fixture
def fake(tmp_path, monkeypatch):
    made = FakeVitis(tmp_path / "vitis", PLATFORM)
    monkeypatch.setenv("PATH", f"{made.bin}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PLATFORM_REPO_PATHS", str(made.platforms))
    return made


def test_by_default_the_simulation_is_built_into_bitstreams(command, tmp_path, require_tool):
    require_tool("gxx")
    code, out, err = command()
    assert (code, err) == (0, "")
    assert "provenance: emulated" in out
    assert out.splitlines()[-1] == "bitstream: bitstreams/ecorl.csim.xclbin"
    assert sorted(p.name for p in (tmp_path / "bitstreams").iterdir()) == [
        ".lock",
        "ecorl.csim.json",
        "ecorl.csim.xclbin",
    ]


def test_a_cards_build_tells_clock_timing_and_use(command, fake, snapshot):
    code, out, err = command("--target", "hw", "--check", "csim")
    assert (code, err) == (0, "")
    snapshot(out)
    assert fake.calls[0][0] == "vitis-run"


def test_a_missed_clock_ends_with_one_and_keeps_the_file(command, fake, tmp_path, snapshot):
    fake.behave(timing="failed", slow_loop="gemm_int8")
    code, out, err = command("--target", "hw")
    assert code == 1
    assert len(err.splitlines()) == 1
    missed = [line for line in out.splitlines() if "timing" in line or "qor.json" in line]
    snapshot("\n".join([*missed, err]))
    manifest = json.loads((tmp_path / "bitstreams" / "ecorl.hw.json").read_text())
    assert manifest["timing_met"] is False


def test_a_failing_step_ends_with_one_line(command, fake, tmp_path, snapshot):
    fake.behave(fail="link")
    code, _, err = command("--target", "hw_emu", "--out", "there")
    assert (code, len(err.splitlines())) == (1, 1)
    snapshot(err)
    assert list((tmp_path / "there").iterdir()) == []


@pytest.mark.parametrize("target", ["sw_emu", "hw_emu", "hw"])
def test_without_vitis_the_command_ends_with_two(command, tmp_path, monkeypatch, target):
    monkeypatch.setenv("PATH", str(tmp_path))
    code, out, err = command("--target", target)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("ecorl: v++")
    assert "PATH" in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (("--target", "fpga"), "--target"),
        (("--platform", " "), "--platform"),
        (("--check", "csim"), "--check"),
        (("--target", "hw", "--check", "lint"), "--check"),
        (("--out", "file"), "--out"),
        (("--out", "~nobody-of-this-name/there"), "--out"),
        (("--work", "\udcff"), "--work"),
        (("--platform", "\udcff"), "--platform"),
        (("--platform", "p" * 64), "--platform"),
        (("--platform", "xilinx_u280_gen3x16_xdma_1_202211_1", "--target", "hw"), "--platform"),
        (("--work", "a b", "--target", "hw"), "--work"),
    ],
)
def test_a_wrong_option_is_one_line_and_two(command, tmp_path, args, word):
    (tmp_path / "file").write_text("")
    code, out, err = command(*args)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert word in line
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_make_hands_its_variables_to_the_command():
    # The tests themselves may run under a make, which would speak through these.
    kept = ("TARGET", "PLATFORM", "CHECKS", "MAKEFLAGS", "MFLAGS", "MAKELEVEL")
    plain = {k: v for k, v in os.environ.items() if k not in kept}

    def told(*given):
        done = subprocess.run(
            ["make", "-n", "-o", "install", "bitstream", *given],
            cwd=ROOT, capture_output=True, text=True, check=True, env=plain,
        )  # fmt: skip
        return " ".join(done.stdout.split())

    words = 'fpga bitstream --target "hw" --platform "p" --check csim --check cosim'
    assert words in told("TARGET=hw", "PLATFORM=p", "CHECKS=csim cosim")
    assert told().endswith('fpga bitstream --target "csim"')
