"""A machine's monitor tells its scheduler of an execution once a kill of it cannot lose it."""

from __future__ import annotations

import contextlib
import sqlite3
import time

import pytest

pytest.importorskip("ray")

from ecorl.config import TelemetryConfig
from ecorl.ledger import FileReader
from ecorl.records import Action, Provenance, Stage, StageResult
from ecorl.runtime.ray.monitor import MonitorActor, MonitorPlan


@pytest.fixture
def make(tmp_path):
    made = []

    def actor():
        plan = MonitorPlan(
            node="here", node_id="0", sources=(), telemetry=TelemetryConfig(),
            path=tmp_path / "here.sqlite", run_id="toy", attempt=1, raw_samples=100, profiles={},
        )  # fmt: skip
        made.append(MonitorActor(plan))
        assert made[-1].start() is None
        return made[-1]

    yield actor
    for one in made:
        one.finish("", 0)


def generation(iteration):
    now_s = time.monotonic()
    return StageResult(
        iteration, Stage.GENERATION, Action.GPU, ("gpu0",), "h100_sxm", now_s - 1, now_s,
        1.0, Provenance.MEASURED, 1.0, 0.0, 4, 16, 8, None,
    )  # fmt: skip


def note(actor, iteration):
    """An execution that nothing meters: it is final at once."""
    actor.add(iteration, generation(iteration), ())
    actor.settle()


@contextlib.contextmanager
def held(path):
    """Nothing can be written to a file meanwhile."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def in_file(path):
    with contextlib.closing(FileReader(path)) as reader:
        return {row.result.iteration for row in reader.executions()}


def told(actor):
    return {result.iteration for _, result in actor.news("", 0).settled}


def until(condition, limit_s=240.0):
    limit_s += time.monotonic()
    while not condition():
        assert time.monotonic() < limit_s
        time.sleep(0.01)


def test_an_execution_is_told_of_once_the_file_holds_it(make, tmp_path):
    actor = make()
    note(actor, 1)
    until(lambda: told(actor) == {1})
    assert in_file(tmp_path / "here.sqlite") == {1}
    with held(tmp_path / "here.sqlite"):
        note(actor, 2)
        # Longer than between two commits.
        time.sleep(0.5)
        assert told(actor) == {1}
    until(lambda: told(actor) == {1, 2})
    assert in_file(tmp_path / "here.sqlite") == {1, 2}


def test_what_was_taken_is_not_told_again_and_the_rest_is(make):
    actor = make()
    note(actor, 1)
    until(lambda: told(actor) == {1})
    news = actor.news("", 0)
    note(actor, 2)
    until(lambda: actor.news(news.life, news.n_told).settled != ())
    later = actor.news(news.life, news.n_told)
    assert [(serial, result.iteration) for serial, result in later.settled] == [(2, 2)]
    assert later.n_told == 2


def test_the_end_tells_of_all(make):
    actor = make()
    note(actor, 1)
    note(actor, 2)
    assert {result.iteration for _, result in actor.finish("", 0).settled} == {1, 2}


def test_a_new_scheduler_is_told_of_each_execution_once(make):
    actor = make()
    for n in range(1, 20):
        note(actor, n)
    news, recorded = actor.adopt()
    both = [r.iteration for r in recorded] + [r.iteration for _, r in news.settled]
    assert sorted(both) == list(range(1, 20))
    time.sleep(0.3)
    assert actor.news(news.life, news.n_told).settled == ()
