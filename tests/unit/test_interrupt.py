"""Ctrl-C that a library swallows ends a run all the same. Each case is a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

SWALLOWED = """
import os, signal, sys, time
import ecorl.cli
from ecorl.cli import commands

def prepare():
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)
    except KeyboardInterrupt:
        pass
    {then}
    print("went on")

commands.main = prepare
sys.argv[1:] = ["run", "--config", "demo"]
ecorl.cli.main()
"""
FOREIGN_CODE = """
    from ecorl.engines.validate import EngineBoundary
    with EngineBoundary():
        raise TypeError("no shape")
"""
TRAINING = (
    "from rich.console import Console; from roll_adapters.trl.launch.boundary import "
    "StepStopSignals; StepStopSignals(Console()).listening().__enter__()"
)


def run(then: str) -> subprocess.CompletedProcess[str]:
    code = SWALLOWED.format(then=then)
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False
    )


@pytest.mark.parametrize("then", [FOREIGN_CODE, TRAINING], ids=["engine", "training"])
def test_a_run_that_was_stopped_while_a_library_computed_does_not_go_on(then):
    done = run(then)
    assert done.returncode == 130, done.stderr
    assert "went on" not in done.stdout
    assert "stopped from the keyboard" in done.stderr


def test_without_ctrl_c_nothing_is_raised():
    code = (
        "from ecorl.interrupt import *; from ecorl import interrupt as i;"
        "i.remember_interrupts(); i.raise_swallowed_interrupt(); print('on')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "on\n"


@pytest.mark.parametrize("handler", ["signal.SIG_IGN", "lambda *_: None"])
def test_another_handler_of_the_signal_is_left_alone(handler):
    code = (
        f"import signal; mine = {handler}; signal.signal(signal.SIGINT, mine);"
        "from ecorl.interrupt import remember_interrupts as r; r();"
        "print(signal.getsignal(signal.SIGINT) == mine)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
