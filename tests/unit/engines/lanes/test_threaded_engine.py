from __future__ import annotations

import threading

import numpy as np
import pytest

from ecorl.engines.lanes.threaded import AsyncEngine, ThreadedEngine
from ecorl.engines.registry import find_plugin
from ecorl.errors import EngineCrashed, EngineError, EngineTimeout
from ecorl.records import Stage

RAISE, OWN = 9001, 9005


class Gate:
    """The toy engine behind a gate that the test opens."""

    def __init__(self, inner):
        self.__dict__.update(name="gate", device=inner.device, stage=inner.stage)
        self.model, self.row_invariant = inner.model, inner.row_invariant
        self.inner, self.open, self.entered = inner, threading.Event(), threading.Event()

    def score(self, batch):
        self.entered.set()
        assert self.open.wait(240)
        return self.inner.score(batch)

    def close(self):
        self.inner.close()


@pytest.fixture
def toy(toy_path):
    return find_plugin("toy").load()(toy_path, Stage.REWARD, "u55c")


@pytest.fixture
def gate(toy):
    made = Gate(toy)
    yield made
    made.open.set()


def test_answers_in_order(toy, make_rows):
    engine = ThreadedEngine(toy)
    assert isinstance(engine, AsyncEngine)
    futures = [engine.submit(make_rows([n])) for n in range(10)]
    assert [float(f.result(240).values[0]) for f in futures] == pytest.approx(
        [n / 100 for n in range(10)]
    )
    engine.close()
    engine.close()
    assert not engine.available
    assert isinstance(engine.submit(make_rows([1])).exception(1), EngineCrashed)
    with pytest.raises(EngineError):
        toy.score(make_rows([1]))


def test_reference_engines_answer_logprobs(toy_path, make_batch):
    engine = ThreadedEngine(find_plugin("toy").load()(toy_path, Stage.REFERENCE, "u55c"))
    batch = make_batch(3)
    values = engine.submit(batch).result(240).values
    assert [len(row) for row in values] == list(batch.n_completion)
    engine.close()


def test_a_failing_batch_fails_alone(toy, make_rows):
    engine = ThreadedEngine(toy)
    foreign, own = engine.submit(make_rows([RAISE])), engine.submit(make_rows([OWN]))
    with pytest.raises(EngineCrashed, match="ValueError: a raising token"):
        foreign.result(240)
    with pytest.raises(EngineError, match="the toy says no"):
        own.result(240)
    np.testing.assert_allclose(engine.submit(make_rows([7])).result(240).values, [0.07])
    engine.close()


def test_a_stuck_call_makes_it_unavailable_until_it_returns(gate, make_rows):
    engine = ThreadedEngine(gate)
    futures = [engine.submit(make_rows([n])) for n in (1, 2)]
    assert gate.entered.wait(240)
    assert len(engine._jobs._jobs) == 2
    engine.cancel_and_restart()
    assert all(isinstance(f.exception(1), EngineTimeout) for f in futures)
    assert not engine.available
    assert len(engine._jobs._jobs) == 0
    assert isinstance(engine.submit(make_rows([3])).exception(1), EngineCrashed)
    gate.open.set()
    for _ in range(500):
        if engine.available:
            break
        threading.Event().wait(0.01)
    np.testing.assert_allclose(engine.submit(make_rows([4])).result(240).values, [0.04])
    engine.close()


def test_giving_up_an_idle_engine_changes_nothing(toy, make_rows):
    engine = ThreadedEngine(toy)
    engine.cancel_and_restart()
    assert engine.available
    engine.submit(make_rows([4])).result(240)
    engine.close()


def test_close_does_not_wait_for_a_stuck_call(gate, make_rows):
    engine = ThreadedEngine(gate)
    future = engine.submit(make_rows([1]))
    assert gate.entered.wait(240)
    engine.cancel_and_restart()
    engine.close()
    assert isinstance(future.exception(0), EngineTimeout)
