from __future__ import annotations

import io

import pytest
from rich.console import Console

from ecorl.runtime import progress as module
from ecorl.runtime.progress import PLAIN_INTERVAL_S, progress


@pytest.fixture
def now(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    return clock


def plain():
    return Console(file=io.StringIO(), force_terminal=False, width=60)


def test_without_a_terminal_a_line_comes_now_and_then_and_at_the_end(now):
    console = plain()
    with progress("scoring", 100, console) as task:
        for _ in range(100):
            now[0] += 0.3
            task.advance(1, "[b]so far[/b]")
    lines = console.file.getvalue().splitlines()
    assert lines[-1] == "scoring: 100/100  30 s  [b]so far[/b]"
    assert len(lines) <= 1 + 30.0 / PLAIN_INTERVAL_S
    assert "\x1b" not in console.file.getvalue()


def test_quick_work_is_one_line(now):
    console = plain()
    with progress("loading", 3, console) as task:
        task.advance()
        task.advance(2)
    assert console.file.getvalue() == "loading: 3/3  0 s\n"


def test_work_that_ends_early_says_why(now):
    console = plain()
    with progress("warm start", 400, console) as task:
        task.advance(10)
        task.finish("warm enough")
    assert console.file.getvalue() == "warm start: 10/400  0 s  warm enough\n"


def test_a_resumed_run_counts_on(now):
    console = plain()
    with progress("training", 10, console, done=8) as task:
        task.advance(2)
    assert console.file.getvalue().splitlines()[-1].startswith("training: 10/10")


def test_a_terminal_gets_a_bar():
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with progress("training", 10, console, done=4) as task:
        task.advance(6, "reward 0.5")
    assert "10/10" in console.file.getvalue()
    assert "reward 0.5" in console.file.getvalue()


def test_a_bar_that_ends_early_is_full():
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with progress("warm start", 400, console) as task:
        task.advance(10)
        task.finish("warm enough")
    assert "10/10" in console.file.getvalue()
