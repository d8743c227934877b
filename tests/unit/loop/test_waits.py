"""A measured loop that waits for clean windows, and the ways in which it is asked to stop."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

import ecorl
from ecorl.control import Command
from ecorl.errors import ConfigError
from tests.fakes.grids import (
    CLEAN,
    CLEAN_PART,
    DIRTY,
    DIRTY_PART,
    DIRTY_START,
    START_S,
    commands,
    plain_config,
    waiting_config,
)

LONG = [DIRTY] * 3000


def test_nothing_of_the_first_step_runs_before_the_first_clean_window(tmp_path, record):
    config = waiting_config(tmp_path / "run", DIRTY_START + [CLEAN] * 600)
    began_s = time.monotonic()
    with ecorl.measure(config, total_steps=1) as run:
        waited_s = time.monotonic() - began_s
        run.step()
    assert waited_s > START_S - 1.0
    assert commands(tmp_path / "run") == [(Command.PAUSE, "dirty"), (Command.RUN, "clean")]
    (result,) = record.results()
    assert result.time_s < 0.5


def test_a_loop_stands_still_between_its_steps(tmp_path, record, descent):
    values = DIRTY_START + CLEAN_PART + DIRTY_PART + [CLEAN] * 600
    config = waiting_config(tmp_path / "run", values)
    with ecorl.measure(config, total_steps=10) as run:

        def done(loss):
            time.sleep(0.25)
            return run.step(loss=loss)

        measured = descent(10, done)
    assert measured.tobytes() == descent(10).tobytes()
    assert [command for command, _ in commands(tmp_path / "run")] == [
        Command.PAUSE, Command.RUN, Command.PAUSE, Command.RUN,
    ]  # fmt: skip
    # A pause belongs to no step.
    assert all(0.24 < result.time_s < 1.5 for result in record.results())


def test_nothing_is_waited_for_behind_the_last_step(tmp_path):
    config = waiting_config(tmp_path / "run", [CLEAN] * 40 + LONG)
    with ecorl.measure(config, total_steps=2) as run:
        run.step()
        time.sleep(4.5)
        began_s = time.monotonic()
        assert run.step()
        assert time.monotonic() - began_s < 20.0


def test_the_budget_ends_a_loop(tmp_path, record):
    accounting = {"budget_g": 1e-9, "over_budget": "stop"}
    config = plain_config(tmp_path / "run", accounting=accounting)
    with ecorl.measure(config, total_steps=1000) as run:
        time.sleep(0.3)
        while run.step():
            time.sleep(0.05)
        assert not run.goes_on
    assert record.states() == ["start", "stop"]
    assert record.ending().endswith("of 1000 steps: the run has emitted what it may")


# ---------------------------------------------------------------- signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_loop_in_good_order(tmp_path, record, number):
    before = signal.getsignal(number)
    config = plain_config(tmp_path / "run")
    with ecorl.measure(config, total_steps=100, handle_signals=True) as run:
        assert run.step()
        os.kill(os.getpid(), number)
        assert not run.step()
        assert signal.getsignal(number) is before  # the next one acts as usual
    assert record.states() == ["start", "stop"]
    assert record.ending() == f"training ended after 2 of 100 steps: {number.name} came"
    assert record.steps() == [1, 2]


def test_a_signal_ends_a_wait(tmp_path, record):
    config = waiting_config(tmp_path / "run", LONG)
    timer = threading.Timer(3.0, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    began_s = time.monotonic()
    with ecorl.measure(config, total_steps=10, handle_signals=True) as run:
        assert time.monotonic() - began_s < 10
        assert not run.goes_on
    assert record.steps() == []
    assert commands(tmp_path / "run")[-1] == (Command.RUN, "stopping")


def test_without_being_asked_signals_are_left_alone(tmp_path, record):
    """Ctrl-C during a wait raises as it does anywhere, and the record says so."""
    config = waiting_config(tmp_path / "run", LONG)
    before = signal.getsignal(signal.SIGTERM)
    timer = threading.Timer(3.0, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt), ecorl.measure(config, total_steps=10):
        pass
    assert signal.getsignal(signal.SIGTERM) is before
    assert record.states() == ["start", "stop"]
    assert record.ending() == "stopped from the keyboard"


def test_signals_need_the_main_thread(tmp_path):
    caught = []

    def enter():
        try:
            ecorl.measure(plain_config(tmp_path / "run"), handle_signals=True).open()
        except ConfigError as error:
            caught.append(str(error))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert caught == ["handle_signals = True: allowed is False outside of the main thread"]
    assert not (tmp_path / "run").exists()
