"""What an engine process does to its parent when it goes wrong: nothing but a failed future."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace

import numpy as np
import pytest
from toy_process import EXIT, HANG, LOSE, OWN, RAISE, alive, running, until

from ecorl.config import FaultInjection
from ecorl.engines.lanes.threaded import AsyncEngine, EngineFacts
from ecorl.engines.protocol import InferenceEngine
from ecorl.errors import EngineCrashed, EngineError, EngineTimeout
from ecorl.records import Stage
from tests.fakes.blocking_engine import HostLimits

pytestmark = pytest.mark.usefixtures("toy_path", "no_process_left")


def test_answers_as_the_engine_itself_does(make_batch):
    batch = make_batch(5)
    with running() as engine:
        assert isinstance(engine, AsyncEngine)
        assert isinstance(engine, InferenceEngine)
        assert (engine.name, engine.device, engine.stage) == ("toy", "u55c", Stage.REWARD)
        assert engine.row_invariant is True
        assert engine.model.vocab_size == 10000
        result = engine.submit(batch).result(240)
        assert result.sample_ids == batch.sample_ids
        np.testing.assert_allclose(result.values, [row.sum() / 100 for row in batch.token_ids])
        assert result.values.dtype == np.float32
        assert result.report.device_time_s == 0.5
        with pytest.raises(EngineError):
            engine.logprobs(batch)
    with running(stage=Stage.REFERENCE) as engine:
        values = engine.logprobs(batch).values
        assert [len(row) for row in values] == list(batch.n_completion)


def test_its_stage_is_the_one_that_was_asked_for():
    """Answers are checked against it, whatever a plug-in says that it computes."""
    with running(stage=Stage.REFERENCE) as engine:
        told = EngineFacts.of(engine)
        engine._adopt(replace(told, stage=Stage.REWARD, name="another"))
        assert (engine.stage, engine.name) == (Stage.REFERENCE, "another")


def test_the_lane_keeps_its_order_and_shows_its_depth(make_rows):
    with running() as engine:
        done = []
        futures = [engine.submit(make_rows([n])) for n in range(20)]
        for n, future in enumerate(futures):
            future.add_done_callback(lambda _, n=n: done.append(n))
        assert [float(f.result(240).values[0]) for f in futures] == pytest.approx(
            [n / 100 for n in range(20)]
        )
        assert until(lambda: len(done) == 20)
        assert done == sorted(done)
        assert len(engine._jobs._jobs) == 0
        hung = [engine.submit(make_rows([HANG])) for _ in range(3)]
        assert len(engine._jobs._jobs) == 3
        engine.cancel_and_restart()
        assert len(engine._jobs._jobs) == 0
        assert all(isinstance(f.exception(240), EngineTimeout) for f in hung)


def test_a_hung_call_is_killed_and_the_next_works(make_rows):
    with running() as engine:
        first = engine.pid
        future = engine.submit(make_rows([HANG]))
        with pytest.raises(TimeoutError):
            future.result(0.1)
        engine.cancel_and_restart()
        assert isinstance(future.exception(0), EngineTimeout)
        assert not engine.available
        assert until(lambda: not alive(first), 240.0)
        assert engine.wait_available(240)
        assert engine.pid != first
        assert float(engine.submit(make_rows([7])).result(240).values[0]) == pytest.approx(0.07)


def test_blocking_calls_have_a_deadline(make_rows):
    with running(HostLimits(start_s=240, call_s=1.0, backoff_s=0.02)) as engine:
        with pytest.raises(EngineTimeout):
            engine.score(make_rows([HANG]))
        assert engine.wait_available(240)
        assert float(engine.submit(make_rows([7])).result(240).values[0]) == pytest.approx(0.07)


def test_giving_up_an_idle_engine_changes_nothing(make_rows):
    with running() as engine:
        pid = engine.pid
        engine.score(make_rows([1]))
        engine.cancel_and_restart()
        assert engine.available
        assert engine.pid == pid


@pytest.mark.parametrize(
    ("token", "survives", "text"),
    [
        (RAISE, True, "ValueError: a raising token"),
        (OWN, True, "the toy says no"),
        (EXIT, False, "exit code 5"),
        (LOSE, False, "exit code 1"),
    ],
)
def test_a_failing_batch_fails_alone(make_rows, token, survives, text):
    with running() as engine:
        pid = engine.pid
        with pytest.raises(EngineError, match=text):
            engine.submit(make_rows([token])).result(240)
        assert engine.wait_available(240)
        assert (engine.pid == pid) is survives
        assert float(engine.score(make_rows([7])).values[0]) == pytest.approx(0.07)


@pytest.mark.parametrize("at_work", [True, False])
def test_killed_from_outside_it_comes_back(make_rows, at_work):
    with running() as engine:
        pid = engine.pid
        futures = [engine.submit(make_rows([HANG])) for _ in range(2)] if at_work else []
        if at_work:
            assert until(futures[0].running)
            time.sleep(0.1)  # from here on the process has the batch, not only the lane
        os.kill(pid, signal.SIGKILL)
        for future in futures:
            with pytest.raises(EngineCrashed, match="signal 9"):
                future.result(240)
        assert until(lambda: engine.pid not in (pid, None))
        assert engine.wait_available(240)
        assert float(engine.score(make_rows([7])).values[0]) == pytest.approx(0.07)


def test_while_it_restarts_a_batch_fails_at_once(make_rows):
    limits = HostLimits(start_s=240, call_s=240, backoff_s=600.0)
    with running(limits) as engine:
        with pytest.raises(EngineCrashed):
            engine.submit(make_rows([EXIT])).result(240)
        assert until(lambda: not engine.available)
        assert isinstance(engine.submit(make_rows([1])).exception(240), EngineCrashed)
        assert not engine.available


def test_restarts_are_bounded_and_a_good_answer_renews_them(make_rows):
    limits = HostLimits(start_s=240, call_s=240, max_restarts=2, backoff_s=0.01)
    with running(limits) as engine:
        for _ in range(2):
            engine.submit(make_rows([EXIT])).exception(240)
            assert engine.wait_available(240)
        engine.score(make_rows([1]))
        for _ in range(2):
            engine.submit(make_rows([EXIT])).exception(240)
            assert engine.wait_available(240)
        engine.submit(make_rows([EXIT])).exception(240)
        assert not engine.wait_available(240)
        assert engine.pid is None
        with pytest.raises(EngineCrashed, match="failed"):
            engine.score(make_rows([1]))


def test_injected_faults_happen_once_though_the_process_restarts(make_rows):
    faults = [
        FaultInjection(kind="exit", calls=(1,)),
        FaultInjection(kind="hang", calls=(2,)),
        FaultInjection(kind="raise", calls=(4,)),
        FaultInjection(kind="nan", calls=(5,)),
    ]
    outcomes = []

    def score(engine, hangs):
        assert engine.wait_available(240)
        future = engine.submit(make_rows([7]))
        if hangs:
            assert until(future.running)
            with pytest.raises(TimeoutError):
                future.result(1.0)
            engine.cancel_and_restart()
        return future.result(240).values[0]

    with running(HostLimits(backoff_s=0.01), faults=faults) as engine:
        for call in range(7):
            try:
                value = score(engine, hangs=call == 2)
                outcomes.append("nan" if np.isnan(value) else "ok")
            except EngineTimeout:
                outcomes.append("hang")
            except EngineCrashed as error:
                outcomes.append("exit" if "code 70" in str(error) else "raise")
    assert outcomes == ["ok", "exit", "hang", "ok", "raise", "nan", "ok"]
