"""A measured loop that waits for clean windows, and the ways in which it is asked to stop."""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import partial

import pytest

import ecorl
from ecorl.control import Command
from ecorl.errors import ConfigError
from tests.fakes.grids import (
    CLEAN,
    DIRTY,
    PART_HOURS,
    TWO_WAITS,
    check_no_step_in_a_pause,
    commands,
    plain_config,
    waiting_config,
    when_it_waits,
)

pytestmark = pytest.mark.usefixtures("patient")

LONG = [DIRTY] * 3000


def test_nothing_of_the_first_step_runs_before_the_first_clean_window(
    tmp_path, record, turning_grid
):
    config = waiting_config(tmp_path / "run", [DIRTY] * PART_HOURS + [CLEAN])
    with ecorl.measure(config, total_steps=1) as run:
        run.step()
    assert commands(tmp_path / "run") == [(Command.PAUSE, "dirty"), (Command.RUN, "clean")]
    assert record.steps() == [1]
    check_no_step_in_a_pause(tmp_path / "run")


def test_a_loop_stands_still_between_its_steps(tmp_path, record, descent, turning_grid):
    config = waiting_config(tmp_path / "run", TWO_WAITS)
    with ecorl.measure(config, total_steps=10) as run:

        def done(loss):
            if run.n_steps == 4:
                turning_grid.until_turned(2)
            return run.step(loss=loss)

        measured = descent(10, done)
    assert measured.tobytes() == descent(10).tobytes()
    assert [command for command, _ in commands(tmp_path / "run")] == [
        Command.PAUSE, Command.RUN, Command.PAUSE, Command.RUN,
    ]  # fmt: skip
    assert record.steps() == list(range(1, 11))
    check_no_step_in_a_pause(tmp_path / "run")


def test_nothing_is_waited_for_behind_the_last_step(tmp_path, turning_grid):
    config = waiting_config(tmp_path / "run", [CLEAN] * PART_HOURS + LONG)
    with ecorl.measure(config, total_steps=2) as run:
        run.step()
        turning_grid.until_turned(1)
        assert run.step()
    # A busy machine hears of the grid after its first decision.
    *earlier, last = commands(tmp_path / "run")
    assert last == (Command.RUN, "clean")
    assert earlier in ([], [(Command.RUN, "unknown")])


def test_the_budget_ends_a_loop(tmp_path, record):
    accounting = {"budget_g": 1e-9, "over_budget": "stop"}
    config = plain_config(tmp_path / "run", accounting=accounting)
    with ecorl.measure(config, total_steps=1000) as run:
        time.sleep(0.3)
        while run.step():
            time.sleep(0.05)
        assert not run.goes_on
    assert record.states() == ["start", "stop"]
    assert "of 1000 steps: " in record.ending()


# ---------------------------------------------------------------- signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_loop_in_good_order(tmp_path, record, snapshot, number):
    before = signal.getsignal(number)
    config = plain_config(tmp_path / "run")
    with ecorl.measure(config, total_steps=100, handle_signals=True) as run:
        assert run.step()
        os.kill(os.getpid(), number)
        assert not run.step()
        assert signal.getsignal(number) is before  # the next one acts as usual
    assert record.states() == ["start", "stop"]
    snapshot(record.ending())
    assert record.steps() == [1, 2]


def test_a_signal_ends_a_wait(tmp_path, record):
    config = waiting_config(tmp_path / "run", LONG)
    when_it_waits(tmp_path / "run", partial(os.kill, os.getpid(), signal.SIGTERM))
    with ecorl.measure(config, total_steps=10, handle_signals=True) as run:
        assert not run.goes_on
    assert record.steps() == []
    assert commands(tmp_path / "run")[-1] == (Command.RUN, "stopping")


def test_without_being_asked_signals_are_left_alone(tmp_path, record, snapshot):
    """Ctrl-C during a wait raises as it does anywhere, and the record says so."""
    config = waiting_config(tmp_path / "run", LONG)
    before = signal.getsignal(signal.SIGTERM)
    when_it_waits(tmp_path / "run", partial(os.kill, os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt), ecorl.measure(config, total_steps=10):
        pass
    assert signal.getsignal(signal.SIGTERM) is before
    assert record.states() == ["start", "stop"]
    snapshot(record.ending())


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
    (line,) = caught
    assert line.startswith("handle_signals = True: allowed is False")
    assert not (tmp_path / "run").exists()
