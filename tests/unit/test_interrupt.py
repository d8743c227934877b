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
    {first}
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
BOUNDARY = "from ecorl.engines.validate import EngineBoundary; boundary = EngineBoundary()"
FOREIGN_CODE = """
    with boundary:
        raise TypeError("no shape")
"""
STOP = (
    "from rich.console import Console; from roll_adapters.trl.launch.boundary import "
    "StepStopSignals; stop = StepStopSignals(Console())"
)
TRAINING = "stop.listening().__enter__()"


def run(first: str, then: str) -> subprocess.CompletedProcess[str]:
    code = SWALLOWED.format(first=first, then=then)
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False
    )


CASES = [(BOUNDARY, FOREIGN_CODE), (STOP, TRAINING)]


@pytest.mark.parametrize(("first", "then"), CASES, ids=["engine", "training"])
def test_a_run_that_was_stopped_while_a_library_computed_does_not_go_on(first, then):
    done = run(first, then)
    assert done.returncode == 130, done.stderr
    assert "went on" not in done.stdout


@pytest.mark.parametrize(("first", "then"), CASES, ids=["engine", "training"])
def test_ctrl_c_that_came_before_has_had_its_effect(first, then):
    done = run("pass", f"{first}\n    {then}")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "went on\n"


def test_without_ctrl_c_nothing_is_raised():
    code = (
        "from ecorl.interrupt import *; from ecorl import interrupt as i;"
        "i.remember_interrupts(); i.raise_swallowed_interrupt(i.n_interrupts()); print('on')"
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
