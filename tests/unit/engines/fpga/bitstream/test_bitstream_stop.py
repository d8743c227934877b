"""Builds with stand-ins for Vitis that are told to stop: what runs on, what is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ecorl.engines.fpga.bitstream.build import BuildRequest
from ecorl.engines.fpga.bitstream.vitis import run_step
from ecorl.errors import BuildError
from tests.fakes.vitis import FakeVitis

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)


@pytest.mark.parametrize("sign", STOPS)
def test_a_build_that_is_stopped_takes_its_tools_with_it(fake, make_request, sign):
    fake.behave(sleep_s=600)
    own = make_request("hw")
    process = _build_apart(fake, own)
    process.send_signal(sign)
    _, err = process.communicate(timeout=240)
    assert process.returncode != 0
    if sign in (signal.SIGTERM, signal.SIGHUP):
        log = own.folder / "logs" / "link.log"
        assert re.search(rf"BuildError: v\+\+ .*{sign.name}.* {log}$", err.splitlines()[-1])
    if sign is not signal.SIGKILL:  # then nobody is left to wait for
        assert not _running(str(own.folder))
    _until(lambda: not _running(str(own.folder)))
    assert not own.product.exists()


def test_tools_that_do_not_hear_are_killed(fake, make_request):
    fake.behave(sleep_s=600, deaf=True)
    own = make_request("hw")
    process = _build_apart(fake, own, "from ecorl.engines.fpga.bitstream import vitis as t\n"
                           "t._PATIENCE_S = 0.5\n")  # fmt: skip
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)  # a second one changes nothing
    process.communicate(timeout=240)
    assert process.returncode == 1
    assert not _running(str(own.folder))


def test_a_signal_that_is_ignored_stops_nothing(fake, make_request):
    """Under nohup a build goes on when its terminal is closed."""
    fake.behave(sleep_s=1)
    own = make_request("hw")
    process = _build_apart(
        fake, own, "import signal\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
    )
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=240)
    assert process.returncode == 0
    assert own.product.exists()


def test_handlers_are_as_before_after_a_step(tmp_path, snapshot):
    before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    run_step(["/bin/true"], tmp_path / "log", tmp_path)
    lines = []
    for command in (["sh", "-c", "exit 3"], ["x"], ["sh", "-c", f"kill {os.getpid()}; sleep 600"]):
        with pytest.raises(BuildError) as caught:
            run_step(command, tmp_path / "log", tmp_path)
        lines.append(str(caught.value))
    snapshot("\n".join(lines))
    assert before == [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]


def _build_apart(fake: FakeVitis, own: BuildRequest, before: str = "") -> subprocess.Popen[str]:
    """A build in another process that has come to the link.

    A process whose parent ignores SIGINT (a background job of a script, say) ignores it as well,
    and a build leaves ignored signals ignored. The build here must hear it wherever the tests run.
    """
    code = (
        "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"{before}import pathlib\n"
        "from ecorl.engines.fpga.bitstream.build import *\n"
        f"build_bitstream(BuildRequest(BitstreamTarget.HW, out=pathlib.Path({str(own.out)!r}), "
        f"work=pathlib.Path({str(own.work)!r})), lambda line: None)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    at_work = f")\0{own.folder}/linked"  # what the link leaves its work to
    _until(lambda: _running(at_work) or process.poll() is not None)
    assert "-l" in fake.calls[-1]
    return process


def _until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 240
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _running(word: str) -> list[str]:
    """Processes with a word in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word in path.read_text():
                found.append(path.parent.name)
        except OSError:
            continue  # it ended meanwhile
    return found
