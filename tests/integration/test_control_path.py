"""Every runtime stands still while the grid is dirty, and its record says for how long and why."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from ecorl.control import Command, Why
from ecorl.controllers.waiting import paused_spans
from ecorl.records import FaultKind, Stage
from ecorl.runtime.control.standing import stand
from tests.cluster import CARDS  # noqa: F401  # the fixture of the cluster needs it
from tests.fakes.recordings import two, write
from tests.toy_runs import REWARD_ALONE, ToyRun, make_batch, same, use_toy_plugin

ONCE_OVER_RAY = pytest.mark.parametrize("backend", ["local", "ranked", "ray"])
# Over Ray the same control path answers, in another process.
BACKENDS = pytest.mark.parametrize(
    "backend", ["local", "ranked", pytest.param("ray", marks=pytest.mark.deep)]
)
LIMIT_S = 240.0


@pytest.fixture(autouse=True)
def toy(toy_plugin, monkeypatch):
    use_toy_plugin(toy_plugin, monkeypatch)


@pytest.fixture
def make(backend, request, tmp_path):
    """Make runs over the back-end that replay a trace, an hour in a second; all are closed."""
    made = []
    table = None
    if backend == "ray":
        table = {"type": "ray", "address": request.getfixturevalue("ray_cluster").address}

    def run(values, carbon=None, **config):
        feed = {"type": "replay", "path": str(write(tmp_path, two(values))), "speed": 3600.0}
        carbon = {
            "recheck_s": 1.0, "threshold_g_per_kwh": 250.0, "pause": "steps", "feeds": [feed],
            **(carbon or {}),
        }  # fmt: skip
        one = ToyRun(
            tmp_path / f"run{len(made)}", ranked=backend == "ranked", runtime_table=table,
            placement=REWARD_ALONE, carbon=carbon, **config,
        )  # fmt: skip
        made.append(one)
        return one

    yield run
    for one in made:
        one.close()


def wait_for_pause(run):
    end_s = time.monotonic() + LIMIT_S
    while run.runtime.tick(time.monotonic()).why is not Why.DIRTY:
        assert time.monotonic() < end_s
        time.sleep(0.1)


@ONCE_OVER_RAY
def test_training_stands_still_above_the_threshold_and_goes_on_below(make):
    # Five hours are dirty, five clean, and so on: whenever the run has started.
    run = make(([400.0] * 5 + [200.0] * 5) * 60)
    run.runtime.start()
    assert run.runtime.is_governed
    wait_for_pause(run)
    asked_s = [time.monotonic()]
    tick = run.runtime.tick

    def asks(*args, **told):
        now_s = time.monotonic()
        choice = tick(*args, **told)
        if choice.command is Command.PAUSE:
            asked_s.append(now_s)
        return choice

    choice = stand(SimpleNamespace(tick=asks), steps_left=3)
    goes_on_s = time.monotonic()
    assert (choice.command, choice.why) == (Command.RUN, Why.CLEAN)
    batch = make_batch()
    assert same(run.step(1, batch, Stage.REWARD), batch)
    totals = run.runtime.totals()
    assert totals.g_per_kwh in (200.0, 400.0)
    assert totals.carbon_g is not None
    run.close()
    with run.reader() as reader:
        choices, intensities = reader.choices(), reader.intensities()
        spans = paused_spans(choices, reader.last_times())
    told = [row.choice.why for row in choices]
    assert told[-2:] == [Why.DIRTY, Why.CLEAN]
    start_s, end_s = spans[1][-1]
    assert start_s <= asked_s[0]
    assert asked_s[-1] <= end_s <= goes_on_s
    assert {row.value.g_per_kwh for row in intensities} == {400.0, 200.0}


@BACKENDS
def test_a_training_that_is_asked_to_stop_stands_no_longer(make):
    run = make([400.0] * 900)
    run.runtime.start()
    wait_for_pause(run)
    asked = threading.Event()
    threading.Timer(0.5, asked.set).start()
    choice = stand(run.runtime, is_stopping=asked.is_set)
    assert (choice.command, choice.why) == (Command.RUN, Why.STOPPING)


@BACKENDS
def test_a_dead_feed_keeps_nobody_waiting(make):
    run = make([400.0, 400.0], carbon={"stale_after_s": 0.0})
    run.runtime.start()
    end_s = time.monotonic() + LIMIT_S
    while run.runtime.tick(time.monotonic()).why is not Why.UNKNOWN:
        assert time.monotonic() < end_s
        time.sleep(0.1)
    assert stand(run.runtime).why is Why.UNKNOWN
    run.close()
    # It is known to be too old before its feed is asked again.
    assert FaultKind.INTENSITY_UNKNOWN in {fault.kind for fault in run.faults()}


@BACKENDS
def test_a_run_without_a_threshold_is_never_asked_to_wait(make):
    run = make([900.0] * 900, carbon={"threshold_g_per_kwh": None})
    run.runtime.start()
    assert not run.runtime.is_governed
    assert stand(run.runtime).why is Why.UNGOVERNED
    run.close()
    with run.reader() as reader:
        assert reader.choices() == []
        assert [row.value.g_per_kwh for row in reader.intensities()][:1] == [900.0]
