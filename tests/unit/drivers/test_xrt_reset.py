"""A reset by XRT's tool: its command line, and what it may answer."""

from __future__ import annotations

import os
import time

import psutil
import pytest

from ecorl.drivers.xrt import reset as xrt_reset
from ecorl.drivers.xrt.reset import TOOLS, reset_card
from ecorl.errors import DriverError, DriverTimeout, LibraryNotFound

ADDRESS = "0000:3b:00.1"
DONE = f"echo 'Successfully reset Device[{ADDRESS}]'"


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """Puts a script in the place of a tool; its arguments are written to a file."""
    monkeypatch.delenv("XILINX_XRT", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def make(script, name=TOOLS[0], folder=tmp_path):
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / name
        path.write_text(f'#!/bin/sh\necho "$0 $@" >> {tmp_path}/calls\n{script}\n')
        path.chmod(0o755)
        return tmp_path / "calls"

    return make


def test_the_exact_command_line(tool, tmp_path):
    calls = tool(DONE)
    reset_card(ADDRESS)
    assert calls.read_text() == f"{tmp_path}/xrt-smi reset --device {ADDRESS} --force\n"


def test_the_older_tool_where_there_is_no_newer_one(tool, tmp_path):
    calls = tool(DONE, "xbutil")
    reset_card(ADDRESS)
    assert calls.read_text().startswith(f"{tmp_path}/xbutil reset")
    tool(DONE, "xrt-smi")
    reset_card(ADDRESS)
    assert calls.read_text().splitlines()[1].startswith(f"{tmp_path}/xrt-smi reset")


def test_the_tool_of_the_installed_xrt_comes_first(tool, tmp_path, monkeypatch):
    tool("exit 1")
    calls = tool(DONE, folder=tmp_path / "xrt" / "bin")
    monkeypatch.setenv("XILINX_XRT", str(tmp_path / "xrt"))
    reset_card(ADDRESS)
    assert calls.read_text().startswith(f"{tmp_path}/xrt/bin/xrt-smi")


def test_a_reset_that_fails_says_why_in_one_line(tool, snapshot):
    lines = []
    for script in (
        "echo first >&2; echo the card is lost >&2; exit 1",
        "echo said on standard output; exit 2",
        "printf '\\377\\n'; exit 3",
        "exit 4",
        "kill -9 $$",
        # XRT's tool ends with 0 here all the same.
        "echo 'Reset failed on Device[x]'; exit 0",
        "exit 0",
    ):
        tool(script)
        with pytest.raises(DriverError) as caught:
            reset_card(ADDRESS)
        lines.append(str(caught.value))
    snapshot("\n".join(lines))


def test_a_reset_that_does_not_end_is_ended_with_its_children(tool, tmp_path, monkeypatch):
    monkeypatch.setattr(xrt_reset, "RESET_S", 0.5)
    tool(f"sleep 600 &\necho $! > {tmp_path}/child\nwait")
    with pytest.raises(DriverTimeout, match=r"^xrt-smi .*0\.5 s"):
        reset_card(ADDRESS)
    child = int((tmp_path / "child").read_text())
    for _ in range(500):
        try:
            if psutil.Process(child).status() == psutil.STATUS_ZOMBIE:
                break
        except psutil.NoSuchProcess:
            break
        time.sleep(0.01)
    else:
        os.kill(child, 9)
        raise AssertionError("the tool's child lives on")


def test_without_the_tool_or_an_address(tmp_path, monkeypatch, snapshot):
    monkeypatch.delenv("XILINX_XRT", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LibraryNotFound) as caught:
        reset_card(ADDRESS)
    snapshot(str(caught.value), "tool")
    with pytest.raises(DriverError) as caught:
        reset_card("")
    snapshot(str(caught.value), "address")


def test_a_tool_that_cannot_be_run(tool, tmp_path, snapshot):
    tool(DONE)
    (tmp_path / "xrt-smi").write_bytes(b"\x7fELF no program")
    with pytest.raises(DriverError) as caught:
        reset_card(ADDRESS)
    snapshot(str(caught.value))
