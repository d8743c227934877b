"""Configs of runs that wait: a replayed grid whose hours take a tenth of a second each.

How long a run takes to wait, or to go on, is the machine's affair: with `turning_grid` the grid
turns only once the run has done what it told before.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import replace

import pytest

from ecorl.carbon.feeds.local import ReplayFeed
from ecorl.config import validate_config
from ecorl.control import Command
from ecorl.controllers.waiting import paused_spans
from ecorl.errors import EcorlError
from ecorl.ledger import LedgerReader
from tests.fakes.recordings import two, write

DIRTY, CLEAN = 400.0, 200.0
HOUR_S = 0.1
PART_HOURS = 5
"""The least length of a part of `TWO_WAITS`."""

TWO_WAITS = [g for g in (DIRTY, CLEAN, DIRTY, CLEAN) for _ in range(PART_HOURS)]
"""A run waits before its first step, and once more between two."""

LIMIT_S = 240.0
"""Longest wait of a test for something to happen, s: only a broken one takes so long."""


def plain_config(folder, **tables):
    """A config whose power is modelled, and whose run lies in a folder."""
    power = {"gpu": {"type": "modelled", "interval_s": 0.02}, "stale_after_s": 600.0}
    return validate_config({"run_dir": str(folder), "telemetry": power, **tables})


def waiting_config(folder, values, *, carbon=None, **tables):
    """The same, with a run that waits while a replayed grid is dirty, at any step."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    trace = write(folder.parent, two(values))
    feed = {"type": "replay", "path": str(trace), "speed": 3600.0 / HOUR_S}
    waits = {"threshold_g_per_kwh": 250.0, "pause": "steps", "max_wait_s": 600.0}
    asks = {"feeds": [feed], "recheck_s": 0.1, "stale_after_s": 60.0}
    return plain_config(folder, carbon={**waits, **asks, **(carbon or {})}, **tables)


def commands(folder):
    """The decisions of a run, each with what it goes by, without those that wait for an answer."""
    with contextlib.closing(LedgerReader(folder)) as reader:
        choices = [row.choice for row in reader.choices()]
    return [(c.command, str(c.why)) for c in choices if str(c.why) != "asking"]


def n_pauses(folder):
    """How often a run stood still."""
    return sum(command is Command.PAUSE for command, _ in commands(folder))


def check_no_step_in_a_pause(folder):
    """No step began, or was under way, while the run stood still."""
    with contextlib.closing(LedgerReader(folder)) as reader:
        pauses = paused_spans(reader.choices(), reader.last_times())
        rows = reader.executions()
    assert rows
    for row in rows:
        for start_s, end_s in pauses.get(row.attempt, []):
            assert row.result.t_end_s <= start_s or row.result.t_start_s >= end_s


def until(condition):
    """Wait for something that happens in another thread or process."""
    end_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end_s, "the condition never came true"
        time.sleep(0.01)


def when_it_waits(folder, call):
    """Call something in a thread of its own as soon as a run is known to stand still."""

    def waits():
        with contextlib.suppress(EcorlError):  # there is no record yet
            return n_pauses(folder) > 0

    thread = threading.Thread(target=lambda: (until(waits), call()), daemon=True)
    thread.start()


class TurningGrid:
    """Holds back a replayed grid: it turns once the run has done what it told before.

    The hour before a turn is repeated until the record says that the run stands still in a dirty
    part, or runs in a clean one; the last hour is repeated for ever.
    """

    def __init__(self, folder):
        self._folder = folder
        self._hour = self._n_turns = self._n_told = 0

    def newest(self, feed, now_s):
        """The number of the hour that a feed is to tell; its later hours begin as much later."""
        hours, values = feed._intervals, feed._trace.series.values
        now = hours.number(now_s)
        told = min(now, len(values) - 1)
        ahead = range(self._hour + 1, told + 1)
        turn = next((hour for hour in ahead if values[hour] != values[self._hour]), None)
        if turn is not None and self._is_obeyed(values[self._hour]):
            told, self._n_turns, self._n_told = turn, self._n_turns + 1, 0
        elif turn is not None:
            told = turn - 1
        feed._intervals = replace(hours, first_s=hours.first_s + (now - told) * hours.step_s)
        self._hour = told
        self._n_told += 1
        return told

    def _is_obeyed(self, g_per_kwh):
        wanted = Command.PAUSE if g_per_kwh == DIRTY else Command.RUN
        return [command for command, _ in commands(self._folder)][-1:] == [wanted]

    def until_turned(self, n_turns):
        """Wait until the run has heard of what the grid turned to at some turn."""
        # Who asks a second time has taken over the first answer.
        until(lambda: (self._n_turns, self._n_told) >= (n_turns, 2))


@pytest.fixture
def patient(monkeypatch):
    """A grid that a busy machine asks late is not silent."""
    monkeypatch.setattr("ecorl.carbon.listener.SILENT_FOR", 10_000)


@pytest.fixture
def turning_grid(tmp_path, monkeypatch, patient):
    """The replayed grid of the run in the folder ``run``, held back for it."""
    grid = TurningGrid(tmp_path / "run")
    monkeypatch.setattr(ReplayFeed, "_newest", lambda feed, now_s: grid.newest(feed, now_s))
    return grid
